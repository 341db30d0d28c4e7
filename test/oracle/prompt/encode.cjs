// Encodes with the Hugging Face tokenizers library:
//
//   node encode.cjs tokenizer.json < strings.jsonl > ids.jsonl
//
// The last line is the CPU time that encoding took, in microseconds.
'use strict';
const fs = require('fs');
const { Tokenizer } = require('tokenizers');

(async () => {
  const t = Tokenizer.fromString(fs.readFileSync(process.argv[2], 'utf8'));
  const out = [];
  let spent = 0;
  for (const line of fs.readFileSync(0, 'utf8').split('\n')) {
    if (line === '') continue;
    const text = JSON.parse(line);
    const before = process.cpuUsage();
    const e = await t.encode(text, null, { addSpecialTokens: false });
    const used = process.cpuUsage(before);
    spent += used.user + used.system;
    out.push(JSON.stringify(e.getIds()));
  }
  out.push(JSON.stringify(spent));
  process.stdout.write(out.join('\n') + '\n');
})();
