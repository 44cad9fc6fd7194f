"""A server that sends the exact bytes that a call of the tool `say` contains. As a program it uses stdio.

Imports nothing of toolpost, so every error in its output is on purpose. The tool `good` gets a valid
response, and `do`, over stdio only, runs a piece of Python first.
"""

import base64
import json
import os
import signal
import sys
import time
from typing import Any

__all__ = ["ID", "NAME", "answers", "said"]

ID = b"@ID@"
"""The placeholder for the id of the call."""

NAME = {"name": "hostile", "version": "1"}
CAPABLE = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
SESSION, STATELESS = "2025-11-25", "2026-07-28"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
TOOLS = [
    {"name": "good", "inputSchema": {"type": "object"}},
    {"name": "say", "inputSchema": {"type": "object"}},
    {"name": "explode", "inputSchema": {"type": "object"}, "outputSchema": SCHEMA},
    {
        "name": "gone",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object", "$ref": "http://127.0.0.1:9/schema"},
    },
]


def said(*messages: bytes | str | dict[str, Any]) -> dict[str, list[str]]:
    """Return the arguments of a call of `say` that sends these messages."""
    return {"say": [base64.b64encode(_bytes(each)).decode() for each in messages]}


def answers(message: dict[str, Any], *, stateless: bool) -> list[bytes]:
    """Return the responses to a message."""
    method, key = message.get("method"), message.get("id")
    if key is None or method is None:
        return []
    params = message.get("params") or {}
    if method == "tools/call" and params["name"] == "say":
        said = [base64.b64decode(each) for each in params["arguments"]["say"]]
        return [each.replace(ID, _bytes(json.dumps(key))) for each in said]
    if method == "tools/call" and params["name"] == "do":
        exec(
            params["arguments"]["code"],
            {"os": os, "sys": sys, "signal": signal, "time": time, "write": write},
        )
    answer: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": key,
        "result": _result(method, params, stateless=stateless),
    }
    return [_bytes(answer)]


def _result(method: str, params: dict[str, Any], *, stateless: bool) -> dict[str, Any]:
    kept = {"ttlMs": 0, "cacheScope": "private"} if stateless else {}
    result: dict[str, Any] = {}
    if method == "initialize":
        result = {"protocolVersion": SESSION, "capabilities": CAPABLE, "serverInfo": NAME}
    elif method == "server/discover":
        result = {"supportedVersions": [STATELESS], "capabilities": CAPABLE, **kept}
    elif method == "tools/list":
        result = {"tools": TOOLS, **kept}
    elif method == "tools/call":
        text = "a" * 200_000 + "!" if params["name"] == "explode" else "ok"
        result = {"content": [{"type": "text", "text": text[:10]}], "structuredContent": {"text": text}}
    return {**result, "resultType": "complete"} if stateless else result


def _bytes(message: bytes | str | dict[str, Any]) -> bytes:
    if isinstance(message, bytes):
        return message
    return (message if isinstance(message, str) else json.dumps(message)).encode()


def write(data: bytes) -> None:
    """Write all data, or stop if the reader closes the pipe."""
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        for each in answers(json.loads(line), stateless=sys.argv[1] == "stateless"):
            write(each + b"\n")
