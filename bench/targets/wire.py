"""The requests for every target, and their HTTP headers.

All targets get the same bytes. A request is a template: `NUMBER` is replaced by a new number each time.
Independent of targets. Imports no other package, because programs in the environments of other libraries
import it.
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
    "parse_messages",
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
"""The placeholder of a template. All numbers have ten digits, so that the length is constant."""

_MARK: Final = b"%d" % NUMBER
_VARYING: Final = {
    "x-request-id": f"6f9619ff-8b86-4d01-b42d-00{NUMBER}",
    "traceparent": f"00-4bf92f3577b34da6a3ce92{NUMBER}-00f067{NUMBER}-01",
}
"""The headers of an ordinary request that differ each time: from a proxy, and from tracing."""

TOKEN: Final = "bench-token"  # noqa: S105 - not a secret
"""The bearer token for targets that require one."""


class Ask(NamedTuple):
    """A request: method, parameters, `Mcp-Name` header, and whether it requests progress."""

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
    """Return a request with an id. An ordinary one always has a progress token."""
    ask = ASKS[name]
    token = {"progressToken": number} if ordinary or ask.progress else {}
    meta = {**(META if stateless else {}), **token}
    params = {**ask.params, "_meta": meta} if meta else ask.params
    return {"jsonrpc": "2.0", "id": number, "method": ask.method, "params": params}


def body(name: str, number: int, *, stateless: bool, ordinary: bool = False) -> bytes:
    """Return the bytes of a request with an id."""
    request = message(name, number, stateless=stateless, ordinary=ordinary)
    return json.dumps(request, separators=(",", ":")).encode()


def headers(name: str, *, stateless: bool, session: str = "", ordinary: bool = False) -> dict[str, str]:
    """Return the headers of a request, except those that HTTP itself requires."""
    common = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    common |= _VARYING if ordinary else {}
    if not stateless:
        known = {"mcp-protocol-version": SESSION, "mcp-session-id": session}
        return common | (known if session else {})
    ask = ASKS[name]
    named = {"mcp-name": ask.about} if ask.about else {}
    return common | {"mcp-protocol-version": LATEST, "mcp-method": ask.method} | named


def first_number() -> int:
    """Return the first number of a load, which is larger than all numbers of earlier loads."""
    return NUMBER + time.time_ns() // 1000 % (8 * NUMBER)


def numbered(template: bytes, number: int) -> bytes:
    """Fill a number into a template."""
    return template.replace(_MARK, b"%d" % number)


def parse_messages(data: bytes) -> list[dict[str, Any]]:
    """Return the messages of a response, which is JSON or an event stream."""
    if data.lstrip().startswith(b"{"):
        return [json.loads(data)]
    events = (line[5:] for line in data.splitlines() if line.startswith(b"data:") and line[5:].strip())
    return [json.loads(event) for event in events]
