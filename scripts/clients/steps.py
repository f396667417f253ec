"""The steps that the Python clients take. Each step says what it needs, and each client says what it can.

    CLIENT.py ERA URL                  the steps, ERA being 2025-11-25 or 2026-07-28
    CLIENT.py ERA URL create SECONDS   starts a countdown as a task, prints its id, and dies without a goodbye

A step prints `ok   what`, or `FAIL what: why`. A bearer token comes from MCP_TOKEN.
"""

import asyncio
import json
import os
import sys
import time
import traceback
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio

STEP_SECONDS_MAX = 30
LIST_PAGES_MAX = 100
HOUR_MS = 3_600_000
LEGACY, MODERN = "2025-11-25", "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
TOOLS = ("echo", "countdown", "fail", "ask")
ECHO = {"text": "π, \u2028 and \"quotes\"", "nested": {"list": [1, 2.5, None, True]}, "big": 9007199254740993}
UNKNOWN = ("aaaaaaaaaaaaaaaaaaaaaaaaaa", "no such task")


class Answer(NamedTuple):
    """What a tool answered."""

    text: str
    structured: Any
    is_error: bool


class Status(NamedTuple):
    state: str
    message: str | None
    ttl_ms: int | None


class Client:
    """A connected client. It has `version` and `capabilities`, `tools` and `call`, and what its features stand for:

    - `plain`: a call is not made a task by a library that then hides it;
    - `tasks`: `create`, `status`, `result`, `cancel`;
    - `list`: `list`;
    - `session`: `session_id`.
    """

    features = frozenset()
    refusals = ()
    # Whether the library shows the error of a task as an answer with `is_error`.
    hides_errors = False

    def __init__(self, era):
        self.era = era


def token():
    return os.environ.get("MCP_TOKEN")


def reply(question):
    """What the person says who is asked; None declines."""
    return None if "decline" in question else f"blue, to {question!r}"


@asynccontextmanager
async def refused(client, code):
    try:
        yield
    except client.refusals as refusal:
        assert refusal.error.code == code, f"expected {code}, got {refusal.error}"
    else:
        raise AssertionError(f"expected error {code}, got an answer")


async def ends_badly(client, task, code, words):
    """The result of the task is this JSON-RPC error."""
    if client.hides_errors:
        answer = await client.result(task)
        assert answer.is_error and words in answer.text, answer
    else:
        async with refused(client, code):
            await client.result(task)


async def settled(client, task):
    while True:
        status = await client.status(task)
        if status.state in ("completed", "failed", "cancelled"):
            return status
        await asyncio.sleep(0.2)


class Step(NamedTuple):
    what: str
    run: Any
    needs: tuple
    era: str | None
    after: bool


STEPS = []


def step(what, *needs, era=None, after=False):
    """A step of the clients with these features, in one era or in both; `after` the first session is over."""

    def register(run):
        STEPS.append(Step(what, run, needs, era, after))
        return run

    return register


@step("hello: 2025-11-25, tasks declared", era=LEGACY)
async def _(client, _):
    assert client.version == LEGACY, client.version
    declared = client.capabilities["tasks"]
    assert declared == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}, declared


@step("hello: 2026-07-28, the tasks extension declared", era=MODERN)
async def _(client, _):
    assert client.version == MODERN, client.version
    assert client.capabilities["extensions"][EXTENSION] == {}, client.capabilities
    assert "tasks" not in client.capabilities, client.capabilities


@step("hello: a session", "session", era=LEGACY)
async def _(client, _):
    assert client.session_id, "no session id"


@step("hello: no session", "session", era=MODERN)
async def _(client, _):
    assert client.session_id is None, client.session_id


@step("tools/list: the demo tools; task support is told in 2025-11-25 alone")
async def _(client, _):
    tools = await client.tools()
    for name in TOOLS:
        assert tools[name].description, tools[name]
        execution = tools[name].execution
        if client.era == MODERN:
            assert execution is None, execution
        else:
            support = getattr(execution, "taskSupport", None) or execution.task_support
            assert support == "optional", (name, execution)


