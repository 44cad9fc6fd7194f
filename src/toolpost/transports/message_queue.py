"""The receiving half of a channel, and the turnstile in front of a full one.

Owns what has arrived and nobody has read yet, the one task that waits for it, and the order of the senders
who wait for room. Knows nothing of where messages come from.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from toolpost.errors import ChannelClosed, LocalProtocolError
from toolpost.protocol.framing import OversizedLine

_log = logging.getLogger("toolpost.transports")

MAX_NESTED_RECEIVES: Final = 8
"""How many messages may be taken while another one is: servers in one process may call each other."""


class _NestingDepth(threading.local):
    depth = 0


_nesting: Final = _NestingDepth()


class DirectReceiver(Protocol):
    """Who takes messages past the mailbox while it waits for them."""

    def is_free(self) -> bool:
        """Whether the next message may be taken now."""
        ...

    def take_data(self, data: bytes, /) -> None:
        """Take the next message. Neither waits nor raises."""
        ...


class MessageQueue:
    """What has arrived, in order. A message leaves it only as it is handed over, so none is lost.

    One task may receive at a time; a second one is refused, because it would not know which messages it gets.

    Args:
        peer: who sends, for the texts of errors.
        nested: whether messages may come while another one is taken: who sends is in this process.

    Attributes:
        arrived: the messages that nobody has read yet.
        on_oversized: is told of each message that was dropped because of its length, when its turn has come;
            by default the log is. It must not raise.
        reason: why there will be no more, once that is so.
        on_room: called after each message that is read; set it while something waits for room.
        on_message: is given each message as it comes, so that no reader has to be woken. It must
            neither wait nor raise.
        receiver: the same for one who is not always free, and receives what comes then.
    """

    __slots__ = (
        "_end",
        "_nested",
        "_waiting",
        "arrived",
        "on_message",
        "on_oversized",
        "on_room",
        "peer",
        "reason",
        "receiver",
    )

    def __init__(self, peer: str | None = None, *, nested: bool = False) -> None:
        self.peer = peer
        self._nested = nested
        self.arrived: deque[bytes | OversizedLine] = deque()
        self.on_oversized: Callable[[OversizedLine], object] = partial(_log_oversized, peer)
        self.reason: str | None = None
        self.on_room: Callable[[], None] | None = None
        self.on_message: Callable[[bytes], object] | None = None
        self.receiver: DirectReceiver | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._end: asyncio.Event | None = None

    async def receive(self) -> bytes:
        """The next message, waiting for it if need be. Cancelling the wait loses nothing.

        Raises:
            ChannelClosed: everything was read, and there will be no more.
            LocalProtocolError: another task is waiting already.
        """
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
        """Add one message, or what stands for one that was dropped."""
        if self.on_message is not None and not self.arrived:
            if isinstance(message, bytes):  # to see that it is no struct takes twice as long
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
        """Let the reader have what is there, and then this reason. The first reason stays."""
        if self.reason is None:
            self.reason = reason
            self._wake()
            if self._end is not None:
                self._end.set()

    def close(self, reason: str) -> None:
        """Forget what is there: the reader itself has closed the channel."""
        self.arrived.clear()
        self.end(reason)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _log_oversized(peer: str | None, line: OversizedLine) -> None:
    _log.warning("%s: a message was dropped: %s", peer or "the peer", line.make_error())


class SendLimiter:
    """Where senders wait for room, first come, first served.

    A sender that has passed takes its room at once, without another await, then calls `admit_next`.

    Args:
        room: whether the first in the queue may go on.

    Attributes:
        queue: those who wait. As long as there is anybody, newcomers have to wait too.
    """

    __slots__ = ("_has_room", "queue")

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
        """Let the first one go on, if there is room. It stays first until it really has."""
        if self.queue and not self.queue[0].done() and self._has_room():
            self.queue[0].set_result(None)
