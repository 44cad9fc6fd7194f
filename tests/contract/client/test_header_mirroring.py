"""Tool parameters that HTTP mirrors in headers: taken from the list, and refreshed after a mismatch."""

import asyncio
import logging
from typing import Any

import pytest

from endpoint import DISCOVERED, WELCOME, Endpoint, client_of
from raw_server import RawServer, run
from revision_dates import DATES
from toolpost import Client
from toolpost.errors import HeaderMismatch, RemoteProtocolError
from toolpost.types import ListToolsResult, Result, Tool

MISMATCH = {"code": -32020, "message": "Mcp-Param-Region: the header is missing"}
DONE = {"resultType": "complete", "content": []}
REGION = {"mcp-param-region": ("region",)}


def schema(header: Any, kind: str = "string") -> dict[str, Any]:
    return {"type": "object", "properties": {"region": {"type": kind, "x-mcp-header": header}}}


def tool(name: str, header: Any = None, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "inputSchema": {} if header is None else schema(header, kind)}


def listing(*tools: dict[str, Any], cursor: str | None = None, ttl: int = 0) -> dict[str, Any]:
    page: dict[str, Any] = {"resultType": "complete", "tools": list(tools), "ttlMs": ttl}
    return page if cursor is None else {**page, "nextCursor": cursor}


def server(**table: Any) -> Endpoint:
    return Endpoint(**{"server__discover": DISCOVERED, "initialize": WELCOME, "tools__call": DONE, **table})


# --------------------------------------------------------------------- learning


@pytest.mark.requirement("HDR-4")
def test_the_channel_receives_the_header_parameters_of_the_list():
    async def main() -> None:
        it = server(tools__list=[listing(tool("a", "Region"), cursor="x"), listing(tool("b"))])
        async with client_of(it) as client:
            await client.call_tool("a")
            await client.list_tools()
            for name in ("a", "b", "c"):
                await client.call_tool(name)
            assert it.now.mirrored == [None, REGION, {}, None]
            it.table["tools/list"] = listing(tool("b"))
            await client.list_tools()
            await client.call_tool("a")
            assert it.now.mirrored[4:] == [None]  # it is not there any more

    run(main())


@pytest.mark.requirement("HDR-13", "HDR-14")
@pytest.mark.parametrize(
    ("header", "kind"), [("", "string"), ("a b", "string"), ("X", "number"), (7, "string")]
)
def test_a_tool_with_a_wrong_annotation_is_left_out_and_reported(header, kind, caplog):
    async def main() -> None:
        it = server(tools__list=listing(tool("good", "Region"), tool("bad", header, kind), tool("plain")))
        async with client_of(it) as client:
            assert [each.name for each in await client.list_tools()] == ["good", "plain"]
            assert client.stats.skipped == 1
        async with client_of(it, strict=True) as client:
            with pytest.raises(RemoteProtocolError, match="tool 'bad' cannot be called: x-mcp-header on"):
                await client.list_tools()

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "skipped: tools/list: tool 'bad' cannot be called" in caplog.text


def test_where_nothing_is_mirrored_nothing_is_wrong_with_it():
    bad = Tool("bad", schema("", "number"))

    async def tools(_: object) -> Result:
        return ListToolsResult(tools=[bad])

    async def main() -> None:
        async with client_of(server(tools__list=listing(tool("bad", ""))), revision=DATES[3]) as client:
            assert [each.name for each in await client.list_tools()] == ["bad"]
        async with Client(RawServer({"tools/list": tools})) as client:
            assert await client.list_tools() == [bad]

    run(main())


def test_header_parameters_belong_to_a_connection():
    async def main() -> None:
        it = server(tools__list=listing(tool("a", "Region")))
        client = client_of(it)
        async with client:
            await client.list_tools()
        async with client:
            await client.call_tool("a")
            assert it.now.mirrored == [None]

    run(main())


# --------------------------------------------------------------------- mismatches


@pytest.mark.requirement("HDR-28")
@pytest.mark.parametrize("listed", [True, False])
def test_a_mismatch_refreshes_the_list_and_the_call_is_made_once_more(listed):
    async def main() -> None:
        it = server(tools__list=listing(tool("a", "Old"), ttl=60_000), tools__call=[MISMATCH, DONE])
        async with client_of(it) as client:
            if listed:
                await client.list_tools()
            it.table["tools/list"] = listing(tool("a", "Region"))
            await client.call_tool("a")
            assert it.now.mirrored[1] == REGION
            assert it.now.heard[-3:] == ["tools/call", "tools/list", "tools/call"]

    run(main())


@pytest.mark.requirement("HDR-28")
def test_a_mismatch_that_stays_is_an_error():
    async def main() -> None:
        it = server(tools__list=listing(tool("a", "Region")), tools__call=MISMATCH)
        async with client_of(it) as client:
            with pytest.raises(HeaderMismatch, match="the header is missing"):
                await client.call_tool("a")
            assert it.now.heard[1:] == ["tools/call", "tools/list", "tools/call"]
            with pytest.raises(HeaderMismatch):
                await client.call_tool("a")  # now the list says what it said before
            assert it.now.heard[4:] == ["tools/call", "tools/list"]

    run(main())


@pytest.mark.parametrize(
    "tools",
    [
        listing(tool("a")),  # there is nothing to mirror
        listing(tool("b")),
        listing(tool("a", "")),
        {"code": -32603, "message": "not today"},
    ],
)
def test_an_unchanged_list_does_not_repeat_the_call(tools):
    async def main() -> None:
        it = server(tools__list=tools, tools__call=MISMATCH)
        async with client_of(it) as client:
            with pytest.raises(HeaderMismatch):
                await client.call_tool("a")
            assert it.now.heard.count("tools/call") == 1

    run(main())


def test_many_mismatches_at_once_cost_one_list():
    async def main() -> None:
        answers = iter([MISMATCH] * 20)
        it = server(tools__list=listing(tool("a", "Region")), tools__call=lambda *_: next(answers, DONE))
        async with client_of(it) as client:
            await asyncio.gather(*(client.call_tool("a") for _ in range(20)))
            assert it.now.heard.count("tools/list") == 1
            assert it.now.heard.count("tools/call") == 40

    run(main())


def test_other_requests_and_other_channels_do_not_ask_for_the_tools():
    async def refuse(_: object) -> Result:
        raise HeaderMismatch("odd")

    async def main() -> None:
        it = server(resources__read=MISMATCH)
        async with client_of(it) as client:
            with pytest.raises(HeaderMismatch):
                await client.read_resource("x://a")
            assert it.now.heard == ["server/discover", "resources/read"]
        raw = RawServer({"tools/call": refuse})
        async with Client(raw) as client:
            with pytest.raises(HeaderMismatch):
                await client.call_tool("a")
            assert "tools/list" not in raw.methods

    run(main())


def test_only_the_round_that_was_refused_is_sent_again():
    async def main() -> None:
        asked: list[object] = []
        question = {"message": "?", "requestedSchema": {"type": "object"}}
        asks = {"q": {"method": "elicitation/create", "params": question}}
        wants = {"resultType": "input_required", "requestState": "s", "inputRequests": asks}
        it = server(tools__list=listing(tool("a", "Region")), tools__call=[wants, MISMATCH, DONE])
        async with client_of(it, on_elicitation=asked.append) as client:
            await client.call_tool("a")
        assert len(asked) == 1
        assert [params.get("requestState") for params in it.sent("tools/call")] == [None, "s", "s"]

    run(main())
