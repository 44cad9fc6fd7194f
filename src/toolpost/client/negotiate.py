"""Finds out what a server speaks, and opens the conversation accordingly.

    server/discover ─ a valid result ─────────────────────→ the newest revision that it lists and we speak
                    ├ −32020, −32021, −32022 ─────────────→ the same, from the list in the error; no guess
                    ├ the server exits ───────────────────→ a new channel, `initialize`
                    └ other errors, odd results, silence ─→ `initialize`

Knows nothing of what a channel is made of: it is given a way to open one.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from toolpost.channel import Channel
from toolpost.client.call import NO_LIMITS, Limits
from toolpost.client.link import Link
from toolpost.errors import (
    ChannelClosed,
    ConnectFailed,
    HeaderMismatch,
    MissingCapability,
    ProtocolError,
    RemoteProtocolError,
    RequestTimeout,
    RPCError,
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


class Way(NamedTuple):
    """How to reach a server.

    Args:
        name: what to call it in errors.
        open: opens a channel to it.
        again: whether `open` may be called more than once.
    """

    name: str
    open: Callable[[], Awaitable[Channel]]
    again: bool = True


@runtime_checkable
class _Mortal(Protocol):
    """A channel that may know what to do about an end that came too early."""

    @property
    def early_end(self) -> str | None: ...


@runtime_checkable
class _Process(Protocol):
    """A channel to a process, which may have told on its stderr what it is busy with."""

    @property
    def returncode(self) -> int | None: ...

    @property
    def last_words(self) -> tuple[str, ...]: ...


class Opened(NamedTuple):
    """A conversation that was opened, and what the server said of itself."""

    link: Link
    revision: Revision
    result: InitializeResult | DiscoverResult


Join: TypeAlias = Callable[[Channel, Revision], Link]
"""Starts to talk over a channel, in a revision."""


class Handshake:
    """The opening of one conversation.

    Args:
        way: how to reach the server.
        party: who we are; the revisions that it supports are those to choose from.
        join: starts to talk over a channel.
        known: what the server spoke the last time.
        patience: how long to wait for an answer to the probe.
    """

    def __init__(
        self, way: Way, party: Party, join: Join, *, known: Revision | None = None, patience: float
    ) -> None:
        self._way = way
        self._party = party
        self._join = join
        self._known = known
        self._patience = patience
        self._link: Link | None = None
        self._channel: Channel | None = None
        self.state = ""
        """What is known of a server process that was given up, to be added to the error."""

    async def run(self) -> Opened:
        """The conversation, opened.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no revision that both speak.
        """
        try:
            return await self._settle()
        except (RPCError, ProtocolError, ChannelClosed) as error:
            hint = error.hint or self._early_end()
            await self._leave()
            known = error.peer in {None, self._way.name}
            why = error.message if known else f"{error.peer}: {error.message}"
            raise ConnectFailed(
                f"no conversation came about: {why}", hint=hint, peer=self._way.name
            ) from error
        except BaseException:
            self.state = self._seen()  # now, because we end it
            await self._leave()
            raise

    async def _leave(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None

    def _early_end(self) -> str | None:
        return self._channel.early_end if isinstance(self._channel, _Mortal) else None

    def _seen(self) -> str:
        channel = self._channel
        if not isinstance(channel, _Process):
            return ""
        code, words = channel.returncode, channel.last_words
        text = "is still running" if code is None else f"has ended with code {code}"
        lines = ("; its last lines on stderr:", *words) if words else ("",)
        return f"; the server process {text}" + "\n    ".join(lines)

    async def _enter(self, revision: Revision) -> Link:
        """A new channel, with nothing said yet."""
        await self._leave()
        try:
            self._channel = await self._way.open()
        except OSError as error:
            raise ConnectFailed(f"it cannot be reached: {error}", peer=self._way.name) from error
        self._link = self._join(self._channel, revision)
        return self._link

    async def _settle(self) -> Opened:
        session = newest(self._party.supported, era="session")
        stateless = newest(self._party.supported, era="stateless")
        if stateless is None or session is None:
            # There is nothing to choose from, so there is nothing to find out.
            link = await self._enter(cast("Revision", stateless or session))
            return await (self._initialize(link) if stateless is None else self._discover(link))
        if self._known is not None and not self._known.stateless:
            try:
                return await self._initialize(await self._enter(session))
            except (RPCError, ProtocolError, ChannelClosed):
                if not self._way.again:
                    raise
        return await self._probe(await self._enter(stateless), session)

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
        except (RPCError, ProtocolError):
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
        except ChannelClosed as error:
            return await self._once_more(session, error)

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
        result = await link.run(SESSION.open(link.connection))
        assert isinstance(result, InitializeResult), "the row of initialize says so"
        await link.notify("notifications/initialized")
        return Opened(link, link.connection.revision, result)


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
