"""Servers that break a rule harmlessly: the client accepts their messages."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from raw_server import run
from revision_dates import DATES
from scripted import Heard, answer, scripted
from toolpost import Channel, Client
from toolpost.errors import ChannelClosed, RemoteProtocolError, RequestFailed

SESSION, STATELESS = DATES[-2], DATES[-1]
OFFER = {"tools": {}, "resources": {}, "prompts": {}}
TOOL = {"name": "t", "inputSchema": {"type": "object"}}
KEPT = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
TEXT = {"content": [{"type": "text", "text": "ok"}]}


class Sloppy:
    """A server that answers each method with a result, an error, or whole messages from a function."""

    def __init__(self, capabilities: dict[str, Any] = OFFER, **table: Any) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.table = {name.replace("__", "/"): how for name, how in table.items()}
        self.capabilities = capabilities

    async def serve(self, channel: Channel) -> None:
        try:
            while True:
                message = json.loads(await channel.receive())
                for data in self.answers(message):
                    await channel.send(data)
        except ChannelClosed:
            pass

    def answers(self, message: dict[str, Any]) -> list[bytes]:
        method, params = message["method"], message.get("params") or {}
        self.heard.append((method, params.get("cursor")))
        if "id" not in message:
            return []
        how: Any = self.table.get(method, {})
        if callable(how):
            how = how(message)
        if isinstance(how, bytes):
            return [how]
        name = {"name": "sloppy", "version": "1"}
        if method == "initialize":
            how = {"protocolVersion": SESSION, "capabilities": self.capabilities, "serverInfo": name, **how}
        elif method == "server/discover":
            how = {"supportedVersions": [STATELESS], "capabilities": self.capabilities, **KEPT, **how}
        kind = "error" if "code" in how else "result"
        stateless = "_meta" in params and kind == "result"
        how = {**(KEPT if stateless else {}), **how}
        return [json.dumps({"jsonrpc": "2.0", "id": message["id"], kind: how}).encode()]


def connected(server: Sloppy, revision: str, body: Callable[[Client], Any], **options: Any) -> Any:
    """Run a test with a client of the server."""

    async def main() -> Any:
        async with Client(server, revision=revision, timeout=30, **options) as client:
            return await body(client)

    return run(main())


BOTH = pytest.mark.parametrize("revision", [SESSION, STATELESS])


# --------------------------------------------------------------------- lists


def test_an_empty_cursor_ends_a_list_of_a_session():
    server = Sloppy(tools__list={"tools": [TOOL], "nextCursor": ""})

    async def body(client: Client) -> None:
        assert [tool.name for tool in await client.list_tools()] == ["t"]
        assert server.heard[-1] == ("tools/list", None)
        assert client.stats.skipped == 1

    connected(server, SESSION, body)


@BOTH
@pytest.mark.parametrize("cursor", ["", "again"])
def test_a_server_that_ignores_the_cursor_lists_each_tool_once(cursor, revision):
    server = Sloppy(tools__list={"tools": [TOOL], "nextCursor": cursor})

    async def body(client: Client) -> None:
        assert [tool.name for tool in await client.list_tools()] == ["t"]
        assert client.stats.skipped == 1

    connected(server, revision, body)


@BOTH
@pytest.mark.parametrize("cursor", ["", "again"])
def test_a_strict_client_refuses_a_repeated_cursor(cursor, revision):
    server = Sloppy(tools__list={"tools": [TOOL], "nextCursor": cursor})

    async def body(client: Client) -> None:
        with pytest.raises(RemoteProtocolError, match="cursor"):
            await client.list_tools()

    connected(server, revision, body, strict=True)


@BOTH
def test_what_was_not_declared_is_asked_for_all_the_same(revision):
    server = Sloppy(
        {},
        tools__list={"tools": [TOOL]},
        tools__call=TEXT,
        resources__read={"contents": [{"uri": "x://a", "text": "a"}]},
        prompts__get={"messages": []},
        prompts__list={"prompts": [{"name": "p"}]},
        resources__list={"resources": [{"uri": "x://a", "name": "a"}]},
    )

    async def body(client: Client) -> None:
        assert [tool.name for tool in await client.list_tools()] == ["t"]
        assert [one.name for one in await client.list_prompts()] == ["p"]
        assert [one.uri for one in await client.list_resources()] == ["x://a"]
        assert (await client.call_tool("t")).text == "ok"
        assert (await client.read_resource("x://a")).contents
        assert (await client.get_prompt("p")).messages == []

    connected(server, revision, body)


@BOTH
@pytest.mark.parametrize("capabilities", [OFFER, {}])
def test_a_list_that_the_server_does_not_know_is_empty(capabilities, revision):
    missing = {"code": -32601, "message": "Method not found"}
    lists = ("tools/list", "resources/list", "resources/templates/list", "prompts/list")
    server = Sloppy(capabilities, **dict.fromkeys(lists, missing))

    async def body(client: Client) -> None:
        for name in ("tools", "resources", "resource_templates", "prompts"):
            assert await getattr(client, f"list_{name}")() == []
            assert [getattr(page, name) async for page in getattr(client, f"list_{name}_pages")()] == [[]]

    connected(server, revision, body)


@BOTH
@pytest.mark.parametrize("icons", [[{"mimeType": "image/png"}, {"src": "https://a/b.png"}, 7], 7, {"src": 1}])
@pytest.mark.parametrize("kind", ["tools", "resources", "resource_templates", "prompts"])
def test_an_icon_that_cannot_be_read_is_left_out_and_not_its_item(kind, icons, revision):
    wire = {**TOOL, "uri": "x://a", "uriTemplate": "x://{a}", "icons": icons}
    member = {"resource_templates": "resourceTemplates"}.get(kind, kind)
    method = {"resource_templates": "resources/templates"}.get(kind, kind)
    table: dict[str, Any] = {f"{method}/list": {member: [wire]}}
    server = Sloppy(**table)

    async def body(client: Client) -> None:
        [item] = await getattr(client, f"list_{kind}")()
        assert [icon.src for icon in item.icons or []] == (
            ["https://a/b.png"] if isinstance(icons, list) else []
        )
        assert client.stats.skipped == 1

    connected(server, revision, body)


# --------------------------------------------------------------------- envelopes


@BOTH
@pytest.mark.parametrize(
    "said",
    [
        '{"jsonrpc":"2.0","id":@,"result":%s,"error":null}',
        '{"jsonrpc":"2.0","id":"@","result":%s}',
        '{"id":@,"jsonrpc":"2.0","extra":{"a":[1]},"result":%s}',
        ' \r\n{"jsonrpc":"2.0","id":@,"result":%s}\r',
    ],
)
def test_an_odd_envelope_is_an_answer(said, revision):
    server = Sloppy(
        tools__call=lambda message: (
            (said % json.dumps({**TEXT, **KEPT})).replace("@", str(message["id"])).encode()
        )
    )

    async def body(client: Client) -> None:
        assert (await client.call_tool("t")).text == "ok"

    connected(server, revision, body)


@BOTH
def test_an_error_beside_a_null_result_is_an_error(revision):
    server = Sloppy(
        tools__call=lambda message: (
            b'{"jsonrpc":"2.0","id":%d,"result":null,"error":{"code":-32000,"message":"no"}}' % message["id"]
        )
    )

    async def body(client: Client) -> None:
        with pytest.raises(Exception, match="no"):
            await client.call_tool("t")

    connected(server, revision, body)


# --------------------------------------------------------------------- results


@BOTH
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "object", "$ref": "http://127.0.0.1:9/schema"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/Gone"}}},
        {"$schema": "http://example.com/dialect", "type": "object"},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
    ],
)
def test_an_output_schema_that_cannot_be_used_leaves_the_check_out(schema, revision):
    server = Sloppy(
        tools__list={"tools": [{**TOOL, "outputSchema": schema}]},
        tools__call={**TEXT, "structuredContent": {"a": 1}},
    )

    async def body(client: Client) -> None:
        await client.list_tools()
        for count in (1, 2):
            assert (await client.call_tool("t")).data == {"a": 1}
            assert client.stats.unchecked == count

    connected(server, revision, body)


@BOTH
def test_the_wrapper_of_the_official_sdk_is_taken_off(revision):
    schema = {
        "type": "object",
        "title": "tOutput",
        "properties": {"result": {"type": "integer", "title": "Result"}},
        "required": ["result"],
    }
    server = Sloppy(
        tools__list={"tools": [{**TOOL, "outputSchema": schema}]},
        tools__call={**TEXT, "structuredContent": {"result": 3}},
    )

    async def body(client: Client) -> None:
        await client.list_tools()
        result = await client.call_tool("t")
        assert (result.data, result.structured_content) == (3, {"result": 3})

    connected(server, revision, body)


# --------------------------------------------------------------------- HTTP


def over_http(
    script: Callable[[Heard, dict[str, Any]], bytes], body: Callable[[Client], Any], **options: Any
):
    async def main() -> None:
        async def reply(heard: Heard) -> None:
            await heard.write(script(heard, json.loads(heard.body or b"{}")))

        async with scripted(reply) as site, Client(site.url, timeout=30, **options) as client:
            await body(client)

    run(main())


def say(message: dict[str, Any], server: Sloppy, **options: Any) -> bytes:
    said = server.answers(message) if "method" in message else []
    return answer(200, said[0], **options) if said else answer(202)


@pytest.mark.parametrize(
    "status", [400, 401, 402, 403, 404, 405, 406, 409, 415, 422, 429, 500, 501, 502, 503, 504]
)
def test_a_server_that_refuses_discovery_with_any_status_gets_initialize(status):
    server = Sloppy(tools__list={"tools": [TOOL]})

    def script(heard: Heard, message: dict[str, Any]) -> bytes:
        if heard.method != "POST":
            return answer(405)
        return answer(status, b"no") if message["method"] == "server/discover" else say(message, server)

    async def body(client: Client) -> None:
        assert [tool.name for tool in await client.list_tools()] == ["t"]

    over_http(script, body)


@pytest.mark.parametrize("status", [400, 404, 405, 500])
def test_a_refused_initialized_does_not_end_the_connection(status):
    server = Sloppy(tools__list={"tools": [TOOL]})

    def script(heard: Heard, message: dict[str, Any]) -> bytes:
        if heard.method != "POST":
            return answer(405)
        refused = message["method"] == "notifications/initialized"
        return answer(status, b"no") if refused else say(message, server)

    async def body(client: Client) -> None:
        assert [tool.name for tool in await client.list_tools()] == ["t"]

    over_http(script, body, revision=SESSION)


@pytest.mark.parametrize(
    "kind", ["application/json-rpc", "application/json-rpc; charset=utf-8", "Application/JSON"]
)
@BOTH
def test_the_content_types_of_json(kind, revision):
    server = Sloppy(tools__list={"tools": [TOOL]})

    def script(heard: Heard, message: dict[str, Any]) -> bytes:
        return say(message, server, kind=kind) if heard.method == "POST" else answer(405)

    async def body(client: Client) -> None:
        assert [tool.name for tool in await client.list_tools()] == ["t"]

    over_http(script, body, revision=revision)


def test_a_refusal_without_a_content_type_is_quoted():
    server = Sloppy()

    def script(heard: Heard, message: dict[str, Any]) -> bytes:
        if heard.method != "POST":
            return answer(405)
        refused = message["method"] == "tools/call"
        return answer(403, b"Your plan has no tools", kind=None) if refused else say(message, server)

    async def body(client: Client) -> None:
        with pytest.raises(RequestFailed, match="403 Forbidden: Your plan has no tools"):
            await client.call_tool("t")

    over_http(script, body, revision=SESSION)
