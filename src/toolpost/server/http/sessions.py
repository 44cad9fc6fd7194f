"""Sessions that no process owns: the facts of the handshake are sealed into the session id.

Any worker with the keys serves any request of a session. What changes later (log level, subscriptions, the
end) is a record in the store, written only when it is used. A worker caches what it has opened.
"""

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolpost.errors import InvalidSeal
from toolpost.principal import Principal
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import Peer
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.client_requests import MAX_URL_ELICITATIONS
from toolpost.server.http.security import HTTPRefusal
from toolpost.server.options import HttpOptions
from toolpost.types.base import RequestId, Struct
from toolpost.types.initialize import ClientCapabilities, Implementation, LogLevel

if TYPE_CHECKING:
    from toolpost.server.handler import Handler
    from toolpost.server.http.reply import HttpReply
    from toolpost.server.http.streams import GeneralStream

MAX_CACHED_SESSIONS: Final = 50_000
"""Sessions that a worker remembers. One that it has forgotten is opened from its id again."""

EVICTION_TRIES: Final = 8
"""Sessions that are looked at to find one that may be forgotten; those in use may not."""

MAX_FACTS_BYTES: Final = 2048
"""Facts that an id carries; larger ones stay in the store, and the id is their handle."""

MAX_STORED_FACTS_BYTES: Final = 64 * 1024
"""Facts that the store keeps for a session."""

MAX_SHARED_PEERS: Final = 256
"""Clients that describe themselves alike share one description, to save memory."""

MAX_EARLY_CANCELLATIONS: Final = 64
"""Cancellations of one session whose requests may still be on their way."""

MAX_ENDED_SESSIONS: Final = 100_000
"""Ended sessions that a worker remembers, to refuse them; the store remembers them for all workers."""

MAX_NOTE_INTERVAL: Final = 60.0
"""Seconds after which the use of a session is noted in the store again, for other workers."""

FRESH_SECONDS: Final = 1.0
"""How old the settings of a session may be before a worker reads them again."""

_STORED_MARK: Final = b"@"
_UNKNOWN_SESSION_TEXT: Final = (
    "There is no such session, or there is none any more: send `initialize` without a session id."
)


class _Facts(Struct, array_like=True, omit_defaults=True):
    """What the handshake has settled. The nonce makes every id unique."""

    nonce: bytes
    opened: int
    revision: str
    capabilities: ClientCapabilities | None = None
    info: Implementation | None = None
    scopes: tuple[str, ...] = ()


class SessionSettings(Struct, frozen=True, omit_defaults=True):
    """What has changed since the handshake."""

    is_ended: bool = False
    log_level: LogLevel | None = None
    uris: tuple[str, ...] = ()
    """The resources that the session subscribes to."""
    url_elicitations: tuple[str, ...] = ()
    """The elicitations by URL whose end the client may be notified of, oldest first."""


_DEFAULT_SETTINGS: Final = SessionSettings()
_FACTS_DECODER: Final = msgspec.msgpack.Decoder(_Facts)
_FACTS_ENCODER: Final = msgspec.msgpack.Encoder()
_SETTINGS: Final = JSONReader(SessionSettings)


