// A connection of @modelcontextprotocol/client 2.x, for those that build on it.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

import { MODERN, era, reply, requestInit, url } from './steps.mjs';

export const INFO = { name: 'longhaul-clients', version: '1' };
export const CAPABILITIES = { elicitation: { form: {} } };

export async function open() {
  let gets = 0;
  const counting = (input, init) => {
    if (init?.method === 'GET') gets += 1;
    return fetch(input, init);
  };
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit, fetch: counting });
  const client = new Client(INFO, {
    capabilities: CAPABILITIES,
    // `auto` asks which era the server speaks, and takes the newer.
    versionNegotiation: { mode: era === MODERN ? 'auto' : 'legacy' },
  });
  const errors = [];
  client.onerror = (error) => errors.push(error);
  await client.connect(transport);
  return {
    client,
    transport,
    errors,
    gets: () => gets,
    version: client.getNegotiatedProtocolVersion(),
    sessionId: transport.sessionId,
    capabilities: client.getServerCapabilities(),
    tools: async () => (await client.listTools()).tools,
    answer: ({ params }) => reply(params.message),
  };
}
