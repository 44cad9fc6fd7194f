"""The client of PyPI's `mcp` 1.x, as the contract wants to see it. Arguments: see `contract.arguments`."""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types
from mcp.client.sse import sse_client
from pydantic import AnyUrl, FileUrl

import contract
from contract import plain

try:
    from mcp.client.streamable_http import streamable_http_client
except ImportError:  # 1.9
    from mcp.client.streamable_http import streamablehttp_client as streamable_http_client

warnings.simplefilter("ignore")


class Theirs:
    """A connected client."""

    def __init__(self, over: str, target: list[str]) -> None:
        self.over = over
        self.target = target
        self.logs: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.session: Any = None

    def settle(self, result: Any) -> None:
        """Take down what the server said of itself."""
        self.revision = str(result.protocolVersion)
        self.server_info = plain(result.serverInfo)
        self.instructions = result.instructions

    async def sample(self, context: Any, params: Any) -> Any:
        """What the model says."""
        del context
        self.asked.append(plain(params))
        said = types.TextContent(type="text", text="the soup")
        return types.CreateMessageResult(role="assistant", content=said, model="cook-1")

    async def elicit(self, context: Any, params: Any) -> Any:
        """What the user answers."""
        del context
        self.asked.append(plain(params))
        return types.ElicitResult(action="accept", content=contract.elicited(self.asked[-1]))

    async def roots(self, context: Any) -> Any:
        """The places that are open."""
        del context
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl("file:///kitchen"))])

    async def log(self, params: Any) -> None:
        """Hear a line of the log."""
        self.logs.append(plain(params))

    async def hear(self, message: Any) -> None:
        """Hear anything else."""
        root = getattr(message, "root", message)
        self.notices.append(getattr(root, "method", repr(message)))

    async def _asked(self, request: Awaitable[Any]) -> dict[str, Any]:
        try:
            return plain(await request)
        except McpError as error:
            raise contract.Refused(error.error.code, error.error.message) from error

    async def page(self, method: str, cursor: str | None) -> dict[str, Any]:
        """One page of a list."""
        ask = {
            "tools/list": self.session.list_tools,
            "resources/list": self.session.list_resources,
            "resources/templates/list": self.session.list_resource_templates,
            "prompts/list": self.session.list_prompts,
        }[method]
        return await self._asked(ask(cursor))

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, progress: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """The result of a tool."""
        return await self._asked(self.session.call_tool(name, arguments, progress_callback=progress))

    async def cancel_call(self, name: str) -> None:
        """Call a tool and cancel that. This client tells the server only if one writes the notice oneself."""
        coming = self.session._request_id  # noqa: SLF001 - there is no other way to know the id
        with anyio.move_on_after(0.3):
            await self.session.call_tool(name)
        params = types.CancelledNotificationParams(requestId=coming, reason="enough")
        await self.session.send_notification(
            types.ClientNotification(
                types.CancelledNotification(method="notifications/cancelled", params=params)
            )
        )

    async def read(self, uri: str) -> dict[str, Any]:
        """What a resource holds."""
        return await self._asked(self.session.read_resource(AnyUrl(uri)))

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """A prompt."""
        return await self._asked(self.session.get_prompt(name, arguments))

    async def complete(self, kind: str, of: str, argument: str, value: str) -> dict[str, Any]:
        """How an argument goes on."""
        ref = (
            types.PromptReference(type="ref/prompt", name=of)
            if kind == "ref/prompt"
            else types.CompleteRequestParams.model_validate(
                {"ref": {"type": kind, "uri": of}, "argument": {"name": argument, "value": value}}
            ).ref
        )
        return await self._asked(self.session.complete(ref, {"name": argument, "value": value}))

    async def set_level(self, level: str) -> None:
        """Choose what is logged."""
        await self.session.set_logging_level(level)

    async def watched(self, uri: str, during: Callable[[], Awaitable[Any]]) -> None:
        """Do something while a resource and the lists are watched; return when a notice about it came."""
        self.notices.clear()
        await self.session.subscribe_resource(AnyUrl(uri))
        await during()
        for method in ("notifications/resources/updated", "notifications/tools/list_changed"):
            await contract.eventually(lambda method=method: method in self.notices, method)
        await self.session.unsubscribe_resource(AnyUrl(uri))

    async def ping(self) -> None:
        """Hear whether the server is there."""
        await self.session.send_ping()

    def another(self, mode: str = "", over: str = "") -> Any:
        """A second client of the same server."""
        del mode  # there is one
        return connected(over or self.over, contract.way(over or self.over, self.target))


def _transport(over: str, target: list[str]) -> Any:
    if over == "stdio":
        return stdio_client(StdioServerParameters(command=target[0], args=target[1:]))
    return (sse_client if over == "sse" else streamable_http_client)(target[0])


@asynccontextmanager
async def connected(over: str, target: list[str]) -> AsyncIterator[Theirs]:
    """A client that has done its handshake."""
    theirs = Theirs(over, target)
    since_1_10 = {"elicitation_callback": theirs.elicit} if hasattr(types, "ElicitResult") else {}
    async with (
        _transport(over, target) as (reading, writing, *_),
        ClientSession(
            reading,
            writing,
            read_timeout_seconds=timedelta(seconds=20),
            sampling_callback=theirs.sample,
            **since_1_10,
            list_roots_callback=theirs.roots,
            logging_callback=theirs.log,
            message_handler=theirs.hear,
        ) as session,
    ):
        theirs.session = session
        theirs.settle(await session.initialize())
        yield theirs


async def main() -> None:
    """Connect, and run the contract."""
    _, expected, over, target = contract.arguments()
    if types.LATEST_PROTOCOL_VERSION < "2025-11-25":  # it does not resume the stream of a request
        contract.without(contract.cut)
    async with connected(over, target) as theirs:
        await contract.run(theirs, expected)


if __name__ == "__main__":
    anyio.run(main)
