"""Finds long-running requests, and watches them for a disconnect of their client.

One timer looks at all requests; most end before it looks at them for the first time. An ASGI server that can
report a disconnect is a `ConnectionMonitor`. `exchange` does the watching.
"""

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from toolpost.server.http.exchange import HttpExchange

logger: Final = logging.getLogger("toolpost.http")

CHECK_INTERVAL: Final = 0.05  # seconds; a request that is present at two checks is watched for a disconnect

CONNECTION_MONITOR: Final = "toolpost.connection_monitor"
"""The key of the `ConnectionMonitor` in an ASGI scope. With one, no task has to wait for a disconnect."""


class ConnectionMonitor(Protocol):
    """Reports disconnects, which ASGI alone does not; implemented by the protocol for uvicorn."""

    def watch_disconnect(self, exchange: "HttpExchange", /) -> bool:
        """Call `on_disconnect` when the client disconnects. Return whether this is possible."""
        ...

    def unwatch_disconnect(self, exchange: "HttpExchange", /) -> None:
        """Stop calling it."""


class DisconnectTimer:
    """Starts to watch each long-running request.

    `fresh` has the requests that are not watched yet, and whether a check has seen them. The code that serves
    a request puts it there, takes it out, and calls `start` unless it `is_checking`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.fresh: dict[HttpExchange, bool] = {}
        self.is_checking = False

    def start(self) -> None:
        """Look at the requests from now on, until none is left."""
        self.is_checking = True
        self._loop.call_later(CHECK_INTERVAL, self._check, context=Context())  # not that of the first request

    def _check(self) -> None:
        for exchange, is_seen in tuple(self.fresh.items()):
            if not is_seen:
                self.fresh[exchange] = True
                continue
            try:
                is_watched = exchange.start_watching()
            except Exception:  # the others must still be watched
                logger.exception("could not watch a request for a disconnect")
                is_watched = True
            if is_watched:
                del self.fresh[exchange]
        self.is_checking = False
        if self.fresh:
            self.start()
