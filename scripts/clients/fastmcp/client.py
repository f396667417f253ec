"""FastMCP 3, unchanged, as a 2025-11-25 client: `call_tool(..., task=True)` and its `ToolTask`.

    client.py URL                  the steps
    client.py URL create SECONDS   starts a countdown as a task, prints its id, and dies without a goodbye

A bearer token comes from MCP_TOKEN.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

from fastmcp import Client
from fastmcp.client.tasks import ToolTask
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import McpError

sys.path.insert(0, str(Path(__file__).parent.parent))
from steps import Steps  # noqa: E402

HOUR_MS = 3_600_000
ECHO = {"text": "π, \u2028 and \"quotes\"", "nested": {"list": [1, 2.5, None, True]}, "big": 9007199254740993}


def connect(url):
    return Client(StreamableHttpTransport(url, auth=os.environ.get("MCP_TOKEN")))


@asynccontextmanager
async def refused(code):
    try:
        yield
    except McpError as refusal:
        assert refusal.error.code == code, f"expected {code}, got {refusal.error}"
    else:
        raise AssertionError(f"expected error {code}, got an answer")


async def create(url, seconds):
    async with connect(url) as client:
        task = await client.call_tool("countdown", {"seconds": seconds}, task=True)
        print(task.task_id, flush=True)
        os._exit(0)  # no DELETE, no closed streams: the process is gone


async def run(url):
    step = Steps()
    async with connect(url) as client:
        async with step("initialize: 2025-11-25, a session, tasks declared"):
            hello = client.initialize_result
            assert hello.protocolVersion == "2025-11-25", hello
            assert client.transport.get_session_id(), "no session id"
            declared = hello.capabilities.tasks
            assert declared.list is not None and declared.cancel is not None, declared
            assert declared.requests.tools.call is not None, declared

        async with step("tools/list: the demo tools, task support optional"):
            tools = {tool.name: tool for tool in await client.list_tools()}
            for name in ("echo", "countdown", "fail"):
                assert tools[name].execution.taskSupport == "optional", tools[name]

        async with step("inline call: echo returns what it was given"):
            result = await client.call_tool("echo", ECHO)
            assert json.loads(result.content[0].text) == ECHO, result
            assert result.structured_content == ECHO, result

        async with step("inline call: bad arguments are an isError result that names the field"):
            result = await client.call_tool("countdown", {"seconds": "soon"}, raise_on_error=False)
            assert result.is_error and "seconds" in result.content[0].text, result

        async with step("task: create, status notifications, result"):
            task = await client.call_tool("countdown", {"seconds": 1.5, "steps": 3}, task=True)
            assert not task.returned_immediately, "answered inline"
            told = []
            task.on_status_change(lambda status: told.append(status.status))
            first = await client.get_task_status(task.task_id)
            assert first.status == "working" and first.ttl >= HOUR_MS, first
            result = await task
            assert result.content[0].text, result
            assert (await client.get_task_status(task.task_id)).status == "completed"
            assert told and told[-1] == "completed", f"notifications/tasks/status on the GET stream: {told}"
            ended = task.task_id

        async with step("task: the ended one is in the list"):
            cursor, pages = None, 0
            while True:
                page = await client.list_tasks(cursor)
                found = [task for task in page["tasks"] if task["taskId"] == ended]
                cursor, pages = page["nextCursor"], pages + 1
                if found or cursor is None or pages == 100:
                    break
            assert found and found[0]["status"] == "completed", f"not in {pages} pages"

        async with step("task: cancel; a second cancel and its result are errors"):
            task = await client.call_tool("countdown", {"seconds": 60}, task=True)
            await task.cancel()
            assert (await client.get_task_status(task.task_id)).status == "cancelled"
            async with refused(-32602):
                await task.cancel()
            async with refused(-31499):
                await task.result()

        async with step("task: a tool error is failed, and its result is the isError result"):
            task = await client.call_tool("fail", {"message": "out of paper"}, task=True)
            status = await task.wait(state="failed", timeout=10)
            try:
                await task.result()
            except ToolError as error:
                assert "out of paper" in str(error), error
            else:
                raise AssertionError("no ToolError")
            assert (await client.get_task_result(task.task_id))["isError"] is True
            assert status.statusMessage, status

        async with step("protocol error: the same inline and as a task"):
            arguments = {"message": "out of order", "code": -31001}
            async with refused(-31001):
                await client.call_tool("fail", arguments)
            task = await client.call_tool("fail", arguments, task=True)
            async with refused(-31001):
                await task.result()
            status = await client.get_task_status(task.task_id)
            assert status.status == "failed" and "out of order" in status.statusMessage, status

        async with step("unknown task: -32602 from get, result and cancel"):
            for unknown in ("aaaaaaaaaaaaaaaaaaaaaaaaaa", "no such task"):
                async with refused(-32602):
                    await client.get_task_status(unknown)
                async with refused(-32602):
                    await client.get_task_result(unknown)
                async with refused(-32602):
                    await client.cancel_task(unknown)

        async with step("a 6 s inline call: progress on the way, then the result"):
            start, seen = time.monotonic(), []

            async def on_progress(progress, total, message):
                seen.append((time.monotonic() - start, progress))

            result = await client.call_tool(
                "countdown", {"seconds": 6, "steps": 6}, progress_handler=on_progress
            )
            assert not result.is_error and time.monotonic() - start > 5.5, result
            assert len(seen) >= 4 and seen[0][0] < 3, seen
            assert all(earlier[1] < later[1] for earlier, later in zip(seen, seen[1:])), seen

    # From here on the first session is over (the library sent its DELETE).
    async with step("reconnect: a task created by a dead process is collected by a new session"):
        child = await asyncio.create_subprocess_exec(
            sys.executable, __file__, url, "create", "6", stdout=asyncio.subprocess.PIPE
        )
        task_id = (await child.communicate())[0].decode().strip()
        assert task_id, "the child printed no task id"
        async with connect(url) as client:
            assert (await client.get_task_status(task_id)).status == "working", "it should still run"
            result = await ToolTask(client, task_id, tool_name="countdown")
            assert not result.is_error and result.content[0].text, result
            assert (await client.get_task_status(ended)).status == "completed", "ended with its session"

    return step.failed


if __name__ == "__main__":
    if sys.argv[2:3] == ["create"]:
        asyncio.run(create(sys.argv[1], float(sys.argv[3])))
    else:
        sys.exit(1 if asyncio.run(run(sys.argv[1])) else 0)
