"""The MCP toolset of PyPI's `google-adk`, as the contract wants to see it.

Arguments: see `contract.arguments`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.sessions import InMemorySessionService
from google.adk.tools import ToolContext
from google.adk.tools.mcp_tool import (
    McpToolset,
    SseConnectionParams,
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)
from mcp import StdioServerParameters
from mcp_types import CreateMessageResult, ElicitResult
from mcp_types import TextContent as Text

import contract
from contract import plain


def connection(over: str, target: list[str]) -> Any:
    """Their description of a server."""
    if over == "stdio":
        server = StdioServerParameters(command=target[0], args=target[1:])
        return StdioConnectionParams(server_params=server, timeout=20)
    kind = SseConnectionParams if over == "sse" else StreamableHTTPConnectionParams
    return kind(url=target[0], timeout=20)


async def context() -> ToolContext:
    """What an agent hands to its tools."""
    service = InMemorySessionService()
    session = await service.create_session(app_name="kitchen", user_id="ann")
    agent = LlmAgent(name="cook")
    return ToolContext(
        InvocationContext(session_service=service, invocation_id="1", agent=agent, session=session),
        function_call_id="1",
    )


class Theirs:
    """A connected client."""

    def __init__(self, over: str, target: list[str]) -> None:
        self.over = over
        self.logs: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.progress: Callable[..., Any] | None = None
        self.toolset = McpToolset(
            connection_params=connection(over, target),
            progress_callback=self._step,
            sampling_callback=self._sample,
            elicitation_callback=self._elicit,
        )

    async def settle(self) -> None:
        """Load the tools, which connects."""
        self.tools = {tool.name: tool for tool in await self.toolset.get_tools()}
        self.context = await context()
        session = await self.toolset._mcp_session_manager.create_session()  # noqa: SLF001 - it tells the revision
        self.revision = session.protocol_version

    async def _step(self, done: float, total: float | None, message: str | None) -> None:
        if self.progress is not None:
            await self.progress(done, total, message)

    async def _sample(self, session: Any, params: Any) -> Any:
        del session
        self.asked.append(plain(params))
        return CreateMessageResult(
            role="assistant", content=Text(type="text", text="the soup"), model="cook-1"
        )

    async def _elicit(self, session: Any, params: Any) -> Any:
        del session
        self.asked.append(plain(params))
        return ElicitResult(action="accept", content=contract.elicited(self.asked[-1]))

    async def page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """A list; they read one page of each."""
        assert cursor is None
        if method == "tools/list":
            return {"tools": [plain(tool.raw_mcp_tool) for tool in await self.toolset.get_tools()]}
        names = await self.toolset.list_resources()
        return {"resources": [await self.toolset.get_resource_info(name) for name in names]}

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, progress: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """The result of a tool."""
        self.progress = progress
        return await self.tools[name].run_async(args=arguments or {}, tool_context=self.context)

    async def read(self, uri: str) -> dict[str, Any]:
        """What a resource holds; they know resources by name."""
        listed = (await self.page("resources/list", None))["resources"]
        (name,) = (one["name"] for one in listed if one["uri"] == uri)
        return {"contents": [plain(one) for one in await self.toolset.read_resource(name)]}


@asynccontextmanager
async def connected(over: str, target: list[str]) -> AsyncIterator[Theirs]:
    """A client that knows its server."""
    theirs = Theirs(over, target)
    await theirs.settle()
    try:
        yield theirs
    finally:
        await theirs.toolset.close()


async def main() -> None:
    """Connect, and run the contract."""
    _, expected, over, target = contract.arguments()
    # They have no prompts and no templates.
    contract.only(
        *(contract.list_tools, contract.output_schemas, contract.call, contract.structured, contract.nested),
        *(contract.media, contract.many, contract.failures, contract.resources, contract.progress),
        *(contract.sampling, contract.elicitation),
    )
    async with connected(over, target) as theirs:
        await contract.run(theirs, expected)


if __name__ == "__main__":
    anyio.run(main)
