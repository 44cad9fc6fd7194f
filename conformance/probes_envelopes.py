"""Probes of envelopes: invalid JSON, ids, versions, methods, notifications, responses, batches."""

import json
from typing import Any, Final

from probe import Table

__all__ = ["envelopes"]

DEEP: Final = 20_000
"""Nesting levels at which a recursive parser fails."""

IDS: Final[dict[str, Any]] = {
    "null": None, "a float": 1.5, "a whole float": 7.0, "true": True, "false": False, "an object": {},
    "an array": [7], "zero": 0, "negative": -7, "an empty text": "", "as long as JSON can": 2**53,
    "beyond 64 bits": 2**70, "a text beyond ASCII": "sieben \u00fc \U0001f372",
}  # fmt: skip

VERSIONS: Final[dict[str, Any]] = {"1.0": "1.0", "a number": 2.0, "null": None, "in other words": "2.0.0"}

TOKENS: Final[dict[str, Any]] = {"a float": 1.5, "null": None, "an object": {}, "true": True}

RESPONSES: Final[dict[str, Any]] = {
    "to nothing": {"id": 99, "result": {}},
    "without an id": {"result": {}},
    "with an id that is null": {"id": None, "result": {}},
    "an error to nothing": {"id": 99, "error": {"code": -1, "message": "no"}},
    "an error without a code": {"id": 99, "error": {"message": "no"}},
    "an error without an id": {"error": {"code": -1, "message": "no"}},
    "both result and error": {"id": 99, "result": {}, "error": {"code": -1, "message": "no"}},
    "neither": {"id": 99},
    "a result that is a number": {"id": 99, "result": 3},
}

NOTICES: Final[dict[str, dict[str, Any] | None]] = {
    "notifications/initialized": None,
    "notifications/cancelled": {"requestId": 99, "reason": "never mind"},
    "notifications/progress": {"progressToken": "nobody", "progress": 1},
    "notifications/roots/list_changed": None,
    "notifications/tools/list_changed": None,
    "notifications/weather": {"sun": True},
    "tools/list": None,
}


def envelopes(table: Table) -> None:
    """Add the probes of envelopes."""
    _json(table)
    _envelopes(table)
    _one_way(table)
    if not table.stateless:
        _batches(table)


def _json(table: Table) -> None:
    """Add bodies that are not JSON, or unusual JSON."""
    like = table.request("tools/list", {"sign": 0})
    text = _encoded(like)
    deep = b"[" * DEEP + b"]" * DEEP
    odd = {
        "a byte that is no UTF-8": b'"\xff"',
        "NaN": b"NaN",
        "a lone surrogate": rb'"\ud800"',
        "a control character": b'"\x01"',
        "a number that is endless": b"1e400",
        "a number that is long": b"7" * 5000,
        "deep": deep,
    }
    for what, value in odd.items():
        table.add(f"body: {what}", text.replace(b'"sign":0', b'"sign":' + value), like=like)
    for what, body in {
        "empty": b"",
        "blank": b" \n",
        "cut off": text[:-4],
        "no JSON": b"hello",
        "two values": text + text,
        "UTF-16": text.decode().encode("utf-16"),
        "with a BOM": b"\xef\xbb\xbf" + text,
        "with blanks around": b"\r\n " + text + b" \r\n",
        "single quotes": text.replace(b'"', b"'"),
        "a trailing comma": text[:-1] + b",}",
        "only deep": deep,
        "a member twice": text[:-1] + b',"method":"prompts/list"}',
        "an id twice": text[:-1] + b',"id":8}',
        "a parameter twice": text.replace(b'"sign":0', b'"sign":0,"sign":1'),
        "null": b"null",
        "a text": b'"tools/list"',
        "a number": b"7",
        "an empty object": b"{}",
    }.items():
        table.add(f"body: {what}", body, like=like)
    table.add("body: none", None, like=like)


def _envelopes(table: Table) -> None:
    """Add envelopes of requests."""
    proper = table.request("tools/list")
    for what, value in IDS.items():
        table.add(f"id: {what}", proper | {"id": value})
    for what, value in VERSIONS.items():
        table.add(f"jsonrpc: {what}", proper | {"jsonrpc": value})
    table.add("jsonrpc: missing", {name: value for name, value in proper.items() if name != "jsonrpc"})
    nameless = {name: value for name, value in proper.items() if name != "method"}
    table.add("method: missing", nameless, like=proper)
    for what, value in {"null": None, "a number": 3, "an array": ["tools/list"]}.items():
        table.add(f"method: {what}", proper | {"method": value}, like=proper)
    for method in ("weather/tell", "", "Tools/List", "tools/list ", "rpc.discover", "notifications/weather"):
        table.add(f"method: {method!r}", table.request(method))
    table.add("method: and a result", proper | {"result": {}})
    table.add("method: and an error", proper | {"error": {"code": 1, "message": "x"}})
    for what, token in TOKENS.items():
        params = {"_meta": table.meta() | {"progressToken": token}}
        table.add(f"progressToken: {what}", table.request("tools/list", params))


def _one_way(table: Table) -> None:
    """Add notifications, and responses without a request."""
    for method, params in NOTICES.items():
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        table.add(f"notice: {method}", message if params is None else message | {"params": params})
    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    odd: dict[str, Any] = {"no params": None, "params an array": [], "params empty": {}}
    for what, params in odd.items():
        table.add(f"notice: {what}", notice if params is None else notice | {"params": params})
    table.add("notice: requestId null", notice | {"params": {"requestId": None}})
    table.add("notice: with an id that is null", notice | {"params": {"requestId": 99}, "id": None})
    table.add("notice: as a request", table.request("notifications/cancelled", {"requestId": 99}))
    for what, rest in RESPONSES.items():
        table.add(f"response: {what}", {"jsonrpc": "2.0", **rest})


def _batches(table: Table) -> None:
    """Add batches, which one revision supports."""
    ping, listing = table.request("ping", id=1), table.request("tools/list", id=2)
    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": 99, "result": {}}
    batches: dict[str, list[Any]] = {
        "two requests": [ping, listing],
        "one request": [ping],
        "a request and a notice": [ping, notice],
        "notices only": [notice, notice],
        "responses only": [answer, answer],
        "a request and a response": [ping, answer],
        "empty": [],
        "no messages": [1, "x"],
        "one that is none": [ping, 3],
        "the same id twice": [ping, ping],
        "an unknown method": [ping, table.request("weather/tell", id=3)],
        "a batch in a batch": [[ping]],
    }
    for what, batch in batches.items():
        table.add(f"batch: {what}", batch, until="end")
    table.add("batch: initialize", [table.opening()], session="none")


def _encoded(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
