"""Two connected channels in one process: what one sends, the other receives.

Owns the bounded queues between them. Nothing is copied: a message arrives as the object that was sent. Both
ends belong to the same event loop.
"""

from collections.abc import Callable

from toolpost.errors import ChannelClosed
from toolpost.transports.message_queue import DirectReceiver, MessageQueue, SendLimiter


class MemoryChannel:
    """One end of a pair: its own queue, that of the other end, and how many messages may lie there."""

    local = True
    """The other end is in this process."""

    def __init__(self, ours: MessageQueue, theirs: MessageQueue, limit: int) -> None:
        self._ours = ours
        self._theirs = theirs
        self._limit = limit
        self._limiter = SendLimiter(self._has_room)

    async def receive(self) -> bytes:
        """Return the next message of the other end; wait for it if needed. Cancelling it loses no message."""
        return await self._ours.receive()

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - one stream
        """Hand one message over; wait while the other end has too many. A cancelled send has sent nothing."""
        theirs = self._theirs
        waiting = self._limiter.queue
        if waiting or len(theirs.arrived) >= self._limit:
            theirs.on_room = self._limiter.admit_next
            await self._limiter.wait()
        if self._ours.reason is not None:
            self._limiter.admit_next()
            raise ChannelClosed(self._ours.reason, sent=False)
        theirs.put(data)
        if waiting:
            self._limiter.admit_next()
        elif theirs.on_room is not None:
            theirs.on_room = None

    def offer(self, data: bytes) -> bool:
        """Hand one message over if that needs no waiting; False if `send` has to do it, or to raise."""
        theirs = self._theirs
        if self._ours.reason is not None or self._limiter.queue or len(theirs.arrived) >= self._limit:
            return False
        theirs.put(data)
        return True

    def on_message(self, tell: Callable[[bytes], object]) -> None:
        """Pass each message to `tell` as it comes, instead of keeping it for `receive`."""
        self._ours.on_message = tell

    def serve(self, taker: DirectReceiver | None) -> None:
        """Give messages to `taker` at once while it waits for them; None ends that."""
        self._ours.receiver = taker

    async def close(self) -> None:
        """End both directions. The other end may still read what was sent before. Closing twice is fine."""
        self._ours.close("this end of the channel was closed")
        self._theirs.end("the other end of the channel was closed")
        self._limiter.admit_next()
        if self._ours.on_room is not None:
            self._ours.on_room()  # wakes the other end's senders, which wait for room here

    def _has_room(self) -> bool:
        return len(self._theirs.arrived) < self._limit or self._ours.reason is not None


def memory_pair(limit: int = 1024) -> tuple[MemoryChannel, MemoryChannel]:
    """Two channels, each the peer of the other."""
    if limit < 1:
        raise ValueError(f"limit is {limit}; at least 1 message has to fit between the two ends")
    left, right = MessageQueue(nested=True), MessageQueue(nested=True)
    return MemoryChannel(left, right, limit), MemoryChannel(right, left, limit)
