"""The client of PyPI's `mcp` 2.x, as the contract wants to see it. Arguments: see `contract.arguments`."""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from pydantic import FileUrl

import contract
from contract import plain

warnings.simplefilter("ignore")  # they deprecate what is gone from the newest revision


class Theirs:
    """A connected client."""

    def __init__(self, mode: str, over: str, target: list[str]) -> None:
        self.mode = mode
        self.over = over
        self.target = target
        self.logs: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.client = Client(
            _server(over, target),
            mode=mode,
            read_timeout_seconds=20,
            sampling_callback=self._sample,
            elicitation_callback=self._elicit,
            list_roots_callback=self._roots,
            logging_callback=self._log,
            log_level="warning",
            message_handler=self._hear,
        )

    def settle(self) -> None:
        """Take down what the server said of itself."""
        self.revision = self.client.protocol_version
        self.server_info = plain(self.client.server_info) if self.client.server_info else {}
        self.instructions = self.client.instructions

    async def _sample(self, context: Any, params: Any) -> Any:
        del context
        self.asked.append(plain(params))
        said = types.TextContent(type="text", text="the soup")
        return types.CreateMessageResult(role="assistant", content=said, model="cook-1")

    async def _elicit(self, context: Any, params: Any) -> Any:
        del context
        self.asked.append(plain(params))
        return types.ElicitResult(action="accept", content=contract.elicited(self.asked[-1]))

    async def _roots(self, context: Any) -> Any:
        del context
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///kitchen"))])

    async def _log(self, params: Any) -> None:
        self.logs.append(plain(params))

    async def _hear(self, message: Any) -> None:
        self.notices.append(getattr(message, "method", repr(message)))

    async def _asked(self, request: Awaitable[Any]) -> dict[str, Any]:
        try:
            return plain(await request)
        except MCPError as error:
            raise contract.Refused(error.code, error.message) from error

    async def page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """One page of a list."""
        ask = {
            "tools/list": self.client.list_tools,
            "resources/list": self.client.list_resources,
            "resources/templates/list": self.client.list_resource_templates,
            "prompts/list": self.client.list_prompts,
        }[method]
        return await self._asked(ask(cursor=cursor))

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, progress: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """The result of a tool."""
        return await self._asked(self.client.call_tool(name, arguments, progress_callback=progress))

    async def cancel_call(self, name: str) -> None:
        """Call a tool and cancel that; their dispatcher tells the server."""
        with anyio.move_on_after(0.3):
            await self.client.call_tool(name)

    async def read(self, uri: str) -> dict[str, Any]:
        """What a resource holds."""
        return await self._asked(self.client.read_resource(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """A prompt."""
        return await self._asked(self.client.get_prompt(name, arguments))

    async def complete(self, kind: str, of: str, argument: str, value: str) -> dict[str, Any]:
        """How an argument goes on."""
        ref = (
            types.PromptReference(type="ref/prompt", name=of)
            if kind == "ref/prompt"
            else types.ResourceTemplateReference(type="ref/resource", uri=of)
        )
        return await self._asked(self.client.complete(ref, {"name": argument, "value": value}))

    async def set_level(self, level: str) -> None:
        """Choose what is logged; without a session each request carries `log_level`."""
        if not contract.stateless(self):
            await self.client.set_logging_level(level)

    async def watched(self, uri: str, during: Callable[[], Awaitable[Any]]) -> None:
        """Do something while a resource and the lists are watched; return when a notice about it came."""
        if not contract.stateless(self):
            self.notices.clear()
            await self.client.subscribe_resource(uri)
            await during()
            for method in ("notifications/resources/updated", "notifications/tools/list_changed"):
                await contract.eventually(lambda method=method: method in self.notices, method)
            await self.client.unsubscribe_resource(uri)
            return
        async with self.client.listen(tools_list_changed=True, resource_subscriptions=[uri]) as listened:
            assert listened.honored.tools_list_changed, listened.honored
            assert listened.honored.resource_subscriptions == [uri], listened.honored
            await during()
            missing = {ResourceUpdated, ToolsListChanged}
            async for event in listened:
                missing.discard(type(event))
                if not missing:
                    break

    async def ping(self) -> None:
        """Hear whether the server is there."""
        await self.client.send_ping()

    def another(self, mode: str = "", over: str = "") -> Any:
        """A second client of the same server."""
        over = over or self.over
        return connected(mode or self.mode, over, contract.way(over, self.target))


def _server(over: str, target: list[str]) -> Any:
    if over == "stdio":
        return StdioServerParameters(command=target[0], args=target[1:])
    return sse_client(target[0]) if over == "sse" else target[0]


@asynccontextmanager
async def connected(mode: str, over: str, target: list[str]) -> AsyncIterator[Theirs]:
    """A client that knows its server."""
    theirs = Theirs(mode, over, target)
    async with theirs.client:
        if mode not in {"auto", "legacy"}:  # a pin sends nothing, so who the server is was never asked
            found = await theirs.client.session.send_discover(mode)
            theirs.client.session.adopt(types.DiscoverResult.model_validate(found))
        theirs.settle()
        yield theirs


async def main() -> None:
    """Connect, and run the contract."""
    mode, expected, over, target = contract.arguments()
    async with connected(mode, over, target) as theirs:
        await contract.run(theirs, expected)


if __name__ == "__main__":
    anyio.run(main)