class Session:
    """What a worker knows of one session."""

    __slots__ = (
        "calls",
        "changes_seen",
        "checked_at",
        "early_cancellations",
        "id",
        "is_initialized",
        "is_ready",
        "key",
        "noted_at",
        "opened_at",
        "owner",
        "peer",
        "reader",
        "resumed_count",
        "scopes",
        "server",
        "settings",
        "subscribed",
        "used_at",
    )

    def __init__(
        self, session_id: str, peer: Peer, owner: str, scopes: frozenset[str], opened: float
    ) -> None:
        self.id = session_id
        self.key = ""
        """Its name in the store, which does not reveal the id; empty until the store is used."""
        self.peer = peer
        self.owner = owner
        """The principal and its client; empty if they are not known."""
        self.scopes = scopes
        """A request needs these scopes to be one of this session."""
        self.opened_at = opened
        self.used_at = time.monotonic()
        self.noted_at = -inf
        """The last use that is noted in the store."""
        self.checked_at = -inf
        self.is_ready = True
        """Whether the handshake is complete, as far as this worker knows."""
        self.is_initialized = False
        """Whether this worker has received `notifications/initialized`."""
        self.settings = _DEFAULT_SETTINGS
        self.subscribed: tuple[str, ...] = ()
        """The resources that it has subscribed to on this worker, where the hooks were called."""
        self.calls: dict[RequestId, HttpReply] | None = None
        """The requests that this worker serves."""
        self.early_cancellations: dict[RequestId, None] | None = None
        self.reader: GeneralStream | None = None
        """The general stream, if this worker has it."""
        self.resumed_count = 0
        """Streams of this session that a client continues here."""
        self.changes_seen: int | None = None
        """The last change of a list or resource that the client was notified of."""
        self.server: tuple[Handler, Any, AsyncExitStack] | None = None
        """The server that was chosen for this client, its lifespan, and what holds that open."""

    async def touch(self) -> None:
        """Note that the session is in use, for as long as a client waits."""
        self.used_at = time.monotonic()

    @property
    def is_in_use(self) -> bool:
        """Whether a client waits: for an answer, or for what comes on a stream."""
        return (
            self.reader is not None
            or self.resumed_count > 0
            or any(reply.has_client for reply in (self.calls or {}).values())
        )

    def cancel_early(self, request_id: RequestId) -> None:
        """Remember a cancellation that has overtaken its request."""
        early = self.early_cancellations = self.early_cancellations or {}
        early[request_id] = None
        if len(early) > MAX_EARLY_CANCELLATIONS:
            del early[next(iter(early))]


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
        self._by_key: dict[str, Session] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        """Digests of sessions that have ended here."""
        self._peers: dict[bytes, Peer] = {}
        self._name = secrets.token_bytes(8)

    def __len__(self) -> int:
        return len(self._cache)

    # ----------------------------------------------------------------- opening and finding

    async def open(self, peer: Peer, principal: Principal | None) -> Session:
        """Open a session for a client (HTTPL-22, HTTPL-23)."""
        info = peer.info and Implementation(peer.info.name, peer.info.version, title=peer.info.title)
        capabilities = peer.capabilities if isinstance(peer.capabilities, ClientCapabilities) else None
        scopes = frozenset[str]()
        if principal is not None and self._handler.is_per_client:
            scopes = principal.scopes
        facts = _Facts(
            secrets.token_bytes(12),
            int(time.time()),
            peer.revision.date,
            capabilities,
            info,
            tuple(sorted(scopes)),
        )
        payload = _FACTS_ENCODER.encode(facts)
        if len(payload) > MAX_STORED_FACTS_BYTES:
            raise HTTPRefusal(
                413, f"The client describes itself in more than {MAX_STORED_FACTS_BYTES} bytes."
            )
        if len(payload) > MAX_FACTS_BYTES:
            handle = secrets.token_urlsafe(24)
            await self._handler.store.records.put(f"facts/{handle}", payload, self._options.session_life)
            payload = _STORED_MARK + handle.encode()
        keys, owner = await self._handler.request_states.get_keys(), get_owner(principal)
        expires = int(time.time() + self._options.session_life)
        session_id = keys.seal(payload, audience=self._audience, binding=[owner], expires=expires)
        session = Session(session_id, self._share_peer(facts), owner, scopes, time.monotonic())
        # With keys of their own, workers may share no store: another may take the end of the handshake.
        session.is_ready = self._handler.request_states.has_given_keys
        session.noted_at = session.used_at
        await self._remember(session)
        self.get_key(session)  # other workers name it so
        return session

    def find_fresh(self, session_id: str, principal: Principal | None) -> Session | None:
        """Return a session that this worker knows, and whose settings it has read just now."""
        session = self._cache.get(session_id)
        now = time.monotonic()
        if session is None or now - session.checked_at > FRESH_SECONDS or session.settings.is_ended:
            return None
        if session.owner or session.scopes or principal is not None:
            _check_owner(session, principal)
        session.used_at = now
        return session

    async def find(self, session_id: str, principal: Principal | None) -> Session:
        """Return a session. Raises HTTPRefusal(404) if it has ended, or belongs to another principal."""
        session = self._cache.get(session_id)
        if session is None:
            if _digest(session_id) in self._ended:
                raise make_unknown_session()
            session = await self._unseal(session_id, get_owner(principal))
            await self._remember(session)
        _check_owner(session, principal)
        now, options = time.monotonic(), self._options
        await self.ensure_fresh(session)
        if session.settings.is_ended:
            raise make_unknown_session()
        is_late = not session.is_ready and now - session.opened_at > options.handshake
        is_idle = now - session.used_at > options.idle
        if not session.is_in_use and (is_late or (is_idle and not await self._is_used_elsewhere(session))):
            await self.end(session)
            raise make_unknown_session()
        session.used_at = now
        self._cache.move_to_end(session_id)
        return session

    async def complete_handshake(self, session: Session) -> None:
        """Note that the handshake is complete, also on the worker that has opened the session."""
        if not session.is_ready:
            session.is_ready = True
        elif not self._handler.request_states.has_given_keys:
            await self._announce("ready", self.get_key(session))

    async def _unseal(self, session_id: str, owner: str) -> Session:
        keys = await self._handler.request_states.get_keys()
        try:
            payload = keys.open(session_id, audience=self._audience, binding=[owner], now=int(time.time()))
            if payload[:1] == _STORED_MARK:
                found = await self._handler.store.records.get(f"facts/{payload[1:].decode()}")
                payload = found or b""
            facts = _FACTS_DECODER.decode(payload)
        except (InvalidSeal, msgspec.MsgspecError):
            raise make_unknown_session() from None
        if facts.revision not in self._handler.local_peer.supported:
            raise make_unknown_session()
        age = max(0.0, time.time() - facts.opened)
        return Session(
            session_id, self._share_peer(facts), owner, frozenset(facts.scopes), time.monotonic() - age
        )

    def _share_peer(self, facts: _Facts) -> Peer:
        """Return the description of a client; sessions of the same kind of client share one."""
        key = _FACTS_ENCODER.encode((facts.revision, facts.capabilities, facts.info))
        peer = self._peers.get(key)
        if peer is None:
            if len(self._peers) >= MAX_SHARED_PEERS:
                self._peers.clear()
            peer = Peer(REVISIONS[facts.revision], facts.capabilities or ClientCapabilities(), facts.info)
            self._peers[key] = peer
        return peer

    async def _remember(self, session: Session) -> None:
        self._cache[session.id] = session
        for oldest in tuple(islice(self._cache.values(), EVICTION_TRIES)):
            if len(self._cache) <= MAX_CACHED_SESSIONS:
                return
            if oldest.calls or oldest.is_in_use:
                self._cache.move_to_end(oldest.id)
            else:
                self.forget(oldest)
                await self._on_ended(oldest)  # it goes on, but holds nothing here

    def forget(self, session: Session) -> None:
        """Remove a session from the cache."""
        self._cache.pop(session.id, None)
        self._by_key.pop(session.key, None)

    def get_key(self, session: Session) -> str:
        """Return the name of a session in the store."""
        if not session.key:
            session.key = sha256(session.id.encode()).hexdigest()[:24]
            self._by_key[session.key] = session
        return session.key

    def find_by_key(self, key: str) -> Session | None:
        """Return the session with this name in the store, if this worker knows it."""
        return self._by_key.get(key)

    # ----------------------------------------------------------------- settings

    async def ensure_fresh(self, session: Session) -> None:
        """Read the settings of a session, unless this was done just now."""
        now = time.monotonic()
        if now - session.checked_at <= FRESH_SECONDS:
            return
        found = await self._handler.store.records.get(f"session/{self.get_key(session)}")
        session.checked_at = now
        self._apply(session, _DEFAULT_SETTINGS if found is None else _SETTINGS(found))

    @staticmethod
    def _apply(session: Session, settings: SessionSettings) -> None:
        session.settings = settings
        for reply in (session.calls or {}).values():
            reply.connection.log_level = settings.log_level

    async def change(
        self,
        session: Session,
        update: Callable[[SessionSettings], SessionSettings] = lambda settings: settings,
        **changes: Any,
    ) -> None:
        """Change settings of a session, on all workers; `update` gets those that hold at this moment."""
        records, key = self._handler.store.records, f"session/{self.get_key(session)}"
        while True:
            found = await records.get(key)
            settings = _DEFAULT_SETTINGS if found is None else _SETTINGS(found)
            settings = msgspec.structs.replace(update(settings), **changes)
            if await records.swap(key, found, jsonrpc.encode(settings), self._options.session_life):
                break
        self._apply(session, settings)
        await self._announce("changed", session.key)

    async def set_uris(self, session: Session, uris: tuple[str, ...]) -> None:
        """Change the resources that a session subscribes to; another worker may change others meanwhile."""
        before = session.settings.uris
        added = tuple(uri for uri in uris if uri not in before)
        removed = frozenset(before).difference(uris)

        def update(settings: SessionSettings) -> SessionSettings:
            left = [uri for uri in settings.uris if uri not in removed and uri not in added]
            return msgspec.structs.replace(settings, uris=(*left, *added))

        await self.change(session, update)
        session.subscribed = (*(uri for uri in session.subscribed if uri not in removed), *added)

    async def add_url_elicitation(self, session: Session, elicitation_id: str) -> None:
        """Remember an elicitation by URL: the client may be notified of its end."""

        def update(settings: SessionSettings) -> SessionSettings:
            ids = (*settings.url_elicitations, elicitation_id)[-MAX_URL_ELICITATIONS:]
            return msgspec.structs.replace(settings, url_elicitations=ids)

        session.settings = update(session.settings)
        await self.change(session, update)

    async def remove_url_elicitation(self, session: Session, elicitation_id: str) -> None:
        """Forget an elicitation by URL."""

        def update(settings: SessionSettings) -> SessionSettings:
            ids = tuple(each for each in settings.url_elicitations if each != elicitation_id)
            return msgspec.structs.replace(settings, url_elicitations=ids)

        await self.change(session, update)

    # ----------------------------------------------------------------- ending

    async def end(self, session: Session) -> None:
        """End a session on all workers: from now on it is not found any more."""
        await self.change(session, is_ended=True, uris=(), url_elicitations=(), log_level=None)
        await self._announce("ended", session.key)
        await self.forget_ended(session)

    async def discard(self, session: Session) -> None:
        """Forget a session whose handshake has failed."""
        self.forget(session)
        await self._on_ended(session)

    async def close(self) -> None:
        """Release what this worker holds for its sessions; they go on elsewhere, or after a restart."""
        for session in tuple(self._cache.values()):
            await self._on_ended(session)

    async def forget_ended(self, session: Session) -> None:
        """Release a session that has ended, and remember no more of it than that."""
        self.forget(session)
        self._ended[_digest(session.id)] = None
        if len(self._ended) > MAX_ENDED_SESSIONS:
            self._ended.popitem(last=False)
        await self._on_ended(session)

    async def end_idle(self) -> None:
        """Forget sessions that were not used for too long; note the use of the others for other workers."""
        now, idle = time.monotonic(), self._options.idle
        interval = min(MAX_NOTE_INTERVAL, idle / 4)
        for session in tuple(self._cache.values()):
            if session.is_in_use:
                session.used_at = now
            if session.used_at - session.noted_at > interval:
                session.noted_at = session.used_at
                await self._handler.store.records.put(
                    self._get_use_key(session), self._name, idle + 2 * interval
                )
            if now - session.used_at <= idle:
                continue
            if await self._is_used_elsewhere(session):
                session.used_at = now
            elif session.settings != _DEFAULT_SETTINGS:
                await self.end(session)
            else:
                await self.forget_ended(session)

    def _get_use_key(self, session: Session) -> str:
        return f"session/{self.get_key(session)}/used"

    async def _is_used_elsewhere(self, session: Session) -> bool:
        """Return whether another worker has used a session of late, as far as the store knows."""
        found = await self._handler.store.records.get(self._get_use_key(session))
        return found is not None and found != self._name


def _digest(session_id: str) -> bytes:
    return sha256(session_id.encode()).digest()[:16]


def get_owner(principal: Principal | None) -> str:
    """Return the owner of a session: a principal and its client. Anonymous clients share the empty name."""
    return "" if principal is None else jsonrpc.encode([principal.key, principal.client]).decode()


def _check_owner(session: Session, principal: Principal | None) -> None:
    scopes = frozenset[str]() if principal is None else principal.scopes
    is_ours = hmac.compare_digest(session.owner.encode(), get_owner(principal).encode())
    if not (is_ours and session.scopes <= scopes):
        raise make_unknown_session()


def make_unknown_session() -> HTTPRefusal:
    """Return the refusal of a session that is not there (HTTPL-27)."""
    return HTTPRefusal(404, _UNKNOWN_SESSION_TEXT)
