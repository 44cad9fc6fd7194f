"""Negotiates the revision with a server and opens the connection accordingly.

    server/discover ─ a result, −32020, −32021, −32022 ─────→ the newest revision that it lists and we support
                    ├ the server exits ─────────────────────→ a new channel, `initialize`
                    ├ HTTP 401, 403, 407, 429, 5xx, no way ─→ an error: that says nothing about the era
                    └ all else, silence ─→ `initialize` ─ HTTP 400, 404, 405 ─→ the fallback

Channels are opened by a `Connector`, which is given.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

from toolpost.channel import Channel
from toolpost.client.channel_features import SupportsEarlyExitHint, SupportsProcessStatus
from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.pending import NO_LIMITS, CallLimits
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
from toolpost.protocol.eras import SESSION_ERA, STATELESS_ERA
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import INITIALIZED
from toolpost.protocol.revisions import Revision, find_newest
from toolpost.types.base import JSON
from toolpost.types.initialize import DiscoverResult, InitializeResult

MAX_CACHED_REVISIONS: Final = 256
"""How many servers are remembered; for others there is one more probe."""


class CachedRevision(NamedTuple):
    """The revision that a server uses, and whether only the fallback of the connector reached it."""

    revision: Revision
    via_fallback: bool = False


class RevisionCache:
    """Revisions by key, for the next client of this process; the oldest go first. None is no key."""

    def __init__(self, limit: int = MAX_CACHED_REVISIONS) -> None:
        self._limit = limit
        self._entries: OrderedDict[str, CachedRevision] = OrderedDict()

    def find(self, key: str | None) -> CachedRevision | None:
        """Return the entry; None if there is none."""
        return None if key is None else self._entries.get(key)

    def put(self, key: str | None, entry: CachedRevision) -> None:
        """Store an entry."""
        if key is not None:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)

    def drop(self, key: str | None) -> None:
        """Remove an entry that has proven wrong, or may be old (VER-7)."""
        if key is not None:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()


REVISION_CACHE: Final = RevisionCache()
"""The cache of this process."""


# Only these prove a stateless server; −32601 and −32602 do not.
_STATELESS_ERRORS: Final = (HeaderMismatch, MissingCapability, UnsupportedRevision)

_INCONCLUSIVE_STATUSES: Final = frozenset({401, 403, 407, 429})
"""What any server may answer to whom it does not know, or knows too well."""

_FALLBACK_STATUSES: Final = frozenset({400, 404, 405})
"""What a server answers to `initialize` that is older than the one URL for everything."""

_FALLBACK_CODES: Final = frozenset({-32700, -32600, -32601, -32000})
"""The same, of one that explains a status in JSON-RPC: whatever it is, it is nothing about the handshake."""


class Connector(NamedTuple):
    """How to reach a server.

    Args:
        name: the name of the server in errors.
        open: opens a channel to it.
        can_reopen: whether `open` may be called more than once.
        fallback: another connector for the same server, which supports only sessions.
        key: the key of its revision in the cache; None caches nothing.
        may_need_login: whether a user may have to log in.
        session: whether it supports only sessions, so that there is nothing to negotiate.
        resolve: makes the actual connector, where that has to be looked up each time.
    """

    name: str
    open: Callable[[], Awaitable[Channel]]
    can_reopen: bool = True
    fallback: "Connector | None" = None
    key: str | None = None
    may_need_login: bool = False
    session: bool = False
    resolve: "Callable[[], Awaitable[Connector]] | None" = None


class OpenedConnection(NamedTuple):
    """An open connection, and the server's description of itself."""

    dispatcher: Dispatcher
    revision: Revision
    result: InitializeResult | DiscoverResult
    via_fallback: bool = False
    """Whether it was reached by the fallback of the connector."""


