"""FastMCP 3, unchanged, as a 2025-11-25 client: `call_tool(..., task=True)` and its `ToolTask`."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import fastmcp
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.tasks import ToolTask
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import McpError

sys.path.insert(0, str(Path(__file__).parent.parent))
import steps  # noqa: E402


async def elicit(message, response_type, params, context):
    said = steps.reply(message)
    return ElicitResult(action="decline") if said is None else {"answer": said}


class Client(steps.Client):
    features = frozenset({"plain", "tasks", "list", "session"})
    refusals = (McpError,)

    def __init__(self, era, client):
        super().__init__(era)
        self.client, self.session_id = client, client.transport.get_session_id()
        self.version = client.initialize_result.protocolVersion
        self.capabilities = client.initialize_result.capabilities.model_dump(exclude_none=True)

    async def tools(self):
        return {tool.name: tool for tool in await self.client.list_tools()}

    async def call(self, name, arguments, on_progress=None):
        result = await self.client.call_tool_mcp(name, arguments, progress_handler=on_progress)
        return steps.Answer(result.content[0].text, result.structuredContent, result.isError)

    async def create(self, name, arguments):
        task = await self.client.call_tool(name, arguments, task=True)
        assert not task.returned_immediately, "answered inline"
        return task.task_id

    async def status(self, task):
        status = await self.client.get_task_status(task)
        return steps.Status(status.status, status.statusMessage, status.ttl)

    async def result(self, task):
        try:
            result = await ToolTask(self.client, task, tool_name="countdown")
        except ToolError as error:
            assert (await self.client.get_task_result(task))["isError"] is True
            return steps.Answer(str(error), None, True)
        return steps.Answer(result.content[0].text, result.structured_content, False)

    async def cancel(self, task):
        await self.client.cancel_task(task)

    async def list(self, cursor):
        page = await self.client.list_tasks(cursor)
        return {task["taskId"]: task["status"] for task in page["tasks"]}, page["nextCursor"]


@steps.step("task: status notifications on the GET stream", "tasks")
async def _(client, _):
    task, told = await client.client.call_tool("countdown", {"seconds": 1.5, "steps": 3}, task=True), []
    task.on_status_change(lambda status: told.append(status.status))
    await task
    assert told and told[-1] == "completed", told


@asynccontextmanager
async def connect(url, era):
    transport = StreamableHttpTransport(url, auth=steps.token())
    async with fastmcp.Client(transport, elicitation_handler=elicit) as client:
        yield Client(era, client)


if __name__ == "__main__":
    steps.main(connect)
