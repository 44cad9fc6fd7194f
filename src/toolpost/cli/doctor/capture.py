"""Captures the conversation between a client of ours and a server, for `toolpost doctor`.

Wraps either a server process, as a target for a client, or the HTTP backend of one. Keeps what broke a rule
and what was no message; finding that out is the job of `tap.inspector` and `tap.http_messages`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from toolpost.channel import Channel
from toolpost.cli.tap.http_messages import ExchangeTracker, TrackedExchange
from toolpost.cli.tap.inspector import MessageInspector
from toolpost.cli.tap.message import ObservedMessage
from toolpost.errors import ChannelClosed, MCPError
from toolpost.protocol.methods import CLIENT, SERVER, Role
from toolpost.transports.backends.backend import Response, open_backend
from toolpost.transports.stdio_client import open_child
from toolpost.transports.targets import Stdio

MAX_VIOLATIONS: Final = 200
"""How many faults are kept: a server that does everything wrong is known by then."""


class CapturedExchange(Struct):
    """One HTTP exchange, as far as it has come."""

    method: str
    sent_at: float
    status: int | None = None
    media_type: str = ""
    headers: Mapping[str, str] | None = None
    head_delay: float | None = None
    """Seconds until the head of the response came."""


class Capture:
    """What was overheard."""

    def __init__(self) -> None:
        self.violations: list[ObservedMessage] = []
        self.junk: list[ObservedMessage] = []
        self.exchanges: list[CapturedExchange] = []
        self._began = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def record(self, seen: ObservedMessage) -> None:
        """Note a message if there is something wrong with it, and it is not ours."""
        kept = self.junk if seen.kind == "junk" else self.violations
        if seen.by == SERVER and seen.violations and len(kept) < MAX_VIOLATIONS:
            kept.append(seen)


class CapturedProcess:
    """A server process, as a target of a client: each connection starts it anew."""

    def __init__(self, stdio: Stdio, notes: Capture) -> None:
        self.name = stdio.label
        self._stdio = stdio
        self._capture = notes
        self.failure: MCPError | None = None
        self.returncode: int | None = None
        self.stderr_tail: tuple[str, ...] = ()

    async def serve(self, channel: Channel) -> None:
        """Start it, and pass on what both sides say."""
        witness = MessageInspector()
        self.failure, self.returncode, self.stderr_tail = None, None, ()
        try:
            child = await open_child(self._stdio)
        except MCPError as error:
            self.failure = error
            return
        ways = [
            asyncio.create_task(self._forward(witness, CLIENT, channel, child)),
            asyncio.create_task(self._forward(witness, SERVER, child, channel)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.returncode, self.stderr_tail = child.returncode, child.stderr_tail
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await child.close()

    async def _forward(self, witness: MessageInspector, by: Role, source: Channel, sink: Channel) -> None:
        with contextlib.suppress(ChannelClosed):
            while True:
                data = await source.receive()
                for seen in witness.inspect(by, data, self._capture.now()):
                    self._capture.record(seen)
                await sink.send(data)


class CapturingBackend:
    """Carries HTTP requests, and overhears them."""

    def __init__(self, engine: object, notes: Capture) -> None:
        self._backend = open_backend(engine)
        self._capture = notes
        self._tracker = ExchangeTracker(
            notes.record, lambda *_, **__: None, lambda _by, _data, _link: None, notes.now
        )

    @contextlib.asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[Response]:
        """Send a request, as `Backend` promises."""
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        tracked = self._tracker.begin(method, path, {name.lower(): value for name, value in headers.items()})
        tracked.feed_request(body or b"", last=True)
        exchange = CapturedExchange(method, self._capture.now())
        self._capture.exchanges.append(exchange)
        async with self._backend.send(method, url, headers, body) as response:
            received = {name.lower(): value for name, value in response.headers.items()}
            exchange.head_delay = self._capture.now() - exchange.sent_at
            exchange.status, exchange.headers = response.status, received
            exchange.media_type = received.get("content-type", "").partition(";")[0].strip().lower()
            tracked.start_response(response.status, received)
            yield _CapturedResponse(response, tracked)

    async def close(self) -> None:
        """Keep the connections: several clients use them, one after the other."""

    async def finish(self) -> None:
        """Close every connection."""
        await self._backend.close()


class _CapturedResponse(Response):
    """A response whose body is overheard while somebody reads it."""

    def __init__(self, inner: Response, post: TrackedExchange) -> None:
        self.status, self.headers = inner.status, inner.headers
        self._inner = inner
        self._tracked = post

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner.chunks():
            self._tracked.feed_response(chunk)
            yield chunk
        self._tracked.finish()
