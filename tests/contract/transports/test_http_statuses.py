"""Status, headers and code for each request, in one table, and cases outside the table."""

import asyncio
import base64
import json
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from hosted import (
    FIRST,
    NEW,
    OLD,
    OLDER,
    Stage,
    call,
    hosted,
    kitchen,
    legacy,
    message,
    modern,
    opening,
    run,
)
from revision_dates import DATES
from toolpost import Server
from toolpost.testing import REVISIONS

SESSION = "SESSION"
"""Stands for the id of a session that was opened before."""

JSON = {"Content-Type": "application/json"}
LISTENS = {"Accept": "text/event-stream"}
SESSIONS_ONLY = [date for date in DATES if not REVISIONS[date].stateless]
PAGE = "https://app.example.com"
EXPOSED = "Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, DPoP-Nonce, Retry-After"


class Case(NamedTuple):
    """A request and the expected response."""

    name: str
    rules: tuple[str, ...]
    send: tuple[Any, ...]
    """Verb, target, headers, body."""
    status: int
    code: int | None = None
    says: str = ""
    has: Mapping[str, str] = MappingProxyType({})
    web: Mapping[str, Any] = MappingProxyType({})
    opens: str = OLD
    """The revision of the session that is opened before."""
    more: Mapping[str, Any] = MappingProxyType({})


def post(headers: Any, body: bytes, target: str = "/mcp") -> tuple[Any, ...]:
    return "POST", target, headers, body


def but(sent: tuple[dict[str, str], bytes], *gone: str, **changed: Any) -> tuple[Any, ...]:
    """A POST with some headers changed, and some left out."""
    headers, body = sent
    changes = {name.replace("_", "-").lower(): value for name, value in changed.items()}
    kept = {name: value for name, value in headers.items() if name.lower() not in {*gone, *changes}}
    return post({**kept, **changes}, body)


ECHO = modern("tools/call", call("echo", text="hi"))
HEADED = {"Mcp-Param-Region": "eu"}


def routed(headers: dict[str, str], **arguments: Any) -> tuple[Any, ...]:
    """A call of a tool with mirrored parameters."""
    sent, body = modern("tools/call", call("routed", **arguments))
    return post({**sent, **headers}, body)


