// The steps that the JavaScript clients take. Each step says what it needs, and each client says what it can.
//
//   CLIENT.mjs ERA URL                  the steps, ERA being 2025-11-25 or 2026-07-28
//   CLIENT.mjs ERA URL create SECONDS   starts a countdown as a task, prints its id, and dies without a goodbye
//
// A step prints `ok   what`, or `FAIL what: why`. A bearer token comes from MCP_TOKEN.
//
// A client has `version`, `capabilities`, `tools`, `call`, `close`, and what its `features` stand for:
//   progress   `call` takes `onprogress`
//   timeout    `call` takes `timeout`
//   tasks      `create`, `status`, `result`, `cancel`
//   list       `list`
//   session    `sessionId`
//   transport  `errors` of the transport, and `gets`, how many GET requests there were
// It may say that it `hidesCodes` of errors, that it `throwsToolErrors` of tasks instead of giving their results, and that
// it is so many times `slower` than the others.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

const STEP_MS_MAX = 30_000;
const LIST_PAGES_MAX = 100;
const HOUR_MS = 3_600_000;
const EXTENSION = 'io.modelcontextprotocol/tasks';
const TOOLS = ['echo', 'countdown', 'fail', 'ask'];
const ECHO = { text: 'π, \u2028 and "quotes"', nested: { list: [1, 2.5, null, true] } };
const UNKNOWN = ['aaaaaaaaaaaaaaaaaaaaaaaaaa', 'no such task'];
// A stream that ended without a response counts as broken for some: they reconnect, once a second for ever, unless the
// answer to that is one that stops it.
const GETS_MAX = 10;

export const [LEGACY, MODERN] = ['2025-11-25', '2026-07-28'];
export const RELATED = 'io.modelcontextprotocol/related-task';
export const [era, url] = process.argv.slice(2);
const [mode, seconds] = process.argv.slice(4);

export const requestInit = process.env.MCP_TOKEN ? { headers: { Authorization: `Bearer ${process.env.MCP_TOKEN}` } } : {};

// What the person says who is asked.
export function reply(question) {
  return question.includes('decline')
    ? { action: 'decline' }
    : { action: 'accept', content: { answer: `blue, to '${question}'` } };
}

// What a tool answered.
export function said(result) {
  return { text: result.content[0].text, structured: result.structuredContent, isError: result.isError === true };
}

export function messages(errors) {
  return errors.map((error) => error.message);
}

// What a cancelled task has instead of a result: an error, and in 2026-07-28 nothing but the words of the library.
const CANCELLED = era === LEGACY ? -31499 : undefined;

// `client` gets this JSON-RPC error; where it has no code, or hides it, these `words`.
export async function refused(client, code, words, promise) {
  await assert.rejects(promise, (error) => {
    if (client.hidesCodes || code === undefined) assert.match(error.message, words);
    else assert.equal(error.code, code, `expected ${code}, got ${error.code}: ${error.message}`);
    return true;
  });
}

// A tool's own error.
async function complains(client, words, promise) {
  if (client.throwsToolErrors) {
    await assert.rejects(promise, words);
  } else {
    const answer = await promise;
    assert.equal(answer.isError, true, JSON.stringify(answer));
    assert.match(answer.text, words);
  }
}

async function settled(client, task) {
  for (;;) {
    const status = await client.status(task);
    if (['completed', 'failed', 'cancelled'].includes(status.state)) return status;
    await sleep(200);
  }
}

function rising(progress) {
  return progress.every((value, i) => i === 0 || value > progress[i - 1]);
}

const STEPS = [];

// A step of the clients with these features, in one era or in both; `last` in its session, or `after` it.
export function step(what, { needs = [], only, when = 'first' }, run) {
  STEPS.push({ what, needs, only, when, run });
}

step('hello: 2025-11-25, tasks declared', { only: LEGACY }, async (client) => {
  assert.equal(client.version, LEGACY);
  assert.deepEqual(client.capabilities.tasks, { list: {}, cancel: {}, requests: { tools: { call: {} } } });
});

step('hello: 2026-07-28, the tasks extension declared', { only: MODERN }, async (client) => {
  assert.equal(client.version, MODERN);
  assert.deepEqual(client.capabilities.extensions[EXTENSION], {});
  assert.equal(client.capabilities.tasks, undefined);
});

step('hello: a session', { needs: ['session'], only: LEGACY }, async (client) => {
  assert.ok(client.sessionId, 'no session id');
});

step('hello: no session', { needs: ['session'], only: MODERN }, async (client) => {
  assert.equal(client.sessionId, undefined);
});

