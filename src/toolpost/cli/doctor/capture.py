"""Captures the conversation between a client of ours and a server, for `toolpost doctor`.

Taps either the channel to a server process or the HTTP backend of a client. Keeps what broke a rule and what
was no message; finding that out is the job of `tap.inspector` and `tap.http_messages`.
"""

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from toolpost.channel import Channel
from toolpost.cli.tap.http_messages import EVENTS, ExchangeTracker, TrackedExchange
from toolpost.cli.tap.inspector import MessageInspector
from toolpost.cli.tap.message import ObservedMessage
from toolpost.protocol.methods import SERVER
from toolpost.testing.channel import Sender, TappedChannel, WrappedTarget, with_traits
from toolpost.transports.backends.backend import Response, open_backend
from toolpost.transports.targets import Stdio

MAX_VIOLATIONS: Final = 200  # how many faults are kept: a server that does everything wrong is known by then


class CapturedExchange(Struct):
    """One HTTP exchange, as far as it has come; `head_delay` is in seconds, until the response began."""

    method: str
    status: int | None = None
    headers: Mapping[str, str] = {}
    head_delay: float | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream of events, or may still become one."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return self.method == "GET" if self.status is None else media_type == EVENTS


class Capture:
    """What was wrong in the messages of the server, and the HTTP exchanges."""

    def __init__(self) -> None:
        self.violations: list[ObservedMessage] = []
        self.junk: list[ObservedMessage] = []
        self.exchanges: list[CapturedExchange] = []

    def record(self, seen: ObservedMessage) -> None:
        """Note a message if there is something wrong with it, and it is not ours."""
        kept = self.junk if seen.kind == "junk" else self.violations
        if seen.by == SERVER and seen.violations and len(kept) < MAX_VIOLATIONS:
            kept.append(seen)


class CapturedProcess:
    """A server process, as a target of a client: each connection starts it anew."""

    def __init__(self, stdio: Stdio, capture: Capture) -> None:
        self.target = WrappedTarget(stdio, self._tap)
        self.has_started = False
        self.returncode: int | None = None
        self.stderr_tail: tuple[str, ...] = ()
        self._capture = capture

    def _tap(self, child: Channel) -> Channel:
        self.has_started = True
        inspector = MessageInspector()

        def listen(sender: Sender, data: bytes) -> None:
            for seen in inspector.inspect(sender, data, time.monotonic()):
                self._capture.record(seen)

        return with_traits(_CapturedChannel, child)(child, listen, self)


class _CapturedChannel(TappedChannel):
    """A channel to a process, of which its end is noted."""

    def __init__(self, inner: Any, listen: Any, process: CapturedProcess) -> None:
        super().__init__(inner, listen)
        self._process = process

    async def close(self) -> None:
        child: Any = self.inner
        self._process.returncode, self._process.stderr_tail = child.returncode, child.stderr_tail
        await child.close()


class CapturingBackend:
    """Carries HTTP requests, and tracks them."""

    def __init__(self, engine: object, capture: Capture) -> None:
        self._backend = open_backend(engine)
        self._capture = capture
        self._tracker = ExchangeTracker(capture.record, time.monotonic)

    @contextlib.asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[Response]:
        """Send a request, as `Backend` promises."""
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        tracked = self._tracker.begin(method, path, {name.lower(): value for name, value in headers.items()})
        tracked.feed_request(body or b"", last=True)
        exchange = CapturedExchange(method)
        self._capture.exchanges.append(exchange)
        began = time.monotonic()
        async with self._backend.send(method, url, headers, body) as response:
            exchange.head_delay = time.monotonic() - began
            exchange.status = response.status
            exchange.headers = {name.lower(): value for name, value in response.headers.items()}
            tracked.start_response(response.status, exchange.headers)
            yield _CapturedResponse(response, tracked)

    async def close(self) -> None:
        """Keep the connections: several clients use them, one after the other."""

    async def finish(self) -> None:
        """Close every connection."""
        await self._backend.close()


class _CapturedResponse(Response):
    """A response whose body is tracked while the client reads it."""

    def __init__(self, inner: Response, tracked: TrackedExchange) -> None:
        self.status, self.headers = inner.status, inner.headers
        self._inner = inner
        self._tracked = tracked

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner.chunks():
            self._tracked.feed_response(chunk)
            yield chunk
        self._tracked.finish()
