"""A TCP relay in front of a server that records sessions and can cut connections.

It parses the real bytes, so it sees which sessions were opened and deleted.
"""

import asyncio
import contextlib
import http.client
import json
import re
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from hosts import Host

__all__ = ["Relay", "relayed"]

CHUNK: Final = 64 * 1024

_HANDSHAKE: Final = re.compile(rb'"method": ?"initialize"')
_SESSION: Final = re.compile(rb"^mcp-session-id: *(\S+)\r$", re.MULTILINE | re.IGNORECASE)
_STREAM: Final = re.compile(rb"^GET \S+ HTTP/1\.1\r$", re.MULTILINE)
_RESUMED: Final = re.compile(rb"^last-event-id: *\S+\r$", re.MULTILINE | re.IGNORECASE)

_PING: Final = json.dumps({"jsonrpc": "2.0", "id": "relay", "method": "ping"}).encode()


@dataclass(eq=False)
class _Line:
    """A connection of a client, and its connection to the server."""

    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    last_request: float = 0


class Relay:
    """The traffic of the relay.

    Attributes:
        url: the URL for clients.
        handshakes: the number of `initialize` requests.
        sessions: the session ids of the server.
        streams: the number of streams that clients opened.
        resumed: the number of resumed streams.
        cuts: the number of cuts.
    """

    def __init__(self, port: int, path: str) -> None:
        self.url = ""
        self.cuts = 0
        self.handshakes = 0
        self.sessions: set[str] = set()
        self.streams = 0
        self.resumed = 0
        self._loop = asyncio.get_running_loop()
        self._port = port
        self._path = path
        self._lines: list[_Line] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Cut all connections, as a network failure would. Thread-safe: callbacks may run in a thread."""
        self.cuts += 1
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        # All at once, the latest request last: a client that notices continues, and must not find an idle
        # connection that still looks open.
        for line in sorted(self._lines, key=lambda line: line.last_request):
            for writer in line.ends:
                with contextlib.suppress(OSError):  # already closed
                    writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                writer.transport.abort()

    async def knows(self, session: str) -> bool:
        """Return whether the server still has a session."""
        return await asyncio.to_thread(self._send, "POST", session, _PING) not in {400, 404}

    async def end(self, session: str) -> None:
        """Delete a session without its client."""
        await asyncio.to_thread(self._send, "DELETE", session)

    def _send(self, verb: str, session: str, body: bytes | None = None) -> int:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Mcp-Session-Id": session,
        }
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)) as link:
            link.request(verb, self._path, body, headers)
            return link.getresponse().status

    # ----------------------------------------------------------------- forwarding

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection to the server."""
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        line = _Line((writer, far_writer))
        self._lines.append(line)

        def on_request(data: bytes) -> None:
            line.last_request = self._loop.time()
            self._asked(data)

        ways = [
            asyncio.create_task(_pump(reader, far_writer, on_request)),
            asyncio.create_task(_pump(far_reader, writer, self._answered)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._lines.remove(line)
            for one in line.ends:
                one.close()

    def _asked(self, data: bytes) -> None:
        self.handshakes += len(_HANDSHAKE.findall(data))
        self.streams += len(_STREAM.findall(data))
        self.resumed += len(_RESUMED.findall(data))

    def _answered(self, data: bytes) -> None:
        self.sessions.update(name.decode() for name in _SESSION.findall(data))

    async def leave(self) -> None:
        """Close every connection."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes], None]
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            note(data)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def relayed(host: Host, path: str) -> AsyncGenerator[Relay]:
    """Run a relay in front of a server.

    Args:
        host: the server, which listens.
        path: the path of its endpoint.
    """
    relay = Relay(host.port, path)
    listening = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    relay.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{path}"
    try:
        yield relay
    finally:
        listening.close()
        await relay.leave()
