import assert from 'node:assert/strict';
import { test } from 'node:test';
import { as, demo, lookup, records } from './world.mjs';

const bounded = { timeout: 30_000 };
const model = demo.model;
const input = 'Which form do I need to report a stolen card?';

test('a response is whole, and nothing of it is stored', bounded, async () => {
  const { data, response } = await as('acme-user').responses.create({ model, input }).withResponse();
  assert.equal(data.status, 'completed');
  assert.equal(data.store, false);
  assert.ok(data.output_text.length > 20);
  const { decision, outcome } = await records(response.headers.get('sallyport-decision-id'));
  assert.equal(decision.request.operation, 'responses');
  assert.equal(outcome.outcome.prompt_tokens, data.usage.input_tokens);
});

test('a streamed response puts together to the same', bounded, async () => {
  const stream = as('acme-user').responses.stream({ model, input: [{ role: 'user', content: [{ type: 'input_text', text: input }] }] });
  let text = '';
  stream.on('response.output_text.delta', (e) => { text += e.delta; });
  const final = await stream.finalResponse();
  assert.equal(final.status, 'completed');
  assert.equal(final.output_text, text);
});

test('a function is called by a response, and its result is answered', bounded, async () => {
  const tools = [{ type: 'function', ...lookup.function, strict: true }];
  const call = await as('acme-agent').responses.create({ model, input, tools });
  const fc = call.output.find((o) => o.type === 'function_call');
  assert.equal(fc.name, 'lookup');
  const answer = await as('acme-agent').responses.create({
    model, tools, input: [{ role: 'user', content: input }, ...call.output, { type: 'function_call_output', call_id: fc.call_id, output: '42' }],
  });
  assert.equal(answer.output[0].type, 'message');
});

test('state that a server would hold is refused', bounded, async () => {
  for (const more of [{ previous_response_id: 'resp_1' }, { store: true }, { background: true }, { conversation: 'conv_1' }]) {
    await assert.rejects(as('acme-user').responses.create({ model, input, ...more }), (e) => e.status === 400 && e.code === 'unsupported_field' && e.param === Object.keys(more)[0]);
  }
});

test('a completion streams', bounded, async () => {
  const stream = await as('acme-user').completions.create({ model, prompt: input, stream: true, stream_options: { include_usage: true } });
  let text = '', usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.text ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.ok(text.length > 20);
  assert.ok(usage.completion_tokens > 0);
});

test('texts are embedded', bounded, async () => {
  const { data, usage } = await as('acme-user').embeddings.create({ model, input: [input, 'another'] });
  assert.equal(data.length, 2);
  assert.ok(data[0].embedding.length > 0 && data[0].embedding.every(Number.isFinite));
  assert.ok(usage.prompt_tokens > 0);
});
