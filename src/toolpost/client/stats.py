"""What a client has seen so far, as numbers that a host can watch.

Counts only; who counts what is told there.
"""

from dataclasses import dataclass, field

__all__ = ["Stats"]


@dataclass(slots=True)
class Stats:
    """The numbers of one client, over all its connections.

    Attributes:
        requests: requests of ours that were handed to the channel.
        timeouts: those of them that got no answer in time.
        retries: requests that were sent once more.
        connections: how often the client has connected.
        client_requests: requests of the server's that were taken up.
        notifications: notices of the server's.
        skipped: items of lists that could not be read and were left out.
        cached: requests that needed no sending, because the server lets its last answer be kept.
        gaps: times that changes may have been missed, because a subscription or a connection was lost.
        unchecked: structured results that were not validated, because jsonschema-rs is not installed.
        discarded: messages that were thrown away, by reason: most meant nothing (any more), such as a "late
            answer". A "message over the limit" did; the request that it answers, as far as that is known,
            has failed.
    """

    requests: int = 0
    timeouts: int = 0
    retries: int = 0
    connections: int = 0
    client_requests: int = 0
    notifications: int = 0
    skipped: int = 0
    cached: int = 0
    gaps: int = 0
    unchecked: int = 0
    discarded: dict[str, int] = field(default_factory=dict[str, int])

    def record_discard(self, why: str) -> None:
        """Count a message that was thrown away."""
        self.discarded[why] = self.discarded.get(why, 0) + 1