step('tools/list: the demo tools; task support is told in 2025-11-25 alone', {}, async (client) => {
  const tools = await client.tools();
  for (const name of TOOLS) {
    const tool = tools.find((one) => one.name === name);
    assert.ok(tool?.description, name);
    assert.equal(tool.execution?.taskSupport, era === LEGACY ? 'optional' : undefined, name);
  }
});

step('call: echo returns what it was given', {}, async (client) => {
  const answer = await client.call('echo', ECHO);
  assert.deepEqual(JSON.parse(answer.text), ECHO);
  assert.deepEqual(answer.structured, ECHO);
});

step('call: bad arguments are an isError result that names the field', {}, async (client) => {
  const answer = await client.call('countdown', { seconds: 'soon' });
  assert.equal(answer.isError, true);
  assert.match(answer.text, /seconds/);
});

step("call: a tool's own error is an isError result", {}, async (client) => {
  const answer = await client.call('fail', { message: 'out of paper' });
  assert.equal(answer.isError, true);
  assert.match(answer.text, /out of paper/);
});

step('call: a protocol error', {}, async (client) => {
  await refused(client, -31001, /out of order/, client.call('fail', { message: 'out of order', code: -31001 }));
});

step('call: an unknown tool is -32602', {}, async (client) => {
  await refused(client, -32602, /no_such_tool/, client.call('no_such_tool', {}));
});

step('call: 6 s, progress on the way, then the result', { needs: ['progress'] }, async (client) => {
  const start = performance.now();
  const seen = [];
  const onprogress = ({ progress }) => seen.push({ at: performance.now() - start, progress });
  const answer = await client.call('countdown', { seconds: 6, steps: 6 }, { onprogress });
  assert.ok(!answer.isError && performance.now() - start > 5500);
  assert.ok(seen.length >= 4 && seen[0].at < 3000, JSON.stringify(seen));
  assert.ok(rising(seen.map(({ progress }) => progress)), JSON.stringify(seen));
});

step("call: a question is answered by the client's handler", {}, async (client) => {
  const answer = await client.call('ask', { question: 'Which colour?' });
  assert.equal(answer.text, "You said: blue, to 'Which colour?'");
});

step("call: a declined question is the tool's to handle", {}, async (client) => {
  const answer = await client.call('ask', { question: 'Please decline' });
  assert.equal(answer.isError, true);
  assert.match(answer.text, /declined/);
});

step('task: create, poll, result', { needs: ['tasks'] }, async (client, run) => {
  const start = performance.now();
  const s = 2.5 * (client.slower ?? 1);
  const task = await client.create('countdown', { seconds: s, steps: 5 });
  const status = await client.status(task);
  assert.equal(status.state, 'working');
  // A client that asks asks for 60 s.
  assert.ok(status.ttlMs >= HOUR_MS, `too short a life: ${status.ttlMs}`);
  for (let times = 0; times < 2; times += 1) {
    const answer = await client.result(task); // may be collected again
    assert.equal(answer.text, `counted down ${s} s`);
  }
  assert.ok(performance.now() - start > s * 800, 'it did not wait');
  assert.equal((await client.status(task)).state, 'completed');
  run.ended = task;
});

step('task: the ended one is in the list', { needs: ['list'], only: LEGACY }, async (client, run) => {
  let page = { nextCursor: undefined };
  let found;
  for (let pages = 0; pages < LIST_PAGES_MAX && !found; pages += 1) {
    page = await client.list(page.nextCursor);
    found = page.tasks.find((task) => task.taskId === run.ended);
    if (page.nextCursor === undefined) break;
  }
  assert.equal(found?.status, 'completed');
});

step('task: says how far it is', { needs: ['tasks'] }, async (client) => {
  const task = await client.create('countdown', { seconds: 60, steps: 60 });
  let status;
  do status = await client.status(task);
  while (!status.message);
  assert.match(status.message, /left/);
  await client.cancel(task);
});

step('task: cancel; its result is an error', { needs: ['tasks'] }, async (client) => {
  const task = await client.create('countdown', { seconds: 60 });
  await client.cancel(task);
  assert.equal((await client.status(task)).state, 'cancelled');
  await refused(client, CANCELLED, /cancelled/, client.result(task));
});

step('task: a second cancel is an error', { needs: ['tasks'], only: LEGACY }, async (client) => {
  const task = await client.create('countdown', { seconds: 60 });
  await client.cancel(task);
  await refused(client, -32602, /cancelled/, client.cancel(task));
});

step('task: a second cancel changes nothing', { needs: ['tasks'], only: MODERN }, async (client) => {
  const task = await client.create('countdown', { seconds: 60 });
  for (let times = 0; times < 2; times += 1) {
    await client.cancel(task);
    assert.equal((await client.status(task)).state, 'cancelled');
  }
});

