"""Probes of HTTP: headers, mirrored headers, hosts and origins, HTTP methods, sessions."""

import base64
from typing import Any, Final

from probe import NAMED, STATELESS, Table

__all__ = ["http"]

ACCEPTS: Final[dict[str, str | None]] = {
    "missing": None, "JSON only": "application/json", "events only": "text/event-stream", "anything": "*/*",
    "neither": "text/html", "with qualities": "application/json;q=0.9, text/event-stream;q=0.1",
    "in capitals": "APPLICATION/JSON, TEXT/EVENT-STREAM", "wide": "application/*, text/*", "empty": "",
}  # fmt: skip

TYPES: Final[dict[str, str | None]] = {
    "missing": None, "text": "text/plain", "with a charset": "application/json; charset=utf-8",
    "with another charset": "application/json; charset=latin-1", "in capitals": "Application/JSON",
    "another JSON": "application/vnd.api+json", "a form": "application/x-www-form-urlencoded",
    "nonsense": "json",
}  # fmt: skip


def http(table: Table) -> None:
    """Add the probes of HTTP."""
    _headers(table)
    _sites(table)
    _verbs(table)
    if table.stateless:
        _mirrors(table)
        _params(table)
    else:
        _sessions(table)


def _headers(table: Table) -> None:
    """Add headers that every revision has."""
    proper = table.request("tools/list")
    for what, value in ACCEPTS.items():
        table.add(f"Accept: {what}", proper, headers={"Accept": value})
    for what, value in TYPES.items():
        table.add(f"Content-Type: {what}", proper, headers={"Content-Type": value})
    versions: dict[str, Any] = {
        "missing": None,
        "unknown": "1999-01-01",
        "to come": "2099-01-01",
        "nonsense": "latest",
        "empty": "",
        "the first": "2024-11-05",
        "of another session": "2025-06-18" if table.revision != "2025-06-18" else "2025-11-25",
        "twice": (table.revision, table.revision),
        "twice, differently": (table.revision, "2024-11-05"),
    }
    if not table.stateless:
        versions["of the other era"] = STATELESS
    for what, value in versions.items():
        table.add(f"MCP-Protocol-Version: {what}", proper, headers={"MCP-Protocol-Version": value})


def _sites(table: Table) -> None:
    """Add `Host` and `Origin` headers."""
    proper = table.request("tools/list")
    for what, origin in {
        "foreign": "http://evil.example", "null": "null", "nonsense": "not an origin",
        "loopback": "http://localhost:3000", "empty": "",
    }.items():  # fmt: skip
        table.add(f"Origin: {what}", proper, headers={"Origin": origin})
    for what, host in {
        "foreign": "evil.example",
        "localhost": "localhost",
        "another port": "127.0.0.1:1",
    }.items():
        table.add(f"Host: {what}", proper, host=host)


def _verbs(table: Table) -> None:
    """Add all HTTP methods except POST."""
    for verb in ("PUT", "PATCH", "OPTIONS", "HEAD", "BREW"):
        table.add(f"{verb}", verb=verb)
    table.add("GET", verb="GET", session="own", until="head")
    table.add("GET: without a session", verb="GET", session="none", until="head")
    table.add("GET: an unknown session", verb="GET", headers={"Mcp-Session-Id": "nobody"}, until="head")
    table.add(
        "GET: JSON wanted", verb="GET", headers={"Accept": "application/json"}, session="own", until="head"
    )
    table.add("GET: Accept missing", verb="GET", headers={"Accept": None}, session="own", until="head")
    after = {"Last-Event-ID": "nobody-knows"}
    table.add("GET: an unknown event", verb="GET", headers=after, session="own", until="head")
    table.add("DELETE", verb="DELETE", session="own")
    table.add("DELETE: without a session", verb="DELETE", session="none")
    table.add("DELETE: an unknown session", verb="DELETE", headers={"Mcp-Session-Id": "nobody"})


