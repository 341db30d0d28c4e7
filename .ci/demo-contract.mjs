// Reads what `sallyport demo --once --json` printed and holds it against the
// contract of docs/demo.md: one object a line, these steps, these values.
import { readFileSync } from 'node:fs';
import assert from 'node:assert/strict';

const lines = readFileSync(0, 'utf8').trimEnd().split('\n').map((l) => JSON.parse(l));
const summary = lines.pop();
const steps = Object.fromEntries(lines.map((s) => [s.step, s]));
const fields = ['step', 'identity', 'tenant', 'class', 'label', 'allow', 'status', 'pool', 'replica', 'basis',
  'prompt_tokens', 'predicted_cached_tokens', 'cached_tokens', 'reason', 'decision_id'];

assert.deepEqual(lines.map((s) => s.step), ['cold-chat', 'warm-chat', 'other-tenant-same-prompt', 'agent-tool-call',
  'rag-phi', 'denied', 'bad-token', 'evicted', 'impostor', 'failover', 'tampered-log']);
for (const s of lines) assert.deepEqual(Object.keys(s), fields, s.step);

const { 'cold-chat': cold, 'warm-chat': warm, 'other-tenant-same-prompt': other, 'agent-tool-call': agent,
  'rag-phi': rag, denied, 'bad-token': bad, evicted, impostor, failover, 'tampered-log': tampered } = steps;

assert.equal(cold.basis, 'load');
assert.equal(warm.basis, 'kv_events');
assert.equal(warm.replica, cold.replica);
assert.ok(warm.cached_tokens > 0);
assert.equal(warm.predicted_cached_tokens, warm.cached_tokens);
assert.equal(other.tenant, 'globex');
assert.deepEqual([other.predicted_cached_tokens, other.cached_tokens], [0, 0]);
assert.deepEqual([agent.class, agent.pool], ['agent_tool_call', 'agents']);
assert.deepEqual([rag.class, rag.label, rag.pool], ['rag', 'restricted', 'restricted']);
assert.deepEqual([denied.status, denied.allow, denied.tenant], [403, false, 'initech']);
assert.deepEqual([bad.status, bad.decision_id], [401, null]);
assert.deepEqual([evicted.predicted_cached_tokens, evicted.cached_tokens], [0, 0]);
assert.equal(impostor.reason, 'svid_mismatch');
assert.match(impostor.replica, /\/pool\/general\/r[01]$/);
assert.equal(failover.reason, 'holder_down');
assert.match(failover.replica, /\/pool\/general\/r[01]$/);
assert.match(tampered.reason, /^record \d+: /);
assert.deepEqual([summary.summary, summary.steps, summary.log_verified], [true, 11, true]);
assert.ok(summary.records > 20 && summary.log_dir && summary.log_key);
console.log(`demo contract holds: ${lines.length} steps, ${summary.records} records`);
