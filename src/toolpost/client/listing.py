"""Reads lists page by page, and resources, from a server or from the cache.

Owns facts learnt on the current connection: cached answers, output schemas, and the parameters that HTTP
repeats in headers; a notification or a gap makes them stale. What cannot be decoded costs a member of an item
or the item, not the list. Sending is left to the session.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec

from toolpost import types
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.status import Stats
from toolpost.client.multi_round import MultiRoundCall
from toolpost.client.output_schemas import OutputSchemas
from toolpost.errors import InvalidParams, MCPError, MethodNotFound, RemoteProtocolError, SessionLost
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.headers import find_annotations
from toolpost.protocol.jsonrpc import DECODE_ERRORS, InvalidJSONValue, JSONReader, encode
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import (
    CLIENT,
    PROMPTS_LIST,
    PROMPTS_LIST_CHANGED,
    RESOURCES_LIST,
    RESOURCES_LIST_CHANGED,
    RESOURCES_READ,
    RESOURCES_TEMPLATES_LIST,
    TOOLS_LIST,
    TOOLS_LIST_CHANGED,
    Row,
)
from toolpost.token_bucket import WarningThrottle
from toolpost.types.base import Raw, Result, WireStruct

if TYPE_CHECKING:
    from toolpost.client.connection.dispatcher import Dispatcher
    from toolpost.client.connection.session import ClientSession

MAX_PAGES: Final = 1000  # pages of a list, so that a server cannot send pages without end

P = TypeVar("P", bound=types.PaginatedResult)
Item = TypeVar("Item", bound=WireStruct)


class StaleCursor(MCPError):
    """The rest of a list cannot be read: its cursor belongs to a connection that has ended (PAGE-6)."""

    retry_safe = True


class ListMethod(Generic[P, Item]):
    """One of the lists. Its row decodes pages only; the items in `member` are decoded one by one."""

    def __init__(
        self, method: str, member: str, page: type[P], item: type[Item], needs: str | None = None
    ) -> None:
        raw_page = msgspec.defstruct(
            f"Raw{page.__name__}", [(member, list[Raw])], bases=(types.PaginatedResult,)
        )
        self.row: Final = Row(
            method,
            types.PaginatedRequestParams,
            cast("type[types.PaginatedResult]", raw_page),
        )  # without `needs`: servers have lists that they do not declare
        self.needs: Final = needs or member
        self.member: Final = member
        self._page = page
        self.empty_page: Final[types.PaginatedResult] = cast("Any", raw_page)(**{member: []})
        self._item: JSONReader[Item] = JSONReader(item)

    def read(self, loose: types.PaginatedResult, report: Callable[[RemoteProtocolError], None]) -> P:
        """Decode the items of a page; `report` is called for each that cannot be decoded."""
        items: list[Item] = []
        for index, raw in enumerate(getattr(loose, self.member)):
            try:
                items.append(self._item(raw))
            except InvalidJSONValue as error:
                report(RemoteProtocolError(f"{self.row.name}: item {index} cannot be decoded: {error}"))
                with suppress(*DECODE_ERRORS):
                    items.append(self._item.decode(_drop_invalid_members(raw, self._item.kind)))
        page = self._page(
            **{self.member: items},
            next_cursor=loose.next_cursor,
            ttl_ms=loose.ttl_ms,
            cache_scope=loose.cache_scope,
            meta=loose.meta,
            result_type=loose.result_type,
        )
        vars(page)["raw"] = vars(loose).get("raw")
        return page


def _drop_invalid_members(raw: Raw, kind: type[WireStruct]) -> bytes:
    """Return an item without the optional members, or the items in their lists, that cannot be decoded."""
    members = _MEMBERS.decode(raw)
    for field in msgspec.structs.fields(kind):
        value = members.get(field.encode_name)
        if field.required or value is None:
            continue
        reader = JSONReader[object](field.type)
        try:
            reader.decode(value)
        except DECODE_ERRORS:
            kept: list[Raw] = []
            with suppress(*DECODE_ERRORS):
                for each in _ITEMS.decode(value):
                    with suppress(*DECODE_ERRORS):
                        reader.decode(b"[%b]" % each)
                        kept.append(each)
            members[field.encode_name] = Raw(encode(kept))
            if not kept:
                del members[field.encode_name]
    return encode(members)


_MEMBERS: Final = JSONReader(dict[str, Raw])
_ITEMS: Final = JSONReader(list[Raw])

TOOLS: Final = ListMethod(TOOLS_LIST, "tools", types.ListToolsResult, types.Tool)
RESOURCES: Final = ListMethod(RESOURCES_LIST, "resources", types.ListResourcesResult, types.Resource)
TEMPLATES: Final = ListMethod(
    RESOURCES_TEMPLATES_LIST,
    "resource_templates",
    types.ListResourceTemplatesResult,
    types.ResourceTemplate,
    "resources",
)
PROMPTS: Final = ListMethod(PROMPTS_LIST, "prompts", types.ListPromptsResult, types.Prompt)
SKILLS: Final = ListMethod("skills/list", "skills", types.ListSkillsResult, types.Skill, "resources")


# --------------------------------------------------------------------- the cache

MAX_CACHE_ENTRIES: Final = 512  # answers: all lists of a large server and the resources in use
MAX_CACHE_TTL: Final = 24 * 60 * 60.0  # seconds that a response stays fresh at most

_STALE_METHODS: Final = {
    TOOLS_LIST_CHANGED: (TOOLS_LIST,),
    PROMPTS_LIST_CHANGED: (PROMPTS_LIST,),
    RESOURCES_LIST_CHANGED: (RESOURCES_LIST, RESOURCES_TEMPLATES_LIST, SKILLS.row.name),
}
"""The methods whose answers a notification makes stale."""


class ResponseCache:
    """The cached answers of one client (CACHE-7 … CACHE-17), least recently used first. Has no clock."""

    def __init__(self, limit: int = MAX_CACHE_ENTRIES) -> None:
        self._limit = limit
        self._entries: OrderedDict[tuple[str, str | None], tuple[bytes, float]] = OrderedDict()
        self.version = 0  # grows when something becomes stale: answers requested before are not stored

    def find(self, method: str, which: str | None, now: float) -> bytes | None:
        """Return the bytes of a fresh result, or None. `which` is the cursor or the URI."""
        key = (method, which)
        if key not in self._entries:
            return None
        raw, fresh_until = self._entries[key]
        if now >= fresh_until:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return raw

    def store(
        self, method: str, which: str | None, result: types.CacheableResult, now: float, turn: int
    ) -> None:
        """Store a result for its time to live, unless something has become stale since version `turn`."""
        ttl = min(result.ttl_ms or 0, MAX_CACHE_TTL * 1000) / 1000
        if ttl <= 0 or turn != self.version:
            return
        self._entries[method, which] = result.raw or b"{}", now + ttl
        self._entries.move_to_end((method, which))
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def invalidate(self, event: NotificationReceived) -> None:
        """Drop the entries that a notification makes stale (CACHE-17)."""
        if isinstance(event.params, types.ResourceUpdatedParams):
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


# --------------------------------------------------------------------- reading

logger: Final = logging.getLogger("toolpost.client")


class ServerReader:
    """Reads the lists and resources of one server."""

    def __init__(self, session: "ClientSession", stats: Stats, *, strict: bool, cache: bool) -> None:
        self.output_schemas = OutputSchemas(stats, strict=strict)
        self.header_parameters: dict[str, Mapping[str, tuple[str, ...]]] = {}
        """The parameters of listed tools that HTTP repeats in headers: header → path, by tool."""
        self._session = session
        self._stats = stats
        self._strict = strict
        self._warnings = WarningThrottle()
        self.cache = ResponseCache(MAX_CACHE_ENTRIES if cache else 0)
        self.retry_safe_tools: set[str] = set()  # those that are read-only or idempotent
        self._relist_lock: asyncio.Lock

    def reset(self) -> None:
        """Forget everything: it is another connection, and maybe another server."""
        self.output_schemas.clear()
        self.header_parameters.clear()
        self._relist_lock = asyncio.Lock()
        self.cache.clear()

    def handle_notification(self, event: NotificationReceived) -> None:
        """Drop what a notification makes stale."""
        self.cache.invalidate(event)
        if event.method == TOOLS_LIST_CHANGED:
            self.output_schemas.mark_outdated()
            self.retry_safe_tools.clear()

    def _skip_item(self, error: RemoteProtocolError) -> None:
        if self._strict:
            raise error
        self._stats.skipped += 1
        logger.log(self._warnings.choose_level(), "skipped: %.1000s", error)

    # ----------------------------------------------------------------- lists

    async def read_list(self, listing: ListMethod[Any, Item], limits: CallLimits) -> list[Item]:
        """Read a whole list; start over once if it breaks off after the first page (CACHE-16, PAGE-6)."""
        items: list[Item] = []
        is_begun = False
        try:
            async for page in self.iter_pages(listing, limits):
                items += getattr(page, listing.member)
                is_begun = True
        except (StaleCursor, InvalidParams, SessionLost):
            if not is_begun:
                raise
            return [
                i async for page in self.iter_pages(listing, limits) for i in getattr(page, listing.member)
            ]
        return items

    async def iter_pages(
        self, listing: ListMethod[P, Any], limits: CallLimits, *, fresh: bool = False
    ) -> AsyncIterator[P]:
        """Yield the pages of a list, without what cannot be decoded; `fresh` ignores the cache.

        A list that the server does not know is empty.
        """
        cursor: str | None = None
        seen: set[str] = set()
        names: set[str] = set()
        first: bytes | None = None
        row = listing.row
        await self._session.wait_connected(limits)
        dispatcher = self._session.dispatcher
        for _ in range(MAX_PAGES):
            self._check_same_connection(dispatcher, row)
            loose = None if fresh else self._find_cached(row, cursor)
            if loose is None:
                stamp = self.cache.version
                loose, dispatcher = await self._fetch_page(listing, cursor, limits, dispatcher)
                self._store(row, cursor, loose, stamp)
            page = listing.read(cast("types.PaginatedResult", loose), self._skip_item)
            cursor = page.next_cursor
            # An empty cursor is a cursor (PAGE-5), but in a session most servers mean the end.
            is_empty = cursor == "" and not self._session.last_connection.revision.stateless
            is_odd = is_empty or cursor in seen
            if is_odd:
                why = "an empty cursor" if is_empty else "the same cursor twice"
                self._skip_item(
                    RemoteProtocolError(f"{row.name}: the server returned {why}; the list ends here")
                )
                if page.raw == first:  # the server ignores the cursor
                    break
            if getattr(page, listing.member):
                self._learn_capability(listing.needs)
            yield self._learn_tools(page, dispatcher, names)
            if cursor is None or is_odd:
                break
            seen.add(cursor)
            first = first or page.raw
        else:
            raise RemoteProtocolError(f"{row.name}: the list has more than {MAX_PAGES} pages")
        if listing is TOOLS:
            self.output_schemas.keep_only(names)
            self.retry_safe_tools &= names
            for name in self.header_parameters.keys() - names:
                del self.header_parameters[name]

    def _check_same_connection(self, dispatcher: "Dispatcher", row: Row) -> None:
        """Raise unless the connection of the first page is still open: cursors belong to it."""
        if dispatcher.end_reason is not None and self._session.reconnector.can_reconnect:
            raise StaleCursor(
                f"{row.name}: the connection was lost while the list was being read",
                hint="start again from the first page",
            )
        dispatcher.check_open()

    async def _fetch_page(
        self,
        listing: ListMethod[Any, Any],
        cursor: str | None,
        limits: CallLimits,
        dispatcher: "Dispatcher",
    ) -> tuple[Result, "Dispatcher"]:
        """Fetch a page; return it with its connection, the only one its cursor is good for (PAGE-6)."""
        row, params = listing.row, types.PaginatedRequestParams(cursor=cursor)

        async def fetch(dispatcher: "Dispatcher", limits: CallLimits) -> tuple[Result, "Dispatcher"]:
            return await dispatcher.request(limits, row, params), dispatcher

        if cursor is None:
            try:
                return await self._session.run_with_retry(fetch, limits, safe=True)
            except MethodNotFound:
                if self._strict:
                    raise
                return listing.empty_page, self._session.dispatcher
        try:
            return await fetch(dispatcher, limits)
        except InvalidParams:
            self.cache.drop(row.name)  # CACHE-16
            raise

    def _learn_capability(self, name: str) -> None:
        """Add a capability that the server has but did not declare, so that its items can be used."""
        capabilities = self._session.last_connection.result.capabilities
        if not has_capability(capabilities, name):
            setattr(capabilities, name, types.ListCapability())

    def _learn_tools(self, page: P, dispatcher: "Dispatcher", names: set[str]) -> P:
        """Record output schemas, headers and hints of the tools on a page; return the page."""
        if isinstance(page, types.ListToolsResult):
            if dispatcher.has_parameter_headers and dispatcher.connection.revision.stateless:
                page.tools = [tool for tool in page.tools if self._learn_header_parameters(tool)]
            self.output_schemas.learn(page.tools)
            for tool in page.tools:
                hints = tool.annotations
                safe = hints is not None and (hints.read_only_hint or hints.idempotent_hint)
                (self.retry_safe_tools.add if safe else self.retry_safe_tools.discard)(tool.name)
            names.update(tool.name for tool in page.tools)
        return page

    def _learn_header_parameters(self, tool: types.Tool) -> bool:
        """Record the header parameters of a tool; return whether it can be called (HDR-14)."""
        try:
            self.header_parameters[tool.name] = find_annotations(tool.input_schema)
        except ValueError as error:
            self.header_parameters.pop(tool.name, None)
            self._skip_item(RemoteProtocolError(f"tools/list: tool {tool.name!r} cannot be called: {error}"))
            return False
        return True

    async def refresh_header_parameters(self, name: str, known: object, limits: CallLimits) -> bool:
        """List the tools again; return whether the header parameters differ from `known` (HDR-28)."""
        if not self._session.dispatcher.has_parameter_headers:
            return False
        async with self._relist_lock:
            if (self.header_parameters.get(name) or None) == (known or None):  # no other call has done it
                try:
                    async for _ in self.iter_pages(TOOLS, limits, fresh=True):
                        pass
                except MCPError as error:
                    logger.info("could not list the tools after a header mismatch: %.1000s", error)
        return (self.header_parameters.get(name) or None) != (known or None)

    async def read_resource(self, uri: str, limits: CallLimits) -> types.ReadResourceResult:
        """Read a resource, from the cache if that is fresh."""
        limits = await self._session.wait_connected(limits)
        row = self._session.last_connection.revision.requests[CLIENT][RESOURCES_READ]
        kept = self._find_cached(row, uri)
        if kept is not None:
            return cast("types.ReadResourceResult", kept)
        call = MultiRoundCall(self._session, row.name, types.ReadResourceParams(uri=uri), limits)
        stamp = self.cache.version
        result = await call.finish(types.ReadResourceResult)
        if not call.rounds:  # answers to questions are not part of the key
            self._store(row, uri, result, stamp)
        return result

    def _find_cached(self, row: Row, which: str | None) -> Result | None:
        raw = self.cache.find(row.name, which, asyncio.get_running_loop().time())
        if raw is None:
            return None
        self._stats.cached += 1
        return row.read_result(Raw(raw), "complete")  # a copy for each caller

    def _store(self, row: Row, which: str | None, result: Result, stamp: int) -> None:
        stateless = self._session.last_connection.revision.stateless
        if stateless and isinstance(result, types.CacheableResult):
            self.cache.store(row.name, which, result, asyncio.get_running_loop().time(), stamp)
