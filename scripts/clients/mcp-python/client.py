"""`mcp` 1.x, unchanged, as a 2025-11-25 client with its experimental task calls."""

import sys
import warnings
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import CallToolResult, ElicitResult

sys.path.insert(0, str(Path(__file__).parent.parent))
import steps  # noqa: E402

warnings.simplefilter("ignore", DeprecationWarning)

RELATED = "io.modelcontextprotocol/related-task"


async def elicit(context, params):
    said = steps.reply(params.message)
    return ElicitResult(action="decline") if said is None else ElicitResult(action="accept", content={"answer": said})


class Client(steps.Client):
    features = frozenset({"plain", "tasks", "list", "session"})
    refusals = (McpError,)

    def __init__(self, era, session, hello, session_id):
        super().__init__(era)
        self.session, self.session_id = session, session_id
        self.version = hello.protocolVersion
        self.capabilities = hello.capabilities.model_dump(exclude_none=True)

    async def tools(self):
        return {tool.name: tool for tool in (await self.session.list_tools()).tools}

    async def call(self, name, arguments, on_progress=None):
        return said(await self.session.call_tool(name, arguments, progress_callback=on_progress))

    async def create(self, name, arguments):
        return (await self.session.experimental.call_tool_as_task(name, arguments)).task.taskId

    async def status(self, task):
        status = await self.session.experimental.get_task(task)
        return steps.Status(status.status, status.statusMessage, status.ttl)

    async def result(self, task):
        result = await self.session.experimental.get_task_result(task, CallToolResult)
        assert result.meta[RELATED] == {"taskId": task}, result
        return said(result)

    async def cancel(self, task):
        assert (await self.session.experimental.cancel_task(task)).status == "cancelled"

    async def list(self, cursor):
        page = await self.session.experimental.list_tasks(cursor)
        return {task.taskId: task.status for task in page.tasks}, page.nextCursor


def said(result):
    return steps.Answer(result.content[0].text, result.structuredContent, result.isError)


@steps.step("task: its own polling sees it work and end", "tasks")
async def _(client, _):
    tasks = client.session.experimental
    created = (await tasks.call_tool_as_task("countdown", {"seconds": 1.5, "steps": 3})).task
    assert created.status == "working" and created.pollInterval, created
    seen = [task async for task in tasks.poll_task(created.taskId)]
    assert (seen[0].status, seen[-1].status) == ("working", "completed"), seen
    assert seen[-1].createdAt == created.createdAt, (seen[-1], created)


@asynccontextmanager
async def connect(url, era):
    headers = {"Authorization": f"Bearer {steps.token()}"} if steps.token() else None
    async with create_mcp_http_client(headers=headers) as http:
        async with streamable_http_client(url, http_client=http) as (read, write, session_id):
            async with ClientSession(read, write, elicitation_callback=elicit) as session:
                hello = await session.initialize()
                yield Client(era, session, hello, session_id())


if __name__ == "__main__":
    steps.main(connect)