class Handshake:
    """The opening of one connection. A revision cached here counts before `known`, the last one."""

    def __init__(
        self,
        connector: Connector,
        party: LocalPeer,
        start_dispatcher: Callable[[Channel, Revision], Dispatcher],
        *,
        known: CachedRevision | None = None,
        ignore_cache: bool = False,
        probe_timeout: float,
    ) -> None:
        self._name = connector.name
        self._connector = connector
        self._local_peer = party
        self._start_dispatcher = start_dispatcher
        self._cached = known
        self._ignore_cache = ignore_cache
        self._probe_timeout = probe_timeout
        self._dispatcher: Dispatcher | None = None
        self._channel: Channel | None = None
        self._via_fallback = False
        self.process_report = ""
        """What is known of a server process that was given up, to be added to the error."""

    async def run(self) -> OpenedConnection:
        """Open the connection. Raises `ConnectFailed` if that is impossible."""
        try:
            opened = (await self._negotiate())._replace(via_fallback=self._via_fallback)
        except (RPCError, ProtocolError, ChannelClosed, RequestFailed) as error:
            if isinstance(error, AuthError):
                await self._close()
                raise
            hint, channel = error.hint or None, self._channel
            if not hint and isinstance(channel, SupportsEarlyExitHint):
                hint = channel.early_exit_hint
            if hint is None and isinstance(error, RequestFailed) and error.status is None:
                hint = "is the server running, and is the address right?"
            await self._close()
            known = error.peer in {None, self._name}
            why = error.message if known else f"{error.peer}: {error.message}"
            raise ConnectFailed(f"no conversation came about: {why}", hint=hint, peer=self._name) from error
        except BaseException:  # also a time-out from outside: nothing may stay open
            self.process_report = self._describe_process()  # now, because we end it
            await self._close()
            raise
        if self._has_both_eras:  # what a client was told to speak is nothing that it has found out
            REVISION_CACHE.put(self._connector.key, CachedRevision(opened.revision, opened.via_fallback))
        return opened

    @property
    def _has_both_eras(self) -> bool:
        """Whether this client supports both eras, so that the server decides."""
        supported = self._local_peer.supported
        return all(find_newest(supported, era=era) is not None for era in ("session", "stateless"))

    async def _close(self) -> None:
        if self._dispatcher is not None:
            await self._dispatcher.close()
            self._dispatcher = None

    def _describe_process(self) -> str:
        channel = self._channel
        if not isinstance(channel, SupportsProcessStatus):
            return ""
        code, words = channel.returncode, channel.stderr_tail
        text = "is still running" if code is None else f"has ended with code {code}"
        junk = (
            0
            if self._dispatcher is None
            else self._dispatcher.connection.dropped_counts.get("malformed message", 0)
        )
        if junk:
            text += f" and has written {junk} line(s) on stdout that are no messages: does it print there?"
        lines = ("; its last lines on stderr:", *words) if words else ("",)
        return f"; the server process {text}" + "\n    ".join(lines)

    async def _open_channel(self, revision: Revision, *, via_fallback: bool = False) -> Dispatcher:
        """Open a new channel and start a dispatcher on it."""
        await self._close()
        connector = self._connector.fallback if via_fallback else self._connector
        assert connector is not None, "there is a detour"
        self._via_fallback = via_fallback
        try:
            self._channel = await connector.open()
        except OSError as error:
            raise ConnectFailed(f"it cannot be reached: {error}", peer=self._name) from error
        self._dispatcher = self._start_dispatcher(self._channel, revision)
        return self._dispatcher

    async def _resolve_connector(self) -> CachedRevision | None:
        """Resolve the connector, where that is needed; return the cached revision."""
        if self._connector.resolve is not None:
            try:
                self._connector = await self._connector.resolve()
            except OSError as error:
                raise ConnectFailed(f"it cannot be reached: {error}", peer=self._name) from error
        if self._ignore_cache:
            REVISION_CACHE.drop(self._connector.key)
            return None
        return REVISION_CACHE.find(self._connector.key) or self._cached

    async def _negotiate(self) -> OpenedConnection:
        known = await self._resolve_connector()
        session = find_newest(self._local_peer.supported, era="session")
        stateless = find_newest(self._local_peer.supported, era="stateless")
        if self._connector.session and session is None:
            raise ConnectFailed("only sessions are held there, and this client holds none", peer=self._name)
        if session is None:
            # There is nothing to choose from, so there is nothing to find out.
            dispatcher = await self._open_channel(cast("Revision", stateless))
            try:
                return await self._discover(dispatcher)
            except UnsupportedRevision as error:
                return await self._use_listed_revision(dispatcher, _parse_supported(error), error)
        plain = stateless is None or self._connector.session
        if known is not None and not known.revision.stateless and (known.via_fallback or not plain):
            opened = await self._try_cached_session(session, known)
            if opened is not None:
                return opened
        if stateless is None or self._connector.session:
            return await self._initialize(await self._open_channel(session))
        return await self._probe(await self._open_channel(stateless), session)

    async def _try_cached_session(self, session: Revision, known: CachedRevision) -> OpenedConnection | None:
        """Open a session as the last time; None if the server does not hold one any more (VER-7)."""
        via_fallback = known.via_fallback and self._connector.fallback is not None
        try:
            # A server that has left the detour may keep us waiting there for ever, and not refuse.
            async with asyncio.timeout(self._probe_timeout if via_fallback else None):
                return await self._initialize(await self._open_channel(session, via_fallback=via_fallback))
        except TimeoutError:
            pass
        except (RPCError, ProtocolError, ChannelClosed):
            if not self._connector.can_reopen:
                raise
        except RequestFailed as error:
            if not _is_era_refusal(error):
                raise
        except ConnectFailed:
            if not via_fallback:
                raise
        REVISION_CACHE.drop(self._connector.key)
        return None

    async def _probe(self, dispatcher: Dispatcher, session: Revision) -> OpenedConnection:
        """Negotiate with an unknown server (VER-10, VER-11)."""
        try:
            return await self._discover(dispatcher, CallLimits(timeout=self._probe_timeout, quiet=True))
        except _STATELESS_ERRORS as error:
            return await self._use_listed_revision(dispatcher, _parse_supported(error), error)
        except _NoCommonStatelessRevision as error:
            # An empty list is an odd result: servers that answer everything with something send such.
            return await self._use_listed_revision(
                dispatcher, error.listed_revisions or [session.date], error
            )
        except ChannelClosed as error:
            return await self._initialize_on_new_channel(session, error)
        except RequestTimeout:
            return await self._initialize_after_timeout(dispatcher, session)
        except RequestFailed as error:
            if not _is_era_refusal(error):
                raise
        except (RPCError, ProtocolError):
            pass
        dispatcher.connection.switch_revision(session)
        return await self._initialize(dispatcher)

    async def _use_listed_revision(
        self, dispatcher: Dispatcher, listed: list[str], error: Exception
    ) -> OpenedConnection:
        """Use the newest common revision of a list that the server sent (VER-2, VER-12)."""
        revision = find_newest(listed, among=self._local_peer.supported)
        if revision is None:
            raise error
        dispatcher.connection.switch_revision(revision)
        return await (self._discover(dispatcher) if revision.stateless else self._initialize(dispatcher))

    async def _initialize_after_timeout(self, dispatcher: Dispatcher, session: Revision) -> OpenedConnection:
        """Initialize a server that did not answer the probe: it is old, or slow to start."""
        stateless = dispatcher.connection.revision
        dispatcher.connection.switch_revision(session)
        try:
            return await self._initialize(dispatcher)
        except RPCError:
            dispatcher.connection.switch_revision(stateless)
            return await self._discover(dispatcher)
        except ConnectFailed as error:  # not by the fallback either, so that it can only have been slow
            return await self._retry_discover(stateless, error)
        except ChannelClosed as error:
            return await self._initialize_on_new_channel(session, error)

    async def _retry_discover(self, stateless: Revision, failed: ConnectFailed) -> OpenedConnection:
        """Probe a stateless server again that was slow to start; raise `failed` if that fails too."""
        try:
            return await self._discover(
                await self._open_channel(stateless), CallLimits(timeout=self._probe_timeout)
            )
        except (RPCError, ProtocolError, TransportError):
            raise failed from None

    async def _initialize_on_new_channel(self, session: Revision, error: ChannelClosed) -> OpenedConnection:
        """Initialize a server that exited on the probe."""
        if not self._connector.can_reopen:
            raise error
        return await self._initialize(await self._open_channel(session))

    async def _discover(self, dispatcher: Dispatcher, limits: CallLimits = NO_LIMITS) -> OpenedConnection:
        """Open a connection in the stateless era, if the server supports it."""
        result = await dispatcher.run(STATELESS_ERA.open(dispatcher.connection), limits)
        assert isinstance(result, DiscoverResult), "the row of server/discover says so"
        peer = dispatcher.connection.peer
        if peer is None:
            raise _NoCommonStatelessRevision(result.supported_versions, self._local_peer)
        return OpenedConnection(dispatcher, peer.revision, result)

    async def _initialize(self, dispatcher: Dispatcher) -> OpenedConnection:
        """Open a session (LIFE-2, LIFE-4)."""
        session = dispatcher.connection.revision
        try:
            result = await dispatcher.run(SESSION_ERA.open(dispatcher.connection))
        except (RequestFailed, RPCError) as error:
            if self._via_fallback or self._connector.fallback is None or not _is_fallback_refusal(error):
                raise
            return await self._initialize_via_fallback(session, error)
        assert isinstance(result, InitializeResult), "the row of initialize says so"
        await dispatcher.notify(INITIALIZED)
        return OpenedConnection(dispatcher, dispatcher.connection.revision, result)

    async def _initialize_via_fallback(
        self, session: Revision, error: RequestFailed | RPCError
    ) -> OpenedConnection:
        """Open a session over the fallback; an error reports the outcome of both attempts."""
        try:
            return await self._initialize(await self._open_channel(session, via_fallback=True))
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


