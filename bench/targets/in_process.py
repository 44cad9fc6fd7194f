"""An ASGI application, called in its own process without a socket: scope, body and answer by hand.

Each call has to be answered rightly; one that is looked at less would be measured as well. Stands alone,
because programs in the environments of others import it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import wire

__all__ = ["ways"]

App = Callable[[Any, Any, Any], Awaitable[None]]


async def _ask(app: App, scope: dict[str, Any], body: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """The headers and the body of the response."""
    inbox = [{"type": "http.request", "body": body, "more_body": False}]
    outbox: list[Any] = []

    async def receive() -> dict[str, Any]:
        if inbox:
            return inbox.pop()
        await asyncio.Event().wait()  # a client that stays
        raise AssertionError("nobody sets it")

    async def send(message: Any) -> None:
        outbox.append(message)

    await app(dict(scope), receive, send)
    start, *rest = outbox
    if start["status"] not in {200, 202}:
        raise RuntimeError(f"status {start['status']}: {rest}")
    return dict(start["headers"]), b"".join(message.get("body", b"") for message in rest)


def _scope(headers: dict[str, str]) -> dict[str, Any]:
    raw = [
        (b"host", b"127.0.0.1:8000"),
        *((name.encode(), value.encode()) for name, value in headers.items()),
    ]
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
        "headers": raw,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


async def _opened(app: App) -> str:
    """The id of a session."""
    plain = wire.headers("", stateless=False)
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": wire.HELLO}
    headers, _ = await _ask(app, _scope(plain), json.dumps(hello).encode())
    session = headers[b"mcp-session-id"].decode()
    known = wire.headers("", stateless=False, session=session)
    await _ask(app, _scope(known), b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    return session


async def ways(stateless: App, as_json: App, as_sse: App) -> dict[str, Callable[[], Awaitable[None]]]:
    """A call of the application for each way of asking; they may be three applications."""
    told = await _opened(as_sse)
    sessions = {"session-json": await _opened(as_json), "session-default": told, "session-sse": told}
    asked = {
        "stateless": (stateless, "add"),
        "session-json": (as_json, "add"),
        "session-default": (as_sse, "add"),
        "session-sse": (as_sse, "told"),
    }

    def way(name: str) -> Callable[[], Awaitable[None]]:
        app, ask = asked[name]
        alone = name == "stateless"
        scope = _scope(wire.headers(ask, stateless=alone, session=sessions.get(name, "")))
        body = wire.body(ask, 1, stateless=alone)
        wanted = b"progress" if ask == "told" else b'"structuredContent"'

        async def call() -> None:
            _, answer = await _ask(app, scope, body)
            if wanted not in answer:
                raise RuntimeError(f"a wrong answer: {answer[:300]}")

        return call

    return {name: way(name) for name in asked}
