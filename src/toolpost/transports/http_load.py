"""What one worker has under way over HTTP, in all and for each peer: calls, streams, posts that wait.

Owns the counts, and says when there are too many. Knows a peer by its name only, and nothing of messages.
"""

from typing import Final

from toolpost.protocol.connection import MAX_IN_FLIGHT

__all__ = ["MAX_CALLS", "MAX_QUEUED_BYTES", "MAX_STREAMS", "MAX_SUBSCRIPTIONS", "RequestCounts"]

MAX_CALLS: Final = 10_000
"""Calls of all clients together: ten clients with all that each may have, and some 100 MB of tasks."""

MAX_STREAMS: Final = 20_000
"""Streams that are open for news: one for each session, and as many subscriptions of stateless clients."""

MAX_SUBSCRIPTIONS: Final = 64
"""Subscriptions of one principal: a person with many clients, each with a few."""

MAX_QUEUED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of posts that wait for their conversations, of all sessions together."""


class RequestCounts:
    """What is under way.

    Args:
        limit: how many calls one peer may have.
        max_calls: how many there may be in all.
        max_streams: how many streams may be open for news.

    Attributes:
        calls: how many there are.
        streams: how many are open.
        waiting: bytes of posts that wait.
    """

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
