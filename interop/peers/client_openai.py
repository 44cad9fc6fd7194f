"""The MCP servers of PyPI's `openai-agents`, as the contract wants to see them.

Arguments: see `contract.arguments`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp
from mcp import MCPError

import contract
from contract import plain


async def asked(request: Awaitable[Any]) -> dict[str, Any]:
    """What comes of a request."""
    try:
        return plain(await request)
    except MCPError as error:
        raise contract.Refused(error.code, error.message) from error


def described(over: str, target: list[str]) -> Any:
    """Their description of a server."""
    if over == "stdio":
        return MCPServerStdio({"command": target[0], "args": target[1:]}, client_session_timeout_seconds=20)
    kind = MCPServerSse if over == "sse" else MCPServerStreamableHttp
    return kind({"url": target[0]}, client_session_timeout_seconds=20)


class Theirs:
    """A connected client. It has neither progress nor log, and answers nothing that a server asks."""

    def __init__(self, over: str, server: Any) -> None:
        self.over = over
        self.server = server
        self.revision = server.session.protocol_version

    async def page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """One page of a list; they turn the pages of two themselves."""
        if method == "tools/list":
            return {"tools": [plain(tool) for tool in await self.server.list_tools()]}
        if method == "prompts/list":
            return await asked(self.server.list_prompts())
        if method == "resources/list":
            return await asked(self.server.list_resources(cursor))
        return await asked(self.server.list_resource_templates(cursor))

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, progress: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """The result of a tool."""
        assert progress is None
        return await asked(self.server.call_tool(name, arguments))

    async def cancel_call(self, name: str) -> None:
        """Call a tool and cancel that."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.server.call_tool(name, None), 0.3)

    async def read(self, uri: str) -> dict[str, Any]:
        """What a resource holds."""
        return await asked(self.server.read_resource(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """A prompt."""
        return await asked(self.server.get_prompt(name, arguments))


@asynccontextmanager
async def connected(over: str, target: list[str]) -> AsyncIterator[Theirs]:
    """A client that knows its server."""
    async with described(over, target) as server:
        yield Theirs(over, server)


async def main() -> None:
    """Connect, and run the contract."""
    _, expected, over, target = contract.arguments()
    contract.only(
        *(contract.list_tools, contract.output_schemas, contract.call, contract.structured, contract.nested),
        *(contract.media, contract.many, contract.failures, contract.unknown, contract.resources),
        *(contract.templates, contract.prompts, contract.prompt, contract.cancellation),
    )
    async with connected(over, target) as theirs:
        await contract.run(theirs, expected)


if __name__ == "__main__":
    anyio.run(main)