def based(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def facts(**changed: Any) -> tuple[dict[str, str], bytes]:
    """Return a call with changed or missing keys in `_meta`."""
    headers, body = ECHO
    said = json.loads(body)
    meta = said["params"]["_meta"]
    for name, value in changed.items():
        key = next(key for key in meta if key.endswith(name))
        if value is None:
            del meta[key]
        else:
            meta[key] = value
    return headers, json.dumps(said).encode()


PING = message("ping", id=1)
DEEP = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"[" * 70 + b"]" * 70 + b"}}"
BATCH = b"[%b,%b]" % (message("ping", id="a"), message("ping", id="b"))
NOTE = message("notifications/roots/list_changed")

CASES = [
    # ---- the body
    Case("not JSON", ("HTTP-8",), post(legacy(), b"{nonsense"), 400, -32700),
    Case("empty body", (), post(legacy(), b""), 400, -32700),
    Case("not UTF-8", (), post(legacy(), b'{"jsonrpc":"2.0","id":1,"method":"\xff"}'), 400, -32700),
    Case("no message", ("HTTP-8",), post(legacy(), b'{"id":7}'), 400, -32600),
    Case("JSON-RPC 1", (), post(legacy(), b'{"jsonrpc":"1.0","id":7,"method":"ping"}'), 400, -32600),
    Case("id null", (), post(legacy(), b'{"jsonrpc":"2.0","id":null,"method":"ping"}'), 400, -32600),
    Case("nested too deeply", (), post(legacy(), DEEP), 400, -32600, "nest"),
    Case("too large", (), post(legacy(), b" " * 200), 413, -32600, "max_body", web={"max_body": 100}),
    Case(
        "too large, in chunks",
        (),
        (
            "POST",
            "/mcp",
            {**legacy(), "Transfer-Encoding": "chunked"},
            b"c8\r\n" + b" " * 200 + b"\r\n0\r\n\r\n",
        ),
        413,
        -32600,
        "max_body",
        web={"max_body": 100},
        more={"length": False},
    ),
    Case("headers too large", (), post({**legacy(), "X-Long": "x" * 70_000}, PING), 431, -32600),
    Case("no Content-Type", (), but((legacy(), PING), "content-type"), 415, -32600, "application/json"),
    Case("other Content-Type", (), but((legacy(), PING), Content_Type="text/plain"), 415, -32600),
    Case("other charset", (), but((legacy(), PING), Content_Type="application/json; charset=latin-1"), 415),
    Case("charset UTF-8", (), but((ECHO), Content_Type="application/json; charset=UTF-8"), 200),
    Case(
        "Content-Encoding",
        (),
        but(ECHO, Content_Encoding="gzip"),
        415,
        -32600,
        "Content-Encoding",
        {"accept-encoding": "identity"},
    ),
    Case("Content-Encoding identity", (), but(ECHO, Content_Encoding="identity"), 200),
    Case("Accept lacks events", (), but(ECHO, Accept="application/json"), 406, -32600, "event-stream"),
    Case("Accept lacks JSON", (), but(ECHO, Accept="text/event-stream"), 406, -32600),
    Case("Accept excludes", (), but(ECHO, Accept="*/*, text/event-stream;q=0"), 406),
    Case("Accept anything", (), but(ECHO, Accept="*/*"), 200),
    Case("no Accept", (), but(ECHO, "accept"), 200),
    Case(
        "Accept on two lines",
        (),
        post(
            [
                *but(ECHO, "accept")[2].items(),
                ("Accept", "text/event-stream"),
                ("Accept", "application/json"),
            ],
            ECHO[1],
        ),
        200,
    ),
    # ---- paths and verbs
    Case("other path", (), post(*ECHO, target="/other"), 404, -32600, "/mcp"),
    Case("slash behind the path", ("HTTPM-1",), post(*ECHO, target="/mcp/"), 200),
    Case("query behind the path", (), post(*ECHO, target="/mcp?a=b"), 200),
    Case("PUT", (), ("PUT", "/mcp", JSON, PING), 405, -32600, has={"allow": "POST, GET, DELETE"}),
    Case("HEAD", (), ("HEAD", "/mcp", {}, None), 405, has={"allow": "POST, GET, DELETE"}),
    Case("OPTIONS", (), ("OPTIONS", "/mcp", {}, None), 405, has={"allow": "POST, GET, DELETE"}),
    Case("POST to the stream of HTTP+SSE", (), ("POST", "/sse", JSON, PING), 405, has={"allow": "GET"}),
    Case("GET of messages", (), ("GET", "/messages", LISTENS, None), 405, has={"allow": "POST"}),
    Case(
        "GET without sessions",
        ("HTTPL-12",),
        ("GET", "/mcp", LISTENS, None),
        405,
        web={"stateless": True},
        has={"allow": "POST"},
    ),
    Case("DELETE without sessions", (), ("DELETE", "/mcp", {}, None), 405, web={"stateless": True}),
    Case("HTTP+SSE without sessions", (), ("GET", "/sse", LISTENS, None), 404, web={"stateless": True}),
    Case("HTTP+SSE switched off", (), ("GET", "/sse", LISTENS, None), 404, web={"sse": None}),
    Case("another path", (), post(*ECHO, target="/"), 200, web={"path": "/"}),
    Case("no health", (), ("GET", "/health", {}, None), 404),
    Case("health", (), ("GET", "/health", {}, None), 200, web={"health": "/health"}),
    Case("ready", (), ("GET", "/health/ready", {}, None), 200, web={"health": "/health"}),
    Case("health by HEAD", (), ("HEAD", "/health", {}, None), 200, web={"health": "/health"}),
    Case("ready by HEAD", (), ("HEAD", "/health/ready", {}, None), 200, web={"health": "/health"}),
    Case(
        "health by address",
        (),
        ("GET", "/health", {}, None),
        200,
        more={"host": "10.0.0.7"},
        web={"health": "/health"},
    ),
    Case(
        "ready by address",
        (),
        ("GET", "/health/ready", {}, None),
        200,
        more={"host": "10.0.0.7"},
        web={"health": "/health"},
    ),
    Case(
        "other verbs of health by address",
        (),
        ("POST", "/health", {}, b""),
        403,
        more={"host": "10.0.0.7"},
        web={"health": "/health"},
    ),
    # ---- access
    Case("Host of this machine", (), post(*ECHO), 200, more={"host": "localhost:1234"}),
    Case(
        "Host of another",
        (),
        post(*ECHO),
        403,
        -32600,
        "allowed_hosts=['evil.example']",
        more={"host": "evil.example"},
    ),
    Case("Host missing", (), post(*ECHO), 403, -32600, "Missing Host", more={"host": None}),
    Case("Host twice", (), post([("Host", "127.0.0.1"), *ECHO[0].items()], ECHO[1]), 403, -32600),
    Case(
        "Host allowed",
        (),
        post(*ECHO),
        200,
        more={"host": "mcp.example.com"},
        web={"allowed_hosts": ["mcp.example.com"]},
    ),
    Case(
        "Host public",
        (),
        post(*ECHO),
        200,
        more={"host": "mcp.example.com"},
        web={"public_url": "https://mcp.example.com/x"},
    ),
    Case(
        "Origin of another",
        ("HTTP-1", "HTTP-2"),
        but(ECHO, Origin="https://evil.example"),
        403,
        -32600,
        "allowed_origins=['https://evil.example']",
    ),
    Case(
        "Origin of another on GET",
        ("HTTP-1", "SSE-5"),
        ("GET", "/sse", {**LISTENS, "Origin": "https://evil.example"}, None),
        403,
    ),
    Case(
        "Origin of another on DELETE",
        ("HTTP-1",),
        ("DELETE", "/mcp", {"Origin": "https://evil.example"}, None),
        403,
    ),
    Case("Origin null", ("HTTP-2",), but(ECHO, Origin="null"), 403),
    Case("Origin nonsense", ("HTTP-2",), but(ECHO, Origin="what"), 403),
    Case("Origin of this machine", (), but(ECHO, Origin="http://localhost:5173"), 200),
    Case(
        "Origin public",
        (),
        but(ECHO, Origin="https://mcp.example.com"),
        200,
        web={"public_url": "https://mcp.example.com"},
    ),
    Case("Origin allowed", (), but(ECHO, Origin=PAGE), 200, web={"allowed_origins": [PAGE]}),
    # ---- pages of browsers
    Case(
        "CORS",
        (),
        but(ECHO, Origin=PAGE),
        200,
        has={
            "access-control-allow-origin": PAGE,
            "access-control-expose-headers": EXPOSED,
            "vary": "Origin",
        },
        web={"cors": [PAGE]},
    ),
    Case(
        "CORS on a refusal",
        (),
        but((legacy(), b"{"), Origin=PAGE),
        400,
        -32700,
        has={"access-control-allow-origin": PAGE},
        web={"cors": PAGE},
    ),
    Case("CORS of another", (), but(ECHO, Origin="https://evil.example"), 403, web={"cors": [PAGE]}),
    Case(
        "preflight",
        (),
        (
            "OPTIONS",
            "/mcp",
            {
                "Origin": PAGE,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "mcp-method, x-y",
            },
            None,
        ),
        204,
        has={
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
            "access-control-allow-headers": "mcp-method, x-y",
            "access-control-max-age": "7200",
        },
        web={"cors": [PAGE]},
    ),
    Case(
        "preflight to messages",
        (),
        ("OPTIONS", "/messages", {"Origin": PAGE}, None),
        204,
        has={"access-control-allow-headers": "*"},
        web={"cors": [PAGE]},
    ),
    Case(
        "preflight of another",
        (),
        ("OPTIONS", "/mcp", {"Origin": "https://evil.example"}, None),
        403,
        web={"cors": [PAGE]},
    ),
    Case("OPTIONS of no page", (), ("OPTIONS", "/mcp", {}, None), 405, web={"cors": True}),
    # ---- the stateless era
    Case("a call", ("HTTPM-1", "HTTP-9"), post(*ECHO), 200),
    Case("discover", ("DISC-1", "VER-3"), post(*modern("server/discover")), 200),
    Case(
        "a notice",
        ("HTTP-7",),
        post({**modern("notifications/cancelled")[0]}, message("notifications/cancelled", {"requestId": 1})),
        202,
    ),
    Case(
        "a notice of another method",
        (),
        post(modern("notifications/cancelled")[0], message("notifications/other", {})),
        400,
        -32020,
    ),
    Case("an answer", (), post(ECHO[0], message(id=1, result={})), 400, -32600),
    Case("a batch", (), post(ECHO[0], b"[" + ECHO[1] + b"]"), 400, -32600),
    Case("no version header", ("HTTPM-16",), but(ECHO, "mcp-protocol-version"), 400, -32020),
    Case("another version header", ("HTTPM-16",), but(ECHO, MCP_Protocol_Version="2099-01-01"), 400, -32020),
    Case("an old version header", ("HTTPM-16",), but(ECHO, MCP_Protocol_Version=OLD), 400, -32020),
    Case(
        "a version that nobody speaks",
        ("HTTPM-17", "VER-1"),
        but(facts(protocolVersion="2099-01-01"), MCP_Protocol_Version="2099-01-01"),
        400,
        -32022,
    ),
    Case(
        "an old version in both",
        ("HTTPM-17", "VER-1"),
        but(facts(protocolVersion=OLD), MCP_Protocol_Version=OLD),
        400,
        -32022,
    ),
    Case("no version in _meta", (), post(*facts(protocolVersion=None)), 400, -32602),
    Case("no capabilities in _meta", (), post(*facts(clientCapabilities=None)), 400, -32602),
    Case("no Mcp-Method", ("HDR-25",), but(ECHO, "mcp-method"), 400, -32020),
    Case("another Mcp-Method", ("HDR-25",), but(ECHO, Mcp_Method="tools/list"), 400, -32020),
    Case("Mcp-Method in capitals", ("HDR-27",), but(ECHO, Mcp_Method="Tools/Call"), 400, -32020),
    Case(
        "Mcp-Method twice",
        ("HDR-25",),
        post([*ECHO[0].items(), ("Mcp-Method", "tools/call")], ECHO[1]),
        400,
        -32020,
    ),
    Case(
        "names of headers in capitals",
        ("HDR-27",),
        post({name.upper(): value for name, value in ECHO[0].items()}, ECHO[1]),
        200,
    ),
    Case("no Mcp-Name", ("HDR-25",), but(ECHO, "mcp-name"), 400, -32020),
    Case("another Mcp-Name", ("HDR-25",), but(ECHO, Mcp_Name="Echo"), 400, -32020),
    Case("Mcp-Name in Base64", ("HDR-20",), but(ECHO, Mcp_Name=based("echo")), 200),
    Case("Mcp-Name in bad Base64", ("HDR-25",), but(ECHO, Mcp_Name="=?base64?ZWNobw?="), 400, -32020),
    Case(
        "Mcp-Name in Base64 in capitals",
        ("HDR-19",),
        but(ECHO, Mcp_Name=based("echo").replace("base64", "BASE64")),
        400,
        -32020,
    ),
    Case(
        "no Mcp-Name of a resource",
        ("HDR-25",),
        but(modern("resources/read", {"uri": "kitchen://menu"}), "mcp-name"),
        400,
        -32020,
    ),
    Case("a resource", (), post(*modern("resources/read", {"uri": "kitchen://menu"})), 200),
    Case("Mcp-Param", (), routed(HEADED, region="eu"), 200),
    Case("Mcp-Param missing", ("HDR-23",), routed({}, region="eu"), 400, -32020),
    Case(
        "Mcp-Param of another value",
        ("HDR-25",),
        routed({"Mcp-Param-Region": "us"}, region="eu"),
        400,
        -32020,
    ),
    Case(
        "Mcp-Param in other capitals",
        ("HDR-27",),
        routed({"Mcp-Param-Region": "EU"}, region="eu"),
        400,
        -32020,
    ),
    Case(
        "Mcp-Param in Base64",
        ("HDR-20",),
        routed({"Mcp-Param-Region": based("Zürich")}, region="Zürich"),
        200,
    ),
    Case(
        "Mcp-Param of raw bytes",
        ("HDR-24",),
        routed({"Mcp-Param-Region": "Z\xfcrich"}, region="Zürich"),
        400,
        -32020,
    ),
    Case(
        "Mcp-Param twice",
        ("HDR-25",),
        post(
            [*routed(HEADED, region="eu")[2].items(), ("Mcp-Param-Region", "eu")], routed({}, region="eu")[3]
        ),
        400,
        -32020,
    ),
    Case("a number", ("HDR-26",), routed({**HEADED, "Mcp-Param-Floor": "3"}, region="eu", floor=3), 200),
    Case(
        "a number as another",
        ("HDR-26",),
        routed({**HEADED, "Mcp-Param-Floor": "3.0"}, region="eu", floor=3),
        200,
    ),
    Case(
        "another number",
        ("HDR-25",),
        routed({**HEADED, "Mcp-Param-Floor": "4"}, region="eu", floor=3),
        400,
        -32020,
    ),
    Case("a truth", ("HDR-25",), routed({**HEADED, "Mcp-Param-Open": "true"}, region="eu", open=True), 200),
    Case(
        "a truth in capitals",
        ("HDR-27",),
        routed({**HEADED, "Mcp-Param-Open": "True"}, region="eu", open=True),
        400,
        -32020,
    ),
    Case("null has no header", ("HDR-22",), routed(HEADED, region="eu", floor=None), 200),
    Case(
        "a header for nothing",
        ("HDR-25",),
        routed({**HEADED, "Mcp-Param-Floor": "1"}, region="eu"),
        400,
        -32020,
    ),
    Case("a header that nobody asked for", (), but(ECHO, Mcp_Param_Other="x"), 200),
    Case("unknown method", ("HTTPM-18",), post(*modern("no/such")), 404, -32601),
    Case(
        "method that is not offered",
        ("HTTPM-18",),
        post(
            *modern(
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}},
            )
        ),
        404,
        -32601,
    ),
    *[
        Case(f"{method} is of another era", ("HTTPM-18",), post(*modern(method, params)), 404, -32601)
        for method, params in (
            ("initialize", json.loads(opening())["params"]),
            ("ping", {}),
            ("logging/setLevel", {"level": "info"}),
            ("resources/subscribe", {"uri": "kitchen://menu"}),
            ("resources/unsubscribe", {"uri": "kitchen://menu"}),
            ("tasks/list", {}),
            ("tasks/result", {"taskId": "x"}),
        )
    ],
    Case("unknown tool", (), post(*modern("tools/call", call("none"))), 200, -32602),
    Case("params of another type", (), post(*modern("tools/list", {"cursor": 5})), 200, -32602),
    Case("a session id means nothing", ("HTTPM-21",), but(ECHO, Mcp_Session_Id="any"), 200),
    Case("nor does an event", ("HTTPM-22",), but(ECHO, Last_Event_ID="any"), 200),
    # ---- sessions
    Case("initialize", ("HTTPL-1",), post(legacy(revision=None), opening()), 200),
    Case("initialize with the header", (), post(legacy(), opening()), 200),
    Case(
        "initialize that cannot be read",
        (),
        post(legacy(), message("initialize", {"protocolVersion": 5}, 0)),
        200,
        -32602,
    ),
    Case("no session", ("HTTPL-26",), post(legacy(), PING), 400, -32600, "initialize"),
    Case("a notice without a session", ("HTTPL-26", "HTTP-8"), post(legacy(), NOTE), 400, -32600),
    Case("an answer without a session", ("HTTP-8",), post(legacy(), message(id=1, result={})), 400, -32600),
    Case("GET without a session", ("HTTPL-26",), ("GET", "/mcp", LISTENS, None), 400, -32600),
    Case("DELETE without a session", ("HTTPL-26",), ("DELETE", "/mcp", {}, None), 400, -32600),
    Case("unknown session", ("HTTPL-27",), post(legacy("x" * 32), PING), 404, -32600, "initialize"),
    Case(
        "GET of an unknown session",
        ("HTTPL-27",),
        ("GET", "/mcp", {**LISTENS, "Mcp-Session-Id": "x"}, None),
        404,
    ),
    Case(
        "DELETE of an unknown session", ("HTTPL-27",), ("DELETE", "/mcp", {"Mcp-Session-Id": "x"}, None), 404
    ),
    Case("initialize in an unknown session", ("HTTPL-27",), post(legacy("x"), opening()), 404),
    Case("session id that can be none", (), post(legacy("a b"), PING), 400, -32600),
    Case("GET with such an id", (), ("GET", "/mcp", {**LISTENS, "Mcp-Session-Id": "a b"}, None), 400, -32600),
    Case(
        "session id twice",
        (),
        post([*legacy(SESSION).items(), ("Mcp-Session-Id", SESSION)], PING),
        400,
        -32600,
    ),
    Case("key of another kind", (), post(legacy(f"{SESSION}/reader"), PING), 404, -32600),
    Case("a ping", ("HTTPL-1", "HTTP-9"), post(legacy(SESSION), PING), 200),
    Case("a notice in a session", ("HTTP-7",), post(legacy(SESSION), NOTE), 202),
    Case("an answer in a session", ("HTTP-7",), post(legacy(SESSION), message(id=99, result={})), 202),
    Case("DELETE", (), ("DELETE", "/mcp", legacy(SESSION), None), 200),
    Case("initialize once more", (), post(legacy(SESSION), opening(id=5)), 200),
    Case("unknown method in a session", (), post(legacy(SESSION), message("no/such", id=1)), 200, -32601),
    Case(
        "GET that takes no events",
        (),
        ("GET", "/mcp", {"Accept": "application/json", "Mcp-Session-Id": SESSION}, None),
        406,
    ),
    Case(
        "an event of no stream",
        (),
        ("GET", "/mcp", {**LISTENS, "Mcp-Session-Id": SESSION, "Last-Event-ID": "x.y"}, None),
        400,
    ),
    Case(
        "an event of nonsense",
        (),
        ("GET", "/mcp", {**LISTENS, "Mcp-Session-Id": SESSION, "Last-Event-ID": "/"}, None),
        400,
    ),
    Case("no version header in a session", ("HTTPL-32",), post(legacy(SESSION, None), PING), 200),
    Case("a version that we speak", (), post(legacy(SESSION, OLDER), PING), 200),
    Case("a version of nonsense", ("HTTPL-33",), post(legacy(SESSION, "banana"), PING), 400),
    Case(
        "a version of nonsense on GET",
        ("HTTPL-33",),
        ("GET", "/mcp", {**LISTENS, **legacy(SESSION, "banana"), **LISTENS}, None),
        400,
    ),
    Case(
        "a version of nonsense on DELETE",
        ("HTTPL-33",),
        ("DELETE", "/mcp", legacy(SESSION, "banana"), None),
        400,
    ),
    # ---- batches
    Case("batch in the revision of batches", (), post(legacy(SESSION, FIRST), BATCH), 200, opens=FIRST),
    Case("batch without a header", (), post(legacy(SESSION, None), BATCH), 200, opens=FIRST),
    Case(
        "batch in a session of another",
        (),
        post(legacy(SESSION, None), BATCH),
        400,
        -32600,
        opens=OLD,
    ),
    Case("batch with another header", (), post(legacy(SESSION), BATCH), 400, -32600),
    Case(
        "batch of notices",
        ("HTTP-7",),
        post(legacy(SESSION, FIRST), b"[%b,%b]" % (NOTE, NOTE)),
        202,
        opens=FIRST,
    ),
    Case("batch of nothing", (), post(legacy(SESSION, FIRST), b"[]"), 400, -32600, opens=FIRST),
    Case("batch of nonsense", (), post(legacy(SESSION, FIRST), b"[1]"), 400, -32600, opens=FIRST),
    Case(
        "batch of some nonsense", (), post(legacy(SESSION, FIRST), b"[%b,1]" % PING), 400, -32600, opens=FIRST
    ),
    Case("batch that is no JSON", (), post(legacy(SESSION, FIRST), b"[1"), 400, -32600, opens=FIRST),
    Case("batch without a session", ("HTTPL-26",), post(legacy(revision=FIRST), BATCH), 400, -32600),
    # ---- JSON only, and no sessions
    Case("JSON only", ("HTTP-9",), but(ECHO, Accept="application/json"), 200, web={"json_only": True}),
    Case("without sessions: a ping", (), post(legacy(), PING), 200, web={"stateless": True}),
    Case("without sessions: initialize", (), post(legacy(), opening()), 200, web={"stateless": True}),
    Case("without sessions: a notice", ("HTTP-7",), post(legacy(), NOTE), 202, web={"stateless": True}),
    Case(
        "without sessions: an answer",
        (),
        post(legacy(), message(id=1, result={})),
        202,
        web={"stateless": True},
    ),
    Case("without sessions: any id", (), post(legacy("any"), PING), 200, web={"stateless": True}),
    Case("without sessions: a batch", (), post(legacy(revision=FIRST), BATCH), 200, web={"stateless": True}),
    Case(
        "without sessions: batch of nonsense",
        (),
        post(legacy(revision=FIRST), b"[1,%b]" % PING),
        200,
        web={"stateless": True},
    ),
    Case(
        "without sessions: batch of nothing",
        (),
        post(legacy(revision=FIRST), b"[]"),
        400,
        -32600,
        web={"stateless": True},
    ),
    Case(
        "without sessions: batch of notices",
        (),
        post(legacy(revision=FIRST), b"[%b]" % NOTE),
        202,
        web={"stateless": True},
    ),
    Case(
        "without sessions: batch of another", (), post(legacy(), BATCH), 400, -32600, web={"stateless": True}
    ),
    # ---- HTTP+SSE
    Case("messages without a session", (), ("POST", "/messages", JSON, PING), 400, -32600, "session_id"),
    Case("messages of an unknown session", (), ("POST", "/messages?session_id=x", JSON, PING), 404, -32600),
    Case(
        "messages of another kind of session",
        (),
        ("POST", f"/messages?session_id={SESSION}", JSON, PING),
        404,
        -32600,
    ),
    Case(
        "messages that are no JSON",
        (),
        ("POST", "/messages?session_id=x", {"Content-Type": "text/plain"}, PING),
        415,
    ),
    Case(
        "messages may accept anything", (), ("POST", "/messages?session_id=x", {**JSON, **LISTENS}, PING), 404
    ),
    Case("stream that is not wanted", (), ("GET", "/sse", {"Accept": "application/json"}, None), 406),
    # ---- GET and DELETE of a revision without sessions
    *(
        Case(
            f"{verb} of a revision without sessions{suffix}",
            ("HTTPM-20",),
            (verb, "/mcp", {**LISTENS, "MCP-Protocol-Version": NEW}, None),
            405,
            -32600,
            "send each request with POST",
            has={"allow": "POST"},
            web=web,
        )
        for verb in ("GET", "DELETE")
        for suffix, web in (("", {}), (", HTTP+SSE at the same path", {"sse": "/mcp"}))
    ),
]


