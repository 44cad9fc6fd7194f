"""The limit over HTTP: the smallest ASGI application, on uvicorn as toolpost sets it up.

`limit_http.py PORT [NOTIFICATIONS]`. Decodes only the members that the response depends on. Responds with
JSON, or with an event stream that has this number of progress notifications before the result.
"""

import sys
from typing import Any

import uvicorn

from answers import events, reply
from toolpost.server.http.uvicorn import make_bounded_protocol

NOTIFICATIONS = int(sys.argv[2]) if len(sys.argv) > 2 else 0


async def read(receive: Any) -> bytes:
    """Read the body of a request."""
    message = await receive()
    data = message["body"]
    while message["more_body"]:
        message = await receive()
        data += message["body"]
    return data


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    """Send the right bytes."""
    body = reply(await read(receive))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200 if body else 202, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(_scope: Any, receive: Any, send: Any) -> None:
    """Send the right bytes, event by event."""
    *progress, last = events(await read(receive), NOTIFICATIONS)
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in progress:
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": last})


uvicorn.run(
    stream if NOTIFICATIONS else answer,
    port=int(sys.argv[1]),
    http=make_bounded_protocol() or "auto",
    ws="none",
    lifespan="off",
    log_config=None,
    access_log=False,
    server_header=False,
    timeout_keep_alive=75,
    backlog=2048,
)
