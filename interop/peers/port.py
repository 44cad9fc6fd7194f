"""Serves an application of PyPI's `mcp` at a port, and remembers events for clients that come back.

Runs inside a peer's environment. Both generations of `mcp` have the same promise for events.
"""

import socket
from typing import Any

import uvicorn
from mcp.server.streamable_http import EventMessage, EventStore


class Events(EventStore):
    """All events, in memory."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        """The id of an event that is kept from now on."""
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        """Send what came after an event on the same stream; the name of that stream."""
        last = int(last_event_id)
        stream, _ = self._events[last - 1]
        for number, (where, message) in enumerate(self._events[last:], last + 1):
            if where == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


async def serve(app: Any) -> None:
    """Serve until we are told to stop."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"kitchen serves at http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])
