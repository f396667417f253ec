// @modelcontextprotocol/sdk 1.x, unchanged, as a 2025-11-25 client with its experimental task calls.
//
//   sdk.mjs URL                  the steps
//   sdk.mjs URL create SECONDS   starts a countdown as a task, prints its id, and dies without a goodbye
//
// A bearer token comes from MCP_TOKEN.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js';

import { createElsewhere, failed, messages, refused, rising, step } from './steps.mjs';

const HOUR_MS = 3_600_000;
const RELATED = 'io.modelcontextprotocol/related-task';
const ECHO = { text: 'π, \u2028 and "quotes"', nested: { list: [1, 2.5, null, true] } };

const token = process.env.MCP_TOKEN;
const [url, mode, seconds] = process.argv.slice(2);

async function connect(options = {}) {
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    requestInit: token ? { headers: { Authorization: `Bearer ${token}` } } : {},
    ...options,
  });
  const client = new Client({ name: 'longhaul-clients', version: '1' });
  const errors = [];
  client.onerror = (error) => errors.push(error);
  await client.connect(transport);
  return { client, transport, errors, tasks: client.experimental.tasks };
}

async function create({ tasks }, name, args, options = {}) {
  // The stream polls on; the first message is all that is wanted here.
  const stream = tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, {
    task: { ttl: 60_000 },
    ...options,
  });
  const { value: message } = await stream.next();
  await stream.return();
  if (message.type === 'error') throw message.error;
  assert.equal(message.type, 'taskCreated');
  return message.task;
}

async function settled({ tasks }, taskId) {
  for (;;) {
    const task = await tasks.getTask(taskId);
    if (['completed', 'failed', 'cancelled'].includes(task.status)) return task;
    await sleep(task.pollInterval ?? 500);
  }
}

