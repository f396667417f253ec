"""`mcp` 2.x, unchanged: a client of both eras that knows nothing of tasks."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import mcp
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import ElicitResult

sys.path.insert(0, str(Path(__file__).parent.parent))
import steps  # noqa: E402


async def elicit(context, params):
    said = steps.reply(params.message)
    return ElicitResult(action="decline") if said is None else ElicitResult(action="accept", content={"answer": said})


class Client(steps.Client):
    features = frozenset({"plain"})
    refusals = (mcp.MCPError,)

    def __init__(self, era, client):
        super().__init__(era)
        self.client, self.version = client, client.protocol_version
        self.capabilities = client.server_capabilities.model_dump(by_alias=True, exclude_none=True)

    async def tools(self):
        return {tool.name: tool for tool in (await self.client.list_tools()).tools}

    async def call(self, name, arguments, on_progress=None):
        result = await self.client.call_tool(name, arguments, progress_callback=on_progress)
        return steps.Answer(result.content[0].text, result.structured_content, bool(result.is_error))


@asynccontextmanager
async def connect(url, era):
    headers = {"Authorization": f"Bearer {steps.token()}"} if steps.token() else None
    # `auto` asks which era the server speaks, and takes the newer.
    mode = "auto" if era == steps.MODERN else "legacy"
    async with create_mcp_http_client(headers=headers) as http:
        transport = streamable_http_client(url, http_client=http)
        async with mcp.Client(transport, mode=mode, elicitation_callback=elicit) as client:
            yield Client(era, client)


if __name__ == "__main__":
    steps.main(connect)
