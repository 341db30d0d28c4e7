import assert from 'node:assert/strict';
import { test } from 'node:test';
import { APIUserAbortError } from 'openai';
import { as, demo, records } from './world.mjs';

const bounded = { timeout: 30_000 };
const messages = [{ role: 'user', content: 'Which form do I need to report a stolen card?' }];

test('a caller lists the models it may use, aliases among them', bounded, async () => {
  const ids = [];
  for await (const m of as('acme-user').models.list()) ids.push(m.id);
  assert.deepEqual(ids.sort(), ['small', 'small-latest']);
});

test('an answer is whole, counted, and tied to its decision', bounded, async () => {
  const { data, response } = await as('acme-user').chat.completions.create({ model: demo.model, messages }).withResponse();
  assert.equal(data.object, 'chat.completion');
  assert.equal(data.choices.length, 1);
  assert.equal(data.choices[0].message.role, 'assistant');
  assert.equal(data.choices[0].finish_reason, 'stop');
  assert.ok(data.choices[0].message.content.length > 20);
  assert.ok(data.usage.prompt_tokens > 0 && data.usage.completion_tokens > 0);
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);

  const id = response.headers.get('sallyport-decision-id');
  assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-/);
  const { decision, outcome } = await records(id);
  assert.equal(decision.status, 'allowed');
  assert.equal(outcome.status, 'ok');
  assert.equal(outcome.outcome.completion_tokens, data.usage.completion_tokens);
});

test('an alias is served as the model that it stands for', bounded, async () => {
  const data = await as('acme-user').chat.completions.create({ model: 'small-latest', messages });
  assert.equal(data.model, 'small');
});

test('a limit on the answer is kept', bounded, async () => {
  const data = await as('acme-user').chat.completions.create({ model: demo.model, messages, max_completion_tokens: 3 });
  assert.equal(data.choices[0].finish_reason, 'length');
  assert.equal(data.usage.completion_tokens, 3);
});

test('how much of a prompt was cached is shown only to a tenant that may see it', bounded, async () => {
  const shown = await as('globex-user').chat.completions.create({ model: demo.model, messages });
  assert.equal(typeof shown.usage.prompt_tokens_details.cached_tokens, 'number');
  const hidden = await as('acme-user').chat.completions.create({ model: demo.model, messages });
  assert.ok(!JSON.stringify(hidden).includes('cached_tokens'));
});

test('a stream says what the whole answer says, and no usage that nobody asked for', bounded, async () => {
  const client = as('acme-user');
  const whole = await client.chat.completions.create({ model: demo.model, messages });
  let text = '';
  let finish = null;
  const stream = await client.chat.completions.create({ model: demo.model, messages, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    assert.ok(!chunk.usage, 'usage in a stream that did not ask for it');
    assert.equal(chunk.choices.length, 1);
    text += chunk.choices[0].delta.content ?? '';
    finish = chunk.choices[0].finish_reason ?? finish;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, 'stop');
});

test('a stream that asks for usage ends with it', bounded, async () => {
  const seen = [];
  const stream = await as('acme-user').chat.completions.create({
    model: demo.model, messages, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) seen.push(chunk);
  const last = seen.at(-1);
  assert.deepEqual(last.choices, []);
  assert.ok(last.usage.prompt_tokens > 0 && last.usage.completion_tokens > 0);
  assert.ok(seen.slice(0, -1).every((chunk) => !chunk.usage));
});

test("the client's own stream helper puts the answer together", bounded, async () => {
  let text = '';
  const stream = as('acme-user').chat.completions.stream({ model: demo.model, messages });
  stream.on('content', (delta) => { text += delta; });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
  assert.equal(final.choices[0].finish_reason, 'stop');
});

// The stand-in may be done before it hears of the abort, so several are tried.
test('a stream that the caller leaves is recorded as cancelled', bounded, async () => {
  const ended = [];
  for (let i = 0; i < 8 && !ended.includes('cancelled'); i++) {
    const { data: stream, response } = await as('acme-user').chat.completions
      .create({ model: demo.model, messages: [{ role: 'user', content: `Summarise case ${i} at length.` }], stream: true }).withResponse();
    for await (const chunk of stream) {
      assert.ok(chunk.choices);
      stream.controller.abort();
    }
    ended.push((await records(response.headers.get('sallyport-decision-id'))).outcome.status);
  }
  assert.ok(ended.includes('cancelled'), `ended as ${ended}`);
});

test('a request that is aborted before it is sent is an abort to the client', bounded, async () => {
  const abort = new AbortController();
  abort.abort();
  await assert.rejects(as('acme-user').chat.completions.create({ model: demo.model, messages }, { signal: abort.signal }), APIUserAbortError);
});

test('a conversation keeps its highest label, and its owner', bounded, async () => {
  const client = as('acme-user');
  const turns = [{ role: 'user', content: 'Patient record: medical record number MRN 48213377. When is the next visit?' }];
  const first = await client.chat.completions.create({ model: demo.model, messages: turns }).withResponse();
  const conversation = first.response.headers.get('sallyport-conversation');
  assert.ok(conversation);
  assert.equal((await records(first.response.headers.get('sallyport-decision-id'))).decision.label.level, 'restricted');

  // The next turn does not repeat the number; what was said still counts.
  const next = { model: demo.model, messages: [{ role: 'user', content: 'And the one after that?' }] };
  const headers = { 'Sallyport-Conversation': conversation };
  const second = await client.chat.completions.create(next, { headers }).withResponse();
  const { decision } = await records(second.response.headers.get('sallyport-decision-id'));
  assert.equal(decision.label.level, 'restricted');
  assert.ok(decision.label.sources.some((s) => s.source === 'session' && s.level === 'restricted'));
  assert.equal(decision.placement.pool, 'restricted');

  const alone = await client.chat.completions.create(next).withResponse();
  assert.equal((await records(alone.response.headers.get('sallyport-decision-id'))).decision.label.level, 'internal');

  await assert.rejects(as('globex-user').chat.completions.create(next, { headers }), { status: 400, code: 'invalid_request' });
});
