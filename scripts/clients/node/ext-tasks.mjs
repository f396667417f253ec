// @modelcontextprotocol/ext-tasks on @modelcontextprotocol/client 2.x, unchanged, as a 2025-11-25 requester.
//
//   ext-tasks.mjs URL                  the steps
//   ext-tasks.mjs URL create SECONDS   starts a countdown as a task, prints its id, and dies without a goodbye
//
// A bearer token comes from MCP_TOKEN.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient, resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';

import { createElsewhere, failed, messages, refused, rising, step } from './steps.mjs';

const HOUR_MS = 3_600_000;
const RELATED = 'io.modelcontextprotocol/related-task';
const ECHO = { text: 'π, \u2028 and "quotes"', nested: { list: [1, 2.5, null, true] } };
const ENDPOINT = 'longhaul';
// An `optional` tool is called plainly unless a task is preferred.
const AS_TASK = { task: { preference: 'prefer', retentionMs: 60_000 } };
const ANY = { '~standard': { version: 1, vendor: 'longhaul', validate: (value) => ({ value }) } };

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
  const session = createTaskSessionFromClient(client, {
    endpointId: ENDPOINT,
    onError: (error) => errors.push(error),
  });
  const close = async () => {
    await session.close();
    await transport.terminateSession();
    await client.close();
  };
  return { client, transport, session, errors, close };
}

// The library never asks for the result of a task that failed or was cancelled; these ask on the wire.
const wire = (client, method, taskId) => client.request({ method, params: { taskId } }, ANY);

