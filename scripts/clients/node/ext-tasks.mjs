// @modelcontextprotocol/ext-tasks on @modelcontextprotocol/client 2.x, unchanged, as a requester of both eras.
import assert from 'node:assert/strict';

import { createTaskSessionFromClient, resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';

import { CAPABILITIES, INFO, open } from './client2.mjs';
import { LEGACY, MODERN, RELATED, era, main, messages, refused, said, step } from './steps.mjs';

// In 2025-11-25 an `optional` tool is called plainly unless a task is preferred.
const AS_TASK = { task: { preference: 'prefer', retentionMs: 60_000 } };
const ANY = { '~standard': { version: 1, vendor: 'longhaul', validate: (value) => ({ value }) } };

// The SDK's client takes no task for an answer, so that in 2026-07-28 the library has its host send and receive below it.
function below(transport) {
  const waiting = new Map();
  const { onmessage } = transport;
  transport.onmessage = (message, extra) => {
    const settle = 'method' in message ? undefined : waiting.get(message.id);
    if (settle) settle(message);
    else onmessage(message, extra);
  };
  let last = 0;
  return (request, { signal, context } = {}) => {
    const id = `below-${(last += 1)}`;
    const answer = new Promise((resolve, reject) => {
      waiting.set(id, ({ error, result }) => resolve(error ? { kind: 'error', error } : { kind: 'result', result }));
      signal?.addEventListener('abort', () => reject(signal.reason), { once: true });
      transport
        .send({ jsonrpc: '2.0', id, ...request }, { headers: context?.headers, requestSignal: signal })
        .catch(reject);
    });
    return answer.finally(() => waiting.delete(id));
  };
}

async function connect() {
  const link = await open();
  const { client, transport, errors } = link;
  const session = createTaskSessionFromClient(client, {
    endpointId: 'longhaul',
    onError: (error) => errors.push(error),
    onInputRequest: link.answer,
    rawDispatch: below(transport),
    v2RequestFraming: { protocolVersion: link.version, clientInfo: INFO, clientCapabilities: CAPABILITIES },
  });
  const running = new Map();

  async function outcome(task) {
    const execution = running.get(task);
    running.delete(task);
    return execution ? (await execution.settle()).outcome : session.task(task).result();
  }

  return {
    ...link,
    session,
    features: ['progress', 'timeout', 'tasks', 'session', 'transport', ...(era === LEGACY ? ['list'] : [])],
    // What the library does not do by itself, a plain call of its client does.
    call: async (name, args, options) => {
      if (options) return said(await client.callTool({ name, arguments: args }, options));
      const execution = await session.callTool(name, args);
      return said(resultFromTaskOutcome((await execution.settle()).outcome));
    },
    create: async (name, args) => {
      const execution = await session.callTool(name, args, AS_TASK);
      assert.equal(execution.kind, 'task');
      running.set(execution.handle.taskId, execution);
      return execution.handle.taskId;
    },
    status: async (task) => {
      const { status, statusMessage, retentionMs } = await session.task(task).snapshot();
      return { state: status, message: statusMessage, ttlMs: retentionMs };
    },
    result: async (task) => {
      const ended = await outcome(task);
      if (ended.status !== 'completed' && era === LEGACY) {
        // The library never asks for this result; this asks on the wire.
        return said(await client.request({ method: 'tasks/result', params: { taskId: task } }, ANY));
      }
      const result = resultFromTaskOutcome(ended);
      if (era === LEGACY) assert.deepEqual(result._meta[RELATED], { taskId: task });
      else assert.equal(result._meta?.[RELATED], undefined);
      return said(result);
    },
    cancel: async (task) => {
      await session.cancelTask(task);
      await running.get(task)?.settle(); // until then a second cancel would not be sent
    },
    list: (cursor) => session.listTasks(cursor),
    close: async () => {
      await session.close();
      if (era === LEGACY) await transport.terminateSession();
      await client.close();
    },
  };
}

step('hello: the library sees what the server can', {}, async ({ session }) => {
  assert.deepEqual(session.capabilities, {
    inventory: era === LEGACY ? 'server-list' : 'known-handles',
    execution: true,
    cancellation: true,
    inputResponses: era === MODERN,
    requestedRetention: era === LEGACY,
  });
});

step('task: updates from its creation to its end', {}, async ({ session }) => {
  const execution = await session.callTool('countdown', { seconds: 1.5, steps: 3 }, AS_TASK);
  const seen = [];
  const onEvent = (event) => event.type === 'task' && seen.push(event.task.status);
  const { lastTask } = await execution.settle({ onEvent });
  assert.equal(seen[0], 'working');
  assert.equal(lastTask.status, 'completed');
});

step('call: an optional tool is called plainly', { only: LEGACY }, async ({ session }) => {
  const execution = await session.callTool('echo', { text: 'hello' });
  assert.equal(execution.kind, 'immediate');
  assert.equal(execution.declaration.taskSupport, 'optional');
  await execution.settle();
});

// The status message is all that this library shows of a failed task: it never asks for the result.
step('task: a tool error shows the words of the tool', { only: LEGACY }, async ({ session }) => {
  const execution = await session.callTool('fail', { message: 'out of paper' }, AS_TASK);
  const { outcome } = await execution.settle();
  assert.equal(outcome.status, 'failed');
  assert.match(outcome.error.message, /out of paper/);
});

step('task: a protocol error shows the words of the tool', {}, async ({ session }) => {
  const execution = await session.callTool('fail', { message: 'out of order', code: -31001 }, AS_TASK);
  const { outcome } = await execution.settle();
  assert.equal(outcome.status, 'failed');
  assert.match(outcome.error.message, /out of order/);
});

step('unknown task: its result is -32602 on the wire', { only: LEGACY }, async (link) => {
  const asked = link.client.request({ method: 'tasks/result', params: { taskId: 'no such task' } }, ANY);
  await refused(link, -32602, /not found/, asked);
});

step('hand-off: a task passed on by reference is taken up by another session', {}, async ({ session }) => {
  const execution = await session.callTool('countdown', { seconds: 3 }, AS_TASK);
  let reference;
  await execution.handoff((serialized) => {
    reference = JSON.stringify(serialized);
  });
  const other = await connect();
  const resumed = await other.session.resumeTask(JSON.parse(reference));
  assert.equal(said(resultFromTaskOutcome((await resumed.settle()).outcome)).text, 'counted down 3 s');
  assert.deepEqual(messages(other.errors), []);
  await other.close();
});

await main(connect);
