"""The conversation with a server as the methods of a client need it: limits, retries, pages, notices.

Owns what belongs to the connection of the moment: listener, output schemas, log level. How messages move is
told in `link`, how the revision is found in `negotiate`, how the connection lives in `supervise`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from toolpost.channel import Channel
from toolpost.client.answer import Answers
from toolpost.client.call import Limits
from toolpost.client.door import check_seconds, named
from toolpost.client.lane import Lane
from toolpost.client.link import Link
from toolpost.client.listen import Listener
from toolpost.client.negotiate import Handshake, Opened, Way
from toolpost.client.outputs import Outputs
from toolpost.client.pages import Listing, walk
from toolpost.client.stats import Stats
from toolpost.client.supervise import Supervisor
from toolpost.errors import ConnectFailed, LocalProtocolError, MCPError, RemoteProtocolError
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import Incoming, NoticeReceived
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.protocol.methods import Row
from toolpost.protocol.party import Party, declares
from toolpost.protocol.revisions import Revision
from toolpost.types.base import JSON, UNSET, Raw, Result, Unset, Wire
from toolpost.types.inputs import AnswerParams, InputRequiredResult
from toolpost.types.lifecycle import LOG_LEVEL, LogLevel, Page, PageParams
from toolpost.types.notices import LogParams, ProgressParams

__all__ = ["Callbacks", "Conversation", "LogCallback", "NoticeCallback", "Patience", "ProgressCallback"]

MAX_ROUNDS: Final = 10
"""How often a server may ask for input before a request has failed: a person answers only so much."""

LOG_LEVEL_AT_FIRST: Final = "info"
"""What a client with an ear for the log asks a stateless server for, which else would tell nothing."""

MAX_TIMEOUT: Final = 300.0
"""How long a request with progress may take, unless the user says something else: five minutes of work."""

R = TypeVar("R", bound=Result)
P = TypeVar("P", bound=Page)

ProgressCallback: TypeAlias = Callable[[ProgressParams], object]
LogCallback: TypeAlias = Callable[[LogParams], object]
NoticeCallback: TypeAlias = Callable[[str, Any], object]
"""Is given the method and the params: typed where the method is one of the protocol, else a dict."""

_OBJECT: Final = Reader(dict[str, JSON])

logger: Final = logging.getLogger("toolpost.client")


class Patience(NamedTuple):
    """How many seconds to wait: for an answer, for one with progress, for a connection, for a probe."""

    timeout: float | None
    max_timeout: float | Unset | None
    connect_timeout: float | None
    probe_timeout: float


class Callbacks(NamedTuple):
    """Who hears what the server says without being asked."""

    log: LogCallback | None = None
    progress: ProgressCallback | None = None
    notification: NoticeCallback | None = None


class Conversation:
    """A server to talk to, now or later.

    Args:
        way: how to reach it.
        party: who we are.
        answers: what we answer.
        callbacks: who hears what it says.
        patience: how long to wait.
        strict: whether an item of a list that cannot be read is an error.
    """

    def __init__(
        self,
        way: Way,
        party: Party,
        answers: Answers,
        callbacks: Callbacks,
        patience: Patience,
        *,
        strict: bool,
    ) -> None:
        for what, seconds in patience._asdict().items():
            check_seconds(what, None if seconds is UNSET else seconds)
        self.stats = Stats()
        self.outputs = Outputs(self.stats)
        self.log_level: LogLevel | None = None
        """What every request of the stateless era asks for."""
        self.listener: Listener
        self._way = way
        self._party = party
        self._answers = answers
        self._callbacks = callbacks
        self._patience = patience
        self._strict = strict
        self._supervisor = Supervisor(self._dial)
        self._lane: Lane

    # ----------------------------------------------------------------- the connection

    async def open(self) -> None:
        """Connect, unless that was done.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no revision that both speak.
        """
        await self._supervisor.open()

    async def close(self) -> None:
        """Leave the server. Whoever waits for an answer gets `ChannelClosed`."""
        try:
            await self._supervisor.close()
        finally:
            self._answers.crew.close()

    @property
    def name(self) -> str:
        """What to call the server, whether it can be reached or not."""
        return self._way.name

    @property
    def ready(self) -> bool:
        """Whether there is a connection."""
        return self._supervisor.ready

    @property
    def link(self) -> Link:
        """The connection.

        Raises:
            ChannelClosed: there is none.
        """
        return self._supervisor.link

    @property
    def opened(self) -> Opened:
        """The connection of the moment or the last one, and what the server said of itself.

        Raises:
            LocalProtocolError: there was none.
        """
        opened = self._supervisor.opened
        if opened is None:
            raise LocalProtocolError("nothing is known about the server before the client has connected")
        return opened

    async def _dial(self) -> Opened:
        wait, probe = self._patience.connect_timeout, self._patience.probe_timeout
        if wait is not None:
            probe = min(probe, wait / 2)  # it must leave time for the handshake
        opened = self._supervisor.opened
        known = None if opened is None else opened.revision
        self.log_level = None
        self.outputs.forget()
        handshake = Handshake(self._way, self._party, self._join, known=known, patience=probe)
        try:
            async with asyncio.timeout(wait):
                opened = await handshake.run()
        except TimeoutError:
            raise ConnectFailed(
                f"no conversation came about within {wait:g} s{handshake.state}", peer=self._way.name
            ) from None
        try:
            await self.listener.start(Limits(timeout=self._patience.probe_timeout))
        except MCPError as error:
            logger.warning("changes of lists are not heard of: %s", error)
        except BaseException:
            await opened.link.close()
            raise
        hears = self._callbacks.log is not None and declares(opened.result.capabilities, "logging")
        if hears and opened.revision.stateless:
            self.log_level = LOG_LEVEL_AT_FIRST
        return opened

    def _join(self, channel: Channel, revision: Revision) -> Link:
        connection = Connection(self._party, revision=revision, extra=self._answers.rows)
        link = Link(channel, connection, self.stats, on_ask=self._asked, on_notice=self._noticed)
        self.listener = Listener(link, lists=self._callbacks.notification is not None)
        self._lane = link.lane
        return link

    # ----------------------------------------------------------------- asking

    def limits(
        self, timeout: float | None, progress: ProgressCallback | None = None, *, extendable: bool = False
    ) -> Limits:
        """What a caller's time-out and progress callback come to."""
        check_seconds("timeout", timeout)
        wait = self._patience.timeout if timeout is None else timeout
        cap = self._patience.max_timeout
        if cap is UNSET:
            cap = MAX_TIMEOUT  # None waits for ever, unless the user has set a cap
        elif wait is None:
            wait = cap
        if wait is not None and cap is not None:
            cap = max(wait, cap)
        tell = progress or self._callbacks.progress
        return Limits(
            timeout=None if wait == inf else wait,
            cap=cap,
            progress=None if tell is None else partial(self._answers.crew.run, tell),
            extendable=extendable,
        )

    async def request(
        self,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None,
        limits: Limits,
        meta: Mapping[str, JSON] | None = None,
    ) -> Result:
        """The answer to a request, be it a result or a wish for input."""
        meta = named("meta", meta)
        if self.log_level is not None:
            meta = {LOG_LEVEL: self.log_level, **meta}
        return await self._supervisor.link.request(method, params, meta=meta or None, limits=limits)

    async def ask(
        self,
        kind: type[R],
        method: str,
        params: Wire | None,
        limits: Limits,
        meta: Mapping[str, JSON] | None = None,
    ) -> R:
        """The answer to a request, after all that the server wants to know first (MRTR-21 … MRTR-23)."""
        for _ in range(MAX_ROUNDS):
            result = await self.request(method, params, limits, meta)
            if not isinstance(result, InputRequiredResult):
                assert isinstance(result, kind), "the row says so"
                return result
            assert isinstance(params, AnswerParams), "the row says so"
            params = await self._answers.retry(params, result, self.opened.revision)
        raise RemoteProtocolError(
            f"{method}: the server asked for input {MAX_ROUNDS} times and has no result"
        )

    def pages(self, listing: Listing[P], limits: Limits) -> AsyncIterator[P]:
        """The pages of a list, without the items that cannot be read."""

        async def turn(cursor: str | None) -> P:
            params = PageParams(cursor=cursor)
            loose = await self.request(listing.row, params, limits)
            return listing.read(cast("Page", loose), self._skip)

        return walk(listing.row.name, turn)

    def _skip(self, error: RemoteProtocolError) -> None:
        if self._strict:
            raise error
        self.stats.skipped += 1
        logger.warning("left out: %s", error)

    # ----------------------------------------------------------------- what the server says

    async def _asked(self, incoming: Incoming) -> Result | Raw:
        return await self._answers.answer(incoming.row.name, incoming.params, incoming.raw)

    def _noticed(self, event: NoticeReceived) -> None:
        if not self.listener.hears(event):
            return
        if event.method == "notifications/tools/list_changed":
            self.outputs.outdate()
        if self._callbacks.log is not None and isinstance(event.params, LogParams):
            self._tell(self._callbacks.log, event.params)
        elif self._callbacks.notification is not None:
            try:
                params = _OBJECT(event.raw) if event.row is None else event.params
            except Unfit:
                self.stats.discard("malformed notice")
            else:
                self._tell(self._callbacks.notification, event.method, params)

    def _tell(self, callback: Callable[..., object], *arguments: Any) -> None:
        if not self._lane.put(partial(self._answers.crew.run, callback, *arguments)):
            self.stats.discard("notice that nobody has time for")