def _placed(value: Any, session: str) -> Any:
    return value.replace(SESSION, session) if isinstance(value, str) else value


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.requirement(*case.rules) if case.rules else ())
        for case in CASES
    ],
)
def test_status(case):
    async def main():
        async with hosted(kitchen(), **case.web) as site:
            verb, target, headers, body = case.send
            session = ""
            if SESSION in f"{target}{headers}":
                session = await site.open(case.opens)
            pairs = headers.items() if isinstance(headers, dict) else headers
            sent = [(name, _placed(value, session)) for name, value in pairs]
            answer = await site.ask(verb, _placed(target, session), sent, body, **case.more)
            assert answer.status == case.status, answer
            if case.code is not None:
                assert answer.code == case.code
                assert case.says in answer.text
            elif answer.status in {202, 204}:
                assert answer.body == b""
            elif answer.status == 200 and answer.body and "jsonrpc" in answer.body.decode():
                assert b'"error"' not in answer.body or case.name.endswith("batch of nonsense")
            for name, value in case.has.items():
                assert answer.headers.get(name) == value

    run(main)


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


# --------------------------------------------------------------------- cases outside the table


def test_the_id_of_an_unusable_message():
    """An error repeats the id if it could be read, and has none otherwise; it is never null."""

    async def main():
        async with hosted(kitchen()) as site:
            bad = await site.post(legacy(), b'{"jsonrpc":"1.0","id":7,"method":"ping"}')
            assert bad.json["id"] == 7
            worse = await site.post(legacy(), b"{nonsense")
            assert "id" not in worse.json
            lost = await site.post(*modern("no/such", id="abc"))
            assert lost.json["id"] == "abc"

    run(main)


