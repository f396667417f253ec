// @modelcontextprotocol/sdk 1.x, unchanged, as a 2025-11-25 client with its experimental task calls.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

import { LEGACY, RELATED, main, messages, refused, reply, requestInit, said, step, url } from './steps.mjs';

async function open(options = {}) {
  let gets = 0;
  const counting = (input, init) => {
    if (init?.method === 'GET') gets += 1;
    return fetch(input, init);
  };
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit, fetch: counting, ...options });
  const client = new Client({ name: 'longhaul-clients', version: '1' }, { capabilities: { elicitation: { form: {} } } });
  client.setRequestHandler(ElicitRequestSchema, ({ params }) => reply(params.message));
  const errors = [];
  client.onerror = (error) => errors.push(error);
  await client.connect(transport);
  return { client, transport, errors, gets: () => gets, tasks: client.experimental.tasks };
}

async function connect() {
  const link = await open();
  const { client, transport, tasks } = link;
  return {
    ...link,
    features: ['progress', 'timeout', 'tasks', 'list', 'session', 'transport'],
    version: transport.protocolVersion,
    sessionId: transport.sessionId,
    capabilities: client.getServerCapabilities(),
    tools: async () => (await client.listTools()).tools,
    call: async (name, args, options) => said(await client.callTool({ name, arguments: args }, CallToolResultSchema, options)),
    create: async (name, args) => {
      // The stream polls on; the first message is all that is wanted here.
      const stream = tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, { task: { ttl: 60_000 } });
      const { value: message } = await stream.next();
      await stream.return();
      if (message.type === 'error') throw message.error;
      assert.equal(message.type, 'taskCreated');
      return message.task.taskId;
    },
    status: async (task) => {
      const { status, statusMessage, ttl } = await tasks.getTask(task);
      return { state: status, message: statusMessage, ttlMs: ttl };
    },
    result: async (task) => {
      const result = await tasks.getTaskResult(task, CallToolResultSchema);
      assert.deepEqual(result._meta[RELATED], { taskId: task });
      return said(result);
    },
    cancel: async (task) => assert.equal((await tasks.cancelTask(task)).status, 'cancelled'),
    list: (cursor) => tasks.listTasks(cursor),
    close: async () => {
      await transport.terminateSession();
      await client.close();
    },
  };
}

step('task: its own stream of updates, progress under the original token', {}, async ({ tasks }) => {
  const seen = [];
  const progress = [];
  const stream = tasks.callToolStream(
    { name: 'countdown', arguments: { seconds: 2.5, steps: 5 } },
    CallToolResultSchema,
    { task: { ttl: 60_000 }, onprogress: (update) => progress.push(update.progress) },
  );
  for await (const message of stream) seen.push(message);
  const [first, last] = [seen[0], seen.at(-1)];
  assert.equal(first.type, 'taskCreated');
  assert.equal(first.task.status, 'working');
  assert.equal(seen.at(-2).task.status, 'completed');
  assert.equal(last.type, 'result', JSON.stringify(last));
  assert.deepEqual(last.result._meta[RELATED], { taskId: first.task.taskId });
  const rising = progress.every((value, i) => i === 0 || value > progress[i - 1]);
  assert.ok(progress.length >= 2 && rising, `progress on the GET stream: ${progress}`);
});

step('resume: a dropped tasks/result stream goes on by GET and Last-Event-ID', {}, async ({ create }) => {
  const taskId = await create('countdown', { seconds: 3 });
  const request = { method: 'tasks/result', params: { taskId } };
  const first = await open();
  const eventId = await new Promise((resolve) => {
    first.client.request(request, CallToolResultSchema, { onresumptiontoken: resolve }).catch(() => {}); // cut below
  });
  await first.client.close(); // the connection, not the session: no DELETE
  const second = await open({ sessionId: first.transport.sessionId });
  second.transport.setProtocolVersion(LEGACY);
  const result = await second.client.request(request, CallToolResultSchema, { resumptionToken: eventId });
  assert.ok(!result.isError);
  assert.deepEqual(result._meta[RELATED], { taskId });
  await second.transport.terminateSession();
  await second.client.close();
  assert.deepEqual(messages(second.errors), []);
});

step('given up: a wait that timed out in the client is over, the task goes on', {}, async (client) => {
  const task = await client.create('countdown', { seconds: 60 });
  await refused(client, -32001, /timed out/, client.tasks.getTaskResult(task, CallToolResultSchema, { timeout: 1500 }));
  await sleep(2500); // would be enough for a reconnect
  assert.equal((await client.status(task)).state, 'working');
  await client.cancel(task);
});

step('an ended session is refused with 404', { when: 'after' }, async () => {
  const gone = await open();
  const { sessionId } = gone.transport;
  await gone.transport.terminateSession();
  await gone.client.close();
  const ghost = await open({ sessionId });
  ghost.transport.setProtocolVersion(LEGACY);
  await refused(ghost, 404, /404/, ghost.client.listTools());
  await ghost.client.close();
});

await main(connect);
