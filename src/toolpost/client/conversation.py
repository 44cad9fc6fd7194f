"""The conversation with a server as the methods of a client need it: limits, retries, notices.

Owns what belongs to the connection of the moment, and what is restored when it is lost: listener and log
level. How messages move is told in `link`, how the revision is found in `negotiate`, how the connection lives
in `supervise`, what is read over it in `reading`, what a server asks before it answers in `rounds`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from toolpost.channel import Channel, unattended
from toolpost.client.answer import Answers
from toolpost.client.attempts import Attempts
from toolpost.client.call import NO_LIMITS, Limits, Tried
from toolpost.client.changes import Changes
from toolpost.client.door import named
from toolpost.client.lane import Lane
from toolpost.client.life import Life
from toolpost.client.link import Link
from toolpost.client.listen import Listener
from toolpost.client.negotiate import Handshake, Opened, Way
from toolpost.client.patience import Callbacks, Patience, ProgressCallback
from toolpost.client.reading import Reading
from toolpost.client.retry import READS
from toolpost.client.rounds import Rounds
from toolpost.client.stats import Stats
from toolpost.client.supervise import Supervisor
from toolpost.client.verdicts import Verdict
from toolpost.errors import (
    AuthError,
    ChannelClosed,
    ConnectFailed,
    LocalProtocolError,
    MCPError,
    NotDeclared,
    RequestFailed,
    RPCError,
    SessionLost,
)
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import Incoming, NoticeReceived
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.protocol.methods import Row
from toolpost.protocol.party import Party, declares
from toolpost.protocol.revisions import Revision
from toolpost.types.base import JSON, Raw, Result, Wire
from toolpost.types.lifecycle import LOG_LEVEL, LogLevel, SetLevelParams
from toolpost.types.notices import LogParams

__all__ = ["Conversation"]

LOG_LEVEL_AT_FIRST: Final = "info"
"""What a client with an ear for the log asks a stateless server for, which else would tell nothing."""

CLOSE_PATIENCE: Final = 5.0
"""How long a callback may take to hear that the client was closed."""

_NOTHING: Final[Mapping[str, JSON]] = {}
_OBJECT: Final = Reader(dict[str, JSON])

logger: Final = logging.getLogger("toolpost.client")


class _Wishes(NamedTuple):
    """What a user has asked for on a connection, and shall have on the next one if it is lost."""

    uris: frozenset[str] = frozenset()
    level: LogLevel | None = None


class Conversation:
    """A server to talk to, now or later.

    Args:
        way: how to reach it.
        party: who we are.
        answers: what we answer.
        callbacks: who hears what it says.
        patience: how long to wait.
        retries: how often a request may be sent once more.
        strict: whether an item of a list that cannot be read is an error.
        cache: whether to keep answers as long as a stateless server allows.
    """

    def __init__(
        self,
        way: Way,
        party: Party,
        answers: Answers,
        callbacks: Callbacks,
        patience: Patience,
        *,
        retries: int,
        strict: bool,
        cache: bool,
    ) -> None:
        patience.check()
        self.stats = Stats()
        self.reading = Reading(self, self.stats, strict=strict, cache=cache)
        self.rounds = Rounds(self, answers)
        self.log_level: LogLevel | None = None
        """What every request of the stateless era asks for."""
        self.listener: Listener
        self.attending: set[Changes] = set()
        """The loops that hear of changes."""
        self._way = way
        self._party = party
        self._answers = answers
        answers.asker = self._called
        self._callbacks = callbacks
        self._patience = patience
        self._usual = tuple(
            patience.limits(None, None, answers.crew, extendable=extendable) for extendable in (False, True)
        )
        self._level: LogLevel | None = None
        self._lost: _Wishes | None = None
        tell = callbacks.state
        self.life = Life(None if tell is None else partial(answers.crew.run, tell))
        self._supervisor = Supervisor(self._dial, self.life, again=way.again, asks=way.asks)
        self.attempts = Attempts(self._supervisor, self.life, self.stats, way.name, retries)
        self.heal = self.attempts.run
        """What comes of some work over the connection, tried again where that does no harm."""
        self._lane: Lane
        self._dialling: asyncio.Timeout | None = None

    # ----------------------------------------------------------------- the connection

    async def open(self) -> None:
        """Connect, unless that was done.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no revision that both speak.
        """
        self.attempts.relent()
        await self._supervisor.open()

    async def close(self) -> None:
        """Leave the server. Whoever waits for an answer gets `ChannelClosed`."""
        try:
            for changes in list(self.attending):
                await changes.aclose(tell=False)
            await self._supervisor.close()
            self.reading.forget()
            await self.life.told(CLOSE_PATIENCE)
        finally:
            self._answers.crew.close()

    @property
    def name(self) -> str:
        """What to call the server, whether it can be reached or not."""
        return self._way.name

    @property
    def ready(self) -> bool:
        """Whether there is a connection."""
        return self._supervisor.going is not None

    @property
    def link(self) -> Link:
        """The connection.

        Raises:
            ChannelClosed: there is none.
        """
        return self._supervisor.link

    async def hold(self, limits: Limits = NO_LIMITS) -> Link:
        """The connection; one that was lost is opened anew first. See `Attempts.hold`."""
        return await self.attempts.hold(limits)

    async def wait(self, limits: Limits) -> Limits:
        """What is left of the time once there is a connection."""
        return await self.attempts.wait(limits)

    @property
    def revivable(self) -> bool:
        """Whether there is a connection, or another one may be had."""
        return self._supervisor.revivable

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
        wait, last = self._patience.connect_timeout, self._supervisor.opened
        known = None if last is None else Verdict(last.revision, last.detour)
        forgotten = last is not None and isinstance(last.link.ended, SessionLost)
        if self._supervisor.left:
            self._lost = _Wishes()
        elif self._lost is None:
            self._lost = _Wishes(self.listener.watched, self._level)
        self.log_level = self._level = None
        self.reading.begin()
        handshake = Handshake(
            self._way, self._party, self._join, known=known, anew=forgotten, patience=self._patience.probe
        )
        try:
            async with asyncio.timeout(wait) as self._dialling:
                opened = await handshake.run()
        except TimeoutError:
            raise ConnectFailed(
                f"no conversation came about within {wait:g} s{handshake.state}", peer=self._way.name
            ) from None
        try:
            await self._resume(opened, self._lost)
        except BaseException:  # the caller no longer waits: nobody would close it
            await opened.link.close()
            raise
        self._lost = None
        self.stats.connections += 1
        self.attempts.reached()
        if self._patience.heartbeat is not None:
            with unattended():
                opened.link.spawn(self._beat(opened.link, self._patience.heartbeat))
        return opened

    async def _beat(self, link: Link, pause: float) -> None:
        """Give a connection up over which the server does not answer any more (PING-2)."""
        while True:
            await asyncio.sleep(pause)
            try:
                await self._knock(link, Limits(timeout=pause))
            except (RPCError, AuthError):
                pass  # that is an answer
            except RequestFailed as error:
                if error.status is None:
                    self._give_up(link, error)
                    return
            except MCPError as error:
                self._give_up(link, error)
                return

    def _give_up(self, link: Link, error: MCPError) -> None:
        dead = ChannelClosed(f"the server gives no sign of life: {error.message}", peer=self.name)
        logger.warning("%s", dead)
        link.end(dead)

    async def _resume(self, opened: Opened, wishes: "_Wishes") -> None:
        """Hear what is wanted, and what was wanted on a connection that was lost (SUB-9)."""
        limits = Limits(timeout=self._patience.probe_timeout)
        try:
            await self.listener.start(limits, wishes.uris)
        except MCPError as error:
            logger.warning("changes of lists are not heard of: %s", error)
        if not declares(opened.result.capabilities, "logging"):
            return
        level = self._level = wishes.level
        if opened.revision.stateless:
            self.log_level = level or (LOG_LEVEL_AT_FIRST if self._callbacks.log is not None else None)
        elif level is not None:
            try:
                await opened.link.request("logging/setLevel", SetLevelParams(level=level), limits=limits)
            except MCPError as error:
                logger.warning("the log level is not %s any more: %s", level, error)

    def _join(self, channel: Channel, revision: Revision) -> Link:
        connection = Connection(self._party, revision=revision, extra=self._answers.rows)
        link = Link(
            channel,
            connection,
            self.stats,
            on_ask=self._asked,
            on_notice=self._noticed,
            annotated=self.reading.mirrors.of,
            on_detained=self._detained,
        )
        self.listener = Listener(link, lists=self._callbacks.notification is not None, on_gap=self.gap)
        self._lane = link.lane
        return link

    def _detained(self, waiting: bool) -> None:
        """While somebody logs in, a connection may take as long as they do."""
        scope, wait = self._dialling, self._patience.connect_timeout
        if scope is None or wait is None:
            return
        left = None if waiting else asyncio.get_running_loop().time() + wait
        with contextlib.suppress(RuntimeError):  # the connection is there already, or was given up
            scope.reschedule(left)

    # ----------------------------------------------------------------- asking

    def limits(
        self, timeout: float | None, progress: ProgressCallback | None = None, *, extendable: bool = False
    ) -> Limits:
        """What a caller's time-out and progress callback come to."""
        tell = progress or self._callbacks.progress
        if timeout is None and tell is None:
            return self._usual[extendable]
        return self._patience.limits(timeout, tell, self._answers.crew, extendable=extendable)

    def request(
        self,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None,
        limits: Limits,
        meta: Mapping[str, JSON] | None = None,
        party: Party | None = None,
        *,
        safe: bool | None = None,
        tried: Tried[Result] | None = None,
    ) -> Awaitable[Result]:
        """The answer to a request, be it a result or a wish for input.

        Args:
            method: what to ask.
            params: its parameters.
            limits: how long it may take.
            meta: what to put into `_meta`.
            party: who asks, if it is stateless.
            safe: whether it may be sent twice, and False if it must not; by default if it only reads.
            tried: what has come of it over `straight`.
        """
        more = _NOTHING if meta is None else named("meta", meta)

        def once(link: Link, limits: Limits) -> Awaitable[Result]:
            if self.log_level is None:
                return link.request(method, params, meta=more or None, limits=limits, party=party)
            return self.send(method, params, limits, more, link, party=party)

        safe = True if safe is None and method in READS else safe
        return self.heal(once, limits, safe=safe, tried=tried)

    def send(
        self,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None,
        limits: Limits,
        meta: Mapping[str, JSON],
        link: Link,
        *,
        party: Party | None = None,
    ) -> Awaitable[Result]:
        """The answer to a request over one connection, and no other."""
        if self.log_level is not None:
            meta = {LOG_LEVEL: self.log_level, **meta}
        return link.request(method, params, meta=meta or None, limits=limits, party=party)

    async def watch(self, uri: str, limits: Limits) -> None:
        """Ask to hear when a resource changes."""
        await self.heal(lambda _, limits: self.listener.watch(uri, limits), limits, safe=True)

    async def unwatch(self, uri: str, limits: Limits) -> None:
        """Ask to hear no more of a resource."""
        await self.heal(lambda _, limits: self.listener.unwatch(uri, limits), limits, safe=True)

    async def set_log_level(self, level: LogLevel, limits: Limits) -> None:
        """Ask for log messages of this level and graver ones.

        Raises:
            NotDeclared: the server does not offer a log.
        """

        async def tell(link: Link, limits: Limits) -> None:
            if not link.connection.revision.stateless:
                await self.send("logging/setLevel", SetLevelParams(level=level), limits, {}, link)
            elif not declares(self.opened.result.capabilities, "logging"):
                raise NotDeclared("logging", "the server does not offer 'logging'", peer=link.peer_name)
            else:
                self.log_level = level  # every request carries it from here on

        await self.heal(tell, limits, safe=True)
        self._level = level

    async def ping(self, limits: Limits) -> None:
        """Return if the server answers. In the stateless era it is asked what it is."""
        await self.heal(self._knock, limits, safe=True)

    async def _knock(self, link: Link, limits: Limits) -> None:
        stateless = link.connection.revision.stateless
        await self.send("server/discover" if stateless else "ping", None, limits, {}, link)

    async def notify_session(self, method: str) -> None:
        """Say something that a server of the stateless era does not want to hear."""

        async def tell(link: Link, _limits: Limits) -> None:
            if not link.connection.revision.stateless:
                await link.notify(method)

        await self.heal(tell, NO_LIMITS)

    # ----------------------------------------------------------------- what the server says

    def _called(self) -> str:
        """What to call the server before the user: what we know of it, and what it says itself (ELIC-3)."""
        opened = self._supervisor.opened
        own = None if opened is None else opened.link.peer_name
        return self.name if own in {None, self.name} else f"{self.name} (it calls itself {own!r})"

    async def _asked(self, incoming: Incoming) -> Result | Raw:
        return await self._answers.answer(incoming.row.name, incoming.params, incoming.raw)

    def _noticed(self, event: NoticeReceived) -> None:
        self.reading.hear(event)
        if not self.listener.hears(event):
            return
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

    def gap(self) -> None:
        """Changes may have been missed."""
        self.stats.gaps += 1
        self.reading.gap()
