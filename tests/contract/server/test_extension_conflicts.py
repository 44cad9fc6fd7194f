"""Extensions that contradict the protocol or each other are refused; a filter that fails harms no other."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from toolpost import Change, Client, Context, Extension, Server
from toolpost.testing import ScriptedChannel
from toolpost.types import NotificationParams, Params, Result


class Changed(NotificationParams):
    id: str


def test_two_extensions_cannot_have_the_same_method():
    one, two = Extension("com.example/one"), Extension("com.example/two")
    one.method("notes/read", Params, Result)
    two.method("notes/read", Params, Result)
    with pytest.raises(ValueError, match="two extensions define notes/read"):
        Server("desk", extensions=[one, two])
    with pytest.raises(ValueError, match="two extensions define notes/read"):
        Client(Server("desk"), extensions=[one, two])


def test_an_extension_cannot_replace_a_method_of_the_protocol():
    with pytest.raises(ValueError, match="tools/call is a protocol method"):
        Extension("com.example/notes").method("tools/call", Params, Result)
    with pytest.raises(ValueError, match="tasks/get is a protocol method"):
        Extension("com.example/notes", since="2025-11-25").method("tasks/get", Params, Result)
    Extension("com.example/notes").method("tasks/get", Params, Result)  # the latest revision has none


def test_the_parameter_that_a_header_mirrors_has_to_exist():
    class ReadNote(Params):
        id: str

    notes = Extension("com.example/notes")
    with pytest.raises(ValueError, match=r"notes/read: ReadNote has no field 'ident' \(named=\)"):
        notes.method("notes/read", ReadNote, Result, named="ident")
    notes.method("notes/read", ReadNote, Result, named="id")  # nothing was registered before


def test_an_extension_has_results_only_for_methods_that_there_are():
    notes = Extension("com.example/notes")
    notes.result("notes/none", "receipt", Result)
    with pytest.raises(ValueError, match="notes/none, which is not a method"):
        Server("desk", extensions=[notes])


def test_a_filter_that_fails_does_not_keep_changes_from_other_subscribers(caplog: pytest.LogCaptureFixture):
    notes = Extension("com.example/notes")

    def fail(ids: Any, params: Changed) -> bool:
        raise RuntimeError("no match")

    @notes.listen_filter("noteIds", list[str], "notifications/notes/changed", Changed, fail)
    async def accept(ctx: Context, ids: list[str]) -> list[str]:
        return ids

    async def main() -> None:
        server, channel = Server("desk", extensions=[notes], declares=["tools"]), ScriptedChannel()
        serving = asyncio.ensure_future(server.serve(channel))
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {notes.name: {}}},
        }
        params = {"notifications": {"noteIds": ["1"]}, "_meta": meta}
        request = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
        channel.feed(json.dumps(request).encode())
        await channel.next_sent()
        async with (
            Client(server) as client,
            client.listen(tools=True) as stream,
            aclosing(cast("AsyncGenerator[Change]", aiter(stream))) as changes,
        ):
            server.notify_subscribers("notifications/notes/changed", Changed(id="1"))
            server.tool(name="hello")(lambda: "hello")
            async with asyncio.timeout(5):
                await anext(changes)
        channel.end()
        await serving

    asyncio.run(main())
    assert "notifications/notes/changed was not sent" in caplog.text
