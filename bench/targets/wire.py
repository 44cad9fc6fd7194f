"""What is said to every target, and which headers go with it over HTTP.

The same for all of them, byte for byte, so that nobody is asked more than another. A request is a template:
`NUMBER` stands in it wherever a number has to be new each time. Knows no target. Stands alone, because
programs in the environments of others import it too.
"""

import json
import time
from typing import Any, Final, NamedTuple

__all__ = [
    "ASKS",
    "CLIENT",
    "HELLO",
    "LATEST",
    "NUMBER",
    "SESSION",
    "TOKEN",
    "body",
    "first_number",
    "headers",
    "message",
    "numbered",
    "said",
]

LATEST: Final = "2026-07-28"
SESSION: Final = "2025-11-25"

CLIENT: Final = {"name": "bench", "version": "1"}
META: Final = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO: Final = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": CLIENT}

NUMBER: Final = 1_000_000_000
"""Stands in a template for a number; all of them have ten digits, so that the length stays the same."""

_MARK: Final = b"%d" % NUMBER
_VARYING: Final = {
    "x-request-id": f"6f9619ff-8b86-4d01-b42d-00{NUMBER}",
    "traceparent": f"00-4bf92f3577b34da6a3ce92{NUMBER}-00f067{NUMBER}-01",
}
"""The headers of an ordinary request that are new each time: from a proxy, and from tracing."""

TOKEN: Final = "bench-token"  # noqa: S105 - not a secret
"""The bearer token that targets accept where they ask for one."""


class Ask(NamedTuple):
    """A request: its method, its parameters, what it is about, whether it wants to hear of progress."""

    method: str
    params: dict[str, Any]
    about: str = ""
    progress: bool = False


def _call(tool: str, *, progress: bool = False) -> Ask:
    return Ask("tools/call", {"name": tool, "arguments": {"a": 1, "b": 2}}, tool, progress)


ASKS: Final = {
    "add": _call("add"),
    "wait": _call("wait"),
    "one": _call("one", progress=True),
    "ten": _call("ten", progress=True),
    "list": Ask("tools/list", {}),
    "read": Ask("resources/read", {"uri": "bench://large"}, "bench://large"),
}


def message(name: str, number: int, *, stateless: bool, ordinary: bool = False) -> dict[str, Any]:
    """A request with an id; an ordinary one has a progress token, whether it hears of progress or not."""
    ask = ASKS[name]
    token = {"progressToken": number} if ordinary or ask.progress else {}
    meta = {**(META if stateless else {}), **token}
    params = {**ask.params, "_meta": meta} if meta else ask.params
    return {"jsonrpc": "2.0", "id": number, "method": ask.method, "params": params}


def body(name: str, number: int, *, stateless: bool, ordinary: bool = False) -> bytes:
    """The bytes of a request with an id."""
    made = message(name, number, stateless=stateless, ordinary=ordinary)
    return json.dumps(made, separators=(",", ":")).encode()


def headers(name: str, *, stateless: bool, session: str = "", ordinary: bool = False) -> dict[str, str]:
    """The headers that go with a request, but for those that HTTP itself wants."""
    told = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    told |= _VARYING if ordinary else {}
    if not stateless:
        known = {"mcp-protocol-version": SESSION, "mcp-session-id": session}
        return told | (known if session else {})
    ask = ASKS[name]
    named = {"mcp-name": ask.about} if ask.about else {}
    return told | {"mcp-protocol-version": LATEST, "mcp-method": ask.method} | named


def first_number() -> int:
    """A number from which a load counts: it is beyond those of any load before, which was not that fast."""
    return NUMBER + time.time_ns() // 1000 % (8 * NUMBER)


def numbered(template: bytes, number: int) -> bytes:
    """A template with this number in it."""
    return template.replace(_MARK, b"%d" % number)


def said(data: bytes) -> list[dict[str, Any]]:
    """The messages of a response, which is JSON or an event stream."""
    if data.lstrip().startswith(b"{"):
        return [json.loads(data)]
    events = (line[5:] for line in data.splitlines() if line.startswith(b"data:") and line[5:].strip())
    return [json.loads(event) for event in events]
