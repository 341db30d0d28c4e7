import assert from 'node:assert/strict';
import { test } from 'node:test';
import { as, demo, lookup, records } from './world.mjs';

const bounded = { timeout: 30_000 };
const ask = () => [{ role: 'user', content: 'What is the balance of account 7?' }];
const result = { account: 7, balance: '1204.50' };

test('a tool is called, its result given, and the answer comes', bounded, async () => {
  const client = as('acme-agent');
  const messages = ask();
  const { data: first, response } = await client.chat.completions.create({ model: demo.model, messages, tools: [lookup] }).withResponse();
  assert.equal(first.choices[0].finish_reason, 'tool_calls');
  const [call] = first.choices[0].message.tool_calls;
  assert.equal(call.function.name, 'lookup');
  assert.deepEqual(JSON.parse(call.function.arguments), { account: 7 });
  const { decision } = await records(response.headers.get('sallyport-decision-id'));
  assert.equal(decision.class.name, 'agent_tool_call');
  assert.equal(decision.placement.pool, 'agents');

  messages.push(first.choices[0].message, { role: 'tool', tool_call_id: call.id, content: JSON.stringify(result) });
  const second = await client.chat.completions.create({ model: demo.model, messages, tools: [lookup] });
  assert.equal(second.choices[0].finish_reason, 'stop');
  assert.ok(second.choices[0].message.content.length > 0);
});

test('a streamed call arrives in pieces that make the same call, and the loop ends in text', bounded, async () => {
  const client = as('acme-agent');
  const messages = ask();
  const call = { id: '', name: '', arguments: '' };
  let pieces = 0;
  let finish = null;
  for await (const chunk of await client.chat.completions.create({ model: demo.model, messages, tools: [lookup], stream: true })) {
    const [choice] = chunk.choices;
    for (const part of choice.delta.tool_calls ?? []) {
      assert.equal(part.index, 0);
      call.id += part.id ?? '';
      call.name += part.function?.name ?? '';
      call.arguments += part.function?.arguments ?? '';
      pieces++;
    }
    finish = choice.finish_reason ?? finish;
  }
  assert.equal(finish, 'tool_calls');
  assert.equal(call.name, 'lookup');
  assert.ok(pieces > 1);
  assert.deepEqual(JSON.parse(call.arguments), { account: 7 });

  messages.push(
    { role: 'assistant', tool_calls: [{ id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments } }] },
    { role: 'tool', tool_call_id: call.id, content: JSON.stringify(result) },
  );
  let text = '';
  for await (const chunk of await client.chat.completions.create({ model: demo.model, messages, tools: [lookup], stream: true })) {
    text += chunk.choices[0].delta.content ?? '';
  }
  assert.ok(text.length > 0);
});

// runTools drives the whole loop in the client.
for (const stream of [false, true]) {
  test(`the client's own tool loop runs to its end, ${stream ? 'streaming' : 'not streaming'}`, bounded, async () => {
    const called = [];
    const runner = as('acme-agent').chat.completions.runTools({
      model: demo.model,
      messages: ask(),
      stream,
      tools: [{
        type: 'function',
        function: { ...lookup.function, parse: JSON.parse, function: (args) => { called.push(args); return JSON.stringify(result); } },
      }],
    });
    const text = await runner.finalContent();
    assert.deepEqual(called, [{ account: 7 }]);
    assert.ok(text.length > 0);
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].finish_reason, 'stop');
  });
}

test('a tool can be forced, and can be forbidden', bounded, async () => {
  const client = as('acme-agent');
  const other = { type: 'function', function: { name: 'transfer', parameters: { type: 'object', properties: {} } } };
  const forced = await client.chat.completions.create({
    model: demo.model, messages: ask(), tools: [lookup, other], tool_choice: { type: 'function', function: { name: 'transfer' } },
  });
  assert.equal(forced.choices[0].message.tool_calls[0].function.name, 'transfer');
  const none = await client.chat.completions.create({ model: demo.model, messages: ask(), tools: [lookup], tool_choice: 'none' });
  assert.equal(none.choices[0].message.tool_calls, undefined);
});
