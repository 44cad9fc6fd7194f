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
from toolpost.client.call import Limits
from toolpost.client.mirrors import Mirrors
from toolpost.client.outputs import Outputs
from toolpost.client.pages import TOOLS, Listing, Outdated, walk
from toolpost.client.stats import Stats
from toolpost.errors import InvalidParams, MCPError, RemoteProtocolError
from toolpost.protocol.events import NoticeReceived
from toolpost.protocol.methods import CLIENT, Row
from toolpost.types.base import Raw, Result
from toolpost.types.lifecycle import Cacheable, Page, PageParams
from toolpost.types.resources import ReadResourceParams, ReadResourceResult
from toolpost.types.tools import ListToolsResult

if TYPE_CHECKING:
    from toolpost.client.conversation import Conversation
    from toolpost.client.link import Link

__all__ = ["Reading"]

P = TypeVar("P", bound=Page)

logger: Final = logging.getLogger("toolpost.client")


class Reading:
    """What is read of one server.

    Args:
        talk: the conversation.
        stats: where to count.
        strict: whether an item of a list that cannot be read is an error.
        cache: whether to keep answers as long as a stateless server allows.
    """

    def __init__(self, talk: "Conversation", stats: Stats, *, strict: bool, cache: bool) -> None:
        self.outputs = Outputs(stats)
        self.mirrors = Mirrors()
        self._talk = talk
        self._stats = stats
        self._strict = strict
        self._cache = ResponseCache() if cache else None
        self.harmless: set[str] = set()
        """The tools that may be called twice as well as once, as far as their server says and was asked."""
        self._learning: asyncio.Lock

    # ----------------------------------------------------------------- what is known

    def begin(self) -> None:
        """Know nothing: it is another connection, and maybe another server."""
        self.outputs.forget()
        self.mirrors.forget()
        self._learning = asyncio.Lock()
        self.gap()

    def forget(self) -> None:
        """Know nothing of tools that may be called twice: the next server may be another one."""
        self.harmless.clear()

    def gap(self) -> None:
        """Changes may have been missed: keep no answers."""
        if self._cache is not None:
            self._cache.clear()

    def hear(self, event: NoticeReceived) -> None:
        """Take note of what a notice makes stale."""
        if self._cache is not None:
            self._cache.hear(event)
        if event.method == "notifications/tools/list_changed":
            self.outputs.outdate()

    def _skip(self, error: RemoteProtocolError) -> None:
        if self._strict:
            raise error
        self._stats.skipped += 1
        logger.warning("left out: %s", error)

    # ----------------------------------------------------------------- lists

    async def pages(self, listing: Listing[P], limits: Limits, *, fresh: bool = False) -> AsyncIterator[P]:
        """The pages of a list, without the items that cannot be read.

        Args:
            listing: which list.
            limits: how long to wait for each page.
            fresh: whether answers that were kept do not count.

        Raises:
            Outdated: the client has connected anew since the last page, which the cursor belongs to.
        """
        begun: Link | None = None
        names: set[str] = set()

        async def turn(cursor: str | None) -> P:
            nonlocal begun
            begun = await self._talk.hold(limits) if begun is None else self._same(begun, listing.row)
            loose = None if fresh else self._find(listing.row, cursor)
            if loose is None:
                stamp = self._stamp
                loose, begun = await self._page(listing.row, cursor, limits, begun)
                self._keep(listing.row, cursor, loose, stamp)
            return self._sifted(listing.read(cast("Page", loose), self._skip), begun, names)

        async for page in walk(listing.row.name, turn):
            yield page
        if listing is TOOLS:
            self.outputs.complete(names)
            self.mirrors.complete(names)

    def _same(self, begun: "Link", row: Row) -> "Link":
        """The connection on which a list was begun, if it goes on."""
        if begun.ended is not None and self._talk.revivable:
            raise Outdated(
                f"{row.name}: the connection on which the list was begun is over",
                hint="read it from the start",
            )
        begun.check_open()
        return begun

    async def _page(
        self, row: Row, cursor: str | None, limits: Limits, link: "Link"
    ) -> tuple[Result, "Link"]:
        """A page, and the connection that it came over: a cursor goes with its own one only (PAGE-6)."""
        params = PageParams(cursor=cursor)
        if cursor is not None:
            try:
                return await self._talk.send(row, params, limits, {}, link), link
            except InvalidParams:
                if self._cache is not None:
                    self._cache.drop(row.name)  # CACHE-16
                raise

        async def first(link: "Link", limits: Limits) -> tuple[Result, "Link"]:
            return await self._talk.send(row, params, limits, {}, link), link

        return await self._talk.heal(first, limits, safe=True)

    def _sifted(self, page: P, link: "Link", names: set[str]) -> P:
        """A page, and if it is one of tools, what it tells about them."""
        if isinstance(page, ListToolsResult):
            if link.mirrors and link.connection.revision.stateless:
                page.tools = self.mirrors.learn(page.tools, self._skip)
            self.outputs.learn(page.tools)
            for tool in page.tools:
                hints = tool.annotations
                safe = hints is not None and (hints.read_only_hint or hints.idempotent_hint)
                (self.harmless.add if safe else self.harmless.discard)(tool.name)
            names.update(tool.name for tool in page.tools)
        return page

    async def relearn(self, name: str, known: object, limits: Limits) -> bool:
        """Whether another list of tools says something else about the headers of a tool (HDR-28).

        Args:
            name: the tool.
            known: what `mirrors` knew of it when it was called in vain.
            limits: how long to wait for each page.
        """
        if not self._talk.link.mirrors:
            return False
        async with self._learning:
            if (self.mirrors.of(name) or None) == (known or None):  # nobody was faster
                try:
                    async for _ in self.pages(TOOLS, limits, fresh=True):
                        pass
                except MCPError as error:
                    logger.info("the tools could not be listed after a mismatch of headers: %s", error)
        return (self.mirrors.of(name) or None) != (known or None)

    # ----------------------------------------------------------------- resources

    async def resource(self, uri: str, limits: Limits) -> ReadResourceResult:
        """What a resource holds, from what was kept if that is fresh."""
        limits = await self._talk.wait(limits)
        row = self._talk.opened.revision.requests[CLIENT]["resources/read"]
        kept = self._find(row, uri)
        if kept is not None:
            return cast("ReadResourceResult", kept)
        return await self._talk.rounds.ask(
            ReadResourceResult,
            row.name,
            ReadResourceParams(uri=uri),
            limits,
            plain=partial(self._keep, row, uri, stamp=self._stamp),
        )

    # ----------------------------------------------------------------- what was kept

    @property
    def _stamp(self) -> int:
        return 0 if self._cache is None else self._cache.turn

    def _find(self, row: Row, which: str | None) -> Result | None:
        if self._cache is None:
            return None
        raw = self._cache.find(row.name, which, asyncio.get_running_loop().time())
        if raw is None:
            return None
        self._stats.cached += 1
        return row.read_result(Raw(raw), "complete")  # its own copy for everybody

    def _keep(self, row: Row, which: str | None, result: Result, stamp: int) -> None:
        stateless = self._talk.opened.revision.stateless
        if self._cache is not None and stateless and isinstance(result, Cacheable):
            self._cache.keep(row.name, which, result, asyncio.get_running_loop().time(), stamp)
