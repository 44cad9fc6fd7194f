"""Sessions that no process owns: the facts of the handshake are sealed into the session id.

Any worker with the keys serves any request of a session. Later changes (log level, subscriptions, the end)
are a record in the store, written only when it is used. A worker caches the sessions that it has opened.
"""

import logging
import os
import secrets
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from toolpost.errors import InvalidRequest, InvalidSeal, StoreUnavailable
from toolpost.principal import Principal
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import Peer
from toolpost.protocol.headers import NOT_EXECUTED, hide_session_id
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.http.exchange import HTTP_NETWORK, HTTPRefusal
from toolpost.server.options import HttpOptions
from toolpost.server.requests_to_client import MAX_URL_ELICITATIONS
from toolpost.server.state import State
from toolpost.stores.store import RecordStore
from toolpost.types.base import RequestId, Struct
from toolpost.types.initialize import ClientCapabilities, Implementation, LogLevel

if TYPE_CHECKING:
    from toolpost.server.handler import Handler
    from toolpost.server.http.reply import HttpReply

logger: Final = logging.getLogger("toolpost.http")

MAX_CACHED_SESSIONS: Final = 50_000  # that a worker remembers; it opens others from their ids again
MAX_CACHED_FACTS_BYTES: Final = 16 * 1024 * 1024  # of all these; decoded they take ten times as much
EVICTION_TRIES: Final = 8  # sessions to look at for one that may be forgotten; those in use may not
MAX_FACTS_BYTES: Final = 2048  # facts that an id carries; larger ones stay in the store
MAX_STORED_FACTS_BYTES: Final = 64 * 1024  # facts that the store keeps for a session
MAX_SHARED_PEERS: Final = 256  # kinds of clients whose sessions share one description
MAX_ENDED_SESSIONS: Final = 100_000  # idle ones that a worker remembers; the store has the others, for all
MAX_NOTE_INTERVAL: Final = 60.0  # seconds after which the use of a session is noted for other workers again
SEAL_LEEWAY: Final = 60.0  # seconds to keep records of a session after its seal has expired: clocks differ
_STORED_MARK: Final = b"@"


class _Facts(Struct, array_like=True, omit_defaults=True):
    """The facts of a handshake. The nonce makes every id unique."""

    nonce: bytes
    opened: int
    client: bytes
    """Its revision, capabilities and name, encoded."""
    scopes: tuple[str, ...] = ()


class SessionSettings(Struct, frozen=True, omit_defaults=True):
    """The changes since the handshake."""

    is_ended: bool = False
    log_level: LogLevel | None = None
    uris: tuple[str, ...] = ()
    url_elicitations: tuple[str, ...] = ()
    """The elicitations by URL whose end the client may be notified of, oldest first."""
    state_keys: tuple[str, ...] = ()
    """The keys of all values in `ctx.state`."""


_DEFAULT_SETTINGS: Final = SessionSettings()
_ENDED_SETTINGS: Final = SessionSettings(is_ended=True)
_ENDED_RECORD: Final = jsonrpc.encode(_ENDED_SETTINGS)
_FACTS_DECODER: Final = msgspec.msgpack.Decoder(_Facts)
_CLIENT_DECODER: Final = msgspec.msgpack.Decoder(tuple[str, ClientCapabilities, Implementation | None])
_FACTS_ENCODER: Final = msgspec.msgpack.Encoder()
_SETTINGS: Final = JSONReader(SessionSettings)


def _read_client(encoded: bytes) -> Peer:
    revision, capabilities, info = _CLIENT_DECODER.decode(encoded)
    return Peer(REVISIONS[revision], capabilities, info)


_share_client: Final = lru_cache(MAX_SHARED_PEERS)(_read_client)
"""Clients that describe themselves alike, and briefly, share one record, to save memory."""


Owner: TypeAlias = tuple[str, str, str] | None
"""Issuer, subject and client of a principal. Anonymous clients share None."""


