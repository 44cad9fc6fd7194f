"""A channel whose other end is the test: inject what arrives, read what was sent, see whether it was closed.

Implements the `Channel` promise and nothing of the protocol: a message is whatever the test says it is.
"""

import asyncio
from typing import Any

import msgspec

from toolpost.errors import ChannelClosed

__all__ = ["ScriptedChannel"]


class ScriptedChannel:
    """A channel that is driven by a test.

    Example:
        >>> channel = ScriptedChannel()
        >>> channel.feed({"jsonrpc": "2.0", "id": 1, "result": {}})
        >>> asyncio.run(channel.receive())
        b'{"jsonrpc":"2.0","id":1,"result":{}}'
    """

    local = True
    """The test is at the other end."""

    def __init__(self) -> None:
        self.closed = False
        """Whether somebody closed the channel from this side."""
        self.raw: list[bytes] = []
        """All that was sent, as bytes."""
        self.related: list[int | str | None] = []
        """For each message that was sent, the request that it belongs to."""
        self.broken: Exception | None = None
        """Set it, and every further `send` raises it."""
        self.writable = asyncio.Event()
        """Clear it, and `send` waits until it is set, as with a peer that does not read."""
        self.writable.set()
        self._arriving: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._leaving: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended: Exception | None = None

    # ----------------------------------------------------------------- the promise

    async def receive(self) -> bytes:
        """The next message that was fed."""
        if self._ended is not None:
            raise self._ended
        arrived = await self._arriving.get()
        if isinstance(arrived, Exception):
            self._ended = arrived
            raise arrived
        return arrived

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Keep a message for the test to read."""
        await self.writable.wait()
        if self.broken is not None:
            raise self.broken
        if self.closed:
            raise ChannelClosed("the channel is closed", sent=False)
        self.raw.append(data)
        self.related.append(related)
        self._leaving.put_nowait(data)

    async def close(self) -> None:
        """Remember that the channel was closed."""
        if not self.closed:
            self.closed = True
            self.end("the channel is closed")

    # ----------------------------------------------------------------- the script

    def feed(self, *messages: Any) -> None:
        """Let messages arrive, one after the other.

        Args:
            messages: bytes arrive as they are, a text in UTF-8, everything else as its JSON.
        """
        for message in messages:
            data = message.encode() if isinstance(message, str) else message
            self._arriving.put_nowait(data if isinstance(data, bytes) else msgspec.json.encode(data))

    def end(self, reason: str | Exception = "the peer has gone") -> None:
        """Let the channel end, after all that was fed has been received.

        Args:
            reason: the text of the `ChannelClosed` that `receive` raises, or what to raise instead.
        """
        error = reason if isinstance(reason, Exception) else ChannelClosed(reason)
        self._arriving.put_nowait(error)

    @property
    def sent(self) -> list[Any]:
        """All that was sent, decoded."""
        return [msgspec.json.decode(data) for data in self.raw]

    async def next_sent(self) -> Any:
        """The next message that was sent and not read here before, decoded; waits for it if need be."""
        return msgspec.json.decode(await self._leaving.get())

    @property
    def unread(self) -> int:
        """How many messages were sent and not read with `next_sent`."""
        return self._leaving.qsize()
