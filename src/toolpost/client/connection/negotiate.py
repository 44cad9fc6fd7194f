"""Negotiates the revision with a server and opens the connection accordingly.

    server/discover ─ a result, −32020, −32021, −32022 ─────→ the newest revision that it lists and we support
                    ├ the server exits ─────────────────────→ a new channel, `initialize`
                    ├ a redirect, no way ───────────────────→ an error
                    └ all else, silence ─→ `initialize` ─ HTTP 400, 404, 405 ─→ the fallback

Channels are opened by a `Connector`, which is given.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from toolpost.channel import Channel
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

logger: Final = logging.getLogger("toolpost.client")

MAX_CACHED_REVISIONS: Final = 256  # servers; any other costs one more probe


class CachedRevision(NamedTuple):
    """The revision that a server uses, and whether only the fallback of the connector reached it."""

    revision: Revision
    via_fallback: bool = False


REVISION_CACHE: Final[dict[str, CachedRevision]] = {}
"""Revisions by the keys of connectors, for the next client of this process; the oldest go first."""


# Only these prove a stateless server; −32601 and −32602 do not.
_STATELESS_ERRORS: Final = (HeaderMismatch, MissingCapability, UnsupportedRevision)

_INCONCLUSIVE_STATUSES: Final = frozenset({401, 403, 407, 429})  # any server may answer so, of either era
_FALLBACK_STATUSES: Final = frozenset({400, 404, 405})  # the answer to `initialize` of an HTTP+SSE server
_FALLBACK_CODES: Final = frozenset({-32700, -32600, -32601, -32000})  # the same as a JSON-RPC error


class Connector(NamedTuple):
    """How to reach a server."""

    name: str  # for errors
    open: Callable[[], Awaitable[Channel]]
    can_reopen: bool = True  # whether `open` may be called more than once
    fallback: "Connector | None" = None  # another one for the same server, which supports only sessions
    key: str | None = None  # of its revision in the cache; None caches nothing
    may_need_login: bool = False  # whether a user may have to log in
    session: bool = False  # whether it supports only sessions, so that there is nothing to negotiate
    resolve: "Callable[[], Awaitable[Connector]] | None" = None  # makes the actual one, before each attempt


class OpenedConnection(NamedTuple):
    """An open connection, and the server's description of itself."""

    dispatcher: Dispatcher
    revision: Revision
    result: InitializeResult | DiscoverResult
    via_fallback: bool = False


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
        self.process_report = ""  # describes a server process that was given up, for the error

    async def run(self) -> OpenedConnection:
        """Open the connection. Raises `ConnectFailed` if that is impossible."""
        try:
            opened = (await self._negotiate())._replace(via_fallback=self._via_fallback)
        except (RPCError, ProtocolError, ChannelClosed, RequestFailed) as error:
            if isinstance(error, AuthError):
                await self._close()
                raise
            hint = error.hint or getattr(self._channel, "early_exit_hint", None)
            if hint is None and isinstance(error, RequestFailed) and error.status is None:
                hint = "check that the server is running and that the address is correct"
            await self._close()
            known = error.peer in {None, self._name}
            why = error.message if known else f"{error.peer}: {error.message}"
            raise ConnectFailed(f"could not connect: {why}", hint=hint, peer=self._name) from error
        except BaseException:  # also a timeout from outside: nothing may stay open
            self.process_report = self._describe_process()  # now, because we end it
            await self._close()
            raise
        supported = self._local_peer.supported
        if all(find_newest(supported, era=era) is not None for era in ("session", "stateless")):
            # The server decided the era. A revision that the user chose is not cached.
            self._forget_revision()
            if self._connector.key is not None:
                if len(REVISION_CACHE) >= MAX_CACHED_REVISIONS:
                    del REVISION_CACHE[next(iter(REVISION_CACHE))]
                REVISION_CACHE[self._connector.key] = CachedRevision(opened.revision, opened.via_fallback)
        return opened

    def _forget_revision(self) -> None:
        """Remove a cached revision that has proven wrong, or may be old (VER-7)."""
        if self._connector.key is not None:
            REVISION_CACHE.pop(self._connector.key, None)

    async def _close(self) -> None:
        if self._dispatcher is not None:
            await self._dispatcher.close()
            self._dispatcher = None

    def _describe_process(self) -> str:
        channel: Any = self._channel
        if not hasattr(channel, "returncode"):
            return ""
        code, words = channel.returncode, channel.stderr_tail
        text = "is still running" if code is None else f"exited with code {code}"
        dispatcher = self._dispatcher
        junk = 0 if dispatcher is None else dispatcher.connection.dropped_counts.get("malformed message", 0)
        if junk:
            text += f" and wrote {junk} line(s) to stdout that are not messages: does it print there?"
        lines = ("; last lines of stderr:", *words) if words else ("",)
        return f"; the server process {text}" + "\n    ".join(lines)

    async def _open_channel(self, revision: Revision, *, via_fallback: bool = False) -> Dispatcher:
        """Open a new channel and start a dispatcher on it."""
        await self._close()
        connector = self._connector.fallback if via_fallback else self._connector
        assert connector is not None, "there is a fallback"
        self._via_fallback = via_fallback
        try:
            self._channel = await connector.open()
        except OSError as error:
            raise ConnectFailed(f"could not connect: {error}", peer=self._name) from error
        self._dispatcher = self._start_dispatcher(self._channel, revision)
        return self._dispatcher

    async def _resolve_connector(self) -> CachedRevision | None:
        """Resolve the connector, where that is needed; return the cached revision."""
        if self._connector.resolve is not None:
            try:
                self._connector = await self._connector.resolve()
            except OSError as error:
                raise ConnectFailed(f"could not connect: {error}", peer=self._name) from error
        if self._ignore_cache:
            self._forget_revision()
            return None
        return REVISION_CACHE.get(self._connector.key or "", self._cached)

    async def _negotiate(self) -> OpenedConnection:
        known = await self._resolve_connector()
        session = find_newest(self._local_peer.supported, era="session")
        stateless = find_newest(self._local_peer.supported, era="stateless")
        if self._connector.session and session is None:
            raise ConnectFailed("the server requires a session, which this client rejects", peer=self._name)
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
            # A server that no longer serves the fallback may leave us waiting instead of refusing.
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
        self._forget_revision()
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
            if error.status is None or 300 <= error.status < 400:
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
            try:
                dispatcher = await self._open_channel(stateless)
                return await self._discover(dispatcher, CallLimits(timeout=self._probe_timeout))
            except (RPCError, ProtocolError, TransportError):
                raise error from None
        except ChannelClosed as error:
            return await self._initialize_on_new_channel(session, error)

    async def _initialize_on_new_channel(self, session: Revision, error: ChannelClosed) -> OpenedConnection:
        """Initialize a server that exited on the probe."""
        if not self._connector.can_reopen:
            raise error
        return await self._initialize(await self._open_channel(session))

    async def _discover(self, dispatcher: Dispatcher, limits: CallLimits = NO_LIMITS) -> OpenedConnection:
        """Open a connection in the stateless era, if the server supports it."""
        result = await dispatcher.run(STATELESS_ERA.open(dispatcher.connection), limits)
        assert isinstance(result, DiscoverResult), "the row allows no other result"
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
            is_status = isinstance(error, RequestFailed)
            refused = error.status in _FALLBACK_STATUSES if is_status else error.code in _FALLBACK_CODES
            if self._via_fallback or self._connector.fallback is None or not refused:
                raise
            return await self._initialize_via_fallback(session, error)
        assert isinstance(result, InitializeResult), "the row allows no other result"
        try:
            await dispatcher.notify(INITIALIZED)
        except RequestFailed as error:
            if error.status is None:
                raise
            logger.info("%s: %s was refused: %.1000s", self._name, INITIALIZED, error)
        return OpenedConnection(dispatcher, dispatcher.connection.revision, result)

    async def _initialize_via_fallback(
        self, session: Revision, error: RequestFailed | RPCError
    ) -> OpenedConnection:
        """Open a session over the fallback; an error reports the outcome of both attempts."""
        try:
            return await self._initialize(await self._open_channel(session, via_fallback=True))
        except (RPCError, ProtocolError, ChannelClosed, RequestFailed, ConnectFailed) as second:
            first = f"{error.message}; the fallback for older servers failed too: "
            if error.message in second.message:  # a server that cannot serve at all fails alike both times
                first = ""
            raise ConnectFailed(
                f"could not connect: {first}{second.message}",
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


class _NoCommonStatelessRevision(RemoteProtocolError):
    """The server is stateless and lists its revisions, none of which is a stateless one of ours."""

    def __init__(self, listed: list[str], party: LocalPeer) -> None:
        theirs, ours = ", ".join(listed) or "no revision", ", ".join(party.supported)
        super().__init__(f"the server supports {theirs}; this client supports {ours}")
        self.listed_revisions = listed


def _parse_supported(error: RPCError) -> list[str]:
    """Return the revisions that an error lists, if it does."""
    data = error.data
    listed: JSON = cast("dict[str, JSON]", data).get("supported") if isinstance(data, dict) else None
    return [str(date) for date in cast("list[JSON]", listed)] if isinstance(listed, list) else []
