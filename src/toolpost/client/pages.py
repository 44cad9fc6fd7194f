"""Lists that come in pages: one record for each of the four, and the walk from page to page.

An item that cannot be read costs that item, not the list. Cursors are never looked into (PAGE-4). Knows
nothing of what is done with the items.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from toolpost.errors import InvalidParams, MCPError, RemoteProtocolError, SessionLost
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import ROWS, Row
from toolpost.types.base import Raw, WireStruct
from toolpost.types.lifecycle import PaginatedRequestParams, PaginatedResult
from toolpost.types.prompts import ListPromptsResult, Prompt
from toolpost.types.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    Resource,
    ResourceTemplate,
)
from toolpost.types.tools import ListToolsResult, Tool

__all__ = [
    "MAX_PAGES",
    "PROMPTS",
    "RESOURCES",
    "TEMPLATES",
    "TOOLS",
    "ListMethod",
    "StaleCursor",
    "follow_cursors",
    "read_all_pages",
]

MAX_PAGES: Final = 1000
"""How many pages a list may have: a server that always has one more must not keep us for ever."""

P = TypeVar("P", bound=PaginatedResult)


class StaleCursor(MCPError):
    """The rest of a list cannot be read: its cursor belongs to a connection that is over (PAGE-6)."""

    retry_safe = True


class _RawToolsPage(PaginatedResult):
    tools: list[Raw]


class _RawResourcesPage(PaginatedResult):
    resources: list[Raw]


class _RawTemplatesPage(PaginatedResult):
    resource_templates: list[Raw]


class _RawPromptsPage(PaginatedResult):
    prompts: list[Raw]


class ListMethod(Generic[P]):
    """One of the lists.

    Args:
        method: the method that reads it.
        member: where its items stand.
        loose: a page whose items are not read yet.
        page: a page whose items are.
        item: the type of an item.
    """

    def __init__(
        self, method: str, member: str, loose: type[PaginatedResult], page: type[P], item: type[WireStruct]
    ) -> None:
        (row,) = (row for row in ROWS if row.name == method)
        self.row: Final = Row(
            method,
            PaginatedRequestParams,
            loose,
            client=row.client,
            needs=row.needs,
            needs_since=row.needs_since,
        )
        self._member = member
        self._page = page
        self._item: JSONReader[Any] = JSONReader(item)

    def read(self, loose: PaginatedResult, report: Callable[[RemoteProtocolError], None]) -> P:
        """The page with the items that can be read; `report` hears of each that cannot."""
        items: list[Any] = []
        for index, raw in enumerate(getattr(loose, self._member)):
            try:
                items.append(self._item(raw))
            except InvalidJSONValue as error:
                report(RemoteProtocolError(f"{self.row.name}: item {index} cannot be read: {error}"))
        page = self._page(
            **{self._member: items},
            next_cursor=loose.next_cursor,
            ttl_ms=loose.ttl_ms,
            cache_scope=loose.cache_scope,
            meta=loose.meta,
            result_type=loose.result_type,
        )
        vars(page)["raw"] = vars(loose).get("raw")
        return page


TOOLS: Final = ListMethod("tools/list", "tools", _RawToolsPage, ListToolsResult, Tool)
RESOURCES: Final = ListMethod("resources/list", "resources", _RawResourcesPage, ListResourcesResult, Resource)
TEMPLATES: Final = ListMethod(
    "resources/templates/list",
    "resource_templates",
    _RawTemplatesPage,
    ListResourceTemplatesResult,
    ResourceTemplate,
)
PROMPTS: Final = ListMethod("prompts/list", "prompts", _RawPromptsPage, ListPromptsResult, Prompt)


async def follow_cursors(method: str, turn: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """The pages of a list, each fetched when it is wanted.

    Args:
        method: the method that reads the list, for errors.
        turn: fetches the page at a cursor.

    Raises:
        RemoteProtocolError: the pages go in a circle, or there are too many of them.
    """
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await turn(cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:  # an empty cursor is a cursor (PAGE-3, PAGE-5)
            return
        if cursor in seen:
            raise RemoteProtocolError(
                f"{method}: the server gave the same cursor twice, so the list has no end"
            )
        seen.add(cursor)
    raise RemoteProtocolError(f"{method}: the list has more than {MAX_PAGES} pages")


async def read_all_pages(start: Callable[[], AsyncIterator[P]]) -> list[P]:
    """All pages of a list; from the start once more, if they cannot be read to the end (CACHE-16, PAGE-6).

    Args:
        start: begins to read the list.
    """
    pages: list[P] = []
    try:
        async for page in start():
            pages.append(page)  # noqa: PERF401 - the error has to know whether there was one
    except (StaleCursor, InvalidParams, SessionLost):
        if not pages:
            raise
        return [page async for page in start()]
    return pages
