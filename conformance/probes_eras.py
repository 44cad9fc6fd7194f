"""Probes for one era: handshakes, or the `_meta` of requests and answers to questions."""

from typing import Any, Final

from probe import Table
from probes_methods import ODD_PARAMS

__all__ = ["eras"]

OPENINGS: Final[dict[str, Any]] = {
    "well-formed": {},
    "an unknown revision": {"protocolVersion": "1999-01-01"},
    "a revision that has no handshake": {"protocolVersion": "2026-07-28"},
    "the first revision": {"protocolVersion": "2024-11-05"},
    "protocolVersion a number": {"protocolVersion": 3},
    "protocolVersion null": {"protocolVersion": None},
    "capabilities null": {"capabilities": None},
    "capabilities unknown": {"capabilities": {"weather": {}}},
    "clientInfo null": {"clientInfo": None},
    "clientInfo without a version": {"clientInfo": {"name": "probe"}},
    "an unknown parameter": {"weather": 1},
}

METAS: Final[dict[str, Any]] = {
    "no protocolVersion": {"protocolVersion": None},
    "no clientCapabilities": {"clientCapabilities": None},
    "no clientInfo": {"clientInfo": None},
    "protocolVersion a number": {"protocolVersion": 3},
    "protocolVersion unknown": {"protocolVersion": "1999-01-01"},
    "protocolVersion of a session": {"protocolVersion": "2025-11-25"},
    "clientCapabilities a text": {"clientCapabilities": "all"},
    "clientCapabilities an array": {"clientCapabilities": []},
    "clientInfo a text": {"clientInfo": "probe"},
    "clientInfo without a version": {"clientInfo": {"name": "probe"}},
    "logLevel unknown": {"logLevel": "loud"},
    "logLevel a number": {"logLevel": 3},
    "a key that is ours to ignore": {"weather": 1},
}


def eras(table: Table) -> None:
    """Add the probes of the revision's era, after those of `methods`."""
    if table.stateless:
        _stateless(table)
        _answers(table)
    else:
        _handshakes(table)


def _handshakes(table: Table) -> None:
    """Add `initialize` requests, valid and unusual."""
    opening = table.opening
    for what, changed in OPENINGS.items():
        table.add(f"initialize: {what}", opening(**changed), session="none")
    for gone in ("protocolVersion", "capabilities", "clientInfo"):
        message = opening()
        del message["params"][gone]
        table.add(f"initialize: no {gone}", message, session="none")
    for what, odd in ODD_PARAMS.items():
        table.add(f"initialize: params {what}", opening() | {"params": odd}, session="none")
    bare = {name: value for name, value in opening().items() if name != "params"}
    table.add("initialize: no params", bare, session="none")
    table.add("initialize: a second time", opening(), session="own")
    named = {"Mcp-Session-Id": "nobody"}
    table.add("initialize: with an unknown session", opening(), session="none", headers=named)
    headers = {"MCP-Protocol-Version": table.revision}
    table.add("initialize: with the header of its revision", opening(), session="none", headers=headers)
    request = table.request("tools/list")
    table.add("tools/list: without a session", request, session="none")
    table.add("tools/list: before initialized", request, session="half")
    table.add("ping: before initialized", table.request("ping"), session="half")
    table.add("ping: without a session", table.request("ping"), session="none")


def _stateless(table: Table) -> None:
    """Add requests of the stateless era: `_meta`, and answers to questions."""
    request, meta = table.request, table.meta
    call = {"name": "add", "arguments": {"a": 2, "b": 3}}
    for what, changed in METAS.items():
        table.add(f"_meta: {what}", request("tools/call", {**call, "_meta": meta(**changed)}))
    for version in ("1999-01-01", "2025-11-25", "2099-01-01"):
        message = request("tools/call", {**call, "_meta": meta(protocolVersion=version)})
        headers = {"MCP-Protocol-Version": version}
        table.add(f"_meta: header and protocolVersion say {version}", message, headers=headers)
    table.add("_meta: empty", request("tools/call", {**call, "_meta": {}}))
    for what, tool in {"user": "ask_user", "model": "ask_model", "roots": "ask_roots"}.items():
        poor = meta(clientCapabilities={})
        message = request("tools/call", {"name": tool, "arguments": {}, "_meta": poor})
        table.add(f"_meta: the {what} cannot be asked", message)
    for what, level in {"no logs wanted": None, "logs wanted": "info", "few logs wanted": "warning"}.items():
        members = meta(logLevel=level) | {"progressToken": "p"}
        params = {"name": "count", "arguments": {"to": 2}, "_meta": members}
        table.add(f"_meta: progress and {what}", request("tools/call", params))
    table.add("initialize: a method of another revision", request("initialize", table.opening()["params"]))
    table.add("notifications/initialized: as a request", request("notifications/initialized"))


def _answers(table: Table) -> None:
    """Add retries with the requested input."""
    call: dict[str, Any] = {"name": "ask_user", "arguments": {}}
    dish = {"action": "accept", "content": {"dish": "soup", "portions": 2}}
    first = "tools/call: a question to the user"
    rounds: dict[str, tuple[Any, Any]] = {
        "accepted": ({"{key}": dish}, "{state}"),
        "declined": ({"{key}": {"action": "decline"}}, "{state}"),
        "with what nobody asked for": ({"{key}": dish, "more": dish}, "{state}"),
        "that are missing": ({}, "{state}"),
        "to other questions": ({"other": dish}, "{state}"),
        "an array": ([dish], "{state}"),
        "a text": ("yes", "{state}"),
        "null": (None, "{state}"),
        "that are texts": ({"{key}": "soup"}, "{state}"),
        "with an unknown action": ({"{key}": {"action": "perhaps"}}, "{state}"),
        "without content": ({"{key}": {"action": "accept"}}, "{state}"),
        "with content of the wrong type": (
            {"{key}": {"action": "accept", "content": {"dish": 3}}},
            "{state}",
        ),
        "with a state that is forged": ({"{key}": dish}, "forged"),
        "with a state that is a number": ({"{key}": dish}, 3),
        "with a state that is null": ({"{key}": dish}, None),
    }
    for what, (responses, state) in rounds.items():
        again = table.request("tools/call", call, id=8)
        again["params"] |= {"inputResponses": responses, "requestState": state}
        table.add(f"inputResponses: {what}", again, first=first)
    other = table.request("tools/call", {"name": "ask_roots", "arguments": {}}, id=8)
    other["params"] |= {"inputResponses": {"{key}": dish}, "requestState": "{state}"}
    table.add("inputResponses: for another request", other, first=first)
    message = table.request("tools/call", call)
    message["params"] |= {"inputResponses": {"{key}": dish}}
    table.add("inputResponses: nobody asked before", message)
