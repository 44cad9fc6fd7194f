"""Reads lists page by page, and resources, from a server or from the cache.

Owns what was learnt on the current connection: cached answers, output schemas, and the parameters that HTTP
repeats in headers; a notification or a gap makes it stale. An item that cannot be decoded costs that item,
not the list. Sending is left to the session.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.status import Stats
from toolpost.client.output_schemas import OutputSchemas
from toolpost.errors import InvalidParams, MCPError, RemoteProtocolError, SessionLost
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.headers import find_annotations
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import (
    CLIENT,
    PROMPTS_LIST,
    PROMPTS_LIST_CHANGED,
    RESOURCES_LIST,
    RESOURCES_LIST_CHANGED,
    RESOURCES_READ,
    RESOURCES_TEMPLATES_LIST,
    ROWS,
    TOOLS_LIST,
    TOOLS_LIST_CHANGED,
    Row,
)
from toolpost.types.base import Raw, Result, WireStruct
from toolpost.types.initialize import CacheableResult, PaginatedRequestParams, PaginatedResult
from toolpost.types.notifications import ResourceUpdatedParams
from toolpost.types.prompts import ListPromptsResult, Prompt
from toolpost.types.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from toolpost.types.tools import ListToolsResult, Tool

if TYPE_CHECKING:
    from toolpost.client.connection.dispatcher import Dispatcher
    from toolpost.client.connection.session import ClientSession

MAX_PAGES: Final = 1000
"""How many pages a list may have, so that a server cannot send pages without end."""

P = TypeVar("P", bound=PaginatedResult)


class StaleCursor(MCPError):
    """The rest of a list cannot be read: its cursor belongs to a connection that has ended (PAGE-6)."""

    retry_safe = True


class ListMethod(Generic[P]):
    """One of the four lists. Its row decodes pages only; the items in `member` are decoded one by one."""

    def __init__(self, method: str, member: str, page: type[P], item: type[WireStruct]) -> None:
        (row,) = (row for row in ROWS if row.name == method)
        raw_page = msgspec.defstruct(f"Raw{page.__name__}", [(member, list[Raw])], bases=(PaginatedResult,))
        self.row: Final = Row(
            method,
            PaginatedRequestParams,
            cast("type[PaginatedResult]", raw_page),
            client=row.client,
            needs=row.needs,
            needs_since=row.needs_since,
        )
        self._member = member
        self._page = page
        self._item: JSONReader[Any] = JSONReader(item)

    def read(self, loose: PaginatedResult, report: Callable[[RemoteProtocolError], None]) -> P:
        """Decode the items of a page; `report` is called for each that cannot be decoded."""
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


TOOLS: Final = ListMethod(TOOLS_LIST, "tools", ListToolsResult, Tool)
RESOURCES: Final = ListMethod(RESOURCES_LIST, "resources", ListResourcesResult, Resource)
TEMPLATES: Final = ListMethod(
    RESOURCES_TEMPLATES_LIST, "resource_templates", ListResourceTemplatesResult, ResourceTemplate
)
PROMPTS: Final = ListMethod(PROMPTS_LIST, "prompts", ListPromptsResult, Prompt)


async def read_all_pages(start: Callable[[], AsyncIterator[P]]) -> list[P]:
    """Read all pages; from the start again if that breaks off after the first (CACHE-16, PAGE-6)."""
    pages: list[P] = []
    try:
        async for page in start():
            pages.append(page)  # noqa: PERF401 - the error has to know whether there was one
    except (StaleCursor, InvalidParams, SessionLost):
        if not pages:
            raise
        return [page async for page in start()]
    return pages


# --------------------------------------------------------------------- what was learnt

MAX_CACHE_ENTRIES: Final = 512
"""How many answers are cached: all lists of a large server and the resources in use."""

MAX_CACHE_TTL: Final = 24 * 60 * 60.0
"""Seconds that an answer is fresh at most, whatever the server says."""

_STALE_METHODS: Final = {
    TOOLS_LIST_CHANGED: (TOOLS_LIST,),
    PROMPTS_LIST_CHANGED: (PROMPTS_LIST,),
    RESOURCES_LIST_CHANGED: (RESOURCES_LIST, RESOURCES_TEMPLATES_LIST),
}
"""The methods whose answers a notification makes stale."""


class _CachedResponse(NamedTuple):
    raw: bytes
    until: float


class ResponseCache:
    """The cached answers of one client (CACHE-7 … CACHE-17), least recently used first. Has no clock."""

    def __init__(self, limit: int = MAX_CACHE_ENTRIES) -> None:
        self._limit = limit
        self._entries: OrderedDict[tuple[str, str | None], _CachedResponse] = OrderedDict()
        self.version = 0
        """Grows when something becomes stale; an answer that was requested before is not stored then."""

    def find(self, method: str, which: str | None, now: float) -> bytes | None:
        """Return the bytes of a fresh result, or None. `which` is the cursor or the URI."""
        key = (method, which)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.until:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry.raw

    def store(self, method: str, which: str | None, result: CacheableResult, now: float, turn: int) -> None:
        """Store a result for its time to live, unless something has become stale since version `turn`."""
        ttl = min(result.ttl_ms or 0, MAX_CACHE_TTL * 1000) / 1000
        if ttl <= 0 or turn != self.version:
            return
        self._entries[method, which] = _CachedResponse(result.raw or b"{}", now + ttl)
        self._entries.move_to_end((method, which))
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def invalidate(self, event: NotificationReceived) -> None:
        """Drop what a notification makes stale (CACHE-17)."""
        if isinstance(event.params, ResourceUpdatedParams):
            self.version += 1
            changed = event.params.uri  # may be a part of a resource that was read
            for method, uri in list(self._entries):
                if method == RESOURCES_READ and uri is not None and _contains_uri(uri, changed):
                    del self._entries[method, uri]
        else:
            self.drop(*_STALE_METHODS.get(event.method, ()))

    def drop(self, *methods: str) -> None:
        """Drop all answers to these methods."""
        if methods:
            self.version += 1
            for key in [key for key in self._entries if key[0] in methods]:
                del self._entries[key]

    def clear(self) -> None:
        """Drop everything: changes may have been missed, or it may be another server."""
        self.version += 1
        self._entries.clear()


def _contains_uri(whole: str, uri: str) -> bool:
    """Return whether a resource is another one or contains it."""
    return uri == whole or uri.startswith(whole.rstrip("/") + "/")


class HeaderParameterCache:
    """The tool parameters that HTTP repeats in headers, for tools that have been listed."""

    def __init__(self) -> None:
        self._by_tool: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self.find = self._by_tool.get
        """Returns the header parameters of a tool, header → path; None if it was never listed."""

    def learn(self, tools: Iterable[Tool], report: Callable[[RemoteProtocolError], None]) -> list[Tool]:
        """Record tools and return the callable ones; `report` gets an error for each other (HDR-14)."""
        usable: list[Tool] = []
        for tool in tools:
            try:
                self._by_tool[tool.name] = find_annotations(tool.input_schema)
            except ValueError as error:
                self._by_tool.pop(tool.name, None)
                report(RemoteProtocolError(f"tools/list: tool {tool.name!r} cannot be called: {error}"))
            else:
                usable.append(tool)
        return usable

    def keep_only(self, names: set[str]) -> None:
        """Forget all other tools."""
        for name in self._by_tool.keys() - names:
            del self._by_tool[name]

    def clear(self) -> None:
        """Forget everything: it may be another server."""
        self._by_tool.clear()


# --------------------------------------------------------------------- reading

logger: Final = logging.getLogger("toolpost.client")


class ServerReader:
    """Reads the lists and resources of one server."""

    def __init__(self, session: "ClientSession", stats: Stats, *, strict: bool, cache: bool) -> None:
        self.output_schemas = OutputSchemas(stats)
        self.header_parameters = HeaderParameterCache()
        self._session = session
        self._stats = stats
        self._strict = strict
        self._cache = ResponseCache(MAX_CACHE_ENTRIES if cache else 0)
        self.retry_safe_tools: set[str] = set()
        """The listed tools that their server describes as read-only or idempotent."""
        self._relist_lock: asyncio.Lock

    def reset(self) -> None:
        """Forget what was learnt: it is another connection, and maybe another server."""
        self.output_schemas.clear()
        self.header_parameters.clear()
        self._relist_lock = asyncio.Lock()
        self.clear_cache()

    def clear_cache(self) -> None:
        """Drop cached answers: changes may have been missed."""
        self._cache.clear()

    def handle_notification(self, event: NotificationReceived) -> None:
        """Drop what a notification makes stale."""
        self._cache.invalidate(event)
        if event.method == TOOLS_LIST_CHANGED:
            self.output_schemas.mark_outdated()

    def _skip_item(self, error: RemoteProtocolError) -> None:
        if self._strict:
            raise error
        self._stats.skipped += 1
        logger.warning("left out: %s", error)

    # ----------------------------------------------------------------- lists

    async def iter_pages(
        self, listing: ListMethod[P], limits: CallLimits, *, fresh: bool = False
    ) -> AsyncIterator[P]:
        """Yield the pages of a list, without items that cannot be decoded; `fresh` ignores the cache."""
        dispatcher: Dispatcher | None = None
        cursor: str | None = None
        seen: set[str] = set()
        names: set[str] = set()
        row = listing.row
        for _ in range(MAX_PAGES):
            if dispatcher is None:
                dispatcher = await self._session.ensure_connected(limits)
            else:
                self._check_same_connection(dispatcher, row)
            loose = None if fresh else self._find_cached(row, cursor)
            if loose is None:
                stamp = self._cache.version
                loose, dispatcher = await self._fetch_page(row, cursor, limits, dispatcher)
                self._store(row, cursor, loose, stamp)
            page = listing.read(cast("PaginatedResult", loose), self._skip_item)
            yield self._learn_tools(page, dispatcher, names)
            cursor = page.next_cursor
            if cursor is None:  # an empty cursor is a cursor (PAGE-3, PAGE-5)
                break
            if cursor in seen:
                raise RemoteProtocolError(
                    f"{row.name}: the server gave the same cursor twice, so the list has no end"
                )
            seen.add(cursor)
        else:
            raise RemoteProtocolError(f"{row.name}: the list has more than {MAX_PAGES} pages")
        if listing is TOOLS:
            self.output_schemas.keep_only(names)
            self.header_parameters.keep_only(names)

    def _check_same_connection(self, dispatcher: "Dispatcher", row: Row) -> None:
        """Raise unless the connection of the first page is still open: cursors belong to it."""
        if dispatcher.end_reason is not None and self._session.can_reconnect:
            raise StaleCursor(
                f"{row.name}: the connection on which the list was begun is over",
                hint="read it from the start",
            )
        dispatcher.check_open()

    async def _fetch_page(
        self, row: Row, cursor: str | None, limits: CallLimits, dispatcher: "Dispatcher"
    ) -> tuple[Result, "Dispatcher"]:
        """Fetch a page; return it with its connection, the only one its cursor is good for (PAGE-6)."""
        params = PaginatedRequestParams(cursor=cursor)
        if cursor is not None:
            try:
                return await self._session.send(row, params, dispatcher, limits), dispatcher
            except InvalidParams:
                self._cache.drop(row.name)  # CACHE-16
                raise

        async def first(dispatcher: "Dispatcher", limits: CallLimits) -> tuple[Result, "Dispatcher"]:
            return await self._session.send(row, params, dispatcher, limits), dispatcher

        return await self._session.run_with_retry(first, limits, safe=True)

    def _learn_tools(self, page: P, dispatcher: "Dispatcher", names: set[str]) -> P:
        """Record what a page of tools tells about them; return the page."""
        if isinstance(page, ListToolsResult):
            if dispatcher.has_parameter_headers and dispatcher.connection.revision.stateless:
                page.tools = self.header_parameters.learn(page.tools, self._skip_item)
            self.output_schemas.learn(page.tools)
            for tool in page.tools:
                hints = tool.annotations
                safe = hints is not None and (hints.read_only_hint or hints.idempotent_hint)
                (self.retry_safe_tools.add if safe else self.retry_safe_tools.discard)(tool.name)
            names.update(tool.name for tool in page.tools)
        return page

    async def refresh_header_parameters(self, name: str, known: object, limits: CallLimits) -> bool:
        """List the tools again; return whether the header parameters differ from `known` (HDR-28)."""
        if not self._session.dispatcher.has_parameter_headers:
            return False
        async with self._relist_lock:
            if (self.header_parameters.find(name) or None) == (known or None):  # no other call has done it
                try:
                    async for _ in self.iter_pages(TOOLS, limits, fresh=True):
                        pass
                except MCPError as error:
                    logger.info("the tools could not be listed after a mismatch of headers: %s", error)
        return (self.header_parameters.find(name) or None) != (known or None)

    async def read_resource(self, uri: str, limits: CallLimits) -> ReadResourceResult:
        """Read a resource, from the cache if that is fresh."""
        limits = await self._session.wait_connected(limits)
        row = self._session.last_connection.revision.requests[CLIENT][RESOURCES_READ]
        kept = self._find_cached(row, uri)
        if kept is not None:
            return cast("ReadResourceResult", kept)
        return await self._session.multi_round.request(
            ReadResourceResult,
            row.name,
            ReadResourceParams(uri=uri),
            limits,
            plain=partial(self._store, row, uri, stamp=self._cache.version),
        )

    def _find_cached(self, row: Row, which: str | None) -> Result | None:
        raw = self._cache.find(row.name, which, asyncio.get_running_loop().time())
        if raw is None:
            return None
        self._stats.cached += 1
        return row.read_result(Raw(raw), "complete")  # a copy for each caller

    def _store(self, row: Row, which: str | None, result: Result, stamp: int) -> None:
        stateless = self._session.last_connection.revision.stateless
        if stateless and isinstance(result, CacheableResult):
            self._cache.store(row.name, which, result, asyncio.get_running_loop().time(), stamp)