@step("call: echo returns what it was given")
async def _(client, _):
    answer = await client.call("echo", ECHO)
    assert not answer.is_error and json.loads(answer.text) == ECHO, answer
    assert answer.structured == ECHO, answer


@step("call: bad arguments are an isError result that names the field")
async def _(client, _):
    answer = await client.call("countdown", {"seconds": "soon"})
    assert answer.is_error and "seconds" in answer.text, answer


@step("call: a tool's own error is an isError result")
async def _(client, _):
    answer = await client.call("fail", {"message": "out of paper"})
    assert answer.is_error and "out of paper" in answer.text, answer


@step("call: a protocol error", "plain")
async def _(client, _):
    async with refused(client, -31001):
        await client.call("fail", {"message": "out of order", "code": -31001})


@step("call: an unknown tool is -32602")
async def _(client, _):
    async with refused(client, -32602):
        await client.call("no_such_tool", {})


@step("call: 6 s, progress on the way, then the result", "plain")
async def _(client, _):
    start, seen = time.monotonic(), []

    async def on_progress(progress, total, message):
        seen.append((time.monotonic() - start, progress))

    answer = await client.call("countdown", {"seconds": 6, "steps": 6}, on_progress)
    assert not answer.is_error and time.monotonic() - start > 5.5, answer
    assert len(seen) >= 4 and seen[0][0] < 3, seen
    assert all(earlier[1] < later[1] for earlier, later in zip(seen, seen[1:])), seen


@step("call: a question is answered by the client's handler")
async def _(client, _):
    answer = await client.call("ask", {"question": "Which colour?"})
    assert not answer.is_error and answer.text == f"You said: {reply('Which colour?')}", answer


@step("call: a declined question is the tool's to handle")
async def _(client, _):
    answer = await client.call("ask", {"question": "Please decline"})
    assert answer.is_error and "declined" in answer.text, answer


@step("task: create, poll, result", "tasks")
async def _(client, run):
    start = time.monotonic()
    task = await client.create("countdown", {"seconds": 1.5, "steps": 3})
    first = await client.status(task)
    assert first.state == "working", first
    # A client that asks asks for 60 s, its library's default.
    assert first.ttl_ms >= HOUR_MS, f"too short a life: {first}"
    for _ in range(2):  # a result may be collected again
        answer = await client.result(task)
        assert not answer.is_error and answer.text == "counted down 1.5 s", answer
    assert time.monotonic() - start > 1, "it did not wait"
    assert (await client.status(task)).state == "completed"
    run.ended = task


@step("task: the ended one is in the list", "list", era=LEGACY)
async def _(client, run):
    cursor, pages = None, 0
    while True:
        found, cursor = await client.list(cursor)
        pages += 1
        if run.ended in found or cursor is None or pages == LIST_PAGES_MAX:
            break
    assert found.get(run.ended) == "completed", f"not in {pages} pages"


@step("task: says how far it is", "tasks")
async def _(client, _):
    task = await client.create("countdown", {"seconds": 60, "steps": 60})
    while not (message := (await client.status(task)).message):
        await asyncio.sleep(0.1)
    assert "left" in message, message
    await client.cancel(task)


@step("task: cancel; its result is an error", "tasks")
async def _(client, _):
    task = await client.create("countdown", {"seconds": 60})
    await client.cancel(task)
    assert (await client.status(task)).state == "cancelled"
    await ends_badly(client, task, -31499, "cancelled")


@step("task: a second cancel is an error", "tasks", era=LEGACY)
async def _(client, _):
    task = await client.create("countdown", {"seconds": 60})
    await client.cancel(task)
    async with refused(client, -32602):
        await client.cancel(task)


@step("task: a second cancel changes nothing", "tasks", era=MODERN)
async def _(client, _):
    task = await client.create("countdown", {"seconds": 60})
    for _ in range(2):
        await client.cancel(task)
        assert (await client.status(task)).state == "cancelled"


