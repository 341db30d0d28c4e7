// What the tests know of the running demo: clients for its callers, and its log.
import OpenAI from 'openai';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

if (!process.env.SALLYPORT_READY) throw new Error('no demo is running: start these tests with `npm test`');
export const demo = JSON.parse(readFileSync(process.env.SALLYPORT_READY, 'utf8'));

// as returns the client that the caller of that name would make.
export function as(name, token = demo.tokens[name]) {
  assert.ok(token, `no token of ${name}`);
  return new OpenAI({ baseURL: `${demo.url}/v1`, apiKey: token, maxRetries: 0, timeout: 20_000 });
}

// records returns what the log says of one decision, once it has an outcome or
// is a refusal.
export async function records(id) {
  for (const until = Date.now() + 5000; Date.now() < until;) {
    const shown = spawnSync(process.env.SALLYPORT, ['audit', 'show', '--json', demo.log_dir, id], { encoding: 'utf8' });
    if (shown.status === 0) {
      const all = shown.stdout.split('\n').filter(Boolean).map((line) => JSON.parse(line));
      const decision = all.find((r) => r.kind === 'decision');
      const outcome = all.find((r) => r.kind === 'outcome');
      if (outcome || decision?.status === 'denied') return { decision, outcome };
    }
    await new Promise((done) => setTimeout(done, 20));
  }
  assert.fail(`the log never told how ${id} ended`);
}

// The tool of the agent tests. The stand-in engine fills in required parameters.
export const lookup = {
  type: 'function',
  function: {
    name: 'lookup',
    description: 'Look up the balance of an account',
    parameters: { type: 'object', properties: { account: { type: 'integer' } }, required: ['account'], additionalProperties: false },
  },
};
