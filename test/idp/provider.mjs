// An OpenID Connect provider: node provider.mjs PORT KEYS, where KEYS is a file
// with a JSON Web Key Set of private keys, of which the first signs. It forgets
// everything when it ends.
import { readFileSync } from 'node:fs';
import Provider from 'oidc-provider';

const [port, keys] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;

const service = (id, more) => ({
  client_id: id,
  client_secret: `secret-of-${id}`,
  grant_types: ['client_credentials'],
  response_types: [],
  redirect_uris: [],
  ...more,
});

const provider = new Provider(issuer, {
  jwks: JSON.parse(readFileSync(keys, 'utf8')),
  clients: [
    service('batch'),
    service('prover', { dpop_bound_access_tokens: true }),
    {
      client_id: 'portal',
      application_type: 'native',
      token_endpoint_auth_method: 'none',
      grant_types: ['authorization_code'],
      response_types: ['code'],
      redirect_uris: ['http://127.0.0.1/callback'],
    },
  ],
  clientDefaults: { id_token_signed_response_alg: 'ES256' },
  cookies: { keys: ['for tests'] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: () => ({ tenant: 'acme' }),
  features: {
    clientCredentials: { enabled: true },
    dPoP: { enabled: true },
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => 'urn:sallyport',
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: 'chat',
        audience: 'sallyport',
        accessTokenFormat: 'jwt',
        accessTokenTTL: 600,
        jwt: { sign: { alg: 'ES256' } },
      }),
    },
  },
});

provider.listen(Number(port), '127.0.0.1', () => console.log(`provider serves ${issuer}`));
