"""What the limits say to each method: prepared bytes around the id of the request.

So small that nothing a server could do less is left, and enough for any client: the limits are also the fixed
fast servers that clients are measured against.
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
    """As much of a request as has to be known."""

    method: str
    id: msgspec.Raw = NO_ID


class Meta(msgspec.Struct):
    """What a request says besides."""

    token: msgspec.Raw = msgspec.field(name="progressToken")


class Params(msgspec.Struct):
    """As much of the parameters as progress takes."""

    meta: Meta = msgspec.field(name="_meta")


class ProgressCall(Call, kw_only=True):
    """A request that hears of progress."""

    params: Params


_read: Final = msgspec.json.Decoder(Call).decode
_read_progress: Final = msgspec.json.Decoder(ProgressCall).decode


def reply(data: bytes) -> bytes:
    """The bytes that answer a message; none if it is a notice."""
    call = _read(data)
    if call.id is NO_ID:
        return b""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (call.id, PREPARED[call.method])


def events(data: bytes, notifications: int) -> list[bytes]:
    """The events that answer a call: so many notifications of progress, then the result."""
    token = _read_progress(data).params.meta.token
    notification = (
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b,"progress":%d}}'
    )
    said = [notification % (token, number) for number in range(1, notifications + 1)]
    return [b"data: %b\n\n" % message for message in (*said, reply(data))]
