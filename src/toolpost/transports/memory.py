"""In-memory channels: two ends in one process, and the message queue that all channels are built on.

A queue is bounded, and a sender waits when it is full.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from toolpost.errors import ChannelClosed, LocalProtocolError
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.protocol.line_framing import OversizedLine
from toolpost.types.base import RequestId

MAX_QUEUED_MESSAGES: Final = 1024  # how many messages may wait before senders have to wait, too
MAX_DIRECT_MESSAGES: Final = 64  # handed over directly, in one process, before the event loop gets a turn

_log = logging.getLogger("toolpost.transports")


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


class MessageQueue:
    """Messages that have arrived, in order. A message is removed only as it is handed over, so none is lost.

    One task may receive at a time. Senders that wait for room may put `limit` messages. The callbacks must
    neither wait nor raise.
    """

    def __init__(self, peer: str | None = None, *, limit: int = MAX_QUEUED_MESSAGES) -> None:
        self.peer = peer
        self.limit = limit
        self.senders = SendLimiter(lambda: len(self.arrived) < self.limit or self.reason is not None)
        self.arrived: deque[bytes | OversizedLine] = deque()
        # Gets each message that was dropped because of its length, in the order of messages.
        self.on_oversized: Callable[[OversizedLine], object] = partial(_log_oversized, peer)
        self.reason: str | None = None  # why there will be no more messages, once that is so
        self._end_error: type[ChannelClosed] = ChannelClosed
        self.on_room: Callable[[], None] | None = None  # called after each read, while a pipe is paused
        # Gets each message as it comes, decoded if it was put so: no task has to wake up. Returns False for a
        # message that has to wait in the queue.
        self.on_message: Callable[[Any], object] | None = None
        self.has_turns = False  # whether a message has to wait now and then, so that the loop gets a turn
        self.related_request: RequestId | None = None  # on whose stream the current message came
        self._waiting: asyncio.Future[None] | None = None
        self.ended = asyncio.Event()

    async def receive(self) -> bytes:
        """Return the next message; wait for it if needed. Cancelling the wait loses nothing."""
        if self._waiting is not None:
            raise LocalProtocolError(
                "another task is already receiving from this channel",
                hint="receive in one task, and distribute the messages from there",
            )
        while True:
            while not self.arrived:
                if self.reason is not None:
                    raise self._end_error(self.reason, peer=self.peer)
                self._waiting = asyncio.get_running_loop().create_future()
                try:
                    await self._waiting
                finally:
                    self._waiting = None
            message = self.arrived.popleft()
            if self.on_room is not None:
                self.on_room()
            if self.senders.queue:
                self.senders.admit_next()
            if isinstance(message, bytes):
                return message
            self.on_oversized(message)

    def check_open(self) -> None:
        """Raise what `receive` does at the end, for a message that cannot be sent any more."""
        if self.reason is not None:
            raise self._end_error(self.reason, sent=False, peer=self.peer)

    @property
    def is_full(self) -> bool:
        """Whether a sender has to wait for room."""
        return bool(self.senders.queue) or len(self.arrived) >= self.limit

    async def put_when_room(
        self, message: bytes, decoded: JSONRPCMessage | None = None, related: RequestId | None = None
    ) -> None:
        """Add one message as soon as there is room."""
        if self.is_full:
            await self.senders.wait()
        self.related_request = related
        self.put(message, decoded)
        self.related_request = None
        if self.senders.queue:
            self.senders.admit_next()

    def put(self, message: bytes | OversizedLine, decoded: JSONRPCMessage | None = None) -> None:
        """Add one message, or the mark of one that was dropped."""
        take = self.on_message
        if take is not None and not self.arrived:
            if type(message) is OversizedLine:
                self.on_oversized(message)
                return
            if take(message if decoded is None else decoded) is not False:
                return
        self.store(message)

    def store(self, message: bytes | OversizedLine) -> None:
        """Add one message for `receive`, in a later turn of the event loop."""
        self.arrived.append(message)
        self._wake()

    def end(self, reason: str, error: type[ChannelClosed] = ChannelClosed) -> None:
        """End the queue: the reader gets the queued messages, then this error. The first reason stays."""
        if self.reason is None:
            self.reason, self._end_error = reason, error
            self._wake()
            self.senders.admit_next()
            self.ended.set()

    def close(self, reason: str) -> None:
        """End the queue and drop its messages: the reader itself has closed the channel."""
        self.arrived.clear()
        self.end(reason)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _log_oversized(peer: str | None, line: OversizedLine) -> None:
    _log.warning("%s: dropped a message: %s", peer or "the peer", line.make_error())


# --------------------------------------------------------------------- channels


class QueueChannel(ABC):
    """A channel whose messages arrive in a queue."""

    _closed_reason = "the channel was closed"

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._closing: asyncio.Future[None] | None = None

    async def receive(self) -> bytes:
        """Return the next message of the peer; wait for it if needed. Cancelling it loses no message."""
        return await self._queue.receive()

    def on_message(self, callback: Callable[[Any], object]) -> None:
        """Pass each message to `callback` as it comes, instead of keeping it for `receive`."""
        self._queue.on_message = callback

    def on_oversized(self, callback: Callable[[OversizedLine], object]) -> None:
        """Report messages that are dropped because of their length to `callback` instead of the log."""
        self._queue.on_oversized = callback

    def serve(self, take: Callable[[bytes], bool] | None) -> None:
        """Pass messages to `take` as they come; those that it returns False for wait for `receive`."""
        self._queue.on_message = take
        self._queue.has_turns = True

    async def close(self) -> None:
        """End the channel and free its resources. Closing twice is fine: the second caller waits."""
        if self._closing is not None:
            await asyncio.wait({self._closing})
            return
        self._closing = asyncio.get_running_loop().create_future()
        self._queue.close(self._closed_reason)
        try:
            await self._shut_down()
        finally:
            self._closing.set_result(None)

    @abstractmethod
    async def _shut_down(self) -> None:
        """Free the resources of the channel, which takes no more messages."""


class MemoryChannel(QueueChannel):
    """One end of a pair: its own queue, and that of the other end."""

    local = True  # the other end is in this process

    _closed_reason = "this end of the channel was closed"

    def __init__(self, ours: MessageQueue, theirs: MessageQueue) -> None:
        super().__init__(ours)
        self._theirs = theirs
        self._sent_count = 0

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - one stream
        """Hand one message over; wait while the other end has too many. A cancelled send has sent nothing."""
        theirs = self._theirs
        if theirs.is_full:
            await theirs.senders.wait()
        if self._queue.reason is not None:
            theirs.senders.admit_next()
            self._queue.check_open()
        self._hand_over(data)
        theirs.senders.admit_next()

    def offer(self, data: bytes) -> bool:
        """Hand one message over if that needs no waiting; False if `send` has to do it, or to raise."""
        theirs = self._theirs
        if self._queue.reason is not None or theirs.senders.queue or len(theirs.arrived) >= theirs.limit:
            return False
        self._hand_over(data)
        return True

    def _hand_over(self, data: bytes) -> None:
        theirs = self._theirs
        self._sent_count += 1
        if theirs.has_turns and self._sent_count % MAX_DIRECT_MESSAGES == 0:
            theirs.store(data)
        else:
            theirs.put(data)

    async def _shut_down(self) -> None:
        # The other end may still read the messages sent before.
        self._theirs.end("the other end of the channel was closed")


def memory_pair(limit: int = MAX_QUEUED_MESSAGES) -> tuple[MemoryChannel, MemoryChannel]:
    """Return two channels, each the peer of the other."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1 message, not {limit}")
    left, right = MessageQueue(limit=limit), MessageQueue(limit=limit)
    return MemoryChannel(left, right), MemoryChannel(right, left)
