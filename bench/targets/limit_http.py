"""The limit over HTTP: the smallest ASGI application, on uvicorn as toolpost sets it up, at a port.

It decodes as much of the body as it takes to answer the right bytes with the right id.
"""

import sys
from typing import Any

import uvicorn

from answers import reply
from toolpost.server.http.uvicorn import make_bounded_protocol


async def app(_scope: Any, receive: Any, send: Any) -> None:
    """Read the body, answer the right bytes."""
    message = await receive()
    data = message["body"]
    while message["more_body"]:
        message = await receive()
        data += message["body"]
    body = reply(data)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200 if body else 202, "headers": headers})
    await send({"type": "http.response.body", "body": body})


uvicorn.run(
    app,
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