@pytest.mark.requirement("HTTP-2")
def test_refusals_are_logged_once_each(caplog):
    async def main():
        async with hosted(kitchen()) as site:
            for origin in ("https://a.example", "https://b.example", "https://a.example"):
                refused = await site.post({**ECHO[0], "Origin": origin}, ECHO[1])
                assert refused.status == 403
                assert "id" not in refused.json

    with caplog.at_level(logging.WARNING, "toolpost.http"):
        run(main)
    assert [record.name for record in caplog.records] == ["toolpost.http"] * 2
    assert "https://a.example" in caplog.text


@pytest.mark.requirement("HTTPL-22", "HTTPL-23", "HTTP-9")
def test_initialize_gives_a_session_id():
    async def main():
        async with hosted(kitchen()) as site:
            answers = [await site.post(legacy(revision=None), opening(date)) for date in SESSIONS_ONLY]
            ids = {answer.headers["mcp-session-id"] for answer in answers}
            assert len(ids) == len(SESSIONS_ONLY)
            assert all(len(each) >= 32 and each.isascii() and each.isprintable() for each in ids)
            assert [answer.json["result"]["protocolVersion"] for answer in answers] == SESSIONS_ONLY

    run(main)


def test_a_handshake_that_fails_gives_no_session():
    async def main():
        async with hosted(kitchen()) as site:
            answer = await site.post(legacy(), message("initialize", {"protocolVersion": 5}, 0))
            assert "mcp-session-id" not in answer.headers

    run(main)


