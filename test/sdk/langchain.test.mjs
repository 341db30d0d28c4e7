// LangChain's chat model and agent over OpenAI's protocol.
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { ChatOpenAI } from '@langchain/openai';
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createAgent, tool } from 'langchain';
import { z } from 'zod';
import { demo, lookup, records } from './world.mjs';

const bounded = { timeout: 30_000 };

// model returns the demo's model as a caller of that name has it.
function model(name, token = demo.tokens[name], configuration = {}) {
  return new ChatOpenAI({
    model: demo.model, apiKey: token, maxRetries: 0, timeout: 20_000, streamUsage: true,
    configuration: { baseURL: `${demo.url}/v1`, ...configuration },
  });
}

function balance(called) {
  return tool(async (args) => { called.push(args); return JSON.stringify({ ...args, balance: '1204.50' }); }, {
    name: lookup.function.name, description: lookup.function.description, schema: z.object({ account: z.number().int() }),
  });
}

test('langchain: a model answers, and counts', bounded, async () => {
  const answer = await model('acme-user').invoke('What is a harbour?');
  assert.ok(answer.text.length > 0);
  assert.equal(answer.response_metadata.finish_reason, 'stop');
  assert.ok(answer.usage_metadata.output_tokens > 0);
});

test('langchain: a stream comes in pieces and ends with its usage', bounded, async () => {
  let all;
  let pieces = 0;
  for await (const piece of await model('acme-user').stream('What is a harbour?')) {
    pieces++;
    all = all ? all.concat(piece) : piece;
  }
  assert.ok(pieces > 2);
  assert.ok(all.text.length > 0);
  assert.ok(all.usage_metadata.output_tokens > 0);
});

test('langchain: a streamed tool call is whole, and its result is taken', bounded, async () => {
  const able = model('acme-agent').bindTools([balance([])]);
  const messages = [new HumanMessage('What is the balance of account 7?')];
  let call;
  for await (const piece of await able.stream(messages)) call = call ? call.concat(piece) : piece;
  assert.deepEqual(call.tool_calls.map((c) => [c.name, c.args]), [['lookup', { account: 7 }]]);
  messages.push(call, new ToolMessage({ tool_call_id: call.tool_calls[0].id, content: '{"balance":"1204.50"}' }));
  const answer = await able.invoke(messages);
  assert.ok(answer.text.length > 0);
  assert.equal(answer.tool_calls.length, 0);
});

test('langchain: an agent runs its loop to its end', bounded, async () => {
  const called = [];
  const agent = createAgent({ model: model('acme-agent'), tools: [balance(called)] });
  const { messages } = await agent.invoke({ messages: [new HumanMessage('What is the balance of account 7?')] });
  assert.deepEqual(called, [{ account: 7 }]);
  assert.ok(messages.at(-1).text.length > 0);
});

test('langchain: a stream that is aborted is cancelled in the log', bounded, async () => {
  const ended = [];
  for (let i = 0; i < 8 && !ended.includes('cancelled'); i++) { // one may be over before it is aborted
    const abort = new AbortController();
    let id;
    const client = model('acme-user', undefined, {
      fetch: async (...args) => {
        const response = await fetch(...args);
        id = response.headers.get('sallyport-decision-id');
        return response;
      },
    });
    try {
      for await (const piece of await client.stream(`Say all that there is to say, ${i}.`, { signal: abort.signal })) {
        if (piece.text) abort.abort();
      }
    } catch (err) {
      assert.ok(abort.signal.aborted, `${err}`);
    }
    ended.push((await records(id)).outcome.status);
  }
  assert.ok(ended.includes('cancelled'), `ended as ${ended}`);
});

test('langchain: a refusal is an error with its status and its code', bounded, async () => {
  for (const [who, status, code] of [['initech-user', 403, 'policy_denied'], ['', 401, 'bad_credential']]) {
    await assert.rejects(model(who, who ? undefined : 'sk-not-one-of-ours').invoke('Hello?'), (err) => {
      assert.equal(err.status, status);
      assert.equal(err.code, code);
      return true;
    });
  }
});