def _is_era_refusal(error: RequestFailed) -> bool:
    """Return whether a server refused a request because of its era, and not because of us or its state.

    A 2xx without an answer means that it did not understand the request either.
    """
    status = error.status
    return status is not None and (
        200 <= status < 300 or (400 <= status < 500 and status not in _INCONCLUSIVE_STATUSES)
    )


def _is_fallback_refusal(error: RequestFailed | RPCError) -> bool:
    """Return whether a server refused `initialize` because this is the wrong endpoint."""
    return (
        error.status in _FALLBACK_STATUSES
        if isinstance(error, RequestFailed)
        else error.code in _FALLBACK_CODES
    )


class _NoCommonStatelessRevision(RemoteProtocolError):
    """The server is stateless and lists its revisions, none of which is a stateless one of ours."""

    def __init__(self, listed: list[str], party: LocalPeer) -> None:
        super().__init__(
            f"the server speaks {', '.join(listed) or 'no revision'}; we speak {', '.join(party.supported)}"
        )
        self.listed_revisions = listed


def _parse_supported(error: RPCError) -> list[str]:
    """Return the revisions that an error lists, if it does."""
    data = error.data
    listed: JSON = cast("dict[str, JSON]", data).get("supported") if isinstance(data, dict) else None
    return [str(date) for date in cast("list[JSON]", listed)] if isinstance(listed, list) else []
