"""What a server has to read: lists page by page, resources, and what the list of tools tells about each tool.

Owns what was learnt from that on the connection of the moment: kept answers, output schemas, mirrored
parameters; a notice or a gap makes it stale. How a request is sent is the conversation's business.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

from toolpost.client.cache import ResponseCache
from toolpost.client.call import CallLimits
from toolpost.client.mirrors import HeaderParameterCache
from toolpost.client.outputs import OutputSchemas
from toolpost.client.pages import TOOLS, ListMethod, StaleCursor, follow_cursors
from toolpost.client.stats import Stats
from toolpost.errors import InvalidParams, MCPError, RemoteProtocolError
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.methods import CLIENT, Row
from toolpost.types.base import Raw, Result
from toolpost.types.lifecycle import CacheableResult, PaginatedRequestParams, PaginatedResult
from toolpost.types.resources import ReadResourceParams, ReadResourceResult
from toolpost.types.tools import ListToolsResult

if TYPE_CHECKING:
    from toolpost.client.conversation import ClientSession
    from toolpost.client.link import Dispatcher

__all__ = ["ServerReader"]

P = TypeVar("P", bound=PaginatedResult)

logger: Final = logging.getLogger("toolpost.client")


class ServerReader:
    """What is read of one server.

    Args:
        talk: the conversation.
        stats: where to count.
        strict: whether an item of a list that cannot be read is an error.
        cache: whether to keep answers as long as a stateless server allows.
    """

    def __init__(self, talk: "ClientSession", stats: Stats, *, strict: bool, cache: bool) -> None:
        self.output_schemas = OutputSchemas(stats)
        self.header_parameters = HeaderParameterCache()
        self._session = talk
        self._stats = stats
        self._strict = strict
        self._cache = ResponseCache() if cache else None
        self.retry_safe_tools: set[str] = set()
        """The tools that may be called twice as well as once, as far as their server says and was asked."""
        self._relist_lock: asyncio.Lock

    # ----------------------------------------------------------------- what is known

    def reset(self) -> None:
        """Know nothing: it is another connection, and maybe another server."""
        self.output_schemas.clear()
        self.header_parameters.clear()
        self._relist_lock = asyncio.Lock()
        self.clear_cache()

    def forget_retry_safe_tools(self) -> None:
        """Know nothing of tools that may be called twice: the next server may be another one."""
        self.retry_safe_tools.clear()

    def clear_cache(self) -> None:
        """Changes may have been missed: keep no answers."""
        if self._cache is not None:
            self._cache.clear()

    def handle_notification(self, event: NotificationReceived) -> None:
        """Take note of what a notice makes stale."""
        if self._cache is not None:
            self._cache.invalidate(event)
        if event.method == "notifications/tools/list_changed":
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
        """The pages of a list, without the items that cannot be read.

        Args:
            listing: which list.
            limits: how long to wait for each page.
            fresh: whether answers that were kept do not count.

        Raises:
            StaleCursor: the client has connected anew since the last page, which the cursor belongs to.
        """
        begun: Dispatcher | None = None
        names: set[str] = set()

        async def turn(cursor: str | None) -> P:
            nonlocal begun
            begun = (
                await self._session.ensure_connected(limits)
                if begun is None
                else self._require_same_connection(begun, listing.row)
            )
            loose = None if fresh else self._find_cached(listing.row, cursor)
            if loose is None:
                stamp = self._cache_version
                loose, begun = await self._fetch_page(listing.row, cursor, limits, begun)
                self._store(listing.row, cursor, loose, stamp)
            return self._learn_tools(
                listing.read(cast("PaginatedResult", loose), self._skip_item), begun, names
            )

        async for page in follow_cursors(listing.row.name, turn):
            yield page
        if listing is TOOLS:
            self.output_schemas.keep_only(names)
            self.header_parameters.keep_only(names)

    def _require_same_connection(self, begun: "Dispatcher", row: Row) -> "Dispatcher":
        """The connection on which a list was begun, if it goes on."""
        if begun.end_reason is not None and self._session.can_reconnect:
            raise StaleCursor(
                f"{row.name}: the connection on which the list was begun is over",
                hint="read it from the start",
            )
        begun.check_open()
        return begun

    async def _fetch_page(
        self, row: Row, cursor: str | None, limits: CallLimits, link: "Dispatcher"
    ) -> tuple[Result, "Dispatcher"]:
        """A page, and the connection that it came over: a cursor goes with its own one only (PAGE-6)."""
        params = PaginatedRequestParams(cursor=cursor)
        if cursor is not None:
            try:
                return await self._session.send(row, params, limits, {}, link), link
            except InvalidParams:
                if self._cache is not None:
                    self._cache.drop(row.name)  # CACHE-16
                raise

        async def first(link: "Dispatcher", limits: CallLimits) -> tuple[Result, "Dispatcher"]:
            return await self._session.send(row, params, limits, {}, link), link

        return await self._session.run_with_retry(first, limits, safe=True)

    def _learn_tools(self, page: P, link: "Dispatcher", names: set[str]) -> P:
        """A page, and if it is one of tools, what it tells about them."""
        if isinstance(page, ListToolsResult):
            if link.has_parameter_headers and link.connection.revision.stateless:
                page.tools = self.header_parameters.learn(page.tools, self._skip_item)
            self.output_schemas.learn(page.tools)
            for tool in page.tools:
                hints = tool.annotations
                safe = hints is not None and (hints.read_only_hint or hints.idempotent_hint)
                (self.retry_safe_tools.add if safe else self.retry_safe_tools.discard)(tool.name)
            names.update(tool.name for tool in page.tools)
        return page

    async def refresh_header_parameters(self, name: str, known: object, limits: CallLimits) -> bool:
        """Whether another list of tools says something else about the headers of a tool (HDR-28).

        Args:
            name: the tool.
            known: what `header_parameters` knew of it when it was called in vain.
            limits: how long to wait for each page.
        """
        if not self._session.dispatcher.has_parameter_headers:
            return False
        async with self._relist_lock:
            if (self.header_parameters.find(name) or None) == (known or None):  # nobody was faster
                try:
                    async for _ in self.iter_pages(TOOLS, limits, fresh=True):
                        pass
                except MCPError as error:
                    logger.info("the tools could not be listed after a mismatch of headers: %s", error)
        return (self.header_parameters.find(name) or None) != (known or None)

    # ----------------------------------------------------------------- resources

    async def read_resource(self, uri: str, limits: CallLimits) -> ReadResourceResult:
        """What a resource holds, from what was kept if that is fresh."""
        limits = await self._session.wait_connected(limits)
        row = self._session.last_connection.revision.requests[CLIENT]["resources/read"]
        kept = self._find_cached(row, uri)
        if kept is not None:
            return cast("ReadResourceResult", kept)
        return await self._session.multi_round.request(
            ReadResourceResult,
            row.name,
            ReadResourceParams(uri=uri),
            limits,
            plain=partial(self._store, row, uri, stamp=self._cache_version),
        )

    # ----------------------------------------------------------------- what was kept

    @property
    def _cache_version(self) -> int:
        return 0 if self._cache is None else self._cache.version

    def _find_cached(self, row: Row, which: str | None) -> Result | None:
        if self._cache is None:
            return None
        raw = self._cache.find(row.name, which, asyncio.get_running_loop().time())
        if raw is None:
            return None
        self._stats.cached += 1
        return row.read_result(Raw(raw), "complete")  # its own copy for everybody

    def _store(self, row: Row, which: str | None, result: Result, stamp: int) -> None:
        stateless = self._session.last_connection.revision.stateless
        if self._cache is not None and stateless and isinstance(result, CacheableResult):
            self._cache.store(row.name, which, result, asyncio.get_running_loop().time(), stamp)
