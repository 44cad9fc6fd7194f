"""The MCP toolset of PyPI's `pydantic-ai`, as the contract wants to see it.

Arguments: see `contract.arguments`.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from pydantic_ai import ModelRetry
from pydantic_ai.mcp import MCPError, MCPToolset

import contract
from contract import plain


async def asked(request: Awaitable[Any]) -> Any:
    """What comes of a request."""
    try:
        return await request
    except MCPError as error:
        raise contract.Refused(error.code, error.message) from error


def transport(over: str, target: list[str]) -> Any:
    """The transport to a server; it is FastMCP's."""
    if over == "stdio":
        return StdioTransport(target[0], target[1:], keep_alive=False)
    return SSETransport(target[0]) if over == "sse" else StreamableHttpTransport(target[0])


class Theirs:
    """A connected client."""

    def __init__(self, over: str, target: list[str]) -> None:
        self.over = over
        self.logs: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.progress: Callable[..., Any] | None = None
        self.toolset = MCPToolset(
            transport(over, target),
            log_handler=self._log,
            progress_handler=self._step,
            read_timeout=20,
        )

    def settle(self) -> None:
        """Take down what the server said of itself."""
        self.revision = self.toolset.client.protocol_version
        self.server_info = plain(self.toolset.server_info)
        self.instructions = self.toolset.instructions

    async def _log(self, message: Any) -> None:
        self.logs.append(plain(message))

    async def _step(self, done: float, total: float | None, message: str | None) -> None:
        if self.progress is not None:
            await self.progress(done, total, message)

    async def page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """A whole list: they turn all pages themselves."""
        assert cursor is None
        if method == "tools/list":
            return {"tools": [plain(tool) for tool in await self.toolset.list_tools()]}
        if method == "prompts/list":
            found = await self.toolset.list_prompts()
            return {
                "prompts": [
                    {"name": one.name, "arguments": [{"name": each.name} for each in one.arguments or ()]}
                    for one in found
                ]
            }
        if method == "resources/list":
            return {"resources": [{"uri": one.uri} for one in await self.toolset.list_resources()]}
        templates = await self.toolset.list_resource_templates()
        return {"resourceTemplates": [{"uriTemplate": one.uri_template} for one in templates]}

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, progress: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """The result of a tool, as their model gets it: a value, or a message to try again."""
        self.progress = progress
        try:
            value = await self.toolset.direct_call_tool(name, arguments or {})
        except ModelRetry as error:
            return {"content": [{"type": "text", "text": error.message}], "isError": True}
        said = value if isinstance(value, str) else json.dumps(value)
        return {"content": [{"type": "text", "text": said}], "structuredContent": value}

    async def cancel_call(self, name: str) -> None:
        """Call a tool and cancel that."""
        with anyio.move_on_after(0.3):
            await self.toolset.direct_call_tool(name, {})

    async def read(self, uri: str) -> dict[str, Any]:
        """What a resource holds."""
        return await asked(self.toolset.read_resource_for_app(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """A prompt."""
        prompt = await asked(self.toolset.get_prompt(name, arguments))
        return {
            "messages": [
                {"role": one.role, "content": {"text": one.content.content}} for one in prompt.messages
            ]
        }


@asynccontextmanager
async def connected(over: str, target: list[str]) -> AsyncIterator[Theirs]:
    """A client that knows its server."""
    theirs = Theirs(over, target)
    async with theirs.toolset:
        theirs.settle()
        yield theirs


async def main() -> None:
    """Connect, and run the contract."""
    _, expected, over, target = contract.arguments()
    contract.only(
        *(contract.introduction, contract.list_tools, contract.output_schemas, contract.call),
        *(contract.nested, contract.many, contract.failures, contract.resources, contract.templates),
        *(contract.prompts, contract.prompt, contract.progress, contract.cancellation),
    )
    async with connected(over, target) as theirs:
        await contract.run(theirs, expected)


if __name__ == "__main__":
    anyio.run(main)
