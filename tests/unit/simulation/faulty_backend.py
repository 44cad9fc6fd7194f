"""HTTP with faults: requests that do not arrive, lost responses, truncated bodies.

Stands between a client and an ASGI application in the same world. Owns the faults, and chooses them
by the random generator of the world. Knows HTTP, but not the messages that it carries.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from faulty_channel import DELAYS, LONG
from simulated_loop import World

from toolpost.errors import RequestFailed
from toolpost.transports.backends.asgi import AsgiBackend
from toolpost.transports.backends.backend import Response

__all__ = ["WEB_CALM", "WEB_FAULTS", "FaultyBackend", "WebFaults"]

FRONT = (408, 429, 500, 502, 503, 504)
"""The statuses of a proxy whose server is in trouble."""


@dataclass(frozen=True)
class WebFaults:
    """The probability of each fault, per request.

    Args:
        late: the request, or a piece of its response, is delayed.
        refused: there is no connection.
        front: a proxy answers, and the server receives nothing.
        lost: the server receives it, and its response is lost.
        cut: the body of the response ends early.
        forgotten: a proxy responds that there is no such session.
    """

    late: float = 0.0
    refused: float = 0.0
    front: float = 0.0
    lost: float = 0.0
    cut: float = 0.0
    forgotten: float = 0.0

    @property
    def arrives(self) -> bool:
        """Whether the server receives every message."""
        return not (self.refused or self.front or self.forgotten)


WEB_CALM = WebFaults()

WEB_FAULTS = {
    "calm": WEB_CALM,
    "slow": WebFaults(late=0.1),
    "refused": WebFaults(refused=0.3),
    "front": WebFaults(front=0.3),
    "lost": WebFaults(lost=0.2),
    "cut": WebFaults(cut=0.4),
    "cut often": WebFaults(cut=0.8, late=0.02),
    "forgetful": WebFaults(forgotten=0.1),
    "all": WebFaults(0.03, 0.05, 0.05, 0.05, 0.3, 0.02),
}


class _Page(Response):
    """A response of a proxy."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = {"content-type": "text/plain", **headers}

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"out of order"


class _Cut(Response):
    """A response that arrives in pieces, and may end early."""

    def __init__(self, backend: "FaultyBackend", inner: Response, size: int | None) -> None:
        self.status, self.headers = inner.status, inner.headers
        self._backend = backend
        self._inner = inner
        self._left = size

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner.chunks():
            data = chunk
            while data:
                size = self._size(len(data))
                if size == 0:
                    raise RequestFailed("the connection was reset")
                await asyncio.sleep(self._backend.delay())
                yield data[:size]
                data = data[size:]

    def _size(self, there: int) -> int:
        """Return the size of the next piece."""
        if self._backend.faults is WEB_CALM:
            return there
        rng = self._backend.world.rng
        size = rng.choice((1, 7, 50, there)) if rng.random() < 0.2 else there
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
        return size


class FaultyBackend:
    """Carries the requests of one client to an application, with faults.

    Args:
        world: the source of chance.
        inner: the backend without faults, which clients share.
        faults: the probabilities.
        name: its name in the trace.
        told: called with the body of each request that the application gets.
    """

    local = True

    def __init__(
        self,
        world: World,
        inner: AsgiBackend,
        faults: WebFaults,
        name: str,
        told: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self.faults = faults
        self.world = world
        self._inner = inner
        self._name = name
        self._told = told

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[Response]:
        """Send a request, as `Backend` promises."""
        faults, rng = self.faults, self.world.rng
        last = headers.get("last-event-id", "")
        self._note(f"{method} {last} {(body or b'').decode()}")
        await asyncio.sleep(self.delay())
        if self._tossed(faults.refused):
            self._note(f"{method} refused")
            raise RequestFailed("the connection was refused", sent=False)
        page = self._page(headers)
        if page is not None:
            self._note(f"{method} {page.status} of a proxy")
            yield page
            return
        self._told(body or b"")
        async with self._inner.send(method, url, headers, body) as response:
            await asyncio.sleep(self.delay())
            self._note(f"{method} {response.status} {response.headers.get('content-type')}")
            if self._tossed(faults.lost):
                self._note(f"{method} lost")
                raise RequestFailed("the connection was reset")
            size = rng.choice((0, 1, 100, 300, 700, 1500)) if self._tossed(faults.cut) else None
            if size is not None:
                self._note(f"{method} will be cut after {size}")
            yield _Cut(self, response, size)

    async def close(self) -> None:
        """Do nothing: others use the application as well."""

    def _page(self, headers: Mapping[str, str]) -> _Page | None:
        rng = self.world.rng
        if self._tossed(self.faults.front):
            wait = {"retry-after": rng.choice(("0", "1", "3"))} if rng.random() < 0.3 else {}
            return _Page(rng.choice(FRONT), wait)
        if "mcp-session-id" in headers and self._tossed(self.faults.forgotten):
            return _Page(404, {})
        return None

    def delay(self) -> float:
        """Return a random duration in seconds."""
        return self.world.rng.choice(LONG if self._tossed(self.faults.late) else DELAYS)

    def _tossed(self, likely: float) -> bool:
        return bool(likely) and self.world.rng.random() < likely

    def _note(self, what: str) -> None:
        self.world.note(f"{self._name} {what}")
