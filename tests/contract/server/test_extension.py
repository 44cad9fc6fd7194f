"""An extension of the protocol, built on public names only: methods, results, filters, both sides."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolpost import Client, Context, Extension, Server
from toolpost.errors import (
    CapabilityNotDeclared,
    LocalProtocolError,
    MethodNotFound,
    MissingCapability,
    RPCError,
)
from toolpost.server.middleware import Call, Next
from toolpost.testing import ScriptedChannel
from toolpost.types import CacheableResult, CallToolResult, NotificationParams, Params, Result, TextContent

STATELESS, SESSION = "2026-07-28", "2025-11-25"


class ReadNote(Params):
    id: str


class Note(CacheableResult):
    text: str


class Receipt(Result):
    """A receipt instead of a result: the note has the result later."""

    note: str


class NoteChanged(NotificationParams):
    id: str


def make_notes(**options: Any) -> tuple[Extension, dict[str, str]]:
    """Notes that clients read by id, and that hold the results of slow tools."""
    notes, texts = Extension("com.example/notes", settings={"limit": 3}, **options), {"1": "milk"}

    @notes.method("notes/read", ReadNote, Note, named="id", repeatable=True)
    async def read_note(ctx: Context, params: ReadNote) -> Note:
        return Note(text=texts[params.id])

    @notes.result("tools/call", "receipt", Receipt)
    async def redeem(client: Client, receipt: Receipt) -> CallToolResult:
        note = await client.request("notes/read", ReadNote(id=receipt.note), result_type=Note)
        return CallToolResult(content=[TextContent(note.text)])

    @notes.listen_filter("noteIds", list[str], "notifications/notes/changed", NoteChanged, _concerns)
    async def accept(ctx: Context, ids: list[str]) -> list[str]:
        return [each for each in ids if each in texts]

    return notes, texts


def _concerns(ids: list[str], params: NoteChanged) -> bool:
    return params.id in ids


def make_server(notes: Extension, texts: dict[str, str]) -> Server:
    """A server whose tool answers with a receipt, to clients that know receipts."""

    async def defer(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
        if call.method != "tools/call" or notes.find_settings(call.context.client.capabilities) is None:
            return await next(call)
        texts["2"] = (await next(call)).content[0].text
        return Receipt(note="2", result_type="receipt")

    server = Server("desk", extensions=[notes], middleware=[defer])

    @server.tool
    async def price(item: str, ctx: Context) -> str:
        return f"{item}: 3"

    return server


@pytest.mark.requirement("VER-5", "HDR-2", "CACHE-1")
@pytest.mark.parametrize("way", ["memory", "http"])
@pytest.mark.parametrize("revision", [STATELESS, SESSION])
def test_a_method_of_an_extension_is_served_where_both_sides_declare_it(way: str, revision: str):
    async def main() -> None:
        notes, texts = make_notes(since=SESSION)
        server = make_server(notes, texts)
        app = server.asgi()
        target: Any = server if way == "memory" else "http://127.0.0.1/mcp"
        http = None if way == "memory" else app
        async with app.lifespan():
            async with Client(target, http=http, revision=revision, extensions=[notes]) as client:
                assert notes.find_settings(client.capabilities) == {"limit": 3}
                note = await client.request("notes/read", {"id": "1"})
                assert isinstance(note, Note)
                assert note.text == "milk"
                assert note.ttl_ms == (0 if revision == STATELESS else None)
            async with Client(target, http=http, revision=revision) as plain:
                with pytest.raises(MissingCapability) as refused:
                    await plain.request("notes/read", {"id": "1"})
        assert refused.value.data == {"requiredCapabilities": {"extensions": {"com.example/notes": {}}}}

    asyncio.run(main())


@pytest.mark.requirement("MSG-13", "MSG-14", "VER-5")
def test_a_result_of_an_extension_goes_only_to_clients_that_declare_it():
    async def main() -> None:
        notes, texts = make_notes()
        server = make_server(notes, texts)
        async with Client(server, revision=STATELESS, extensions=[notes]) as client:
            assert (await client.call_tool("price", {"item": "pen"})).text == "pen: 3"
            assert texts["2"] == "pen: 3"
        del texts["2"]
        async with Client(server, revision=STATELESS) as plain:
            assert (await plain.call_tool("price", {"item": "pen"})).text == "pen: 3"
        assert "2" not in texts

    asyncio.run(main())


@pytest.mark.requirement("MSG-14")
def test_a_result_type_that_no_extension_has_is_not_sent(caplog: pytest.LogCaptureFixture):
    async def answer(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
        return Result(result_type="odd") if call.method == "tools/call" else await next(call)

    async def main() -> None:
        server = Server("desk", middleware=[answer], declares=["tools"])
        async with Client(server, revision=STATELESS) as client:
            with pytest.raises(RPCError, match="Internal error"):
                await client.call_tool("any")

    asyncio.run(main())
    assert "'odd'" in caplog.text


@pytest.mark.requirement("SUB-1", "SUB-5")
def test_a_listen_filter_of_an_extension_is_acknowledged_and_matched():
    async def main() -> None:
        notes, texts = make_notes()
        server, channel = make_server(notes, texts), ScriptedChannel()
        serving = asyncio.ensure_future(server.serve(channel))
        channel.feed(make_listen(1, ["1", "9"], {"extensions": {notes.name: {}}}))
        acknowledged = await channel.next_sent()
        assert acknowledged["params"]["notifications"] == {"noteIds": ["1"]}
        server.notify_subscribers("notifications/notes/changed", NoteChanged(id="9"))
        server.notify_subscribers("notifications/notes/changed", NoteChanged(id="1"))
        changed = await channel.next_sent()
        assert (changed["method"], changed["params"]["id"]) == ("notifications/notes/changed", "1")
        channel.feed(make_listen(2, ["1"], {}))
        assert (await channel.next_sent())["error"]["code"] == -32021
        channel.feed(make_listen(3, 7, {"extensions": {notes.name: {}}}))
        assert (await channel.next_sent())["error"]["code"] == -32602
        channel.end()
        await serving
        with pytest.raises(ValueError, match="no extension"):
            server.notify_subscribers("notifications/other", NoteChanged(id="1"))

    asyncio.run(main())


def make_listen(request_id: int, ids: Any, capabilities: Any) -> bytes:
    key = "io.modelcontextprotocol/"
    meta = {f"{key}protocolVersion": STATELESS, f"{key}clientCapabilities": capabilities}
    params = {"notifications": {"noteIds": ids}, "_meta": meta}
    request = {"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}
    return json.dumps(request).encode()


@pytest.mark.parametrize("name", ["notes", "com.example/", "a b/c"])
@pytest.mark.requirement("VER-4")
def test_an_extension_is_named_by_a_prefix_and_a_name(name: str):
    with pytest.raises(ValueError, match=r".+"):
        Extension(name)


def test_mistakes_of_an_extension_are_reported_when_it_is_made():
    with pytest.raises(ValueError, match="unknown revision '2020-01-01'"):
        Extension("com.example/notes", since="2020-01-01")
    notes, _ = make_notes()
    with pytest.raises(ValueError, match="notes/read is already registered"):
        notes.method("notes/read", ReadNote, Note)
    assert repr(notes) == "<Extension com.example/notes>"


def test_a_client_does_not_call_a_method_that_the_server_does_not_declare():
    async def main() -> None:
        notes, _ = make_notes()
        async with Client(Server("plain"), revision=STATELESS, extensions=[notes]) as client:
            with pytest.raises(CapabilityNotDeclared, match="not offer the extension"):
                await client.request("notes/read", {"id": "1"})

    asyncio.run(main())


def test_a_session_of_a_revision_before_the_extension_does_not_have_it():
    async def main() -> None:
        notes, texts = make_notes()
        async with Client(make_server(notes, texts), revision=SESSION, extensions=[notes]) as client:
            assert client.capabilities.extensions is None
            with pytest.raises(LocalProtocolError, match="cannot send notes/read"):
                await client.request("notes/read", {"id": "1"})

    asyncio.run(main())


def test_an_extension_for_all_clients_serves_those_that_do_not_declare_it():
    async def main() -> None:
        notes, texts = make_notes(for_all_clients=True)
        server = make_server(notes, texts)
        async with Client(server, revision=STATELESS) as plain:
            assert (await plain.request("notes/read", {"id": "1"}, result_type=dict))["text"] == "milk"
        async with Client(server, revision=SESSION) as old:
            with pytest.raises(MethodNotFound):
                await old.request("notes/read", {"id": "1"})

    asyncio.run(main())


def test_an_extension_can_be_added_later_and_only_once():
    async def main() -> None:
        notes, _ = make_notes()
        server = Server("desk")
        async with Client(server) as before:
            assert before.capabilities.extensions is None
        server.add_extension(notes)
        async with Client(server, extensions=[notes]) as client:
            assert (await client.request("notes/read", {"id": "1"}, result_type=Note)).text == "milk"
        server.notify_subscribers("notifications/notes/changed", NoteChanged(id="1"))
        with pytest.raises(ValueError, match=r"desk has an extension com\.example/notes"):
            server.add_extension(make_notes()[0])
        other = Extension("com.example/other")
        other.method("notes/read", ReadNote, Note)(lambda ctx, params: Note(text=""))
        with pytest.raises(ValueError, match="two extensions define notes/read"):
            server.add_extension(other)

    asyncio.run(main())


def test_a_lifespan_of_an_extension_surrounds_the_time_in_which_a_server_serves():
    happened: list[str] = []

    @asynccontextmanager
    async def own(_: Server) -> AsyncGenerator[str]:
        happened.append("own begins")
        yield "value"
        happened.append("own ends")

    async def main() -> None:
        notes, _ = make_notes()

        @notes.lifespan
        @asynccontextmanager
        async def run(server: Server) -> AsyncGenerator[None]:
            happened.append(f"notes begin for {server.info.name}")
            yield
            happened.append("notes end")

        server = Server("desk", extensions=[notes], lifespan=own)

        @server.tool
        async def value(ctx: Context) -> str:
            return ctx.lifespan

        async with Client(server) as client:
            assert (await client.call_tool("value")).text == "value"
            assert happened == ["own begins", "notes begin for desk"]

    asyncio.run(main())
    assert happened[2:] == ["notes end", "own ends"]
