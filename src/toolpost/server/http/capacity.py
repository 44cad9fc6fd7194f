"""Limits of one worker: requests and streams in flight, in all and for each peer.

Owns the counts and the refusals. Knows nothing of messages.
"""

from typing import Final

from toolpost.server.options import HTTP, SERVER

MAX_SUBSCRIPTIONS: Final = 64  # subscriptions of one principal, who may have many clients


class RequestCounts:
    """Counts what is in flight: `calls` and open `streams`.

    `limit` is how many calls one peer may have. A peer is a principal, an address or a session.
    """

    __slots__ = ("_listens", "_peers", "calls", "limit", "max_calls", "max_streams", "streams")

    def __init__(
        self,
        limit: int = SERVER.max_in_flight,
        max_calls: int = HTTP.max_calls,
        max_streams: int = HTTP.max_streams,
    ) -> None:
        self.limit = limit
        self.max_calls = max_calls
        self.max_streams = max_streams
        self.calls = self.streams = 0
        self._peers: dict[str, int] = {}
        self._listens: dict[str, int] = {}

    def begin(self, peer: str) -> str | None:
        """Count a new call of a peer; return why not if there are too many."""
        running = self._peers.get(peer, 0)
        if running >= self.limit:
            return (
                f"Too many requests in flight: at most {self.limit} of one client; "
                "the server sets max_in_flight="
            )
        if self.calls >= self.max_calls:
            return f"{self.max_calls} requests are being served, and no more can be (max_calls=)"
        self._peers[peer] = running + 1
        self.calls += 1
        return None

    def end(self, peer: str) -> None:
        """Note that a call of a peer has ended."""
        self.calls -= 1
        left = self._peers[peer] - 1
        if left:
            self._peers[peer] = left
        else:
            del self._peers[peer]

    def open_subscription(self, peer: str, most: int) -> str | None:
        """Count a subscription of a peer; return why not if it has as many as it may."""
        running = self._listens.get(peer, 0)
        if running >= most:
            return f"Too many subscriptions: at most {most} may be open"
        self._listens[peer] = running + 1
        self.streams += 1
        return None

    def close_subscription(self, peer: str) -> None:
        """Note that a subscription of a peer has ended."""
        self.streams -= 1
        self._listens[peer] -= 1
        if not self._listens[peer]:
            del self._listens[peer]
