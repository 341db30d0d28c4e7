import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AuthenticationError, BadRequestError, NotFoundError, PermissionDeniedError } from 'openai';
import { as, demo, records } from './world.mjs';

const bounded = { timeout: 30_000 };
const messages = [{ role: 'user', content: 'Hello?' }];

// refused returns the error that a call rejects with, if it is of that class.
async function refused(call, Class) {
  try {
    await call;
  } catch (err) {
    assert.ok(err instanceof Class, `${err?.constructor?.name}: ${err?.message}`);
    return err;
  }
  return assert.fail('it was not refused');
}

test('a token that does not verify is an authentication error, and no decision', bounded, async () => {
  const good = demo.tokens['acme-user'];
  const at = good.length - 20;
  const forged = good.slice(0, at) + (good[at] === 'A' ? 'B' : 'A') + good.slice(at + 1);
  const err = await refused(as('', forged).chat.completions.create({ model: demo.model, messages }), AuthenticationError);
  assert.equal(err.status, 401);
  assert.equal(err.code, 'bad_credential');
  assert.equal(err.type, 'authentication_error');
  assert.equal(err.headers.get('sallyport-decision-id'), null);
});

test('text that is no token is an authentication error', bounded, async () => {
  const err = await refused(as('', 'sk-not-one-of-ours').models.list(), AuthenticationError);
  assert.equal(err.code, 'bad_credential');
});

test('a tenant without the right is denied, and told nothing of the reason', bounded, async () => {
  const err = await refused(as('initech-user').chat.completions.create({ model: demo.model, messages }), PermissionDeniedError);
  assert.equal(err.status, 403);
  assert.equal(err.code, 'policy_denied');
  assert.equal(err.type, 'permission_error');
  const { decision } = await records(err.headers.get('sallyport-decision-id'));
  assert.equal(decision.status, 'denied');
  assert.ok(decision.reason);
  assert.ok(!JSON.stringify([err.message, err.error]).includes(decision.reason));
});

test('a field that is not forwarded is named', bounded, async () => {
  const err = await refused(as('acme-user').chat.completions.create({ model: demo.model, messages, kv_transfer_params: {} }), BadRequestError);
  assert.equal(err.status, 400);
  assert.equal(err.code, 'unsupported_field');
  assert.equal(err.param, 'kv_transfer_params');
  assert.ok(err.headers.get('sallyport-decision-id'));
});

test('a value of the wrong kind is named', bounded, async () => {
  const err = await refused(as('acme-user').chat.completions.create({ model: demo.model, messages: 'Hello?' }), BadRequestError);
  assert.equal(err.code, 'invalid_request');
  assert.equal(err.param, 'messages');
});

test('a model that is not there is denied like one that may not be used', bounded, async () => {
  const err = await refused(as('acme-user').chat.completions.create({ model: 'gpt-4o', messages }), PermissionDeniedError);
  assert.equal(err.code, 'policy_denied');
  assert.ok(!err.message.includes('gpt-4o'));
});

test('a tool in the hands of a person who may only chat is denied', bounded, async () => {
  const tools = [{ type: 'function', function: { name: 'lookup' } }];
  const err = await refused(as('globex-user').chat.completions.create({ model: demo.model, messages, tools, stream: true }), PermissionDeniedError);
  assert.equal(err.code, 'policy_denied');
});

test('a route that is not ours is not found', bounded, async () => {
  const err = await refused(as('acme-user').files.list(), NotFoundError);
  assert.equal(err.code, 'not_found');
});
