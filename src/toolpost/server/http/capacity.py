"""Limits of one worker: requests and streams in flight, sessions per owner, and finished streams.

Owns the counts, in all and for each peer, and the choice of what has to make room. Knows nothing of messages.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from toolpost.server.options import HTTP, SERVER
from toolpost.stores.store import LogStore

MAX_SUBSCRIPTIONS: Final = 64  # subscriptions of one principal, who may have many clients
MAX_QUEUED_BYTES: Final = 256 * 1024 * 1024  # posts that wait to be served, of all sessions together


class RequestCounts:
    """Counts what is in flight: `calls`, open `streams`, and bytes of `waiting` posts.

    `limit` is how many calls one peer may have. A peer is a principal, an address or a session.
    """

    __slots__ = ("_listens", "_peers", "calls", "limit", "max_calls", "max_streams", "streams", "waiting")

    def __init__(
        self,
        limit: int = SERVER.max_in_flight,
        max_calls: int = HTTP.max_calls,
        max_streams: int = HTTP.max_streams,
    ) -> None:
        self.limit = limit
        self.max_calls = max_calls
        self.max_streams = max_streams
        self.calls = self.streams = self.waiting = 0
        self._peers: dict[str, int] = {}
        self._listens: dict[str, int] = {}

    def has_room(self, peer: str) -> bool:
        """Return whether a peer may begin another call."""
        return self.calls < self.max_calls and self._peers.get(peer, 0) < self.limit

    def begin(self, peer: str, count: int = 1) -> str | None:
        """Count new calls of a peer; return why not if they are too many."""
        running = self._peers.get(peer, 0) + count
        if running > self.limit:
            return (
                f"Too many requests in flight: at most {self.limit} of one client; "
                "the server sets max_in_flight="
            )
        if self.calls + count > self.max_calls:
            return f"{self.max_calls} requests are being served, and no more can be (max_calls=)"
        self.add(peer, count)
        return None

    def add(self, peer: str, count: int = 1) -> None:
        """Count calls of a peer, whatever the limits are."""
        self._peers[peer] = self._peers.get(peer, 0) + count
        self.calls += count

    def end(self, peer: str, count: int = 1) -> None:
        """Note that calls of a peer have ended."""
        self.calls -= count
        _subtract(self._peers, peer, count)

    def open_subscription(self, peer: str, most: int) -> bool:
        """Count a subscription of a peer; return False if it has as many as it may."""
        running = self._listens.get(peer, 0)
        if running >= most:
            return False
        self._listens[peer] = running + 1
        self.streams += 1
        return True

    def close_subscription(self, peer: str) -> None:
        """Note that a subscription of a peer has ended."""
        self.streams -= 1
        _subtract(self._listens, peer, 1)


def _subtract(counts: dict[str, int], peer: str, count: int) -> None:
    left = counts[peer] - count
    if left:
        counts[peer] = left
    else:
        del counts[peer]


# --------------------------------------------------------------------- sessions

PRINCIPAL_SHARE: Final = 4  # one principal may have a quarter of all sessions


class TooManySessions(Exception):
    """There is no room for another session; `own` says that the same principal's calls take it."""

    def __init__(self, *, own: bool) -> None:
        super().__init__("all sessions that could make room are busy")
        self.own = own


class LimitedSession(Protocol):
    """A session that is awake or asleep."""

    id: str
    owner: str

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer; such a session never makes room."""
        ...


class SessionLimit:
    """Chooses the session that ends if there are more than `most`."""

    def __init__(self, most: int) -> None:
        self._max_sessions = most
        self._share = -(-most // PRINCIPAL_SHARE)
        # In both, the sessions that were used last are at the end.
        self._all: OrderedDict[str, LimitedSession] = OrderedDict()
        self._owned: dict[str, OrderedDict[str, LimitedSession]] = {}

    def add(self, session: LimitedSession) -> None:
        """Add a session, as the one that was used last."""
        self._all[session.id] = session
        self._owned.setdefault(session.owner, OrderedDict())[session.id] = session

    def replace(self, session: LimitedSession) -> None:
        """Replace a session by another object with the same id."""
        self._all[session.id] = session
        self._owned[session.owner][session.id] = session

    def use(self, session: LimitedSession) -> None:
        """Note that a session is used."""
        self._all.move_to_end(session.id)
        self._owned[session.owner].move_to_end(session.id)

    def remove(self, session: LimitedSession) -> None:
        """Remove a session that has ended."""
        del self._all[session.id]
        own = self._owned[session.owner]
        del own[session.id]
        if not own:
            del self._owned[session.owner]

    def find_session_to_evict(self, owner: str) -> str | None:
        """Return the id of the session that has to end before this owner can open another one, if any.

        It is the one that was idle for longest: of the owner's own; of all only if the owner has no idle one
        and less than its share. Anonymous clients share the empty name, and have no share.

        Raises:
            TooManySessions: all sessions that could make room are busy.
        """
        own = self._owned.get(owner) or OrderedDict[str, LimitedSession]()
        over = owner != "" and len(own) >= self._share
        if not over and len(self._all) < self._max_sessions:
            return None
        session = _find_idle(own.values()) or (None if over else _find_idle(self._all.values()))
        if session is None:
            raise TooManySessions(own=over)
        return session.id


def _find_idle(sessions: Iterable[LimitedSession]) -> LimitedSession | None:
    return next((session for session in sessions if not session.is_busy), None)


# --------------------------------------------------------------------- finished streams

STREAM_RETENTION: Final = 300.0  # seconds for which a stream can be resumed after its last event
MAX_FINISHED_BYTES: Final = 128 * 1024 * 1024  # all finished streams together: 32 of the largest
MAX_COUNTED_STREAM_SIZE: Final = 4 * 1024 * 1024  # bytes that one stream counts at most: what a log holds
STREAM_OVERHEAD: Final = 4096  # bytes that one stream takes besides its messages


class FinishedStreams:
    """Keeps the logs of streams that have ended, for clients that reconnect, as long as there is room."""

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs
        self._held: OrderedDict[str, tuple[int, float]] = OrderedDict()  # size, and when it expires
        self._size = 0

    async def add(self, log: str, size: int) -> None:
        """Keep a log of this size; the oldest ones make room for it."""
        now, size = time.monotonic(), min(size, MAX_COUNTED_STREAM_SIZE) + STREAM_OVERHEAD
        self._held[log] = (size, now + STREAM_RETENTION)
        self._size += size
        while self._size > MAX_FINISHED_BYTES or self._is_oldest_expired(now):
            await self.drop(next(iter(self._held)))

    def _is_oldest_expired(self, now: float) -> bool:
        """Return whether the store has forgotten the oldest one, so that its name can go, too."""
        return bool(self._held) and next(iter(self._held.values()))[1] <= now

    async def drop(self, log: str) -> None:
        """Drop a log."""
        self._size -= self._held.pop(log, (0, 0.0))[0]
        await self._logs.drop(log)