@step("task: cancelled while its result is awaited", "tasks")
async def _(client, _):
    task = await client.create("countdown", {"seconds": 60})
    waiting = asyncio.create_task(ends_badly(client, task, -31499, "cancelled"))
    await asyncio.sleep(0.5)
    assert not waiting.done(), "it did not wait"
    await client.cancel(task)
    await waiting


@step("task: a tool's own error ends it, and is its result", "tasks")
async def _(client, _):
    task = await client.create("fail", {"message": "out of paper"})
    status = await settled(client, task)
    # The two eras call this end by different names.
    assert status.state == ("failed" if client.era == LEGACY else "completed"), status
    answer = await client.result(task)
    assert answer.is_error and "out of paper" in answer.text, answer


@step("task: a protocol error is failed, says why, and is its result", "tasks")
async def _(client, _):
    task = await client.create("fail", {"message": "out of order", "code": -31001})
    status = await settled(client, task)
    assert status.state == "failed" and "out of order" in status.message, status
    await ends_badly(client, task, -31001, "out of order")


@step("task: an unknown one is -32602 to status, result and cancel", "tasks")
async def _(client, _):
    for unknown in UNKNOWN:
        for verb in (client.status, client.result, client.cancel):
            async with refused(client, -32602):
                await verb(unknown)


@step("task: of an unknown tool is -32602", "tasks")
async def _(client, _):
    async with refused(client, -32602):
        await client.create("no_such_tool", {})


@step("task: its question is answered by the client's handler", "tasks")
async def _(client, _):
    task = await client.create("ask", {"question": "Which task?"})
    answer = await client.result(task)
    assert not answer.is_error and answer.text == f"You said: {reply('Which task?')}", answer
    assert (await client.status(task)).state == "completed"


@step("task: its question is declined", "tasks")
async def _(client, _):
    answer = await client.result(await client.create("ask", {"question": "Please decline the task"}))
    assert answer.is_error and "declined" in answer.text, answer


@step("reconnect: a task created by a dead process is collected by a new session", "tasks", after=True)
async def _(client, run):
    child = await asyncio.create_subprocess_exec(
        sys.executable, *sys.argv, "create", "6", stdout=asyncio.subprocess.PIPE
    )
    task = (await child.communicate())[0].decode().strip()
    assert task, "the child printed no task id"
    assert (await client.status(task)).state == "working", "it should still run"
    answer = await client.result(task)
    assert not answer.is_error and answer.text == "counted down 6 s", answer
    assert (await client.status(run.ended)).state == "completed", "ended with its session"


class Run:
    """One client's way through the steps."""

    def __init__(self):
        self.failed = 0
        self.ended = None

    async def take(self, step, client):
        # A failed step does not end the run: one run should show every fault.
        try:
            with anyio.fail_after(STEP_SECONDS_MAX):
                await step.run(client, self)
            print(f"ok   {step.what}", flush=True)
        except Exception as error:
            self.failed += 1
            print(f"FAIL {step.what}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()

    async def take_all(self, connect, era, url):
        for after in (False, True):
            async with connect(url, era) as client:
                for step in STEPS:
                    fits = step.era in (None, era) and client.features.issuperset(step.needs)
                    if fits and step.after == after:
                        await self.take(step, client)


async def create(connect, era, url, seconds):
    async with connect(url, era) as client:
        print(await client.create("countdown", {"seconds": seconds}), flush=True)
        os._exit(0)  # no DELETE, no closed streams: the process is gone


def main(connect):
    """`connect(url, era)` gives a connected client for as long as it is needed."""
    era, url, *more = sys.argv[1:]
    if more[:1] == ["create"]:
        asyncio.run(create(connect, era, url, float(more[1])))
    else:
        run = Run()
        asyncio.run(run.take_all(connect, era, url))
        sys.exit(1 if run.failed else 0)
