"""PyPI's `langchain-mcp-adapters`, as the contract wants to see it. Arguments: see `contract.arguments`."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.prompts import load_mcp_prompt
from langchain_mcp_adapters.resources import load_mcp_resources
from langchain_mcp_adapters.tools import load_mcp_tools

import contract

ROLES = {"human": "user", "ai": "assistant"}


def connection(over: str, target: list[str]) -> dict[str, Any]:
    """Their description of a server."""
    if over == "stdio":
        return {"transport": "stdio", "command": target[0], "args": target[1:]}
    return {"transport": "sse" if over == "sse" else "http", "url": target[0]}


class Theirs:
    """A connected client."""

    def __init__(self, over: str, target: list[str]) -> None:
        self.over = over
        self.logs: list[dict[str, Any]] = []
        self.progress: Callable[..., Any] | None = None
        self.callbacks = Callbacks(on_progress=self._step)
        self.client = MultiServerMCPClient({"kitchen": connection(over, target)}, callbacks=self.callbacks)

    async def settle(self, session: Any) -> None:
        """Shake hands, and load the tools."""
        self.session = session
        introduced = await session.initialize()
        self.revision = str(introduced.protocolVersion)
        self.server_info = introduced.serverInfo.model_dump()
        self.instructions = introduced.instructions
        self.tools = {tool.name: tool for tool in await load_mcp_tools(session, callbacks=self.callbacks)}

    async def _step(self, done: float, total: float | None, message: str | None, context: Any) -> None:
        del context
        if self.progress is not None:
            await self.progress(done, total, message)

    async def page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """A whole list: they turn all pages themselves."""
        assert cursor is None
        if method == "tools/list":
            return {
                "tools": [
                    {"name": name, "inputSchema": tool.args_schema} for name, tool in self.tools.items()
                ]
            }
        blobs = await load_mcp_resources(self.session)
        return {"resources": [{"uri": str(blob.metadata["uri"])} for blob in blobs]}

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, progress: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """The result of a tool, from the message that their model gets."""
        self.progress = progress
        said = await self.tools[name].ainvoke(
            {"type": "tool_call", "id": "1", "name": name, "args": arguments or {}}
        )
        artifact = said.artifact or {}
        return {
            "content": said.content,
            "isError": said.status == "error",
            "structuredContent": artifact.get("structured_content"),
        }

    async def read(self, uri: str) -> dict[str, Any]:
        """What a resource holds."""
        (blob,) = await load_mcp_resources(self.session, uris=uri)
        if isinstance(blob.data, str):
            return {"contents": [{"text": blob.data, "mimeType": blob.mimetype}]}
        return {"contents": [{"blob": base64.b64encode(blob.data).decode(), "mimeType": blob.mimetype}]}

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """A prompt."""
        messages = await load_mcp_prompt(self.session, name, arguments=arguments)
        return {"messages": [{"role": ROLES[one.type], "content": {"text": one.content}} for one in messages]}


@asynccontextmanager
async def connected(over: str, target: list[str]) -> AsyncIterator[Theirs]:
    """A client that knows its server."""
    theirs = Theirs(over, target)
    async with theirs.client.session("kitchen", auto_initialize=False) as session:
        await theirs.settle(session)
        yield theirs


async def main() -> None:
    """Connect, and run the contract."""
    _, expected, over, target = contract.arguments()
    # They refuse audio, list no prompts, and keep output schemas to themselves.
    contract.only(
        *(contract.introduction, contract.list_tools, contract.call, contract.structured, contract.nested),
        *(contract.many, contract.failures, contract.resources, contract.prompt, contract.progress),
    )
    async with connected(over, target) as theirs:
        await contract.run(theirs, expected)


if __name__ == "__main__":
    anyio.run(main)
