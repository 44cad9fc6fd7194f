"""Keeps a real conversation in a file, so that a test can have it again without a server.

Owns when the file is opened and closed, and what is written of a channel. The file is `tape`'s, how it is
played is told in `replaying`.
"""

from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

from toolpost.channel import Channel
from toolpost.connect import Target, make_connector
from toolpost.errors import AuthError, ChannelClosed, MCPError, TransportError
from toolpost.testing.around import ChannelWrapper, with_traits, wrap_target
from toolpost.testing.tape import Tape

__all__ = ["record"]


def record(target: Target, path: str | PathLike[str], *, secrets: Iterable[str] = ()) -> Target:
    """The target, with all that is said to it and by it kept in a file.

    Secrets are masked as `Mask` finds them: members whose names say so (`password`, `api_key`, …), what looks
    like a token, and the values that are named here. HTTP headers are not kept at all.

    Example:
        >>> import asyncio
        >>> from tempfile import TemporaryDirectory
        >>> from toolpost import Client, Server
        >>> from toolpost.testing import replay
        >>> server = Server("calculator")
        >>> @server.tool
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> async def sum_of(target):
        ...     async with Client(target) as mcp:
        ...         return (await mcp.call_tool("add", {"a": 1, "b": 2})).data
        >>> with TemporaryDirectory() as folder:
        ...     told = asyncio.run(sum_of(record(server, f"{folder}/add.jsonl")))
        ...     told_again = asyncio.run(sum_of(replay(f"{folder}/add.jsonl")))
        >>> told, told_again
        (3, 3)

    Args:
        target: whatever a client takes.
        path: the file, which is begun when a client connects; what was in it is lost.
        secrets: values to mask wherever they stand.

    Raises:
        TypeError: it is no target.
    """
    name = make_connector(target).name
    return wrap_target(target, _ChannelRecorder(path, name, tuple(secrets)))


class _ChannelRecorder:
    """Puts recorded channels around channels, all of them on one tape."""

    def __init__(self, path: str | PathLike[str], name: str, secrets: tuple[str, ...]) -> None:
        self._path = path
        self._name = name
        self._secrets = secrets
        self._tape: Tape | None = None
        self._link_count = 0
        self._open_count = 0

    def __call__(self, channel: Channel) -> Channel:
        if self._tape is None:
            try:
                self._tape = Tape(self._path, target=self._name, secrets=self._secrets)
            except OSError as error:  # which would be taken for one of the server's
                raise MCPError(f"the recording cannot be written: {error}") from error
        self._link_count += 1
        self._open_count += 1
        kind = _RecordedLossyChannel if hasattr(channel, "on_request_lost") else _RecordedChannel
        return with_traits(kind, channel)(channel, self._tape, self._link_count, self._release_tape)

    def _release_tape(self) -> None:
        self._open_count -= 1
        if not self._open_count and self._tape is not None:
            self._tape.close()


class _RecordedChannel(ChannelWrapper):
    """A channel to a server that is recorded."""

    def __init__(self, inner: Channel, tape: Tape, link: int, left: Callable[[], None]) -> None:
        super().__init__(inner)
        self._tape = tape
        self._link = link
        self._on_close = left
        self._ended = False
        self._closed = False

    async def receive(self) -> bytes:
        try:
            data = await self.inner.receive()
        except ChannelClosed as error:
            if not (self._ended or self._closed):
                self._ended = True
                self._tape.write_end("server", error.message, link=self._link)
            raise
        self._tape.write("server", data, link=self._link)
        return data

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        # Before it is sent: the answer may be there before `send` returns.
        self._tape.write("client", data, link=self._link)
        await self.inner.send(data, related)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tape.write_end("client", "the client left", link=self._link)
            try:
                await self.inner.close()
            finally:
                self._on_close()


class _RecordedLossyChannel(_RecordedChannel):
    """One that can lose a single request."""

    def on_request_lost(self, tell: Callable[[Any, TransportError | AuthError], object]) -> None:
        def record_loss(request_id: Any, error: TransportError | AuthError) -> None:
            self._tape.write_loss(request_id, error.message, link=self._link)
            tell(request_id, error)

        inner: Any = self.inner
        inner.on_request_lost(record_loss)
