// Prints one line per step of a client's run: `ok   what`, or `FAIL what: why`, and counts the failures.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const STEP_MS_MAX = 30_000;

export let failed = 0;

// A failed step does not end the run: one run should show every fault.
export async function step(what, run) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${STEP_MS_MAX} ms`)), STEP_MS_MAX);
  });
  try {
    await Promise.race([run(), late]);
    console.log(`ok   ${what}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${what}: ${error.name}: ${error.message.replaceAll('\n', ' ').slice(0, 1000)}`);
    console.error(error);
  } finally {
    clearTimeout(timer);
  }
}

export async function refused(code, promise) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.code, code, `expected ${code}, got ${error.code}: ${error.message}`);
    return true;
  });
}

// Runs `script URL create SECONDS`: another process that starts a countdown as a task,
// prints its id, and dies without a goodbye.
export async function createElsewhere(script, url, seconds) {
  const { stdout } = await promisify(execFile)(process.execPath, [script, url, 'create', String(seconds)]);
  assert.ok(stdout.trim(), 'the child printed no task id');
  return stdout.trim();
}

export function rising(progress) {
  return progress.every((value, i) => i === 0 || value > progress[i - 1]);
}

export function messages(errors) {
  return errors.map((error) => error.message);
}