async function steps() {
  let gets = 0;
  const counting = (input, init) => {
    if (init?.method === 'GET') gets += 1;
    return fetch(input, init);
  };
  const { client, transport, session, errors, close } = await connect({ fetch: counting });
  let ended;

  await step('initialize: 2025-11-25, a session, tasks declared', async () => {
    assert.equal(client.getNegotiatedProtocolVersion(), '2025-11-25');
    assert.ok(transport.sessionId, 'no session id');
    assert.deepEqual(session.capabilities, {
      inventory: 'server-list',
      execution: true,
      cancellation: true,
      inputResponses: false,
      requestedRetention: true,
    });
  });

  await step('inline call: echo returns what it was given, from an optional tool', async () => {
    const execution = await session.callTool('echo', ECHO);
    assert.equal(execution.kind, 'immediate');
    assert.equal(execution.declaration.taskSupport, 'optional');
    const result = resultFromTaskOutcome((await execution.settle()).outcome);
    assert.deepEqual(JSON.parse(result.content[0].text), ECHO);
    assert.deepEqual(result.structuredContent, ECHO);
  });

  await step('task: create, poll and be notified, result', async () => {
    const execution = await session.callTool('countdown', { seconds: 1.5, steps: 3 }, AS_TASK);
    assert.equal(execution.kind, 'task');
    const seen = [];
    const { outcome, lastTask } = await execution.settle({
      onEvent: (event) => event.type === 'task' && seen.push(event.task),
    });
    assert.equal(seen[0].status, 'working');
    assert.ok(seen[0].retentionMs >= HOUR_MS, `a ttl of 60 s was not raised: ${seen[0].retentionMs}`);
    assert.equal(lastTask.status, 'completed');
    const result = resultFromTaskOutcome(outcome);
    assert.deepEqual(result._meta[RELATED], { taskId: execution.handle.taskId });
    ended = execution.handle.taskId;
  });

  await step('task: the ended one is in the list', async () => {
    let page = { nextCursor: undefined };
    let found;
    for (let pages = 0; pages < 100 && !found; pages += 1) {
      page = await session.listTasks(page.nextCursor);
      found = page.tasks.find((task) => task.taskId === ended);
      if (page.nextCursor === undefined) break;
    }
    assert.equal(found?.status, 'completed');
  });

  await step('task: cancel; a second cancel and its result are errors', async () => {
    const execution = await session.callTool('countdown', { seconds: 60 }, AS_TASK);
    const { taskId } = execution.handle;
    await execution.cancel();
    assert.equal((await execution.result()).status, 'cancelled');
    assert.equal((await session.task(taskId).snapshot()).status, 'cancelled');
    await refused(-32602, session.cancelTask(taskId));
    await refused(-31499, wire(client, 'tasks/result', taskId));
  });

  let shown;
  await step('task: a tool error is failed, and its result is the isError result', async () => {
    const execution = await session.callTool('fail', { message: 'out of paper' }, AS_TASK);
    const { outcome } = await execution.settle();
    assert.equal(outcome.status, 'failed');
    const result = await wire(client, 'tasks/result', execution.handle.taskId);
    assert.equal(result.isError, true);
    assert.match(result.content[0].text, /out of paper/);
    shown = outcome.error.message;
  });

  // The status message is all that this library shows of a failed task: it never asks for the result.
  await step('task: a tool error shows the words of the tool', async () => {
    assert.match(shown, /out of paper/);
  });

  await step('protocol error: the same inline and as a task', async () => {
    const args = { message: 'out of order', code: -31001 };
    await refused(-31001, session.callTool('fail', args));
    const execution = await session.callTool('fail', args, AS_TASK);
    const { outcome } = await execution.settle();
    assert.equal(outcome.status, 'failed');
    assert.match(outcome.error.message, /out of order/);
    await refused(-31001, wire(client, 'tasks/result', execution.handle.taskId));
  });

  await step('unknown task: -32602 from get, result and cancel', async () => {
    for (const unknown of ['aaaaaaaaaaaaaaaaaaaaaaaaaa', 'no such task']) {
      await refused(-32602, session.task(unknown).snapshot());
      await refused(-32602, wire(client, 'tasks/result', unknown));
      await refused(-32602, session.cancelTask(unknown));
    }
  });

  await step('a 6 s inline call: progress on the way, then the result', async () => {
    const start = performance.now();
    const seen = [];
    const result = await client.callTool(
      { name: 'countdown', arguments: { seconds: 6, steps: 6 } },
      { onprogress: ({ progress }) => seen.push({ at: performance.now() - start, progress }) },
    );
    assert.ok(!result.isError && performance.now() - start > 5500);
    assert.ok(seen.length >= 4 && seen[0].at < 3000, JSON.stringify(seen));
    assert.ok(rising(seen.map(({ progress }) => progress)), JSON.stringify(seen));
  });

  await step('hand-off: a task passed on by reference is taken up by another session', async () => {
    const execution = await session.callTool('countdown', { seconds: 3 }, AS_TASK);
    let reference;
    await execution.handoff((serialized) => {
      reference = JSON.stringify(serialized);
    });
    const other = await connect();
    const resumed = await other.session.resumeTask(JSON.parse(reference));
    const result = resultFromTaskOutcome((await resumed.settle()).outcome);
    assert.ok(!result.isError);
    assert.deepEqual(messages(other.errors), []);
    await other.close();
  });

  await step('given up: a call that timed out in the client is over', async () => {
    const options = { timeout: 2500, onprogress: () => {} };
    await assert.rejects(client.callTool({ name: 'countdown', arguments: { seconds: 20 } }, options), /timed out/);
    await sleep(2500); // would be enough for a reconnect
  });

  // A stream that ended without a response counts as broken: the client reconnects, once a second for ever, unless the
  // answer to that is one that stops it.
  await step('nothing went wrong below: no transport error, no reconnect storm', async () => {
    assert.deepEqual(messages(errors), []);
    assert.ok(gets <= 10, `${gets} GET requests`);
  });

  await close();

  await step('reconnect: a task created by a dead process is collected by a new session', async () => {
    const taskId = await createElsewhere(fileURLToPath(import.meta.url), url, 6);
    const again = await connect();
    const controller = again.session.task(taskId);
    assert.equal((await controller.snapshot()).status, 'working');
    assert.ok(!resultFromTaskOutcome(await controller.result()).isError);
    assert.equal((await again.session.task(ended).snapshot()).status, 'completed', 'ended with its session');
    await again.close();
  });
}

if (mode === 'create') {
  const { session } = await connect();
  const { handle } = await session.callTool('countdown', { seconds: Number(seconds) }, AS_TASK);
  process.stdout.write(`${handle.taskId}\n`, () => process.exit(0)); // no DELETE, no closed streams
} else {
  await steps();
  process.exit(failed ? 1 : 0);
}
