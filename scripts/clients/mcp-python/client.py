"""The `mcp` package, unchanged, as a 2025-11-25 client with its experimental task calls.

    client.py URL                  the steps
    client.py URL create SECONDS   starts a countdown as a task, prints its id, and dies without a goodbye

A bearer token comes from MCP_TOKEN.
"""

import asyncio
import json
import os
import sys
import time
import warnings
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import CallToolResult

sys.path.insert(0, str(Path(__file__).parent.parent))
from steps import Steps  # noqa: E402

warnings.simplefilter("ignore", DeprecationWarning)

HOUR_MS = 3_600_000
RELATED = "io.modelcontextprotocol/related-task"
ECHO = {"text": "π, \u2028 and \"quotes\"", "nested": {"list": [1, 2.5, None, True]}, "big": 9007199254740993}


@asynccontextmanager
async def connect(url):
    token = os.environ.get("MCP_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else None
    async with create_mcp_http_client(headers=headers) as http:
        async with streamable_http_client(url, http_client=http) as (read, write, session_id):
            async with ClientSession(read, write) as session:
                hello = await session.initialize()
                yield session, hello, session_id


@asynccontextmanager
async def refused(code):
    try:
        yield
    except McpError as refusal:
        assert refusal.error.code == code, f"expected {code}, got {refusal.error}"
    else:
        raise AssertionError(f"expected error {code}, got an answer")


async def settled(session, task_id):
    async for task in session.experimental.poll_task(task_id):
        pass
    return task


async def create(url, seconds):
    async with connect(url) as (session, _, _):
        created = await session.experimental.call_tool_as_task("countdown", {"seconds": seconds})
        print(created.task.taskId, flush=True)
        os._exit(0)  # no DELETE, no closed streams: the process is gone


async def run(url):
    step = Steps()
    async with connect(url) as (session, hello, session_id):
        tasks = session.experimental

        async with step("initialize: 2025-11-25, a session, tasks declared"):
            assert hello.protocolVersion == "2025-11-25", hello
            assert session_id(), "no session id"
            declared = hello.capabilities.tasks
            assert declared.list is not None and declared.cancel is not None, declared
            assert declared.requests.tools.call is not None, declared

        async with step("tools/list: the demo tools, task support optional"):
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            for name in ("echo", "countdown", "fail"):
                assert tools[name].execution.taskSupport == "optional", tools[name]
                assert tools[name].inputSchema["type"] == "object", tools[name]
                assert tools[name].description, tools[name]

        async with step("inline call: echo returns what it was given"):
            result = await session.call_tool("echo", ECHO)
            assert not result.isError, result
            assert json.loads(result.content[0].text) == ECHO, result
            assert result.structuredContent == ECHO, result

        async with step("inline call: bad arguments are an isError result that names the field"):
            result = await session.call_tool("countdown", {"seconds": "soon"})
            assert result.isError and "seconds" in result.content[0].text, result

        async with step("task: create, poll, result"):
            created = (await tasks.call_tool_as_task("countdown", {"seconds": 1.5, "steps": 3})).task
            assert created.status == "working" and created.pollInterval, created
            assert created.ttl >= HOUR_MS, f"the library's default of 60 s was not raised: {created}"
            seen = [task async for task in tasks.poll_task(created.taskId)]
            assert seen[0].status == "working", seen
            assert seen[-1].status == "completed", seen
            assert seen[-1].createdAt == created.createdAt, (seen[-1], created)
            for _ in range(2):  # a result may be collected again
                result = await tasks.get_task_result(created.taskId, CallToolResult)
                assert not result.isError and result.content[0].text, result
                assert result.meta[RELATED] == {"taskId": created.taskId}, result
            ended = created.taskId

        async with step("task: the ended one is in the list"):
            cursor, pages = None, 0
            while True:
                page = await tasks.list_tasks(cursor)
                found = [task for task in page.tasks if task.taskId == ended]
                cursor, pages = page.nextCursor, pages + 1
                if found or cursor is None or pages == 100:
                    break
            assert found and found[0].status == "completed", f"not in {pages} pages"

        async with step("task: tasks/result of a running one waits for it"):
            created = (await tasks.call_tool_as_task("countdown", {"seconds": 1.5})).task
            start = time.monotonic()
            result = await tasks.get_task_result(created.taskId, CallToolResult)
            assert not result.isError and time.monotonic() - start > 1, result

        async with step("task: cancel; a second cancel and its result are errors"):
            created = (await tasks.call_tool_as_task("countdown", {"seconds": 60})).task
            assert (await tasks.cancel_task(created.taskId)).status == "cancelled"
            assert (await tasks.get_task(created.taskId)).status == "cancelled"
            async with refused(-32602):
                await tasks.cancel_task(created.taskId)
            async with refused(-31499):
                await tasks.get_task_result(created.taskId, CallToolResult)

        async with step("task: cancelled while its result is awaited"):
            created = (await tasks.call_tool_as_task("countdown", {"seconds": 60})).task
            waiting = asyncio.create_task(tasks.get_task_result(created.taskId, CallToolResult))
            await asyncio.sleep(0.5)
            await tasks.cancel_task(created.taskId)
            async with refused(-31499):
                await waiting

        async with step("task: a tool error is failed, and its result is the isError result"):
            created = (await tasks.call_tool_as_task("fail", {"message": "out of paper"})).task
            task = await settled(session, created.taskId)
            assert task.status == "failed" and task.statusMessage, task
            result = await tasks.get_task_result(created.taskId, CallToolResult)
            assert result.isError and "out of paper" in result.content[0].text, result

        async with step("protocol error: the same inline and as a task"):
            arguments = {"message": "out of order", "code": -31001}
            async with refused(-31001):
                await session.call_tool("fail", arguments)
            created = (await tasks.call_tool_as_task("fail", arguments)).task
            task = await settled(session, created.taskId)
            assert task.status == "failed" and "out of order" in task.statusMessage, task
            async with refused(-31001):
                await tasks.get_task_result(created.taskId, CallToolResult)

        async with step("unknown task: -32602 from get, result and cancel"):
            for unknown in ("aaaaaaaaaaaaaaaaaaaaaaaaaa", "no such task"):
                async with refused(-32602):
                    await tasks.get_task(unknown)
                async with refused(-32602):
                    await tasks.get_task_result(unknown, CallToolResult)
                async with refused(-32602):
                    await tasks.cancel_task(unknown)

        async with step("unknown tool: -32602"):
            async with refused(-32602):
                await session.call_tool("no_such_tool", {})
            async with refused(-32602):
                await tasks.call_tool_as_task("no_such_tool", {})

        async with step("a 6 s inline call: progress on the way, then the result"):
            start, seen = time.monotonic(), []

            async def on_progress(progress, total, message):
                seen.append((time.monotonic() - start, progress))

            result = await session.call_tool(
                "countdown", {"seconds": 6, "steps": 6}, progress_callback=on_progress
            )
            assert not result.isError and time.monotonic() - start > 5.5, result
            assert len(seen) >= 4 and seen[0][0] < 3, seen
            assert all(earlier[1] < later[1] for earlier, later in zip(seen, seen[1:])), seen

    # From here on the first session is over (the library sent its DELETE).
    async with step("reconnect: a task created by a dead process is collected by a new session"):
        child = await asyncio.create_subprocess_exec(
            sys.executable, __file__, url, "create", "6", stdout=asyncio.subprocess.PIPE
        )
        task_id = (await child.communicate())[0].decode().strip()
        assert task_id, "the child printed no task id"
        async with connect(url) as (session, _, _):
            tasks = session.experimental
            assert (await tasks.get_task(task_id)).status == "working", "it should still run"
            result = await tasks.get_task_result(task_id, CallToolResult)
            assert not result.isError, result
            assert (await tasks.get_task(ended)).status == "completed", "ended with its session"

    return step.failed


if __name__ == "__main__":
    if sys.argv[2:3] == ["create"]:
        asyncio.run(create(sys.argv[1], float(sys.argv[3])))
    else:
        sys.exit(1 if asyncio.run(run(sys.argv[1])) else 0)