step('task: cancelled while its result is awaited', { needs: ['tasks'] }, async (client) => {
  const task = await client.create('countdown', { seconds: 60 });
  let done = false;
  const waiting = refused(client, CANCELLED, /cancelled/, client.result(task)).finally(() => {
    done = true;
  });
  await sleep(500);
  assert.ok(!done, 'it did not wait');
  await client.cancel(task);
  await waiting;
});

step("task: a tool's own error ends it, and is its result", { needs: ['tasks'] }, async (client) => {
  const task = await client.create('fail', { message: 'out of paper' });
  // The two eras call this end by different names.
  assert.equal((await settled(client, task)).state, era === LEGACY ? 'failed' : 'completed');
  await complains(client, /out of paper/, client.result(task));
});

step('task: a protocol error is failed, says why, and is its result', { needs: ['tasks'] }, async (client) => {
  const task = await client.create('fail', { message: 'out of order', code: -31001 });
  const status = await settled(client, task);
  assert.equal(status.state, 'failed');
  assert.match(status.message, /out of order/);
  await refused(client, -31001, /out of order/, client.result(task));
});

step('task: an unknown one is -32602 to status, result and cancel', { needs: ['tasks'] }, async (client) => {
  for (const unknown of UNKNOWN) {
    for (const verb of ['status', 'result', 'cancel']) {
      await refused(client, -32602, /not found/, client[verb](unknown));
    }
  }
});

step('task: of an unknown tool is -32602', { needs: ['tasks'] }, async (client) => {
  await refused(client, -32602, /no_such_tool/, client.create('no_such_tool', {}));
});

step("task: its question is answered by the client's handler", { needs: ['tasks'] }, async (client) => {
  const task = await client.create('ask', { question: 'Which task?' });
  assert.equal((await client.result(task)).text, "You said: blue, to 'Which task?'");
  assert.equal((await client.status(task)).state, 'completed');
});

step('task: its question is declined', { needs: ['tasks'] }, async (client) => {
  const task = await client.create('ask', { question: 'Please decline the task' });
  await complains(client, /declined/, client.result(task));
});

step('given up: a call that timed out in the client is over', { needs: ['timeout'] }, async (client) => {
  const given = client.call('countdown', { seconds: 20 }, { timeout: 2500, onprogress: () => {} });
  await assert.rejects(given, /timed out/);
  await sleep(2500); // would be enough for a reconnect
});

step('nothing went wrong below: no transport error, no reconnect storm', { needs: ['transport'], when: 'last' }, async (client) => {
  assert.deepEqual(messages(client.errors), []);
  assert.ok(client.gets() <= GETS_MAX, `${client.gets()} GET requests`);
});

step('reconnect: a task created by a dead process is collected by a new session', { needs: ['tasks'], when: 'after' }, async (client, run) => {
  const s = 6 * (client.slower ?? 1);
  const args = [...process.argv.slice(1), 'create', String(s)];
  const task = (await promisify(execFile)(process.execPath, args)).stdout.trim();
  assert.ok(task, 'the child printed no task id');
  assert.equal((await client.status(task)).state, 'working', 'it should still run');
  assert.equal((await client.result(task)).text, `counted down ${s} s`);
  assert.equal((await client.status(run.ended)).state, 'completed', 'ended with its session');
});

async function take({ what, run: body }, client, run) {
  let timer;
  const late = new Promise((_, reject) => {
    const ms = STEP_MS_MAX * (client.slower ?? 1);
    timer = setTimeout(() => reject(new Error(`not done after ${ms} ms`)), ms);
  });
  try {
    await Promise.race([body(client, run), late]);
    console.log(`ok   ${what}`);
  } catch (error) {
    // A failed step does not end the run: one run should show every fault.
    run.failed += 1;
    console.log(`FAIL ${what}: ${error.name}: ${error.message.replaceAll('\n', ' ').slice(0, 1000)}`);
    console.error(error);
  } finally {
    clearTimeout(timer);
  }
}

// `connect` gives a connected client.
export async function main(connect) {
  if (mode === 'create') {
    const client = await connect();
    const task = await client.create('countdown', { seconds: Number(seconds) });
    process.stdout.write(`${task}\n`, () => process.exit(0)); // no DELETE, no closed streams
    return;
  }
  const run = { failed: 0 };
  for (const phase of [['first', 'last'], ['after']]) {
    const client = await connect();
    for (const when of phase) {
      for (const one of STEPS.filter((candidate) => candidate.when === when)) {
        const fits = (one.only ?? era) === era && one.needs.every((need) => client.features.includes(need));
        if (fits) await take(one, client, run);
      }
    }
    await client.close();
  }
  process.exit(run.failed ? 1 : 0);
}
