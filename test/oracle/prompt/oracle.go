// Package oracle compares routing/prompt with the programs whose answers it
// must give: the Hugging Face tokenizers library, run by node (install it with
// npm install in this folder) and Python's Jinja2. Tests skip what is missing.
package oracle
