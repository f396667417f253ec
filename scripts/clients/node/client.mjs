// @modelcontextprotocol/client 2.x, unchanged: a client of both eras that knows nothing of tasks.
import { LEGACY, era, main, said } from './steps.mjs';
import { open } from './client2.mjs';

await main(async () => {
  const link = await open();
  const { client, transport } = link;
  client.setRequestHandler('elicitation/create', link.answer);
  return {
    ...link,
    features: ['progress', 'timeout', 'session', 'transport'],
    call: async (name, args, options) => said(await client.callTool({ name, arguments: args }, options)),
    close: async () => {
      if (era === LEGACY) await transport.terminateSession();
      await client.close();
    },
  };
});
