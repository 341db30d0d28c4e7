import Anthropic from '@anthropic-ai/sdk';
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { demo, lookup, records } from './world.mjs';

const bounded = { timeout: 30_000 };

// client is the one that the caller of that name would make of Anthropic's SDK.
const client = (name, token = demo.tokens[name]) => new Anthropic({ baseURL: demo.url, apiKey: token, maxRetries: 0, timeout: 20_000 });

const ask = { model: demo.model, max_tokens: 100, messages: [{ role: 'user', content: 'Which form do I need to report a stolen card?' }] };
const tools = [{ name: lookup.function.name, description: lookup.function.description, input_schema: lookup.function.parameters }];

test('a message is whole, counted, and tied to its decision', bounded, async () => {
  const { data, response } = await client('acme-user').messages.create(ask).withResponse();
  assert.equal(data.type, 'message');
  assert.equal(data.role, 'assistant');
  assert.equal(data.stop_reason, 'end_turn');
  assert.ok(data.content[0].text.length > 20);
  const { decision, outcome } = await records(response.headers.get('sallyport-decision-id'));
  assert.equal(decision.request.operation, 'messages');
  assert.equal(outcome.outcome.prompt_tokens, data.usage.input_tokens);
  assert.equal(outcome.outcome.completion_tokens, data.usage.output_tokens);
});

test('a streamed message has every event, and says the same', bounded, async () => {
  const system = [{ type: 'text', text: 'Answer briefly.', cache_control: { type: 'ephemeral' } }];
  const whole = await client('acme-user').messages.create({ ...ask, system });
  const stream = client('acme-user').messages.stream({ ...ask, system });
  const kinds = new Set();
  stream.on('streamEvent', (e) => kinds.add(e.type));
  const message = await stream.finalMessage();
  assert.deepEqual([...kinds], ['message_start', 'content_block_start', 'content_block_delta', 'content_block_stop', 'message_delta', 'message_stop']);
  assert.equal(message.content[0].text, whole.content[0].text);
  assert.deepEqual(message.usage, whole.usage);
});

test('a limit on the message is kept', bounded, async () => {
  const message = await client('acme-user').messages.create({ ...ask, max_tokens: 3 });
  assert.equal(message.stop_reason, 'max_tokens');
  assert.equal(message.usage.output_tokens, 3);
});

test('a tool is called in a stream, and its result is answered', bounded, async () => {
  const call = await client('acme-agent').messages.stream({ ...ask, tools }).finalMessage();
  assert.equal(call.stop_reason, 'tool_use');
  const use = call.content.find((b) => b.type === 'tool_use');
  assert.equal(use.name, 'lookup');
  assert.equal(typeof use.input.account, 'number');
  const result = { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: [{ type: 'text', text: '42' }] }] };
  const answer = await client('acme-agent').messages.create({ ...ask, tools, messages: [...ask.messages, { role: 'assistant', content: call.content }, result] });
  assert.equal(answer.stop_reason, 'end_turn');
});

test('a client that aborts ends the request', bounded, async () => {
  const stream = client('acme-user').messages.stream(ask);
  let id;
  stream.withResponse().then(({ response }) => { id = response.headers.get('sallyport-decision-id'); }, () => {});
  await assert.rejects(async () => {
    for await (const e of stream) if (e.type === 'content_block_delta') stream.abort();
    await stream.finalMessage();
  }, Anthropic.APIUserAbortError);
  const { outcome } = await records(id);
  assert.ok(['cancelled', 'ok'].includes(outcome.status)); // ok: the engine had said everything
});

test('errors are of the kind that the client knows', bounded, async () => {
  for (const [claim, name, token, more, kind] of [
    ['a tenant without rights', 'initech-user', undefined, {}, Anthropic.PermissionDeniedError],
    ['a forged token', 'acme-user', 'forged', {}, Anthropic.AuthenticationError],
    ['a field that has no counterpart', 'acme-user', undefined, { container: 'c' }, Anthropic.BadRequestError],
  ]) {
    await assert.rejects(client(name, token).messages.create({ ...ask, ...more }), (e) => e instanceof kind && e.error.type === 'error', claim);
  }
});
