"""A gateway between peers of different revisions: subscriptions, errors and result types."""

import asyncio
import json
from typing import Any

import pytest

from toolpost import Client, Context, Extension, ForwardedResult, Handler, ProxyEntry, Server
from toolpost.errors import InternalError, InvalidParams, MethodNotFound, ResourceNotFound, RPCError
from toolpost.types import LogLevel, Resource, Result, ServerCapabilities, Tool
from waiting import until

OLDEST, OLD, SESSION, NEW = "2024-11-05", "2025-03-26", "2025-11-25", "2026-07-28"
SESSIONS = (OLDEST, OLD, "2025-06-18", SESSION)
NUMBER_LIST = {"type": "array", "items": {"type": "number"}}


class Gateway(Handler):
    """Forwards everything to one server."""

    def __init__(self, upstream: Client, **options: Any) -> None:
        super().__init__("gateway", **options)
        self.upstream = upstream

    def capabilities(self) -> ServerCapabilities:
        return self.upstream.capabilities

    async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:
        return await self.upstream.forward(method, params)


class Answering(Handler):
    """Answers every request with the same bytes, as a server of 2026-07-28 behind a gateway would."""

    def __init__(self, result_type: str, **options: Any) -> None:
        super().__init__("answering", declares=["tools"], **options)
        self.result_type = result_type

    async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:
        raw = json.dumps({"content": [], "resultType": self.result_type, "requestState": "s"}).encode()
        return ForwardedResult(raw, self.result_type, NEW)


class Watched(Handler):
    """Resources that clients subscribe to, and a log level."""

    def __init__(self) -> None:
        super().__init__("watched")
        self.log: list[str] = []

    async def list_resources(self, cursor: str | None) -> list[Resource]:
        return []

    async def subscribe(self, uri: str, ctx: Context) -> None:
        if uri == "no://where":
            raise ResourceNotFound("Resource not found: no://where")
        self.log.append(f"+{uri} {ctx.request.meta.get('traceparent')}")

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        self.log.append(f"-{uri}")

    async def set_log_level(self, level: LogLevel, ctx: Context) -> None:
        self.log.append(level)


# --------------------------------------------------------------------- subscriptions and log levels


def test_a_gateway_forwards_subscriptions_and_log_levels():
    async def main() -> None:
        server, heard = Watched(), asyncio.Queue[str]()

        async def hear(method: str, params: Any) -> None:
            await heard.put(f"{method} {params.uri}")

        async with Client(server, revision=SESSION) as upstream:
            gateway = Gateway(upstream)
            async with Client(gateway, revision=SESSION, on_notification=hear) as client:
                params = {"uri": "a://b", "_meta": {"traceparent": "00-1"}}
                await client.request("resources/subscribe", params)
                gateway.notify_resource_updated("a://b")
                assert await heard.get() == "notifications/resources/updated a://b"
                await client.request("resources/unsubscribe", {"uri": "a://b"})
                await client.request("logging/setLevel", {"level": "error"})
                with pytest.raises(ResourceNotFound):
                    await client.request("resources/subscribe", {"uri": "no://where"})
                await client.request("resources/subscribe", {"uri": "a://c"})
        assert server.log == ["+a://b 00-1", "-a://b", "error", "+a://c None", "-a://c"]

    asyncio.run(main())


def test_a_stateless_client_subscribes_through_a_gateway_to_a_server_with_sessions():
    async def main() -> None:
        server = Watched()
        async with (
            Client(server, revision=SESSION) as upstream,
            Client(Gateway(upstream), revision=NEW) as client,
        ):
            async with client.listen(uris=["a://b"]):
                await until(lambda: server.log)
            await until(lambda: len(server.log) > 1)
            assert server.log == ["+a://b None", "-a://b"]

    asyncio.run(main())


def test_a_gateway_that_overrides_a_method_serves_it_itself():
    class Own(Gateway):
        async def subscribe(self, uri: str, ctx: Context) -> None:
            server.log.append("own")

        async def unsubscribe(self, uri: str, ctx: Context) -> None:
            server.log.append("own")

        async def set_log_level(self, level: LogLevel, ctx: Context) -> None:
            server.log.append("own")

    server = Watched()

    async def main() -> None:
        async with (
            Client(server, revision=SESSION) as upstream,
            Client(Own(upstream), revision=SESSION) as client,
        ):
            await client.request("resources/subscribe", {"uri": "a://b"})
            await client.request("resources/unsubscribe", {"uri": "a://b"})
            await client.request("logging/setLevel", {"level": "error"})
        assert server.log == ["own"] * 3

    asyncio.run(main())


def test_a_server_without_sessions_behind_a_gateway_has_no_log_level_to_set():
    async def main() -> None:
        server = Server("new", declares=["resources"])
        async with (
            Client(server, revision=NEW) as upstream,
            Client(Gateway(upstream), revision=SESSION) as client,
        ):
            await client.request("logging/setLevel", {"level": "error"})  # of the gateway's own messages
            with pytest.raises(MethodNotFound):
                await client.request("resources/subscribe", {"uri": "a://b"})

    asyncio.run(main())


# --------------------------------------------------------------------- errors


