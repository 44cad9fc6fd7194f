"""The one promise about input and output: whole messages go in, whole messages come out.

Whoever implements these three methods has written a transport. A channel knows nothing of JSON-RPC, of
revisions, of servers or of clients; it never looks into the bytes it carries.
"""

from typing import Protocol, runtime_checkable

__all__ = ["Channel"]


@runtime_checkable
class Channel(Protocol):
    """A two-way road for messages, each one the bytes of one JSON text in UTF-8."""

    async def receive(self) -> bytes:
        """The next message of the peer, waiting for it if need be.

        Raises:
            ChannelClosed: there will be no more; its text says why.
        """
        ...

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Hand one message over to the peer.

        Args:
            data: the message.
            related: the id of the peer's request that this message belongs to. HTTP picks the stream by
                it; a transport with a single stream ignores it.

        Raises:
            ChannelClosed: the peer cannot be reached any more.
        """
        ...

    async def close(self) -> None:
        """End the channel and free what it holds. Closing twice is fine."""
        ...
