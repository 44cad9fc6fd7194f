"""The client of PyPI's `fastmcp`, as the contract wants to see it. Arguments: see `contract.arguments`."""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from fastmcp import Client
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from mcp import MCPError

import contract
from contract import plain

warnings.simplefilter("ignore")  # they deprecate what is gone from the newest revision


async def asked(request: Awaitable[Any]) -> Any:
    """What comes of a request."""
    try:
        return await request
    except MCPError as error:
        raise contract.Refused(error.code, error.message) from error


def transport(over: str, target: list[str]) -> Any:
    """Their transport to a server."""
    if over == "stdio":
        return StdioTransport(target[0], target[1:], keep_alive=False)
    return SSETransport(target[0]) if over == "sse" else StreamableHttpTransport(target[0])


class Theirs:
    """A connected client."""

    def __init__(self, mode: str, over: str, target: list[str]) -> None:
        self.over = over
        self.logs: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.client = Client(
            transport(over, target),
            mode=mode,
            timeout=20,
            sampling_handler=self._sample,
            elicitation_handler=self._elicit,
            roots=["file:///kitchen"],
            log_handler=self._log,
        )

    def settle(self) -> None:
        """Take down what the server said of itself."""
        self.revision = self.client.protocol_version
        self.server_info = plain(self.client.server_info) if self.client.server_info else {}
        self.instructions = self.client.instructions

    async def _sample(self, messages: Any, params: Any, context: Any) -> str:
        del messages, context
        self.asked.append(plain(params))
        return "the soup"

    async def _elicit(self, message: str, kind: Any, params: Any, context: Any) -> Any:
        del message, context
        self.asked.append(plain(params))
        return kind(**contract.elicited(self.asked[-1]))  # the class that they make of the schema

    async def _log(self, message: Any) -> None:
        self.logs.append(plain(message))

    async def page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """One page of a list."""
        ask = {
            "tools/list": self.client.list_tools_mcp,
            "resources/list": self.client.list_resources_mcp,
            "resources/templates/list": self.client.list_resource_templates_mcp,
            "prompts/list": self.client.list_prompts_mcp,
        }[method]
        return plain(await asked(ask(cursor=cursor)))

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, progress: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """The result of a tool; they make an object of it that fits the schema."""
        result = await asked(
            self.client.call_tool(name, arguments, progress_handler=progress, raise_on_error=False)
        )
        told = {"content": [plain(block) for block in result.content], "isError": result.is_error}
        return (
            told
            if result.structured_content is None
            else {**told, "structuredContent": result.structured_content}
        )

    async def cancel_call(self, name: str) -> None:
        """Call a tool and cancel that; the dispatcher below tells the server."""
        with anyio.move_on_after(0.3):
            await self.client.call_tool(name)

    async def read(self, uri: str) -> dict[str, Any]:
        """What a resource holds."""
        return {"contents": [plain(one) for one in await asked(self.client.read_resource(uri))]}

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """A prompt."""
        return plain(await asked(self.client.get_prompt(name, arguments)))

    async def complete(self, kind: str, of: str, argument: str, value: str) -> dict[str, Any]:
        """How an argument goes on."""
        ref = (
            types.PromptReference(type="ref/prompt", name=of)
            if kind == "ref/prompt"
            else types.ResourceTemplateReference(type="ref/resource", uri=of)
        )
        return plain(await asked(self.client.complete_mcp(ref, {"name": argument, "value": value})))

    async def set_level(self, level: str) -> None:
        """Choose what is logged."""
        await self.client.set_logging_level(level)

    async def ping(self) -> None:
        """Hear whether the server is there."""
        assert await self.client.ping()


@asynccontextmanager
async def connected(mode: str, over: str, target: list[str]) -> AsyncIterator[Theirs]:
    """A client that knows its server."""
    theirs = Theirs(mode, over, target)
    async with theirs.client:
        theirs.settle()
        yield theirs


async def main() -> None:
    """Connect, and run the contract."""
    mode, expected, over, target = contract.arguments()
    # It has no subscriptions, and nothing to listen with.
    contract.without(contract.subscription, contract.two, contract.three)
    async with connected(mode, over, target) as theirs:
        if contract.stateless(theirs):
            # It asks for every level with each request.
            contract.without(contract.log)
        await contract.run(theirs, expected)


if __name__ == "__main__":
    anyio.run(main)
