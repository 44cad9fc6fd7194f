"""The lifetime of an endpoint in one event loop: what is being served, and how that ends.

A shutdown refuses new requests, ends streams at once, and lets running requests finish for a while. How a
request is served is not known here.
"""

import asyncio
from typing import Any, Final

from toolpost.errors import InternalError
from toolpost.server.http.request import HttpExchange
from toolpost.server.http.session_endpoints import SessionEndpoints
from toolpost.server.http.sessions import Sessions
from toolpost.server.http.stateless import EndpointHost, make_stream_limit_refusal

ABORT_TIMEOUT: Final = 1.0  # seconds for an aborted request to end before it is cancelled
DRAIN_POLL_INTERVAL: Final = 0.02  # seconds between two checks of HTTP+SSE streams, which do not end


class EndpointLifetime:
    """What an endpoint holds from its first request to its last, in one loop.

    `running` are requests with their tasks, `listening` streams for notifications, `answering` streams of
    HTTP+SSE, which carry answers, too. `open`: it accepts requests; `stopping`: it refuses new ones; `over`:
    it refuses all. One task enters and leaves the lifespan of the server, as some contexts require.
    """

    def __init__(self, host: EndpointHost, sessions: Sessions, legacy: SessionEndpoints) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = 0
        self.running: dict[HttpExchange, asyncio.Task[Any]] = {}
        self.listening: set[HttpExchange] = set()
        self.answering: set[HttpExchange] = set()
        self.stopping = self.over = self.open = False
        self.legacy = legacy
        self.load = sessions.load
        self.sessions = sessions
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self._stop_requested = asyncio.Event()
        self._task = self.loop.create_task(self._run(host))

    async def wait_until_ready(self) -> None:
        """Wait until the lifespan of the server has started."""
        if not self._ready.done():
            await asyncio.shield(self._ready)
        self._ready.result()

    def add_stream(self, exchange: HttpExchange, streams: set[HttpExchange]) -> None:
        """Count a stream as open until `remove_stream`. A context manager would take more memory."""
        if self.load.streams >= self.load.max_streams:
            raise make_stream_limit_refusal(self.load.max_streams)
        self.load.streams += 1
        streams.add(exchange)

    def remove_stream(self, exchange: HttpExchange, streams: set[HttpExchange]) -> None:
        """Remove a stream."""
        self.load.streams -= 1
        streams.discard(exchange)

    async def _run(self, host: EndpointHost) -> None:
        try:
            async with host.hold_lifespan():
                self._ready.set_result(None)
                self.open = not self.stopping
                try:
                    await self._stop_requested.wait()
                finally:
                    await self.sessions.close()
        except BaseException as error:
            if self._ready.done():
                raise
            cancelled = isinstance(error, asyncio.CancelledError)
            self._ready.set_exception(InternalError("the lifespan was cancelled") if cancelled else error)
            self._ready.exception()  # marks it as retrieved, if no request waits
            if not isinstance(error, Exception):
                raise

    async def end(self, drain: float) -> None:
        """Let running requests finish for so many seconds, then abort and cancel them."""
        self.stopping, self.open = True, False
        for exchange in tuple(self.listening):
            exchange.abort()
        await self._drain(drain)
        self.over = True
        for exchange in (*self.running, *self.answering):
            exchange.abort()
        await self._wait(ABORT_TIMEOUT)
        for task in self.running.values():
            task.cancel()
        self._stop_requested.set()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _drain(self, seconds: float) -> None:
        """Wait for what is being served, for so many seconds."""
        until = self.loop.time() + seconds
        while self.answering and self.loop.time() < until:
            for exchange in tuple(self.answering):
                session = self.sessions.find_live(exchange.session)
                if session is None or not session.has_pending_output:
                    exchange.abort()
            await asyncio.sleep(DRAIN_POLL_INTERVAL)
        await self._wait(max(0.0, until - self.loop.time()))

    async def _wait(self, seconds: float) -> None:
        others = {*self.running.values()} - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=seconds)
