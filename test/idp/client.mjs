// An OAuth client that knows only where the gateway is: node client.mjs GATEWAY
// ID SECRET. It finds the provider by the gateway's metadata, gets a token bound
// to a key of its own, and asks twice. It prints what it saw as JSON.
import * as oauth from 'oauth4webapi';

const [gateway, id, secret] = process.argv.slice(2);
const insecure = { [oauth.allowInsecureRequests]: true }; // the provider is on loopback
const seen = { nonces: 0, statuses: [] };

const resource = await oauth.processResourceDiscoveryResponse(
  new URL(gateway),
  await oauth.resourceDiscoveryRequest(new URL(gateway)),
);
seen.resource = resource;

const issuer = new URL(resource.authorization_servers[0]);
const server = await oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, insecure));

const client = { client_id: id };
const DPoP = oauth.DPoP(client, await oauth.generateKeyPair('ES256'));
const granted = await oauth.processClientCredentialsResponse(
  server,
  client,
  await oauth.clientCredentialsGrantRequest(server, client, oauth.ClientSecretBasic(secret), { scope: 'chat' }, { DPoP, ...insecure }),
);
seen.token_type = granted.token_type;

const url = new URL('/v1/chat/completions', gateway);
const headers = new Headers({ 'content-type': 'application/json' });
const body = JSON.stringify({ model: 'small', max_tokens: 4, messages: [{ role: 'user', content: 'Hello' }] });

async function ask() {
  try {
    return await oauth.protectedResourceRequest(granted.access_token, 'POST', url, headers, body, { DPoP });
  } catch (err) {
    if (!oauth.isDPoPNonceError(err)) throw err;
    seen.nonces++;
    return oauth.protectedResourceRequest(granted.access_token, 'POST', url, headers, body, { DPoP });
  }
}

for (let i = 0; i < 2; i++) {
  const response = await ask();
  seen.statuses.push(response.status);
  await response.text();
}

const stolen = await fetch(url, { method: 'POST', body, headers: { 'content-type': 'application/json', authorization: `Bearer ${granted.access_token}` } });
seen.stolen = stolen.status;
seen.challenge = stolen.headers.get('www-authenticate');
console.log(JSON.stringify(seen));