@pytest.mark.requirement("HTTPM-20", "HTTPM-21", "HTTPM-19", "VER-8", "HTTPM-17")
def test_a_server_of_the_stateless_era_only():
    async def main():
        async with hosted(kitchen(revisions=[NEW])) as site:
            for verb in ("GET", "DELETE"):
                answer = await site.ask(verb, "/mcp", {**LISTENS, "Mcp-Session-Id": "any"})
                assert (answer.status, answer.headers["allow"]) == (405, "POST")
            unnamed = await site.post(legacy(revision=None), PING)
            assert (unnamed.status, unnamed.code) == (400, -32020)
            old = await site.post(legacy(), PING)
            assert (old.status, old.code) == (400, -32022)
            hello = await site.post(legacy(revision=None), opening())
            assert hello.json["error"]["data"]["supported"] == [NEW]
            served = await site.post({**ECHO[0], "Mcp-Session-Id": "any"}, ECHO[1])
            assert served.status == 200
            assert "mcp-session-id" not in served.headers
            assert (await site.ask("GET", "/sse", LISTENS)).status == 404

    run(main)


@pytest.mark.requirement("HTTPM-17", "VER-1", "DISC-1", "DISC-2", "VER-3")
def test_versions_are_shown():
    async def main():
        async with hosted(kitchen()) as site:
            said = (await site.post(*modern("server/discover"))).json["result"]
            assert said["resultType"] == "complete"
            assert said["supportedVersions"]
            assert {"capabilities", "ttlMs", "cacheScope"} <= said.keys()
            assert said["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "kitchen"
            wrong = but(facts(protocolVersion="2099-01-01"), MCP_Protocol_Version="2099-01-01")
            refused = (await site.ask(*wrong)).json["error"]["data"]
            assert refused["requested"] == "2099-01-01"
            assert set(refused["supported"]) <= set(said["supportedVersions"])

    run(main)


def test_batches_are_answered_as_batches():
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open(FIRST)
            answer = await site.post(legacy(session, FIRST), BATCH)
            assert sorted(each["id"] for each in answer.json) == ["a", "b"]
            mixed = b"[%b,%b]" % (NOTE, message("tools/call", call("echo", text="x"), "c"))
            answer = await site.post(legacy(session, FIRST), mixed)
            assert [each["id"] for each in answer.json] == ["c"]
        async with hosted(kitchen(), stateless=True) as site:
            answer = await site.post(legacy(revision=FIRST), b"[1,%b]" % PING)
            assert [each.get("id") for each in answer.json] == [None, 1]

    run(main)


def test_a_connection_serves_many_requests():
    async def main():
        async with hosted(kitchen()) as site:
            wire = await site.wire()
            for number in range(3):
                headers, body = modern("tools/call", call("echo", text=str(number)), number)
                await wire.ask("POST", "/mcp", headers, body)
                assert (await wire.answer()).json["id"] == number
            # Two at once, the second before the first is answered.
            await wire.ask("POST", "/mcp", *ECHO)
            await wire.ask("POST", "/mcp", *ECHO)
            assert [(await wire.answer()).status for _ in range(2)] == [200, 200]
            # A refusal does not end the connection, except where the rest of the body would be left.
            await wire.ask("POST", "/mcp", legacy(), b"{")
            assert (await wire.answer()).status == 400
            await wire.ask("POST", "/mcp", *ECHO)
            assert (await wire.answer()).status == 200

    run(main)


@pytest.mark.parametrize("told", [True, False], ids=["length", "chunks"])
def test_an_oversized_request_gets_the_reason(told):
    """The answer arrives although the client has not sent everything yet."""

    async def main():
        async with hosted(kitchen(), max_body=1000) as site:
            wire = await site.wire()
            size = 2500 if told else 1500
            headers = {
                **legacy(),
                **({"Content-Length": str(size)} if told else {"Transfer-Encoding": "chunked"}),
            }
            await wire.ask("POST", "/mcp", headers)
            half = b" " * (size // 2)
            await wire.send(half if told else b"%x\r\n%b\r\n" % (len(half), half))
            await wire.send(half if told else b"%x\r\n%b\r\n0\r\n\r\n" % (len(half), half))
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (413, "close")
            assert await wire.ended()

    run(main)


def test_an_expect_header_with_a_large_body_is_rejected():
    async def main():
        async with hosted(kitchen(), max_body=1000) as site:
            wire = await site.wire()
            await wire.ask("POST", "/mcp", {**legacy(), "Content-Length": "5000", "Expect": "100-continue"})
            assert (await wire.answer()).status == 413

    run(main)


def test_a_silent_client_is_not_awaited():
    """An incomplete body is not an error of the server, and is not logged."""

    async def main():
        async with hosted(kitchen()) as site:
            wire = await site.wire()
            await wire.ask("POST", "/mcp", {**legacy(), "Content-Length": "100"})
            await wire.send(b"{")
            await wire.abort()
            wire = await site.wire()
            await wire.ask("POST", "/mcp", {**legacy(), "Content-Length": "9999999"})
            await wire.abort()

    run(main)


@pytest.mark.requirement("HTTP-9")
def test_json_only_leaves_notifications_out():
    async def main():
        async with hosted(kitchen(), json_only=True) as site:
            headers, body = modern("tools/call", call("steps", count=3), meta={"progressToken": 1})
            answer = await site.post(headers, body)
            assert answer.json["result"]["content"][0]["text"] == "done"
            session = await site.open(capabilities={"elicitation": {}})
            params = {**call("steps", count=3), "_meta": {"progressToken": 1}}
            answer = await site.post(legacy(session), message("tools/call", params, 5))
            assert answer.json["result"]["content"][0]["text"] == "done"
            asked = await site.post(legacy(session), message("tools/call", call("asked"), 6))
            assert "plain JSON" in json.dumps(asked.json)

    run(main)


def test_json_only_streams_are_not_interrupted():
    async def main():
        stage = Stage()
        stage.go.set()
        async with hosted(kitchen(stage), json_only=True) as site:
            session = await site.open()
            answer = await site.post(legacy(session), message("tools/call", call("polled"), 5))
            assert answer.json["result"]["content"][0]["text"] == "polled"

    run(main)


@pytest.mark.requirement("HTTP-9")
def test_without_sessions_notifications_come_before_the_answer():
    async def main():
        async with hosted(kitchen(), stateless=True) as site:
            params = {**call("steps", count=2), "_meta": {"progressToken": "t"}}
            wire, head = await site.begin("POST", legacy(), message("tools/call", params, 5))
            assert head.headers["content-type"] == "text/event-stream"
            events = await wire.events()
            assert [event.json.get("method") for event in events] == ["notifications/progress"] * 2 + [None]
            assert events[-1].json["id"] == 5
            # The stream cannot be resumed, so its events have no ids.
            assert {event.id for event in events} == {None}

    run(main)


@pytest.mark.parametrize("name", ["quiet", "blocked"])
def test_without_sessions_a_batch_ends_with_its_client_whichever_part_is_served(name):
    async def main():
        stage = Stage()
        server = kitchen(stage)

        @server.tool
        async def slow() -> str:
            await asyncio.sleep(0.2)  # longer than the 0.1 s after which a request is watched
            return "slow"

        async with hosted(server, stateless=True) as site:
            wire = await site.wire()
            parts = [message("tools/call", call(each), number) for number, each in enumerate(["slow", name])]
            await wire.ask("POST", "/mcp", legacy(None, FIRST), b"[%b,%b]" % tuple(parts))
            await stage.begun.wait()
            await wire.abort()
            await (stage.ended if name == "quiet" else stage.thread_saw_cancel).wait()

    run(main)


def test_without_sessions_no_client_can_be_asked():
    async def main():
        async with hosted(kitchen(), stateless=True) as site:
            answer = await site.post(legacy(), message("tools/call", call("asked"), 5))
            assert answer.status == 200
            assert "error" in answer.json or answer.json["result"]["isError"]

    run(main)


@pytest.mark.parametrize(
    ("web", "named"),
    [
        ({"path": "mcp"}, "path"),
        ({"sse": "sse"}, "sse"),
        ({"messages": "/mcp"}, "messages"),
        ({"health": "/sse"}, "health"),
        ({"idle": 0}, "idle"),
        ({"idle": float("inf")}, "idle"),
        ({"handshake": -1}, "handshake"),
        ({"session_life": 0}, "session_life"),
        ({"max_body": 0}, "max_body"),
        ({"drain": -1}, "drain"),
        ({"public_url": "mcp.example.com"}, "public_url"),
        ({"allowed_hosts": ["http://x"]}, "allowed_hosts"),
    ],
)
def test_settings_that_cannot_work(web, named):
    with pytest.raises(ValueError, match=named):
        kitchen().asgi(**web)


def test_a_setting_that_there_is_not():
    with pytest.raises(TypeError, match="nonsense"):
        kitchen().asgi(nonsense=1)  # pyright: ignore[reportCallIssue] - that is the point


def test_the_principal_is_requested_for_each_request():
    async def main():
        def principal(scope):
            raise RuntimeError("no idea")

        async with hosted(kitchen(), principal=principal) as site:
            answer = await site.post(*ECHO)
            assert (answer.status, answer.code) == (500, -32603)
            assert b"no idea" not in answer.body

    run(main)


def test_a_websocket_is_turned_away():
    async def main():
        sent: list[Any] = []

        async def send(event):
            sent.append(event)

        async def receive():
            return {"type": "websocket.connect"}

        await kitchen().asgi()({"type": "websocket"}, receive, send)
        assert sent[0]["type"] == "websocket.close"

    run(main)


def test_mounted_paths_are_named():
    async def main():
        app = Server("s").asgi()
        sent: list[Any] = []

        async def send(event):
            sent.append(event)

        async def receive():
            await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "path": "/api/x", "root_path": "/api/", "headers": []}
        await app(scope, receive, send)
        assert sent[0]["status"] == 404
        assert b"the MCP endpoint is /api/mcp" in sent[1]["body"]

    run(main)
