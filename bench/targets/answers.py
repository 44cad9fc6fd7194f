"""The responses of the limits to each method: prepared bytes around the id of the request.

No server can do less work, and the responses suffice for any client: clients are measured against the limits,
too.
"""

import json
from typing import Final

import msgspec

__all__ = ["events", "reply"]

SUM: Final = {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
NUMBERS: Final = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
SERVER: Final = {"name": "limit", "version": "1"}
CACHED: Final = {"ttlMs": 60000, "cacheScope": "public"}
RESULTS: Final = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": SERVER},
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "_meta": {"io.modelcontextprotocol/serverInfo": SERVER},
        **CACHED,
    },
    "tools/list": {"tools": [{"name": "add", "inputSchema": NUMBERS, "outputSchema": SUM}], **CACHED},
    "tools/call": {"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 3}},
    "ping": {},
}
PREPARED: Final = {
    method: json.dumps({"resultType": "complete", **result}, separators=(",", ":")).encode()
    for method, result in RESULTS.items()
}


NO_ID: Final = msgspec.Raw(b"")


class Call(msgspec.Struct):
    """The necessary members of a request."""

    method: str
    id: msgspec.Raw = NO_ID


class Meta(msgspec.Struct):
    """The `_meta` of a request."""

    token: msgspec.Raw = msgspec.field(name="progressToken")


class Params(msgspec.Struct):
    """The parameters that progress notifications need."""

    meta: Meta = msgspec.field(name="_meta")


class ProgressCall(Call, kw_only=True):
    """A request for progress notifications."""

    params: Params


_read: Final = msgspec.json.Decoder(Call).decode
_read_progress: Final = msgspec.json.Decoder(ProgressCall).decode


def reply(data: bytes) -> bytes:
    """Return the response to a message; empty for a notification."""
    call = _read(data)
    if call.id is NO_ID:
        return b""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (call.id, PREPARED[call.method])


def events(data: bytes, notifications: int) -> list[bytes]:
    """Return the events of a call: this number of progress notifications, then the result."""
    token = _read_progress(data).params.meta.token
    notification = (
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b,"progress":%d}}'
    )
    progress = [notification % (token, number) for number in range(1, notifications + 1)]
    return [b"data: %b\n\n" % message for message in (*progress, reply(data))]
