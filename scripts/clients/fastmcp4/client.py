"""FastMCP 4 with its tasks, unchanged: in 2026-07-28 the server decides that a call is a task; in 2025-11-25 it has none."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import fastmcp
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp_tasks import ToolTask, call_tool_task
from fastmcp_tasks.client_models import ClientCreateTaskResult
from mcp import MCPError

sys.path.insert(0, str(Path(__file__).parent.parent))
import steps  # noqa: E402


async def elicit(message, response_type, params, context):
    said = steps.reply(message)
    return ElicitResult(action="decline") if said is None else {"answer": said}


class Client(steps.Client):
    refusals = (MCPError,)
    hides_errors = True

    def __init__(self, era, client):
        super().__init__(era)
        self.features = frozenset({"tasks", "session"} if era == steps.MODERN else {"plain", "session"})
        self.client, self.session_id = client, client.transport.get_session_id()
        self.version = client.protocol_version
        self.capabilities = client.server_capabilities.model_dump(by_alias=True, exclude_none=True)

    async def tools(self):
        return {tool.name: tool for tool in await self.client.list_tools()}

    async def call(self, name, arguments, on_progress=None):
        return said(await self.client.call_tool_mcp(name, arguments, progress_handler=on_progress))

    def task(self, task):
        # The library has no handle for an id alone; all that it needs of the created task is this.
        created = {"resultType": "task", "taskId": task, "status": "working", "createdAt": "", "lastUpdatedAt": ""}
        handle = ClientCreateTaskResult.model_validate(created)
        return ToolTask(self.client, "countdown", handle, raise_on_error=False)

    async def create(self, name, arguments):
        return (await call_tool_task(self.client, name, arguments)).task_id

    async def status(self, task):
        status = await self.task(task).status()
        return steps.Status(status.status, status.status_message, status.ttl_ms)

    async def result(self, task):
        return said(await self.task(task))

    async def cancel(self, task):
        await self.task(task).cancel()


def said(result):
    return steps.Answer(result.content[0].text, result.structured_content, bool(result.is_error))


@steps.step("task: made by the server, driven unseen by an ordinary call", "tasks")
async def _(client, _):
    result = await client.client.call_tool("countdown", {"seconds": 1.5})
    assert said(result).text == "counted down 1.5 s", result


@steps.step("task: its own waiting sees it end", "tasks")
async def _(client, _):
    task = await call_tool_task(client.client, "countdown", {"seconds": 1.5})
    assert task.create_result.status == "working" and task.create_result.poll_interval_ms > 0, task.create_result
    status = await task.wait(timeout=10)
    assert status.status == "completed" and status.created_at == task.create_result.created_at, status


@asynccontextmanager
async def connect(url, era):
    transport = StreamableHttpTransport(url, auth=steps.token())
    # `auto` asks which era the server speaks, and takes the newer.
    mode = "auto" if era == steps.MODERN else "legacy"
    async with fastmcp.Client(transport, mode=mode, elicitation_handler=elicit) as client:
        yield Client(era, client)


if __name__ == "__main__":
    steps.main(connect)
