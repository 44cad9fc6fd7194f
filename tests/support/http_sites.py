"""HTTP servers for tests: ours in a separate process, and scripted ones."""

import contextlib
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = ["Asked", "Reply", "odd_site", "our_site"]

KITCHEN = """
from toolpost import Context, Server
server = Server("kitchen")

@server.tool
async def boil(minutes: int, ctx: Context) -> str:
    "Boil an egg."
    await ctx.progress(minutes, 5)
    return f"an egg of {minutes} minutes"

server.run(http="127.0.0.1:0")
"""


@contextlib.contextmanager
def our_site() -> Generator[str]:
    """Run our server, with all revisions; yield its URL."""
    with subprocess.Popen([sys.executable, "-c", KITCHEN], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().partition(" at ")[2].split()[0]
        finally:
            process.terminate()


class Asked(NamedTuple):
    """A received request."""

    verb: str
    path: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """A response. Several pieces are sent one by one, without a length."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    kind: str | None = "application/json"
    headers: Mapping[str, str] = {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        sent = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.answer(Asked(self.command, self.path, sent, body))
        self.send_response(reply.status)
        if reply.kind is not None:
            self.send_header("Content-Type", reply.kind)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if isinstance(reply.body, bytes):
            self.send_header("Content-Length", str(len(reply.body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        for piece in [reply.body] if isinstance(reply.body, bytes) else reply.body:
            self.wfile.write(piece)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the names that the base class looks for

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has there
        """Log nothing."""


class _Site(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, answer: Callable[[Asked], Reply], context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self._context = context

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients that disconnect are part of the test."""

    def get_request(self) -> Any:
        connection, address = super().get_request()
        connection.settimeout(20)
        if self._context is None:
            return connection, address
        try:
            return self._context.wrap_socket(connection, server_side=True), address
        except OSError:
            connection.close()
            raise


@contextlib.contextmanager
def odd_site(answer: Callable[[Asked], Reply], context: ssl.SSLContext | None = None) -> Generator[str]:
    """Run a scripted server; yields its origin."""
    site = _Site(answer, context)
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{site.server_port}"
    finally:
        site.shutdown()
        thread.join()
        site.server_close()
