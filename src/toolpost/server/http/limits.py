"""What one worker has under way over HTTP, in all and for each peer: calls, streams, posts that wait.

Owns the counts, and says when there are too many. Knows a peer by its name only, and nothing of messages.

PART http_room: The sessions that one worker holds, each for its owner, and which of them makes room for
another.

Owns the order in which they were used and how many anybody may have: who opens many pushes out their own, and
those of others only if they have no idle one and less than their share. Nobody pushes out a busy one.
Knows a session only by its id, and by whether it is busy.

PART http_kept: Streams that are over, kept for clients that come back to them: as many as there is room for.

Owns the bound over all sessions of a worker; the store bounds each stream, and forgets it in its time. Knows
neither sessions nor what was said.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from toolpost.protocol.connection import MAX_IN_FLIGHT
from toolpost.stores.store import LogStore

MAX_CALLS: Final = 10_000
"""Calls of all clients together: ten clients with all that each may have, and some 100 MB of tasks."""

MAX_STREAMS: Final = 20_000
"""Streams that are open for news: one for each session, and as many subscriptions of stateless clients."""

MAX_SUBSCRIPTIONS: Final = 64
"""Subscriptions of one principal: a person with many clients, each with a few."""

MAX_QUEUED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of posts that wait for their conversations, of all sessions together."""


class RequestCounts:
    """What is under way."""

    __slots__ = ("_listens", "_peers", "calls", "limit", "max_calls", "max_streams", "streams", "waiting")

    def __init__(
        self, limit: int = MAX_IN_FLIGHT, max_calls: int = MAX_CALLS, max_streams: int = MAX_STREAMS
    ) -> None:
        self.limit = limit
        self.max_calls = max_calls
        self.max_streams = max_streams
        self.calls = self.streams = self.waiting = 0
        self._peers: dict[str, int] = {}
        self._listens: dict[str, int] = {}

    def has_room(self, peer: str) -> bool:
        """Whether a peer may begin another call."""
        return self.calls < self.max_calls and self._peers.get(peer, 0) < self.limit

    def begin(self, peer: str, count: int = 1) -> str | None:
        """Why a peer may not begin so many calls; None if it may, and they are counted then."""
        running = self._peers.get(peer, 0) + count
        if running > self.limit:
            return f"Too many requests in flight: at most {self.limit} of one client; the server sets limit="
        if self.calls + count > self.max_calls:
            return f"{self.max_calls} requests are being served, and no more can be (max_calls=)"
        self.add(peer, count)
        return None

    def add(self, peer: str, count: int = 1) -> None:
        """Count so many calls of a peer that have begun."""
        self._peers[peer] = self._peers.get(peer, 0) + count
        self.calls += count

    def end(self, peer: str, count: int = 1) -> None:
        """So many calls of a peer have ended."""
        self.calls -= count
        _subtract(self._peers, peer, count)

    def open_subscription(self, peer: str, most: int) -> bool:
        """Whether a peer that may have so many may open another subscription, which is counted then."""
        running = self._listens.get(peer, 0)
        if running >= most:
            return False
        self._listens[peer] = running + 1
        self.streams += 1
        return True

    def close_subscription(self, peer: str) -> None:
        """A subscription of a peer has ended."""
        self.streams -= 1
        _subtract(self._listens, peer, 1)


def _subtract(counts: dict[str, int], peer: str, count: int) -> None:
    left = counts[peer] - count
    if left:
        counts[peer] = left
    else:
        del counts[peer]


# --------------------------------------------------------------------- http_room

PRINCIPAL_SHARE: Final = 4
"""One principal may have a quarter of all sessions: with fewer than that many others are never shut out."""


class TooManySessions(Exception):
    """There is no room for another session."""

    def __init__(self, *, own: bool) -> None:
        super().__init__("all sessions that could make room are busy")
        self.own = own


class LimitedSession(Protocol):
    """A session, as far as it matters here."""

    id: str
    owner: str

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        ...


class SessionLimit:
    """Who makes room, if there are too many."""

    def __init__(self, most: int) -> None:
        self._max_sessions = most
        self._share = -(-most // PRINCIPAL_SHARE)
        # In both, those that were used last are at the end.
        self._all: OrderedDict[str, LimitedSession] = OrderedDict()
        self._owned: dict[str, OrderedDict[str, LimitedSession]] = {}

    def add(self, session: LimitedSession) -> None:
        """Remember a session, which is in use."""
        self._all[session.id] = session
        self._owned.setdefault(session.owner, OrderedDict())[session.id] = session

    def replace(self, session: LimitedSession) -> None:
        """Remember a session in place of what it was before, with the same id."""
        self._all[session.id] = session
        self._owned[session.owner][session.id] = session

    def use(self, session: LimitedSession) -> None:
        """Note that a session is in use."""
        self._all.move_to_end(session.id)
        self._owned[session.owner].move_to_end(session.id)

    def remove(self, session: LimitedSession) -> None:
        """Forget a session, which has ended."""
        del self._all[session.id]
        own = self._owned[session.owner]
        del own[session.id]
        if not own:
            del self._owned[session.owner]

    def find_session_to_evict(self, owner: str) -> str | None:
        """The id of the session that has to end before this owner can open another; None if none has to.

        It is the one that was idle for longest: of the owner's own, and only if they have none such, and have
        not got their share, of all. Those whom nobody knows share the empty name, and have no share: they
        may all be one, or each another one.
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


# --------------------------------------------------------------------- http_kept

STREAM_RETENTION: Final = 300.0
"""Seconds for which a stream can be resumed after its last event."""

MAX_FINISHED_BYTES: Final = 128 * 1024 * 1024
"""Bytes of all of them together: 32 of the largest, or some seconds of a busy server."""

MAX_COUNTED_STREAM_SIZE: Final = 4 * 1024 * 1024
"""Bytes of one: about as much as a log holds, however much was said."""

STREAM_OVERHEAD: Final = 4096
"""Bytes that one takes beside what was said, generously."""


class FinishedStreams:
    """The logs of streams on which nothing more will be said."""

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs
        self._held: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how large, and until when
        self._size = 0

    async def add(self, log: str, size: int) -> None:
        """Keep a log of this size; the oldest make room for it. Who reads one of them reads it to its end."""
        now, size = time.monotonic(), min(size, MAX_COUNTED_STREAM_SIZE) + STREAM_OVERHEAD
        self._held[log] = (size, now + STREAM_RETENTION)
        self._size += size
        while self._size > MAX_FINISHED_BYTES or self._is_oldest_expired(now):
            await self.drop(next(iter(self._held)))

    def _is_oldest_expired(self, now: float) -> bool:
        """Whether the time of the oldest is over; else the names of 30 000 that are gone would be kept."""
        return bool(self._held) and next(iter(self._held.values()))[1] <= now

    async def drop(self, log: str) -> None:
        """Forget a log."""
        self._size -= self._held.pop(log, (0, 0.0))[0]
        await self._logs.drop(log)
