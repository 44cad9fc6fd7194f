"""Two channels in one process, back to back: what one sends, the other receives.

Owns the bounded queues between them. Knows nothing of descriptors, and copies nothing: a message arrives as
the very object that was sent. Both ends belong to the same event loop.
"""

from collections.abc import Callable

from toolpost.errors import ChannelClosed
from toolpost.transports.mailbox import Mailbox, Taker, Turnstile

__all__ = ["MemoryChannel", "pair"]


class MemoryChannel:
    """One end of a pair.

    Args:
        ours: where our messages arrive.
        theirs: where the messages of the other end arrive.
        limit: how many messages may lie there before `send` waits.
    """

    __slots__ = ("_limit", "_ours", "_theirs", "_turnstile")

    local = True
    """The other end is in this process."""

    def __init__(self, ours: Mailbox, theirs: Mailbox, limit: int) -> None:
        self._ours = ours
        self._theirs = theirs
        self._limit = limit
        self._turnstile = Turnstile(self._room)

    async def receive(self) -> bytes:
        """The next message of the other end, waiting for it if need be. Cancelling it loses no message.

        Raises:
            ChannelClosed: the other end closed and everything it had sent was read, or this end closed.
            LocalProtocolError: another task is receiving already.
        """
        return await self._ours.receive()

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - one stream
        """Hand one message over; wait while the other end has too many to read.

        A cancelled send has sent nothing.

        Raises:
            ChannelClosed: either end was closed; the message was not sent.
        """
        theirs = self._theirs
        waiting = self._turnstile.queue
        if waiting or len(theirs.arrived) >= self._limit:
            theirs.relief = self._turnstile.admit
            await self._turnstile.wait()
        if self._ours.reason is not None:
            self._turnstile.admit()
            raise ChannelClosed(self._ours.reason, sent=False)
        theirs.put(data)
        if waiting:
            self._turnstile.admit()
        elif theirs.relief is not None:
            theirs.relief = None

    def offer(self, data: bytes) -> bool:
        """Hand one message over, if that needs no waiting; False if `send` has to be asked, and why not."""
        theirs = self._theirs
        if self._ours.reason is not None or self._turnstile.queue or len(theirs.arrived) >= self._limit:
            return False
        theirs.put(data)
        return True

    def on_message(self, tell: Callable[[bytes], object]) -> None:
        """Have each message told as it comes, instead of keeping it for `receive`."""
        self._ours.tell = tell

    def serve(self, taker: Taker | None) -> None:
        """Let whoever receives take messages at once while it waits for them; None for nobody."""
        self._ours.taker = taker

    async def close(self) -> None:
        """End both directions. The other end may still read what was sent before. Closing twice is fine."""
        self._ours.shut("this end of the channel was closed")
        self._theirs.end("the other end of the channel was closed")
        self._turnstile.admit()
        if self._ours.relief is not None:
            self._ours.relief()  # their senders, who wait for room at our end

    def _room(self) -> bool:
        return len(self._theirs.arrived) < self._limit or self._ours.reason is not None


def pair(limit: int = 1024) -> tuple[MemoryChannel, MemoryChannel]:
    """Two channels, each the peer of the other.

    Args:
        limit: how many messages may wait in each direction before `send` waits too.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}; at least 1 message has to fit between the two ends")
    left, right = Mailbox(nested=True), Mailbox(nested=True)
    return MemoryChannel(left, right, limit), MemoryChannel(right, left, limit)
