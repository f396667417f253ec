// `mcpdo` of @modelcontextprotocol/inspector, unchanged: a command line whose daemon keeps the connections, in both eras.
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { LEGACY, era, main, reply, requestInit, said, step, url } from './steps.mjs';

const PROGRAM = fileURLToPath(
  new URL('node_modules/@modelcontextprotocol/inspector/clients/mcpdo/build/mcp-bin.js', import.meta.url),
);
// A connection does one thing after another, and a call as a task is not over before its task is. So a second connection
// looks after the tasks of the first. A third finds them: only 2025-11-25 has a list of them.
const CONNECTIONS = { caller: era, keeper: era, finder: LEGACY };

async function connect() {
  const folder = await mkdtemp(join(tmpdir(), 'longhaul-mcpdo-'));
  const env = {
    ...process.env,
    HOME: folder,
    MCP_STORAGE_DIR: folder,
    MCP_CATALOG_PATH: join(folder, 'mcp.json'),
    MCP_INSPECTOR_SECRET_STORE: 'memory',
    MCP_INSPECTOR_DAEMON_DIR: join(folder, 'daemon'),
    MCP_INSPECTOR_DAEMON_TOKEN: randomBytes(16).toString('hex'),
  };
  const entry = { type: 'streamable-http', url, ...requestInit };
  const mcpServers = Object.fromEntries(Object.keys(CONNECTIONS).map((name) => [name, entry]));
  await writeFile(env.MCP_CATALOG_PATH, JSON.stringify({ mcpServers }));

  const children = new Set();
  // What it printed, or the error that it printed instead.
  const mcpdo = (...args) =>
    new Promise((resolve, reject) => {
      const done = (failure, stdout, stderr) => {
        children.delete(child);
        if (stdout.trim()) return resolve(JSON.parse(stdout));
        const line = stderr.split('\n').findLast((text) => text.startsWith('{"error"'));
        return reject(line ? new Error(JSON.parse(line).error.message) : (failure ?? new Error(stderr)));
      };
      const child = execFile(process.execPath, [PROGRAM, '--format', 'json', ...args], { env }, done);
      children.add(child);
    });
  const on = (connection, ...args) => mcpdo('--connection', connection, ...args);

  // Answers what is asked on the way.
  async function answered(output) {
    const { elicitationPending: asked } = output;
    if (!asked) return said(output);
    const { action, content } = reply(asked.message);
    const how = action === 'accept' ? JSON.stringify(content) : `--${action}`;
    return answered(await mcpdo('elicitation/respond', asked.elicitationId, how));
  }

  let started;
  // A daemon that is just starting could not be ended.
  process.on('SIGTERM', () => started.catch(() => {}).finally(() => process.exit(143)));
  process.once('exit', () => {
    children.forEach((child) => child.kill('SIGKILL')); // else they start another daemon
    const lock = join(env.MCP_INSPECTOR_DAEMON_DIR, 'mcpdod.lock');
    if (existsSync(lock)) process.kill(Number(readFileSync(lock, 'utf8')), 'SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  });
  for (const [name, its] of Object.entries(CONNECTIONS)) {
    const elicit = name === 'caller' ? 'form' : 'off';
    started = mcpdo('connect', name, '--era', its === LEGACY ? 'legacy' : 'modern', '--elicit', elicit);
    await started;
  }
  const shown = await on('caller', 'connections/show');
  const running = new Map();
  const list = async () => (await on('finder', 'tasks/list')).tasks;

  return {
    features: ['tasks', ...(era === LEGACY ? ['list'] : [])],
    hidesCodes: true,
    slower: 2, // each command is a process of its own
    // As the library it is built on: in 2025-11-25 it does not ask for the result of a failed task.
    throwsToolErrors: era === LEGACY,
    on,
    version: shown.protocolVersion,
    capabilities: shown.capabilities,
    tools: async () => (await on('caller', 'tools/list')).tools,
    call: async (name, args) => answered(await on('caller', 'tools/call', name, JSON.stringify(args))),
    create: async (name, args) => {
      const known = (await list()).map((task) => task.taskId);
      const output = on('caller', 'tools/call', name, JSON.stringify(args), '--task');
      let over = false;
      output.catch(() => {}).then(() => {
        over = true;
      });
      for (;;) {
        const last = over;
        const found = (await list()).find((task) => !known.includes(task.taskId));
        if (found) {
          running.set(found.taskId, output);
          return found.taskId;
        }
        if (last) {
          await output; // it says why there is no task
          throw new Error('it was called without a task');
        }
      }
    },
    status: async (id) => {
      const { task } = await on('keeper', 'tasks/get', id);
      return { state: task.status, message: task.statusMessage, ttlMs: task.retentionMs };
    },
    result: async (id) => {
      const output = running.get(id) ?? on('keeper', 'tasks/result', id);
      running.delete(id);
      return answered(await output);
    },
    cancel: async (id) => {
      await on('keeper', 'tasks/cancel', id);
    },
    list: async () => ({ tasks: await list() }),
    close: () => mcpdo('daemon', 'stop'),
  };
}

step('the daemon holds the connections, in their eras', {}, async ({ on }) => {
  const { connections } = await on('caller', 'connections/list');
  for (const [name, its] of Object.entries(CONNECTIONS)) {
    const wanted = its === LEGACY ? 'legacy' : 'modern';
    const { protocolEra } = connections.find((connection) => connection.name === name);
    if (protocolEra !== wanted) throw new Error(`${name}: ${protocolEra} instead of ${wanted}`);
  }
});

await main(connect);
