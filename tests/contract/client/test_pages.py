"""Lists: pages that end, pages that do not, and items that cannot be decoded."""

from typing import Any

import msgspec
import pytest

from expected_limits import MAX_PAGES
from raw_server import Asked, RawServer, run
from revision_dates import DATES
from toolpost import Client
from toolpost.errors import RemoteProtocolError
from toolpost.types import (
    Prompt,
    Raw,
    Resource,
    ResourceTemplate,
    Result,
    ServerCapabilities,
    Tool,
)

LISTS = {
    "tools": ("tools/list", "tools", {"name": "a", "inputSchema": {}}, Tool("a", {})),
    "resources": ("resources/list", "resources", {"uri": "x://a", "name": "a"}, Resource("x://a", "a")),
    "resource_templates": (
        "resources/templates/list",
        "resourceTemplates",
        {"uriTemplate": "x://{a}", "name": "a"},
        ResourceTemplate("x://{a}", "a"),
    ),
    "prompts": ("prompts/list", "prompts", {"name": "a"}, Prompt("a")),
}


def paged(method: str, *pages: dict[str, Any]) -> RawServer:
    """A server whose list has these pages; a cursor is the number of the page, hidden a little."""
    cursors: list[Any] = []

    async def turn(asked: Asked) -> Result | Raw:
        cursors.append(asked.params.cursor)
        return Raw(msgspec.json.encode(pages[len(cursors) - 1]))

    server = RawServer({method: turn})
    server.cursors = cursors  # type: ignore[attr-defined] - for the test to look at
    return server


@pytest.mark.requirement("PAGE-1", "PAGE-3", "PAGE-4", "PAGE-5", "PRM-9")
@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("kind", LISTS)
def test_a_list_is_read_to_its_end(kind, date):
    method, member, wire, item = LISTS[kind]
    first = "" if date == DATES[-1] else "0"  # an empty cursor is a cursor
    pages = (
        {member: [wire, wire], "nextCursor": first},
        {member: [], "nextCursor": "ünïcode\n"},
        {member: [wire]},
    )

    async def main() -> None:
        server = paged(method, *pages, *pages)
        async with Client(server, revision=date) as client:
            assert await getattr(client, f"list_{kind}")() == [item] * 3
            assert server.cursors == [None, first, "ünïcode\n"]  # type: ignore[attr-defined] - see above
            sizes = [len(getattr(page, kind)) async for page in getattr(client, f"list_{kind}_pages")()]
            assert sizes == [2, 0, 1]

    run(main())


def test_a_page_keeps_all_that_came_with_it():
    async def main() -> None:
        page = {"tools": [], "nextCursor": "x", "ttlMs": 5, "cacheScope": "public", "_meta": {"a": 1}, "b": 2}
        async with Client(paged("tools/list", page), revision=DATES[-1]) as client:
            read = await anext(aiter(client.list_tools_pages()))
            assert (read.next_cursor, read.ttl_ms, read.cache_scope) == ("x", 5, "public")
            assert read.meta is not None
            assert read.meta["a"] == 1
            assert read.raw is not None
            assert b'"b":2' in read.raw

    run(main())


@pytest.mark.parametrize("cursors", [["a", "a"], ["a", "b", "a"], ["", ""]])
def test_pages_that_go_in_a_circle_end(cursors, caplog):
    wire, circle = LISTS["tools"][2], "tools/list: the server returned the same cursor twice"

    async def main() -> None:
        pages = [{"tools": [{**wire, "name": f"t{n}"}], "nextCursor": it} for n, it in enumerate(cursors)]
        server = paged("tools/list", *pages)
        async with Client(server) as client:
            assert [tool.name for tool in await client.list_tools()] == [f"t{n}" for n in range(len(pages))]
            assert server.methods.count("tools/list") == len(cursors)
            assert client.stats.skipped == 1
        async with Client(paged("tools/list", *pages), strict=True) as client:
            with pytest.raises(RemoteProtocolError, match=circle):
                await client.list_tools()

    run(main())


def test_a_list_without_end_is_an_error():
    async def main() -> None:
        server = paged("tools/list", *({"tools": [], "nextCursor": str(n)} for n in range(MAX_PAGES + 1)))
        async with Client(server) as client:
            with pytest.raises(RemoteProtocolError, match=f"more than {MAX_PAGES} pages"):
                await client.list_tools()

    run(main())


@pytest.mark.parametrize("kind", LISTS)
def test_an_item_that_cannot_be_read_is_left_out_and_reported(kind, caplog):
    method, member, wire, item = LISTS[kind]

    async def main() -> None:
        async with Client(paged(method, {member: [wire, {}, 7, wire]})) as client:
            assert await getattr(client, f"list_{kind}")() == [item] * 2
            assert client.stats.skipped == 2

    run(main())
    assert f"{method}: item 1 cannot be decoded" in caplog.text
    assert f"{method}: item 2 cannot be decoded" in caplog.text


def test_a_strict_client_leaves_nothing_out():
    async def main() -> None:
        async with Client(paged("tools/list", {"tools": [{}]}), strict=True) as client:
            with pytest.raises(RemoteProtocolError, match="item 0"):
                await client.list_tools()

    run(main())


@pytest.mark.parametrize("page", [{}, {"tools": 7}, {"tools": [], "nextCursor": 7}])
def test_a_page_that_is_none_is_an_error(page):
    async def main() -> None:
        async with Client(paged("tools/list", page)) as client:
            with pytest.raises(RemoteProtocolError, match="invalid result for tools/list"):
                await client.list_tools()

    run(main())


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_that_the_server_did_not_declare_is_asked_for_where_the_caller_asks(kind):
    async def main() -> None:
        server = RawServer(capabilities=ServerCapabilities())
        async with Client(server) as client:
            assert await getattr(client, f"list_{kind}")() == []

    run(main())
