"""What a client has seen so far, as numbers that a host can watch.

Counts only; who counts what is told at each number.
"""

from dataclasses import dataclass, field

__all__ = ["Stats"]


@dataclass(slots=True)
class Stats:
    """The numbers of one client, over all its connections."""

    requests: int = 0
    """Requests of ours that were handed to the channel."""
    timeouts: int = 0
    """… that got no answer in time."""
    asks: int = 0
    """Requests of the server's that were taken up."""
    notices: int = 0
    """Notices of the server's."""
    skipped: int = 0
    """Items of lists that could not be read and were left out."""
    unchecked: int = 0
    """Structured results that were not validated because jsonschema-rs is not installed."""
    discarded: dict[str, int] = field(default_factory=dict[str, int])
    """Messages that were thrown away, by reason: most meant nothing (any more), such as a "late answer". A
    "message over the limit" did; the request that it answers, as far as that is known, has failed."""

    def discard(self, why: str) -> None:
        """Count a message that was thrown away."""
        self.discarded[why] = self.discarded.get(why, 0) + 1
