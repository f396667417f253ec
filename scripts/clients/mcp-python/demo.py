"""A long call from start to end, told step by step: `make demo`."""

import asyncio
import logging
import sys
import time
import warnings

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ElicitResult

warnings.simplefilter("ignore", DeprecationWarning)
# The package complains of what still arrives on a stream while it closes it.
logging.disable(logging.ERROR)
SECONDS = 5


def say(text=""):
    print(text, flush=True)


class Connection:
    """A client's session, opened and closed by hand: it is dropped halfway."""

    def __init__(self, url, elicited=None):
        self.url, self.elicited = url, elicited

    async def __aenter__(self):
        self.http = streamable_http_client(self.url)
        read, write, _ = await self.http.__aenter__()
        self.session = ClientSession(read, write, elicitation_callback=self.elicited)
        await self.session.__aenter__()
        await self.session.initialize()
        return self.session

    async def __aexit__(self, *error):
        await self.session.__aexit__(*error)
        await self.http.__aexit__(*error)


async def main(url):
    say(f"Longhaul runs at {url}. The client is the `mcp` package from PyPI, unchanged.\n")

    say("1. A long call as a task")
    async with Connection(url) as session:
        begin = time.monotonic()
        created = await session.experimental.call_tool_as_task("countdown", {"seconds": SECONDS})
        long_id = created.task.taskId
        say(f"   tools/call countdown {{seconds: {SECONDS}}} with `task`")
        say(f"   → task {long_id}, {created.task.status}, after {(time.monotonic() - begin) * 1000:.0f} ms")
        say("     It is on disk by now: whatever happens next, it is not lost.\n")

        say("2. Its status moves")
        for _ in range(2):
            await asyncio.sleep(1)
            task = await session.experimental.get_task(long_id)
            say(f"   tasks/get → {task.status}: {task.statusMessage}")

    say("\n3. The client goes away: its connection and its session are closed. The work goes on.")
    await asyncio.sleep(1)

    say("\n4. Another client of the same caller comes back for the result")
    async with Connection(url) as session:
        listed = await session.experimental.list_tasks()
        assert [task.taskId for task in listed.tasks] == [long_id], listed
        say(f"   tasks/list → {listed.tasks[0].taskId}, {listed.tasks[0].status}")
        say("   tasks/result … waits until the task ends")
        result = await session.experimental.get_task_result(long_id, CallToolResult)
        say(f"   → {result.content[0].text!r}, {time.monotonic() - begin:.1f} s after the call began")
        task = await session.experimental.get_task(long_id)
        assert task.status == "completed" and not result.isError, (task, result)

        say("\n5. A second call, cancelled")
        created = await session.experimental.call_tool_as_task("countdown", {"seconds": 3600})
        say(f"   tools/call countdown {{seconds: 3600}} with `task` → {created.task.taskId}, {created.task.status}")
        cancelled = await session.experimental.cancel_task(created.task.taskId)
        assert cancelled.status == "cancelled", cancelled
        say(f"   tasks/cancel → {cancelled.status}; its work has been told to stop")

    async def elicited(context, params):
        say(f"   ← elicitation/create: {params.message!r}")
        return ElicitResult(action="accept", content={"answer": "4711"})

    say("\n6. A task asks on the way, and its person answers")
    async with Connection(url, elicited) as session:
        created = await session.experimental.call_tool_as_task("ask", {"question": "Which cost centre?"})
        say(f"   tools/call ask with `task` → {created.task.taskId}, {created.task.status}")
        while (await session.experimental.get_task(created.task.taskId)).status == "working":
            await asyncio.sleep(0.1)
        task = await session.experimental.get_task(created.task.taskId)
        say(f"   tasks/get → {task.status}")
        result = await session.experimental.get_task_result(created.task.taskId, CallToolResult)
        assert result.content[0].text == "You said: 4711", result
        say(f"   tasks/result → {result.content[0].text!r}")

        say("\n7. A call without a task is answered as it always was")
        plain = await session.call_tool("echo", {"text": "hello"})
        say(f"   tools/call echo → {plain.content[0].text}")
    say("\nNow try it with your own client: `make dev`.")


asyncio.run(main(sys.argv[1]))
