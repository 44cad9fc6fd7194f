"""Calls an ASGI application in its own process, without a socket.

Creates requests in batches, outside the measured time. Checks each response briefly, because the check is
measured too. Imports no other package, because programs in the environments of other libraries import it.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, NamedTuple

import wire
from ways import WAYS, Way

__all__ = ["URL", "App", "Caller", "ask_app", "callers"]

App = Callable[[Any, Any, Any], Awaitable[None]]

HOST: Final = "127.0.0.1:8000"
URL: Final = f"http://{HOST}/mcp"
"""The URL of the application, if it had a socket."""

BATCH: Final = 64
"""Requests per batch: few enough for the caches, and enough to read the clock rarely."""

NOTIFICATIONS: Final = {"one": 1, "ten": 10}


class Request(NamedTuple):
    """A request, to be sent once."""

    scope: dict[str, Any]
    body: bytes


class Caller:
    """A client of an application that sends requests of one kind.

    Args:
        app: the application.
        way: the kind of request.
    """

    def __init__(self, app: App, way: Way) -> None:
        self._app = app
        self._way = way
        self._sends = {"authorization": f"Bearer {wire.TOKEN}"} if way.switch == "token" else {}
        self._numbers = count(wire.first_number())
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = wire.body(way.request, wire.NUMBER, stateless=way.stateless, ordinary=way.ordinary)
        self._notifications = NOTIFICATIONS.get(way.request, 0)

    async def open(self) -> "Caller":
        """Open a session if the era has them, check one response, and return the caller."""
        session = "" if self._way.stateless else await self._open_session()
        headers = wire.headers(
            self._way.request, stateless=self._way.stateless, session=session, ordinary=self._way.ordinary
        )
        self._headers = _raw(headers | self._sends, self._body)
        _, answer = await _ask(self._app, *self.requests(1)[0])
        *_, last = wire.parse_messages(answer)
        if last.get("result", {}).get("structuredContent") not in (3, {"result": 3}):
            raise RuntimeError(f"wrong response: {answer[:300]}")
        return self

    async def _open_session(self) -> str:
        async def post(session: str, **message: Any) -> dict[bytes, bytes]:
            data = json.dumps({"jsonrpc": "2.0", **message}).encode()
            headers = wire.headers("", stateless=False, session=session) | self._sends
            response, _ = await _ask(self._app, _scope(_raw(headers, data)), data)
            return response

        hello = await post("", id=0, method="initialize", params=wire.HELLO)
        session = hello[b"mcp-session-id"].decode()
        await post(session, method="notifications/initialized")
        return session

    def requests(self, amount: int) -> list[Request]:
        """Return this number of requests, each with its own numbers."""
        requests: list[Request] = []
        for _ in range(amount):
            number = next(self._numbers)
            headers = [(name, wire.numbered(value, number)) for name, value in self._headers]
            requests.append(Request(_scope(headers), wire.numbered(self._body, number)))
        return requests

    async def call(self, request: Request) -> None:
        """Send a request and check the response briefly."""
        _, answer = await _ask(self._app, *request)
        if b'"structuredContent"' not in answer:
            raise RuntimeError(f"wrong response: {answer[:300]}")
        if self._notifications and answer.count(b'"notifications/progress"') != self._notifications:
            raise RuntimeError(f"not {self._notifications} notifications before the response: {answer[:300]}")

    async def turn(self, _at_once: int, seconds: float) -> dict[str, float]:
        """Call for this number of seconds, one request after the other. `cpu` is that of the calls alone."""
        until = time.perf_counter() + seconds
        calls, burnt = 0, 0.0
        while time.perf_counter() < until:
            requests = self.requests(BATCH)
            used = time.process_time()
            for request in requests:
                await self.call(request)
            burnt += time.process_time() - used
            calls += BATCH
        return {"calls": calls, "cpu": burnt}


async def callers(app: Callable[[Way], App]) -> dict[str, Caller]:
    """Return a caller for each way, by its name; `app` returns the application for a way."""
    return {name: await Caller(app(way), way).open() for name, way in WAYS.items()}


async def _ask(app: App, scope: dict[str, Any], body: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Return the headers and the body of the response."""
    inbox = [{"type": "http.request", "body": body, "more_body": False}]
    outbox: list[Any] = []

    async def receive() -> dict[str, Any]:
        if inbox:
            return inbox.pop()
        await asyncio.Event().wait()  # the client stays connected
        raise AssertionError("the event is never set")

    async def send(message: Any) -> None:
        outbox.append(message)

    await app(scope, receive, send)
    start, *rest = outbox
    if start["status"] not in {200, 202}:
        raise RuntimeError(f"status {start['status']}: {rest}")
    return dict(start["headers"]), b"".join(message.get("body", b"") for message in rest)


async def ask_app(app: App, headers: dict[str, str], body: bytes) -> bytes:
    """Return the body of the response to a request."""
    return (await _ask(app, _scope(_raw(headers, body)), body))[1]


def _raw(headers: dict[str, str], body: bytes) -> list[tuple[bytes, bytes]]:
    """Return headers in the form of ASGI, with those that HTTP requires."""
    sent = {"host": HOST, "content-length": str(len(body)), **headers}
    return [(name.encode(), value.encode()) for name, value in sent.items()]


def _scope(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
