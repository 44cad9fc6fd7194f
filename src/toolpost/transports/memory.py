"""In-memory channels: two ends in one process, and the message queue that they and the pipes are built on.

A queue is bounded in bytes, and a sender waits when it is full.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from toolpost.errors import ChannelClosed, LocalProtocolError
from toolpost.protocol.events import OutboundRequest
from toolpost.protocol.framing import OversizedLine

_log = logging.getLogger("toolpost.transports")

MAX_NESTED_RECEIVES: Final = 8
"""How deep direct receivers may be nested: servers in one process may call each other."""


class _NestingDepth(threading.local):
    depth = 0


_nesting: Final = _NestingDepth()


class DirectReceiver(Protocol):
    """Takes messages without the queue while it waits for them. Server conversations implement it."""

    def is_free(self) -> bool:
        """Whether the next message may be taken now."""
        ...

    def take_data(self, data: bytes, /) -> None:
        """Take the next message. Neither waits nor raises."""


class MessageQueue:
    """Messages that have arrived, in order. A message is removed only as it is handed over, so none is lost.

    One task may receive at a time. With `nested`, a message may arrive while another one is taken: the sender
    is in this process. The callbacks must neither wait nor raise.
    """

    def __init__(self, peer: str | None = None, *, nested: bool = False) -> None:
        self.peer = peer
        self._nested = nested
        self.arrived: deque[bytes | OversizedLine] = deque()
        self.on_oversized: Callable[[OversizedLine], object] = partial(_log_oversized, peer)
        """Gets each message that was dropped because of its length, when its turn has come."""
        self.reason: str | None = None
        """Why there will be no more messages, once that is so."""
        self.on_room: Callable[[], None] | None = None
        """Called after each message that is read; set while a sender waits for room."""
        self.on_message: Callable[[bytes], object] | None = None
        """Gets each message as it comes, so that no task has to wake up."""
        self.receiver: DirectReceiver | None = None
        """The same for one that is not always free, and calls `receive` then."""
        self._waiting: asyncio.Future[None] | None = None
        self._end: asyncio.Event | None = None

    async def receive(self) -> bytes:
        """Return the next message; wait for it if needed. Cancelling the wait loses nothing."""
        if self._waiting is not None:
            raise LocalProtocolError(
                "another task is already receiving from this channel",
                hint="receive in one task, and let it hand the messages out",
            )
        while True:
            while not self.arrived:
                if self.reason is not None:
                    raise ChannelClosed(self.reason, peer=self.peer)
                self._waiting = asyncio.get_running_loop().create_future()
                try:
                    await self._waiting
                finally:
                    self._waiting = None
            message = self.arrived.popleft()
            if self.on_room is not None:
                self.on_room()
            if isinstance(message, bytes):
                return message
            self.on_oversized(message)

    async def wait_until_ended(self) -> None:
        """Wait until there will be no more."""
        if self.reason is None:
            if self._end is None:
                self._end = asyncio.Event()
            await self._end.wait()

    def put(self, message: bytes | OversizedLine) -> None:
        """Add one message, or the mark of one that was dropped."""
        if self.on_message is not None and not self.arrived:
            if isinstance(message, bytes):
                self.on_message(message)
            else:
                self.on_oversized(message)
            return
        taker, waiting = self.receiver, self._waiting
        if (
            taker is not None
            and waiting is not None
            and isinstance(message, bytes)
            and not (waiting.done() or self.arrived)
            and (not self._nested or _nesting.depth < MAX_NESTED_RECEIVES)
            and taker.is_free()
        ):
            if not self._nested:
                taker.take_data(message)
                return
            _nesting.depth += 1
            try:
                taker.take_data(message)
            finally:
                _nesting.depth -= 1
            return
        self.arrived.append(message)
        if waiting is not None:
            self._wake()

    def end(self, reason: str) -> None:
        """End the queue: the reader gets what is there, and then this reason. The first reason stays."""
        if self.reason is None:
            self.reason = reason
            self._wake()
            if self._end is not None:
                self._end.set()

    def close(self, reason: str) -> None:
        """End the queue and drop what is there: the reader itself has closed the channel."""
        self.arrived.clear()
        self.end(reason)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _log_oversized(peer: str | None, line: OversizedLine) -> None:
    _log.warning("%s: a message was dropped: %s", peer or "the peer", line.make_error())


class SendLimiter:
    """Lets senders wait for room, first come, first served. While any sender waits, new ones have to wait.

    A sender that was admitted takes its room at once, without another await, then calls `admit_next`.
    """

    def __init__(self, room: Callable[[], bool]) -> None:
        self._has_room = room
        self.queue: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return when it is our turn and there is room."""
        turn = asyncio.get_running_loop().create_future()
        self.queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            self.queue.remove(turn)
            self.admit_next()
            raise
        self.queue.popleft()

    def admit_next(self) -> None:
        """Let the first sender go on if there is room. It stays first until it has."""
        if self.queue and not self.queue[0].done() and self._has_room():
            self.queue[0].set_result(None)


# --------------------------------------------------------------------- memory


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

    def send_request(self, outgoing: OutboundRequest) -> bool:
        """Hand a request over if that needs no waiting; False if `send` has to do it, or to raise."""
        return self.offer(outgoing.data)

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