class Session(msgspec.Struct, eq=False):
    """One session, as far as a worker knows it."""

    id: str
    key: str
    """Its name in the store, which does not reveal the id."""
    peer: Peer
    owner: Owner
    """The principal and its client; None if they are not known."""
    scopes: frozenset[str]
    """A request needs these scopes to be one of this session."""
    facts_size: int
    """Size of the client's information in bytes."""
    opened_at: float
    used_at: float
    noted_at: float = -inf
    """The last use that is noted in the store."""
    checked_at: float = -inf
    is_initialized: bool = False
    """Whether this worker has received `notifications/initialized`."""
    settings: SessionSettings = _DEFAULT_SETTINGS
    subscribed: tuple[str, ...] = ()
    """The resources that it has subscribed to on this worker, where the hooks were called."""
    calls: "dict[RequestId, HttpReply] | None" = None
    reader_count: int = 0
    """Streams of this session that a client reads here by GET."""
    changes_seen: int | None = None
    """The last change of a list or resource that the client was notified of."""
    server: "tuple[Handler, Any, AsyncExitStack] | None" = None
    """The server that was chosen for this client, its lifespan, and the stack that holds it open."""

    async def touch(self) -> None:
        """Mark the session as used while a client waits."""
        self.used_at = time.monotonic()

    def remove_call(self, request_id: RequestId) -> None:
        """Remove a call that has ended. An empty table would cost memory in every idle session."""
        if self.calls is not None:
            self.calls.pop(request_id, None)
            self.calls = self.calls or None

    @property
    def is_in_use(self) -> bool:
        """Whether a client waits for a response, or reads a stream."""
        return self.reader_count > 0 or any(reply.has_client for reply in (self.calls or {}).values())


