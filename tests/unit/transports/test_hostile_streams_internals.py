"""Servers that misuse sessions and streams: invalid ids, delays, and endpoints."""

from typing import Any

import pytest

from hostile_transports import REVISIONS, meeting, run, serve
from scripted import Heard, scripted, stream
from toolpost import Client
from toolpost.errors import MCPError
from toolpost.transports import http_client, http_request
from toolpost.transports.targets import Http


def test_a_session_whose_end_is_never_confirmed_is_left(monkeypatch):
    async def special(heard: Heard, _: dict[str, Any]) -> bool:
        if heard.method != "DELETE":
            return False
        deleted.append(heard)
        await heard.gone()
        return True

    deleted: list[Heard] = []

    async def main():
        monkeypatch.setattr(http_client, "DELETE_TIMEOUT", 0.05)
        async with meeting("body session", special) as client:
            assert (await client.call_tool("good", timeout=10)).text == "ok"
        assert len(deleted) == 1

    run(main)


@pytest.mark.parametrize("key", ["a\x00b", "a\rb", "\xff", "x" * 5000, "a\x1b[2J"])
def test_an_event_is_not_asked_for_by_a_name_that_no_header_can_carry(key, monkeypatch):
    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        if message.get("params", {}).get("name") != "cut":
            return False
        await heard.write(stream(b"id: " + key.encode("latin-1") + b"\ndata:\n\n"))
        return True

    async def main():
        monkeypatch.setattr(http_request, "DEFAULT_RETRY_DELAY", 0.001)
        async with scripted(serve("stream session", special)) as server:
            async with Client(Http(server.url), revision=REVISIONS["session"], timeout=2) as client:
                with pytest.raises(MCPError):
                    await client.call_tool("cut")
                assert (await client.call_tool("good")).text == "ok"
            told = {heard.headers.get("last-event-id") for heard in server.heard}
            assert told <= {None, "a"}  # a carriage return ends a line, so what is before it is a name

    run(main)
