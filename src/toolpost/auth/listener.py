"""A small HTTP server on this machine, to which the browser is sent back after the login (RFC 8252).

Owns the socket, for one login only. Takes one kind of request, from this machine, bounded in size and time;
whatever else comes in is answered and forgotten. What the parameters mean is not known here.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from toolpost.auth.guard import is_loopback_host

__all__ = ["DEFAULT_REDIRECT_URI", "RedirectListener", "listen_for_redirect"]

DEFAULT_REDIRECT_URI: Final = "http://127.0.0.1/callback"
"""Where the browser is sent back to; the port is a free one."""

MAX_REQUEST_BYTES: Final = 32 * 1024
"""Bytes of a request: a code is short, and a browser adds a few headers."""

MAX_PARAMETERS: Final = 32
"""How many parameters are read."""

REQUEST_TIMEOUT: Final = 10.0
"""Seconds for a request to arrive."""

MAX_CONNECTIONS: Final = 32
"""Connections at a time: a browser opens a few. The oldest makes room: what it had to say it would
have said by now."""

_RESPONSE_HEADERS: Final = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
)
_DONE_TEXT: Final = "You can close this window and go back to the program."
_NOT_FOUND_TEXT: Final = "There is nothing here."
_WRONG_LOGIN_TEXT: Final = "This is not the login that was begun here. Go back to the program."

RedirectParameters = list[tuple[str, str]]


class RedirectListener:
    """Waits for the browser. Made by `listen_for_redirect`.

    Args:
        host: the host in the address that the browser is sent to.
        path: the path in it.

    Attributes:
        accept: says whether parameters are those of the login that was begun. Others are no reason to stop.
        redirect_uri: the address that the browser is sent to, once it is open.
        redirect_parameters: the parameters with which the browser came back.
    """

    def __init__(self, host: str, path: str) -> None:
        self._host = host
        self._path = path or "/"
        self.accept: Callable[[RedirectParameters], bool] = lambda _: False  # until one was begun
        self.redirect_uri = ""
        self.redirect_parameters: asyncio.Future[RedirectParameters] = (
            asyncio.get_running_loop().create_future()
        )
        self._port = 0
        self._connections: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, port: int) -> AsyncGenerator[None]:
        """Listen on a port of this machine; 0 takes a free one.

        Raises:
            OSError: the port is taken.
        """
        address = "::1" if self._host == "::1" else "127.0.0.1"
        server = await asyncio.start_server(self._accept_connection, address, port, limit=MAX_REQUEST_BYTES)
        self._port = server.sockets[0].getsockname()[1]
        servers = [server]
        if self._host == "localhost":  # a browser may try either
            with contextlib.suppress(OSError):
                servers.append(
                    await asyncio.start_server(
                        self._accept_connection, "::1", self._port, limit=MAX_REQUEST_BYTES
                    )
                )
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.redirect_uri = f"http://{host}:{self._port}{self._path}"
        try:
            yield
        finally:
            for one in servers:
                one.close()
            self.redirect_parameters.cancel()
            for guest in self._connections:
                guest.transport.abort()
            if self._tasks:
                await asyncio.wait([*self._tasks])

    def _accept_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            self._connections.pop(0).transport.abort()
        self._connections.append(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._choose_response(head)
                body = f"<!doctype html><title>toolpost</title><p>{text}</p>".encode()
                line = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{_RESPONSE_HEADERS}\r\n"
                writer.write(line.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever it was, it was not the browser that we wait for
        finally:
            if writer in self._connections:
                self._connections.remove(writer)
            writer.close()

    def _choose_response(self, head: bytes) -> tuple[str, str]:
        """Status and text for a request."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or words[0] != "GET" or not words[1].startswith("/"):
            return "405 Method Not Allowed", _NOT_FOUND_TEXT
        hosts = [
            line.partition(":")[2].strip().lower() for line in lines[1:] if line.lower().startswith("host:")
        ]
        if len(hosts) != 1 or not _is_own_host(hosts[0], self._port):
            return "421 Misdirected Request", _NOT_FOUND_TEXT  # a name that leads here is not ours
        path, _, query = words[1].partition("?")
        if path != self._path or self.redirect_parameters.done():
            return "404 Not Found", _NOT_FOUND_TEXT
        try:
            parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        except ValueError:
            return "400 Bad Request", _WRONG_LOGIN_TEXT
        if not self.accept(parameters):
            return "400 Bad Request", _WRONG_LOGIN_TEXT
        self.redirect_parameters.set_result(parameters)
        return "200 OK", _DONE_TEXT


def _is_own_host(host: str, port: int) -> bool:
    name, _, number = host.rpartition(":")
    return number == str(port) and is_loopback_host(name.strip("[]"))


@asynccontextmanager
async def listen_for_redirect(wanted: str) -> AsyncGenerator[RedirectListener]:
    """Somebody who waits for the browser at an address of this machine.

    Args:
        wanted: the address; without a port a free one is taken.

    Raises:
        OSError: the port is taken.
    """
    parts = urlsplit(wanted)
    listener = RedirectListener(parts.hostname or "127.0.0.1", parts.path)
    async with listener.open(parts.port or 0):
        yield listener
