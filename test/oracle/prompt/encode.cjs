// Encodes with the Hugging Face tokenizers library:
//
//   node encode.cjs tokenizer.json < strings.jsonl > ids.jsonl
'use strict';
const fs = require('fs');
const { Tokenizer } = require('tokenizers');

(async () => {
  const t = Tokenizer.fromString(fs.readFileSync(process.argv[2], 'utf8'));
  const out = [];
  for (const line of fs.readFileSync(0, 'utf8').split('\n')) {
    if (line === '') continue;
    const e = await t.encode(JSON.parse(line), null, { addSpecialTokens: false });
    out.push(JSON.stringify(e.getIds()));
  }
  process.stdout.write(out.join('\n') + '\n');
})();
