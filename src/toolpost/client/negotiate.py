"""Finds out what a server speaks, and opens the conversation accordingly.

    server/discover ─ a result, −32020, −32021, −32022 ─────→ the newest revision that it lists and we speak
                    ├ the server exits ─────────────────────→ a new channel, `initialize`
                    ├ HTTP 401, 403, 407, 429, 5xx, no way ─→ an error: that says nothing about the era
                    └ all else, silence ─→ `initialize` ─ HTTP 400, 404, 405 ─→ the fallback of the way

Knows nothing of what a channel is made of: it is given a way to open one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias, cast

from toolpost.channel import Channel
from toolpost.client.call import NO_LIMITS, Limits
from toolpost.client.link import Link
from toolpost.client.traits import Mortal, Process
from toolpost.client.verdicts import VERDICTS, Verdict
from toolpost.errors import (
    AuthError,
    ChannelClosed,
    ConnectFailed,
    HeaderMismatch,
    MissingCapability,
    ProtocolError,
    RemoteProtocolError,
    RequestFailed,
    RequestTimeout,
    RPCError,
    TransportError,
    UnsupportedRevision,
)
from toolpost.protocol.eras import SESSION, STATELESS
from toolpost.protocol.party import Party
from toolpost.protocol.revisions import Revision, newest
from toolpost.types.base import JSON
from toolpost.types.lifecycle import DiscoverResult, InitializeResult

__all__ = ["Handshake", "Join", "Opened", "Way"]

# Only these prove a stateless server; −32601 and −32602 do not.
_MODERN: Final = (HeaderMismatch, MissingCapability, UnsupportedRevision)

_NO_ERA: Final = frozenset({401, 403, 407, 429})
"""What any server may answer to whom it does not know, or knows too well."""

_DETOUR: Final = frozenset({400, 404, 405})
"""What a server answers to `initialize` that is older than the one URL for everything."""

_DETOUR_CODES: Final = frozenset({-32700, -32600, -32601, -32000})
"""The same, of one that explains a status in JSON-RPC: whatever it is, it is nothing about the handshake."""


class Way(NamedTuple):
    """How to reach a server.

    Args:
        name: what to call it in errors.
        open: opens a channel to it.
        again: whether `open` may be called more than once.
        fallback: another way to the same server, where only sessions are held.
        key: what its verdict is kept under for the next client; None keeps none.
        asks: whether a person may have to log in.
        session: whether only sessions are held over it, so that there is nothing to find out.
        find: finds the way itself, where that has to be looked up first, and may change.
    """

    name: str
    open: Callable[[], Awaitable[Channel]]
    again: bool = True
    fallback: "Way | None" = None
    key: str | None = None
    asks: bool = False
    session: bool = False
    find: "Callable[[], Awaitable[Way]] | None" = None


class Opened(NamedTuple):
    """A conversation that was opened, and what the server said of itself."""

    link: Link
    revision: Revision
    result: InitializeResult | DiscoverResult
    detour: bool = False
    """Whether it was reached by the fallback of the way."""


Join: TypeAlias = Callable[[Channel, Revision], Link]
"""Starts to talk over a channel, in a revision."""


class Handshake:
    """The opening of one conversation.

    Args:
        way: how to reach the server.
        party: who we are; the revisions that it supports are those to choose from.
        join: starts to talk over a channel.
        known: what is known from the last time; that of other clients of this process comes first.
        anew: whether nothing that is known counts: the server has changed.
        patience: how long to wait for an answer to the probe.
    """

    def __init__(
        self,
        way: Way,
        party: Party,
        join: Join,
        *,
        known: Verdict | None = None,
        anew: bool = False,
        patience: float,
    ) -> None:
        self._name = way.name
        self._way = way
        self._party = party
        self._join = join
        self._known = known
        self._anew = anew
        self._patience = patience
        self._link: Link | None = None
        self._channel: Channel | None = None
        self._detour = False
        self.state = ""
        """What is known of a server process that was given up, to be added to the error."""

    async def run(self) -> Opened:
        """The conversation, opened.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no revision that both speak.
        """
        try:
            opened = (await self._settle())._replace(detour=self._detour)
        except (RPCError, ProtocolError, ChannelClosed, RequestFailed) as error:
            if isinstance(error, AuthError):
                await self._leave()
                raise
            hint = error.hint or self._early_end()
            if hint is None and isinstance(error, RequestFailed) and error.status is None:
                hint = "is the server running, and is the address right?"
            await self._leave()
            known = error.peer in {None, self._name}
            why = error.message if known else f"{error.peer}: {error.message}"
            raise ConnectFailed(f"no conversation came about: {why}", hint=hint, peer=self._name) from error
        except BaseException:  # also a time-out from outside: nothing may stay open
            self.state = self._seen()  # now, because we end it
            await self._leave()
            raise
        if self._chooses:  # what a client was told to speak is nothing that it has found out
            VERDICTS.keep(self._way.key, Verdict(opened.revision, opened.detour))
        return opened

    @property
    def _chooses(self) -> bool:
        """Whether this client speaks in either era, so that the server decides."""
        supported = self._party.supported
        return all(newest(supported, era=era) is not None for era in ("session", "stateless"))

    async def _leave(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None

    def _early_end(self) -> str | None:
        return self._channel.early_end if isinstance(self._channel, Mortal) else None

    def _seen(self) -> str:
        channel = self._channel
        if not isinstance(channel, Process):
            return ""
        code, words = channel.returncode, channel.last_words
        text = "is still running" if code is None else f"has ended with code {code}"
        junk = 0 if self._link is None else self._link.connection.dropped.get("malformed message", 0)
        if junk:
            text += f" and has written {junk} line(s) on stdout that are no messages: does it print there?"
        lines = ("; its last lines on stderr:", *words) if words else ("",)
        return f"; the server process {text}" + "\n    ".join(lines)

    async def _enter(self, revision: Revision, *, detour: bool = False) -> Link:
        """A new channel, with nothing said yet."""
        await self._leave()
        way = self._way.fallback if detour else self._way
        assert way is not None, "there is a detour"
        self._detour = detour
        try:
            self._channel = await way.open()
        except OSError as error:
            raise ConnectFailed(f"it cannot be reached: {error}", peer=self._name) from error
        self._link = self._join(self._channel, revision)
        return self._link

    async def _find(self) -> Verdict | None:
        """Look the way up, where that has to be done; what is known of it."""
        if self._way.find is not None:
            try:
                self._way = await self._way.find()
            except OSError as error:
                raise ConnectFailed(f"it cannot be reached: {error}", peer=self._name) from error
        if self._anew:
            VERDICTS.drop(self._way.key)
            return None
        return VERDICTS.find(self._way.key) or self._known

    async def _settle(self) -> Opened:
        known = await self._find()
        session = newest(self._party.supported, era="session")
        stateless = newest(self._party.supported, era="stateless")
        if self._way.session and session is None:
            raise ConnectFailed("only sessions are held there, and this client holds none", peer=self._name)
        if session is None:
            # There is nothing to choose from, so there is nothing to find out.
            link = await self._enter(cast("Revision", stateless))
            try:
                return await self._discover(link)
            except UnsupportedRevision as error:
                return await self._follow(link, _supported(error), error)
        plain = stateless is None or self._way.session
        if known is not None and not known.revision.stateless and (known.detour or not plain):
            opened = await self._as_before(session, known)
            if opened is not None:
                return opened
        if stateless is None or self._way.session:
            return await self._initialize(await self._enter(session))
        return await self._probe(await self._enter(stateless), session)

    async def _as_before(self, session: Revision, known: Verdict) -> Opened | None:
        """The session with a server that held one the last time; None if it does not any more (VER-7)."""
        detour = known.detour and self._way.fallback is not None
        try:
            # A server that has left the detour may keep us waiting there for ever, and not refuse.
            async with asyncio.timeout(self._patience if detour else None):
                return await self._initialize(await self._enter(session, detour=detour))
        except TimeoutError:
            pass
        except (RPCError, ProtocolError, ChannelClosed):
            if not self._way.again:
                raise
        except RequestFailed as error:
            if not _tells_era(error):
                raise
        except ConnectFailed:
            if not detour:
                raise
        VERDICTS.drop(self._way.key)
        return None

    async def _probe(self, link: Link, session: Revision) -> Opened:
        """The conversation with a server of which nothing is known (VER-10, VER-11)."""
        try:
            return await self._discover(link, Limits(timeout=self._patience, quiet=True))
        except _MODERN as error:
            return await self._follow(link, _supported(error), error)
        except _Elsewhere as error:
            # An empty list is an odd result: servers that answer everything with something send such.
            return await self._follow(link, error.listed or [session.date], error)
        except ChannelClosed as error:
            return await self._once_more(session, error)
        except RequestTimeout:
            return await self._insist(link, session)
        except RequestFailed as error:
            if not _tells_era(error):
                raise
        except (RPCError, ProtocolError):
            pass
        link.connection.adopt(session)
        return await self._initialize(link)

    async def _follow(self, link: Link, listed: list[str], error: Exception) -> Opened:
        """The conversation in the newest revision of a list that the server gave (VER-2, VER-12)."""
        revision = newest(listed, among=self._party.supported)
        if revision is None:
            raise error
        link.connection.adopt(revision)
        return await (self._discover(link) if revision.stateless else self._initialize(link))

    async def _insist(self, link: Link, session: Revision) -> Opened:
        """The conversation with a server that did not answer the probe: old, or slow to start."""
        stateless = link.connection.revision
        link.connection.adopt(session)
        try:
            return await self._initialize(link)
        except RPCError:
            link.connection.adopt(stateless)
            return await self._discover(link)
        except ConnectFailed as error:  # not by the fallback either, so that it can only have been slow
            return await self._ask_again(stateless, error)
        except ChannelClosed as error:
            return await self._once_more(session, error)

    async def _ask_again(self, stateless: Revision, failed: ConnectFailed) -> Opened:
        """The conversation with a stateless server that was slow to start, or why there is none."""
        try:
            return await self._discover(await self._enter(stateless), Limits(timeout=self._patience))
        except (RPCError, ProtocolError, TransportError):
            raise failed from None

    async def _once_more(self, session: Revision, error: ChannelClosed) -> Opened:
        """The conversation with a server that did not survive the probe."""
        if not self._way.again:
            raise error
        return await self._initialize(await self._enter(session))

    async def _discover(self, link: Link, limits: Limits = NO_LIMITS) -> Opened:
        """The conversation in the stateless era, if the server says that it speaks it."""
        result = await link.run(STATELESS.open(link.connection), limits)
        assert isinstance(result, DiscoverResult), "the row of server/discover says so"
        peer = link.connection.peer
        if peer is None:
            raise _Elsewhere(result.supported_versions, self._party)
        return Opened(link, peer.revision, result)

    async def _initialize(self, link: Link) -> Opened:
        """The conversation in a session (LIFE-2, LIFE-4)."""
        session = link.connection.revision
        try:
            result = await link.run(SESSION.open(link.connection))
        except (RequestFailed, RPCError) as error:
            if self._detour or self._way.fallback is None or not _tells_way(error):
                raise
            return await self._turn_off(session, error)
        assert isinstance(result, InitializeResult), "the row of initialize says so"
        await link.notify("notifications/initialized")
        return Opened(link, link.connection.revision, result)

    async def _turn_off(self, session: Revision, error: RequestFailed | RPCError) -> Opened:
        """The conversation with a server that is reached by the fallback only.

        Raises:
            ConnectFailed: it is not reached by that either; the text says what came of both.
        """
        try:
            return await self._initialize(await self._enter(session, detour=True))
        except (RPCError, ProtocolError, ChannelClosed, RequestFailed, ConnectFailed) as second:
            # A server that cannot serve at all says the same both times.
            first = (
                ""
                if error.message in second.message
                else f"{error.message}; nor in the way of older servers: "
            )
            raise ConnectFailed(
                f"no conversation came about: {first}{second.message}",
                hint=error.hint,
                peer=self._name,
            ) from second


def _tells_era(error: RequestFailed) -> bool:
    """Whether a server refused a request because of what it is, and not because of us or of its state.

    One that says yes and nothing else does not know what it was asked either.
    """
    status = error.status
    return status is not None and (200 <= status < 300 or (400 <= status < 500 and status not in _NO_ERA))


def _tells_way(error: RequestFailed | RPCError) -> bool:
    """Whether a server refused `initialize` because it is not to be sent there."""
    return error.status in _DETOUR if isinstance(error, RequestFailed) else error.code in _DETOUR_CODES


class _Elsewhere(RemoteProtocolError):
    """The server is stateless and lists its revisions, none of which is a stateless one of ours."""

    def __init__(self, listed: list[str], party: Party) -> None:
        super().__init__(
            f"the server speaks {', '.join(listed) or 'no revision'}; we speak {', '.join(party.supported)}"
        )
        self.listed = listed


def _supported(error: RPCError) -> list[str]:
    """The revisions that an error lists, as far as it does."""
    data = error.data
    listed: JSON = cast("dict[str, JSON]", data).get("supported") if isinstance(data, dict) else None
    return [str(date) for date in cast("list[JSON]", listed)] if isinstance(listed, list) else []
