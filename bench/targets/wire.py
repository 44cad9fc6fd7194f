"""What is said to every target, and which headers go with it over HTTP.

The same for all of them, byte for byte, so that nobody is asked more than another. Knows no target. Stands
alone, because programs in the environments of others import it too.
"""

import json
from typing import Any, Final, NamedTuple

__all__ = ["ASKS", "CLIENT", "HELLO", "LATEST", "SESSION", "body", "headers", "message", "said"]

LATEST: Final = "2026-07-28"
SESSION: Final = "2025-11-25"

CLIENT: Final = {"name": "bench", "version": "1"}
META: Final = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO: Final = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": CLIENT}


class Ask(NamedTuple):
    """A request: its method, its parameters, what it is about, whether it wants to hear of progress."""

    method: str
    params: dict[str, Any]
    about: str = ""
    progress: bool = False


ASKS: Final = {
    "add": Ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, "add"),
    "told": Ask("tools/call", {"name": "told", "arguments": {"a": 1, "b": 2}}, "told", progress=True),
    "count": Ask("tools/call", {"name": "count", "arguments": {"to": 10}}, "count", progress=True),
    "list": Ask("tools/list", {}),
    "read": Ask("resources/read", {"uri": "bench://large"}, "bench://large"),
}


def message(name: str, number: int, *, stateless: bool) -> dict[str, Any]:
    """A request with an id."""
    ask = ASKS[name]
    meta = {**(META if stateless else {}), **({"progressToken": number} if ask.progress else {})}
    params = {**ask.params, "_meta": meta} if meta else ask.params
    return {"jsonrpc": "2.0", "id": number, "method": ask.method, "params": params}


def body(name: str, number: int, *, stateless: bool) -> bytes:
    """The bytes of a request with an id."""
    return json.dumps(message(name, number, stateless=stateless), separators=(",", ":")).encode()


def headers(name: str, *, stateless: bool, session: str = "") -> dict[str, str]:
    """The headers that go with a request, but for those that HTTP itself wants."""
    told = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if not stateless:
        known = {"mcp-protocol-version": SESSION, "mcp-session-id": session}
        return told | (known if session else {})
    ask = ASKS[name]
    named = {"mcp-name": ask.about} if ask.about else {}
    return told | {"mcp-protocol-version": LATEST, "mcp-method": ask.method} | named


def said(data: bytes) -> list[dict[str, Any]]:
    """The messages of a response, which is JSON or an event stream."""
    if data.lstrip().startswith(b"{"):
        return [json.loads(data)]
    events = (line[5:] for line in data.splitlines() if line.startswith(b"data:") and line[5:].strip())
    return [json.loads(event) for event in events]