def _sessions(table: Table) -> None:
    """Add session ids."""
    proper = table.request("tools/list")
    for what, value in {
        "unknown": "nobody",
        "empty": "",
        "long": "x" * 4000,
        "a blank in it": "no body",
    }.items():
        table.add(f"Mcp-Session-Id: {what}", proper, headers={"Mcp-Session-Id": value})
    table.add("Mcp-Session-Id: beyond ASCII", proper, headers={"Mcp-Session-Id": "gr\u00fc\u00dfe"})


def _mirrors(table: Table) -> None:
    """Add headers that mirror the body."""
    for method, params in {
        "tools/call": {"name": "order", "arguments": {"dish": "soup"}},
        "resources/read": {"uri": "config://app"},
        "prompts/get": {"name": "greet", "arguments": {"name": "Ann"}},
    }.items():
        message = table.request(method, params)
        name = str(params[NAMED[method]])
        for what, headers in {
            "no Mcp-Method": {"Mcp-Method": None},
            "another Mcp-Method": {"Mcp-Method": "tools/list"},
            "Mcp-Method in capitals": {"Mcp-Method": method.upper()},
            "no Mcp-Name": {"Mcp-Name": None},
            "another Mcp-Name": {"Mcp-Name": "nobody"},
            "Mcp-Name empty": {"Mcp-Name": ""},
            "Mcp-Name in capitals": {"Mcp-Name": name.upper()},
            "Mcp-Name with blanks around": {"Mcp-Name": f"  {name}\t"},
            "Mcp-Name in Base64": {"Mcp-Name": f"=?base64?{_base64(name)}?="},
            "Mcp-Name in bad Base64": {"Mcp-Name": "=?base64?%%%?="},
            "Mcp-Name twice": {"Mcp-Name": (name, name)},
        }.items():
            table.add(f"{method}: {what}", message, headers=headers)
    table.add("tools/list: a needless Mcp-Name", table.request("tools/list"), headers={"Mcp-Name": "add"})
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": "add"}
    table.add("weather/tell: another Mcp-Method", table.request("weather/tell"), headers=headers)
    table.add("tools/list: with a session", table.request("tools/list"), headers={"Mcp-Session-Id": "nobody"})
    table.add("tools/list: with an event", table.request("tools/list"), headers={"Last-Event-ID": "9"})
    table.add("batch: one request", [table.request("tools/list")], like=table.request("tools/list"))


def _params(table: Table) -> None:
    """Add headers that mirror arguments."""
    proper = {"Mcp-Param-Place": "Bern", "Mcp-Param-Floor": "3", "Mcp-Param-Fragile": "true"}
    arguments = {"place": "Bern", "floor": 3, "fragile": True}
    message = table.request("tools/call", {"name": "deliver", "arguments": arguments})
    for what, changed in {
        "well-formed": {},
        "one missing": {"Mcp-Param-Floor": None},
        "all missing": dict.fromkeys(proper),
        "a text that differs": {"Mcp-Param-Place": "Basel"},
        "a text in capitals": {"Mcp-Param-Place": "BERN"},
        "a text in Base64": {"Mcp-Param-Place": f"=?base64?{_base64('Bern')}?="},
        "a text in bad Base64": {"Mcp-Param-Place": "=?base64?QmVyb?="},
        "an integer that differs": {"Mcp-Param-Floor": "4"},
        "an integer as a float": {"Mcp-Param-Floor": "3.0"},
        "an integer in words": {"Mcp-Param-Floor": "three"},
        "a boolean that differs": {"Mcp-Param-Fragile": "false"},
        "a boolean in capitals": {"Mcp-Param-Fragile": "TRUE"},
        "one that nobody knows": {"Mcp-Param-Weather": "sun"},
    }.items():
        table.add(f"Mcp-Param: {what}", message, headers=proper | changed)
    without = {"name": "deliver", "arguments": {"place": None, "floor": 3, "fragile": True}}
    headers = {"Mcp-Param-Floor": "3", "Mcp-Param-Fragile": "true"}
    table.add("Mcp-Param: the argument is null", table.request("tools/call", without), headers=headers)
    table.add("Mcp-Param: a header for null", table.request("tools/call", without), headers=proper)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