@pytest.mark.requirement("ERR-6")
@pytest.mark.parametrize("above", [SESSION, NEW])
@pytest.mark.parametrize("below", [*SESSIONS, NEW])
def test_a_missing_resource_has_the_error_code_of_the_clients_revision(above: str, below: str):
    async def main() -> None:
        server = Server("shop", declares=["resources"])
        async with (
            Client(server, revision=above) as upstream,
            Client(Gateway(upstream), revision=below) as client,
        ):
            with pytest.raises(RPCError, match="Resource not found: a://b") as refused:
                await client.read_resource("a://b")
            assert refused.value.code == (-32602 if below == NEW else -32002)
            assert refused.value.data == {"uri": "a://b"}

    asyncio.run(main())


def test_other_invalid_parameters_keep_their_error_code():
    class Picky(Handler):
        async def read_resource(self, uri: str, ctx: Context) -> Any:
            raise InvalidParams("Invalid params: the URI needs a host")

        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> Any:
            raise InvalidParams("Resource not found: it is a tool that says so")

    async def main() -> None:
        async with Client(Picky("picky"), revision=SESSION) as client:
            with pytest.raises(InvalidParams):
                await client.read_resource("a://b")
            with pytest.raises(InvalidParams):
                await client.call_tool("any")

    asyncio.run(main())


# --------------------------------------------------------------------- result types


class Receipt(Result):
    number: int = 0


def make_receipts() -> Extension:
    receipts = Extension("com.example/receipts")
    receipts.result("tools/call", "receipt", Receipt)(lambda client, result: result)
    return receipts


@pytest.mark.requirement("MSG-14")
@pytest.mark.parametrize("revision", [SESSION, NEW])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_result_of_an_extension_does_not_reach_a_client_that_did_not_declare_it(
    revision: str, is_known: bool
):
    async def main() -> None:
        options = {"extensions": [make_receipts()]} if is_known else {}
        async with Client(Answering("receipt", **options), revision=revision) as client:
            with pytest.raises(InternalError, match="result of type 'receipt': it belongs to no extension"):
                await client.forward("tools/call", b'{"name":"a"}')

    asyncio.run(main())


def test_a_result_of_an_extension_reaches_a_client_that_declared_it():
    async def main() -> None:
        receipts = make_receipts()
        gateway = Answering("receipt", extensions=[receipts])
        async with Client(gateway, revision=NEW, extensions=[receipts]) as client:
            assert (await client.forward("tools/call", b'{"name":"a"}')).result_type == "receipt"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("revision", "method"), [*((each, "tools/call") for each in SESSIONS), (NEW, "tools/list")]
)
def test_a_question_that_the_clients_revision_cannot_carry_is_an_error_that_says_so(
    revision: str, method: str
):
    async def main() -> None:
        async with Client(Answering("input_required"), revision=revision) as client:
            why = f"the upstream server needs input first, .*of {method} cannot be sent in {revision}"
            with pytest.raises(InternalError, match=why):
                await client.forward(method, b'{"name":"a"}')

    asyncio.run(main())


def test_a_question_reaches_a_client_of_the_same_revision():
    async def main() -> None:
        async with Client(Answering("input_required"), revision=NEW) as client:
            got = await client.forward("tools/call", b'{"name":"a"}')
            assert (got.result_type, json.loads(got.raw)["requestState"]) == ("input_required", "s")

    asyncio.run(main())


# --------------------------------------------------------------------- output schemas


async def serve(ctx: Context, params: Any) -> Any:
    raise AssertionError("it is only listed")


class Listing(Handler):
    """Lists its tools without a registry."""

    async def list_tools(self, cursor: str | None) -> list[Tool]:
        return [
            Tool("object", {"type": "object"}, output_schema={"type": "object"}),
            Tool("list", {"type": "object"}, output_schema=NUMBER_LIST),
        ]


def make_raw_entries() -> Server:
    server = Server("gateway")
    schemas = {"object": {"type": "object"}, "list": NUMBER_LIST}
    items = {
        name: json.dumps(
            {"name": name, "inputSchema": {"type": "object"}, "outputSchema": schema, "later": 1.5}
        )
        for name, schema in schemas.items()
    }
    server.tools.replace("x", [ProxyEntry(name, item.encode(), serve) for name, item in items.items()])
    return server


@pytest.mark.parametrize("make", [Listing, make_raw_entries])
@pytest.mark.parametrize("revision", [*SESSIONS, NEW])
@pytest.mark.parametrize("is_forwarded", [False, True])
def test_an_output_schema_is_sent_only_to_clients_that_understand_it(
    make: Any, revision: str, is_forwarded: bool
):
    async def main() -> list[dict[str, Any]]:
        async with Client(make(), revision=NEW) as upstream:
            target = Gateway(upstream) if is_forwarded and make is Listing else make()
            async with Client(target, revision=revision) as client:
                return json.loads((await client.forward("tools/list")).raw)["tools"]

    tools = asyncio.run(main())
    with_schema = {tool["name"] for tool in tools if "outputSchema" in tool}
    assert {"object", "list"} <= {tool["name"] for tool in tools}
    known = {OLDEST: set[str](), OLD: set[str](), NEW: {"object", "list"}}.get(revision, {"object"})
    assert with_schema == known & {tool["name"] for tool in tools}
    if make is make_raw_entries:
        assert [tool["later"] for tool in tools] == [1.5] * 2  # all other members stay