async function steps() {
  let gets = 0;
  const counting = (input, init) => {
    if (init?.method === 'GET') gets += 1;
    return fetch(input, init);
  };
  const link = await connect({ fetch: counting });
  const { client, transport, tasks } = link;
  let ended;

  await step('initialize: 2025-11-25, a session, tasks declared', async () => {
    assert.equal(transport.protocolVersion, '2025-11-25');
    assert.ok(transport.sessionId, 'no session id');
    const declared = client.getServerCapabilities().tasks;
    assert.ok(declared.list && declared.cancel && declared.requests.tools.call, JSON.stringify(declared));
  });

  await step('tools/list: the demo tools, task support optional', async () => {
    const { tools } = await client.listTools();
    for (const name of ['echo', 'countdown', 'fail']) {
      assert.equal(tools.find((tool) => tool.name === name)?.execution?.taskSupport, 'optional', name);
    }
  });

  await step('inline call: echo returns what it was given', async () => {
    const result = await client.callTool({ name: 'echo', arguments: ECHO });
    assert.deepEqual(JSON.parse(result.content[0].text), ECHO);
    assert.deepEqual(result.structuredContent, ECHO);
  });

  await step('inline call: bad arguments are an isError result that names the field', async () => {
    const result = await client.callTool({ name: 'countdown', arguments: { seconds: 'soon' } });
    assert.equal(result.isError, true);
    assert.match(result.content[0].text, /seconds/);
  });

  await step('task: create, poll, result, progress under the original token', async () => {
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
    assert.ok(first.task.ttl >= HOUR_MS, `a ttl of 60 s was not raised: ${first.task.ttl}`);
    assert.equal(seen.at(-2).task.status, 'completed');
    assert.equal(last.type, 'result', JSON.stringify(last));
    assert.deepEqual(last.result._meta[RELATED], { taskId: first.task.taskId });
    assert.ok(progress.length >= 2 && rising(progress), `progress on the GET stream: ${progress}`);
    ended = first.task.taskId;
  });

  await step('task: the ended one is in the list', async () => {
    let page = { nextCursor: undefined };
    let found;
    for (let pages = 0; pages < 100 && !found; pages += 1) {
      page = await tasks.listTasks(page.nextCursor);
      found = page.tasks.find((task) => task.taskId === ended);
      if (page.nextCursor === undefined) break;
    }
    assert.equal(found?.status, 'completed');
  });

  await step('task: tasks/result of a running one waits for it', async () => {
    const { taskId } = await create(link, 'countdown', { seconds: 1.5 });
    const start = performance.now();
    const result = await tasks.getTaskResult(taskId, CallToolResultSchema);
    assert.ok(!result.isError && performance.now() - start > 1000);
  });

  await step('task: cancel; a second cancel and its result are errors', async () => {
    const { taskId } = await create(link, 'countdown', { seconds: 60 });
    assert.equal((await tasks.cancelTask(taskId)).status, 'cancelled');
    assert.equal((await tasks.getTask(taskId)).status, 'cancelled');
    await refused(-32602, tasks.cancelTask(taskId));
    await refused(-31499, tasks.getTaskResult(taskId, CallToolResultSchema));
  });

  await step('task: cancelled while its result is awaited', async () => {
    const { taskId } = await create(link, 'countdown', { seconds: 60 });
    const waiting = refused(-31499, tasks.getTaskResult(taskId, CallToolResultSchema));
    await sleep(500);
    await tasks.cancelTask(taskId);
    await waiting;
  });

  await step('task: a tool error is failed, and its result is the isError result', async () => {
    const { taskId } = await create(link, 'fail', { message: 'out of paper' });
    const task = await settled(link, taskId);
    assert.equal(task.status, 'failed');
    const result = await tasks.getTaskResult(taskId, CallToolResultSchema);
    assert.equal(result.isError, true);
    assert.match(result.content[0].text, /out of paper/);
    assert.ok(task.statusMessage, 'no status message');
  });

  await step('protocol error: the same inline and as a task', async () => {
    const args = { message: 'out of order', code: -31001 };
    await refused(-31001, client.callTool({ name: 'fail', arguments: args }));
    const { taskId } = await create(link, 'fail', args);
    const task = await settled(link, taskId);
    assert.equal(task.status, 'failed');
    assert.match(task.statusMessage, /out of order/);
    await refused(-31001, tasks.getTaskResult(taskId, CallToolResultSchema));
  });

  await step('unknown task: -32602 from get, result and cancel', async () => {
    for (const unknown of ['aaaaaaaaaaaaaaaaaaaaaaaaaa', 'no such task']) {
      await refused(-32602, tasks.getTask(unknown));
      await refused(-32602, tasks.getTaskResult(unknown, CallToolResultSchema));
      await refused(-32602, tasks.cancelTask(unknown));
    }
  });

  await step('unknown tool: -32602', async () => {
    await refused(-32602, client.callTool({ name: 'no_such_tool', arguments: {} }));
    await refused(-32602, create(link, 'no_such_tool', {}));
  });

  await step('a 6 s inline call: progress on the way, then the result', async () => {
    const start = performance.now();
    const seen = [];
    const result = await client.callTool(
      { name: 'countdown', arguments: { seconds: 6, steps: 6 } },
      CallToolResultSchema,
      { onprogress: ({ progress }) => seen.push({ at: performance.now() - start, progress }) },
    );
    assert.ok(!result.isError && performance.now() - start > 5500);
    assert.ok(seen.length >= 4 && seen[0].at < 3000, JSON.stringify(seen));
    assert.ok(rising(seen.map(({ progress }) => progress)), JSON.stringify(seen));
  });

  await step('resume: a dropped tasks/result stream goes on by GET and Last-Event-ID', async () => {
    const first = await connect();
    const { taskId } = await create(first, 'countdown', { seconds: 3 });
    const cut = new Promise((resolve) => {
      const request = { method: 'tasks/result', params: { taskId } };
      first.client
        .request(request, CallToolResultSchema, { onresumptiontoken: resolve })
        .catch(() => {}); // its connection is cut below
    });
    const eventId = await cut;
    await first.client.close(); // the connection, not the session: no DELETE
    const second = await connect({ sessionId: first.transport.sessionId });
    second.transport.setProtocolVersion('2025-11-25');
    const result = await second.client.request(
      { method: 'tasks/result', params: { taskId } },
      CallToolResultSchema,
      { resumptionToken: eventId },
    );
    assert.ok(!result.isError);
    assert.deepEqual(result._meta[RELATED], { taskId });
    await second.transport.terminateSession();
    await second.client.close();
    assert.deepEqual(messages(second.errors), []);
  });

  await step('given up: a call and a wait that timed out in the client are over, the task goes on', async () => {
    const options = { timeout: 2500, onprogress: () => {} };
    await refused(-32001, client.callTool({ name: 'countdown', arguments: { seconds: 20 } }, CallToolResultSchema, options));
    const { taskId } = await create(link, 'countdown', { seconds: 60 });
    await refused(-32001, tasks.getTaskResult(taskId, CallToolResultSchema, { timeout: 1500 }));
    await sleep(2500); // would be enough for a reconnect
    assert.equal((await tasks.getTask(taskId)).status, 'working');
    await tasks.cancelTask(taskId);
  });

  // 1.32.2 takes a stream that ended with an error response, or with none, for a broken one and reconnects; it does
  // so once a second for ever, unless the answer to that is one that stops it.
  await step('nothing went wrong below: no transport error, no reconnect storm', async () => {
    assert.deepEqual(messages(link.errors), []);
    assert.ok(gets <= 10, `${gets} GET requests`);
  });

  await transport.terminateSession();
  await client.close();

  await step('an ended session is refused with 404', async () => {
    const { sessionId } = await (async () => {
      const gone = await connect();
      const sessionId = gone.transport.sessionId;
      await gone.transport.terminateSession();
      await gone.client.close();
      return { sessionId };
    })();
    const ghost = await connect({ sessionId });
    ghost.transport.setProtocolVersion('2025-11-25');
    await refused(404, ghost.client.listTools());
    await ghost.client.close();
  });

  await step('reconnect: a task created by a dead process is collected by a new session', async () => {
    const taskId = await createElsewhere(fileURLToPath(import.meta.url), url, 6);
    const again = await connect();
    assert.equal((await again.tasks.getTask(taskId)).status, 'working');
    const result = await again.tasks.getTaskResult(taskId, CallToolResultSchema);
    assert.ok(!result.isError);
    assert.equal((await again.tasks.getTask(ended)).status, 'completed', 'ended with its session');
    await again.transport.terminateSession();
    await again.client.close();
  });
}

if (mode === 'create') {
  const { taskId } = await create(await connect(), 'countdown', { seconds: Number(seconds) });
  process.stdout.write(`${taskId}\n`, () => process.exit(0)); // no DELETE, no closed streams
} else {
  await steps();
  process.exit(failed ? 1 : 0);
}
