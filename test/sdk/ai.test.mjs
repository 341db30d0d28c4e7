// The Vercel AI SDK with its provider for whatever speaks OpenAI's protocol.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, stepCountIs, streamText, tool } from 'ai';
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { z } from 'zod';
import { demo, lookup, records } from './world.mjs';

const bounded = { timeout: 30_000 };

// model returns the demo's model as a caller of that name has it.
function model(name, token = demo.tokens[name]) {
  return createOpenAICompatible({ name: 'sallyport', baseURL: `${demo.url}/v1`, apiKey: token, includeUsage: true })(demo.model);
}

const found = { account: 7, balance: '1204.50' };

function tools(called) {
  return {
    lookup: tool({
      description: lookup.function.description,
      inputSchema: z.object({ account: z.number().int() }),
      execute: async (args) => { called.push(args); return found; },
    }),
  };
}

test('ai: text is generated, and counted as the log counts it', bounded, async () => {
  const { text, usage, finishReason, response } = await generateText({ model: model('acme-user'), prompt: 'What is a harbour?', maxRetries: 0 });
  assert.ok(text.length > 0);
  assert.equal(finishReason, 'stop');
  const { outcome } = await records(response.headers['sallyport-decision-id']);
  assert.equal(outcome.outcome.prompt_tokens, usage.inputTokens);
  assert.equal(outcome.outcome.completion_tokens, usage.outputTokens);
});

test('ai: a stream comes in pieces and ends with its usage', bounded, async () => {
  const result = streamText({ model: model('acme-user'), prompt: 'What is a harbour?', maxRetries: 0 });
  let pieces = 0;
  let text = '';
  for await (const piece of result.textStream) {
    pieces++;
    text += piece;
  }
  assert.ok(pieces > 1);
  assert.equal(text, await result.text);
  assert.equal(await result.finishReason, 'stop');
  assert.ok((await result.usage).outputTokens > 0);
});

for (const stream of [false, true]) {
  test(`ai: a loop with a tool runs to its end, ${stream ? 'streaming' : 'not streaming'}`, bounded, async () => {
    const called = [];
    const ask = {
      model: model('acme-agent'), prompt: 'What is the balance of account 7?', tools: tools(called), stopWhen: stepCountIs(3), maxRetries: 0,
    };
    const result = stream ? streamText(ask) : await generateText(ask);
    if (stream) await result.consumeStream({ onError: (err) => assert.fail(err) });
    assert.deepEqual(called, [{ account: 7 }]);
    assert.ok((await result.text).length > 0);
    assert.equal((await result.steps).length, 2);
  });
}

test('ai: a stream that is aborted is an abort, and cancelled in the log', bounded, async () => {
  const ended = [];
  for (let i = 0; i < 8 && !ended.includes('cancelled'); i++) { // one may be over before it is aborted
    const abort = new AbortController();
    let id;
    const result = streamText({
      model: createOpenAICompatible({
        name: 'sallyport', baseURL: `${demo.url}/v1`, apiKey: demo.tokens['acme-user'],
        fetch: async (...args) => {
          const response = await fetch(...args);
          id = response.headers.get('sallyport-decision-id');
          return response;
        },
      })(demo.model),
      prompt: `Say all that there is to say, ${i}.`, maxRetries: 0, abortSignal: abort.signal,
    });
    for await (const part of result.fullStream) {
      if (part.type === 'text-delta') abort.abort();
    }
    ended.push((await records(id)).outcome.status);
  }
  assert.ok(ended.includes('cancelled'), `ended as ${ended}`);
});

test('ai: a refusal is an error with its status and its code', bounded, async () => {
  for (const [who, prompt, status, code] of [['initech-user', 'Hello?', 403, 'policy_denied'], ['', 'Hello?', 401, 'bad_credential']]) {
    await assert.rejects(generateText({ model: model(who, who ? undefined : 'sk-not-one-of-ours'), prompt, maxRetries: 0 }), (err) => {
      assert.ok(APICallError.isInstance(err), `${err}`);
      assert.equal(err.statusCode, status);
      assert.equal(JSON.parse(err.responseBody).error.code, code);
      assert.equal(err.isRetryable, false);
      return true;
    });
  }
});