class SessionState(State):
    """The state of a session. Its settings have the keys of its values, which are deleted with it."""

    __slots__ = ("_session", "_sessions")

    def __init__(self, records: RecordStore, sessions: "Sessions", session: Session) -> None:
        super().__init__(records, f"state/{session.key}/")
        self._sessions = sessions
        self._session = session

    async def _change_keys(self, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> bool:
        before = self._session.settings.state_keys
        if change(before) == before:
            return not self._session.settings.is_ended
        return await self._sessions.change(
            self._session, lambda now: replace(now, state_keys=change(now.state_keys))
        )


class Sessions:
    """The sessions of an endpoint, as far as this worker knows them."""

    def __init__(
        self,
        handler: "Handler",
        options: HttpOptions,
        announce: Callable[[str, str], Awaitable[None]],
        on_ended: Callable[[Session], Awaitable[None]],
    ) -> None:
        self._handler = handler
        self._options = options
        self._announce = announce
        self._on_ended = on_ended
        self._audience = f"session of {handler.info.name}"
        self._cache: OrderedDict[str, Session] = OrderedDict()
        self._cached_bytes = 0
        self._has_warned = False  # that a session is unknown
        self.by_key: dict[str, Session] = {}
        """The same sessions, by their names in the store."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Keys of idle sessions that have ended here."""
        self._name = secrets.token_bytes(8)
        self._fresh = handler.store.fresh if has_sessions(handler, options) else 0.0

    # ----------------------------------------------------------------- opening and finding

    async def open(self, peer: Peer, principal: Principal | None) -> Session:
        """Open a session for a client (HTTPL-22, HTTPL-23)."""
        info = peer.info and Implementation(peer.info.name, peer.info.version, title=peer.info.title)
        client = _FACTS_ENCODER.encode((peer.revision.date, peer.capabilities or ClientCapabilities(), info))
        scopes = frozenset[str]()
        if principal is not None and self._handler.is_per_client:
            scopes = principal.scopes
        facts = _Facts(secrets.token_bytes(12), int(time.time()), client, tuple(sorted(scopes)))
        payload = _FACTS_ENCODER.encode(facts)
        if len(payload) > MAX_STORED_FACTS_BYTES:
            raise HTTPRefusal(413, f"The client information exceeds {MAX_STORED_FACTS_BYTES} bytes.")
        stored = payload if len(payload) > MAX_FACTS_BYTES else None
        if stored is not None:
            payload = _STORED_MARK + facts.nonce
        keys, owner = await self._handler.request_states.get_keys(), get_owner(principal)
        expires = int(time.time() + self._options.session_life)
        binding = _make_binding(principal)
        session_id = keys.seal(payload, audience=self._audience, binding=binding, expires=expires)
        session = _make_session(session_id, facts, owner)
        if stored is not None:
            records = self._handler.store.records
            await records.put(f"facts/{session.key}", stored, self._options.session_life)
        session.opened_at = session.noted_at = session.used_at  # the facts have whole seconds
        await self._remember(session)
        return session

    def find_fresh(self, session_id: str, principal: Principal | None) -> Session | None:
        """Return a session that this worker knows, and whose settings it has read just now."""
        session = self._cache.get(session_id)
        now = time.monotonic()
        if session is None or now - session.checked_at > self._fresh:
            return None
        if session.owner is not None or principal is not None:
            _check_owner(session, principal)
        session.used_at = now
        return session

    async def find(self, session_id: str, principal: Principal | None) -> Session:
        """Return a session. Raises HTTPRefusal(404) if it has ended, or belongs to another principal."""
        session = self._cache.get(session_id)
        if session is None:
            if self._ended and hide_session_id(session_id) in self._ended:
                raise make_unknown_session()
            session = await self._unseal(session_id, principal)
        _check_owner(session, principal)
        if not await self.ensure_fresh(session):
            raise make_unknown_session()
        if session_id not in self._cache:
            await self._remember(session)
        session = self._cache.get(session_id, session)  # another request may have been faster
        now, options = time.monotonic(), self._options
        is_idle = now - session.used_at > options.idle
        if now - session.opened_at >= options.session_life:  # its seal has expired; the cache skips the check
            await self.end(session)
            raise make_unknown_session()
        if is_idle and not session.is_in_use and not await self._is_used_elsewhere(session):
            await self.end(session)
            raise make_unknown_session()
        session.used_at = now
        self._cache.move_to_end(session_id)
        return session

    async def _unseal(self, session_id: str, principal: Principal | None) -> Session:
        keys, binding = await self._handler.request_states.get_keys(), _make_binding(principal)
        try:
            payload = keys.open(session_id, audience=self._audience, binding=binding, now=int(time.time()))
            if payload[:1] == _STORED_MARK:
                payload = await self._handler.store.records.get(f"facts/{hide_session_id(session_id)}") or b""
            facts = _FACTS_DECODER.decode(payload)
            session = _make_session(session_id, facts, get_owner(principal))
        except (InvalidSeal, msgspec.MsgspecError, KeyError):  # KeyError: a revision of a newer release
            if not (self._has_warned or self._handler.request_states.has_given_keys):
                self._has_warned = True
                logger.warning(
                    "a client continues a session of another process: the server was restarted, or several "
                    "processes serve it. They need the same Server(keys=…), or asgi(stateless=True)"
                )
            raise make_unknown_session() from None
        if session.peer.revision.date not in self._handler.local_peer.supported:
            raise make_unknown_session()
        return session

    async def _remember(self, session: Session) -> None:
        self._cache[session.id] = self.by_key[session.key] = session
        self._cached_bytes += session.facts_size
        for oldest in tuple(islice(self._cache.values(), EVICTION_TRIES)):
            if len(self._cache) <= MAX_CACHED_SESSIONS and self._cached_bytes <= MAX_CACHED_FACTS_BYTES:
                return
            if oldest.calls or oldest.is_in_use:
                self._cache.move_to_end(oldest.id)
            else:
                self.forget(oldest)
                await self._on_ended(oldest)  # it continues, but holds nothing here

    def forget(self, session: Session) -> None:
        """Remove a session from the cache."""
        if self._cache.pop(session.id, None) is not None:
            self._cached_bytes -= session.facts_size
        self.by_key.pop(session.key, None)

    # ----------------------------------------------------------------- settings

    async def ensure_fresh(self, session: Session) -> bool:
        """Read the settings of a session, unless they are fresh; return whether it is still open."""
        now = time.monotonic()
        if now - session.checked_at <= self._fresh:
            return not session.settings.is_ended
        try:
            settings = _read_settings(await self._handler.store.records.get(f"session/{session.key}"))
        except StoreUnavailable:  # calls continue, with the last known settings
            settings = session.settings
        except Exception:
            logger.exception("could not read the settings of a session; using the last known ones")
            settings = session.settings
        if settings.is_ended:
            await self.discard(session)
            return False
        session.checked_at = now
        self._apply(session, settings)
        return True

    @staticmethod
    def _apply(session: Session, settings: SessionSettings) -> None:
        session.settings = settings
        for reply in (session.calls or {}).values():
            reply.connection.log_level = settings.log_level

    async def change(self, session: Session, update: Callable[[SessionSettings], SessionSettings]) -> bool:
        """Change the current settings of a session, on all workers; return False if it has ended."""
        records, key = self._handler.store.records, f"session/{session.key}"
        while True:
            found = await records.get(key)
            settings = _read_settings(found)
            if settings.is_ended:
                return False
            settings = update(settings)
            if await records.swap(key, found, jsonrpc.encode(settings), self._get_life_left(session)):
                break
        self._apply(session, settings)
        await self._announce("changed", session.key)
        return True

    def _get_life_left(self, session: Session) -> float:
        """Return for how many seconds the seal of a session is valid, with some leeway."""
        return max(0.0, session.opened_at + self._options.session_life - time.monotonic()) + SEAL_LEEWAY

    async def set_log_level(self, session: Session, level: LogLevel) -> None:
        """Change the log level of a session."""
        await self.change(session, lambda settings: replace(settings, log_level=level))

    async def set_subscription(self, session: Session, uri: str, *, is_active: bool) -> None:
        """Subscribe a session to a resource, or unsubscribe it; the hook was called on this worker."""
        if is_active != (uri in session.settings.uris):
            await self.change(session, lambda now: replace(now, uris=_toggle(now.uris, uri, is_on=is_active)))
        session.subscribed = _toggle(session.subscribed, uri, is_on=is_active)

    async def set_url_elicitation(self, session: Session, elicitation_id: str, *, is_pending: bool) -> None:
        """Remember or forget an elicitation by URL, of whose end the client may be notified."""

        def update(settings: SessionSettings) -> SessionSettings:
            ids = _toggle(settings.url_elicitations, elicitation_id, is_on=is_pending)
            return replace(settings, url_elicitations=ids[-MAX_URL_ELICITATIONS:])

        session.settings = update(session.settings)
        await self.change(session, update)

    # ----------------------------------------------------------------- ending

    async def end(self, session: Session) -> None:
        """End a session on all workers. The store remembers that until the seal of the session expires."""
        records, key = self._handler.store.records, session.key
        settings = _read_settings(await records.get(f"session/{key}"))
        await records.put(f"session/{key}", _ENDED_RECORD, self._get_life_left(session))
        await records.delete(f"facts/{key}")
        session.settings = _ENDED_SETTINGS
        for name in settings.state_keys:
            await self.open_state(session).delete(name)
        await self._announce("changed", key)
        await self.discard(session)
        lasted = time.monotonic() - session.opened_at
        self._handler.record_session(lasted, session.peer.revision, HTTP_NETWORK)

    async def discard(self, session: Session) -> None:
        """Release the resources here of a session that has ended, or was never opened."""
        self.forget(session)
        await self._on_ended(session)

    async def close(self) -> None:
        """Release the resources of all sessions here; they continue elsewhere, or after a restart."""
        for session in tuple(self._cache.values()):
            await self._on_ended(session)

    def open_state(self, session: Session) -> SessionState:
        """Return the values that functions have stored for a session."""
        return SessionState(self._handler.store.records, self, session)

    async def end_idle(self) -> None:
        """Forget sessions that were not used for too long; note the use of the others for other workers."""
        now, idle = time.monotonic(), self._options.idle
        interval = min(MAX_NOTE_INTERVAL, idle / 4)
        for session in tuple(self._cache.values()):
            if session.is_in_use:
                session.used_at = now
            if session.used_at - session.noted_at > interval:
                session.noted_at = session.used_at
                key = f"session/{session.key}/used"
                await self._handler.store.records.put(key, self._name, idle + 2 * interval)
            if now - session.used_at <= idle:
                continue
            if await self._is_used_elsewhere(session):
                session.used_at = now
            elif await self.ensure_fresh(session) and session.settings != _DEFAULT_SETTINGS:
                await self.end(session)
            else:
                self._ended[session.key] = None
                if len(self._ended) > MAX_ENDED_SESSIONS:
                    self._ended.popitem(last=False)
                await self.discard(session)

    async def _is_used_elsewhere(self, session: Session) -> bool:
        """Return whether another worker has recently used a session, or may have: the store knows."""
        try:
            found = await self._handler.store.records.get(f"session/{session.key}/used")
        except StoreUnavailable:
            return True
        return found is not None and found != self._name


def has_sessions(handler: "Handler", options: HttpOptions) -> bool:
    """Return whether an endpoint serves clients of the session era in sessions."""
    return not options.stateless and handler.local_peer.has_sessions


def hold_process_lease(name: str) -> AbstractContextManager[object]:
    """Warn if this is one of several worker processes with sessions of their own; the context is a lease."""
    from multiprocessing import parent_process  # noqa: PLC0415 - start-up time

    is_worker = parent_process() is not None or "gunicorn" in os.environ.get("SERVER_SOFTWARE", "")
    for is_second in (False, True) if is_worker and sys.platform == "linux" else ():
        lease = socket.socket(socket.AF_UNIX)
        try:
            lease.bind(f"\0toolpost {os.getppid()} {sha256(name.encode()).hexdigest()} {is_second}")
        except OSError:  # another process has it; the third says nothing
            lease.close()
            continue
        if is_second:
            logger.warning(
                "several processes serve %s without a shared store: clients up to 2025-11-25 miss questions, "
                "cancellations and changes; pass Server(store='redis://…'), or asgi(stateless=True)",
                name,
            )
        return lease
    return nullcontext()


def _make_session(session_id: str, facts: _Facts, owner: Owner) -> Session:
    scopes, now, size = frozenset(facts.scopes), time.monotonic(), len(facts.client)
    peer = _share_client(facts.client) if size <= MAX_FACTS_BYTES else _read_client(facts.client)
    opened_at = now - max(0.0, time.time() - facts.opened)
    return Session(session_id, hide_session_id(session_id), peer, owner, scopes, size, opened_at, now)


def _read_settings(record: bytes | None) -> SessionSettings:
    return _DEFAULT_SETTINGS if record is None else _SETTINGS(record)


def _toggle(values: tuple[str, ...], value: str, *, is_on: bool) -> tuple[str, ...]:
    """Return the values with this one as the last, or without it."""
    others = tuple(each for each in values if each != value)
    return (*others, value) if is_on else others


def get_owner(principal: Principal | None) -> Owner:
    """Return the owner of a session: a principal and its client."""
    return None if principal is None else (principal.issuer, principal.subject, principal.client)


def _make_binding(principal: Principal | None) -> list[str]:
    """Return the owner of a session as its seal names it."""
    return ["" if principal is None else jsonrpc.encode([principal.key, principal.client]).decode()]


def _check_owner(session: Session, principal: Principal | None) -> None:
    if session.owner != get_owner(principal) or (
        session.scopes and not (principal and session.scopes <= principal.scopes)
    ):
        raise make_unknown_session()


def make_unknown_session() -> HTTPRefusal:
    """Return the refusal of an unknown session (HTTPL-27), which says that the request was not executed."""
    text = "Session not found or expired: send `initialize` without a session id."
    return HTTPRefusal(404, body=jsonrpc.encode_error(None, InvalidRequest(text, data=NOT_EXECUTED)))
