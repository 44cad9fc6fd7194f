"""The validator of all messages: what it records and accepts, and that an invalid message fails the test."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import recording
from pair import open_pair
from recording import Judge, Said
from toolpost import types
from toolpost.errors import InvalidParams
from toolpost.types import Raw

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def judge(schemas):
    return Judge(schemas)


@pytest.fixture
def heard(spec, monkeypatch):
    """Return a function that takes the recorded messages, which are not validated."""
    monkeypatch.setattr(recording, "pending", {})
    monkeypatch.setattr(recording, "waiting", {})
    monkeypatch.setattr(recording, "_valid", set())

    def take() -> list[tuple[str, ...]]:
        noted = [*recording.pending.values(), *recording.waiting.values()]
        recording.pending.clear()
        recording.waiting.clear()
        return [(said.way, said.by, said.kind, said.method) for said in noted]

    return take


# --------------------------------------------------------------------- what is received


def test_messages_of_both_ends_are_recorded(heard):
    open_pair("2025-11-25")
    assert sorted(heard()) == [
        ("received", "client", "notice", "notifications/initialized"),
        ("received", "client", "request", "initialize"),
        ("received", "server", "result", "initialize"),
        ("sent", "client", "notice", "notifications/initialized"),
        ("sent", "client", "request", "initialize"),
        ("sent", "server", "result", "initialize"),
    ]


def test_equal_messages_are_validated_once_with_any_id(heard):
    pair = open_pair("2025-11-25")
    heard()
    for _ in range(3):
        pair.client.request("tools/list")
    assert heard() == [("sent", "client", "request", "tools/list")]


def test_a_notification_of_another_revision_is_judged_by_that_one(heard):
    server = open_pair("2026-07-28").server
    heard()
    server.lifecycle.state = "greeted"
    server.receive(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    [said] = recording.pending.values()
    assert said.date == "2025-11-25"


def test_a_request_that_is_refused_later_was_not_accepted(heard):
    pair = open_pair("2025-11-25")
    _, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
    pair.server.fail(incoming.id, InvalidParams("no"))
    assert ("received", "client", "request", "tools/call") not in heard()


def test_an_id_that_is_used_again_hides_no_request(heard):
    server = open_pair("2025-11-25").server
    heard()
    for cursor in ("a", "b"):
        params = {"cursor": cursor}
        server.receive(
            json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": params}).encode()
        )
        server.reply(7, types.ListToolsResult(tools=[]))
    assert heard().count(("received", "client", "request", "tools/list")) == 2


def test_raw_messages_of_a_test_are_not_validated(heard):
    pair = open_pair("2025-11-25")
    heard()
    pair.client.request("tools/call", {"name": 5})
    assert heard() == []
    _, incoming = pair.ask("tools/list")
    heard()
    pair.server.notify("notifications/message", {"level": 5})
    pair.server.reply(incoming.id, Raw(b"[]"))
    assert heard() == []


# --------------------------------------------------------------------- how it is judged


def said(
    kind: str, method: str, body: Any, *, date: str = "2026-07-28", by: Any = "server", way="sent"
) -> Said:
    identity = None if kind == "notice" else int
    return Said(way, date, by, kind, method, identity, b"" if body is None else json.dumps(body).encode())


TASK = {"taskId": "t", "status": "working", "createdAt": "a", "lastUpdatedAt": "b", "ttl": None}
OLD = "2025-11-25"
CACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

FITTING = [
    said("request", "tools/call", {"name": "t"}, date=OLD, by="client"),
    said("request", "ping", None, date=OLD),
    said("request", "x/own", {"anything": 1}, date=OLD),
    said("notice", "notifications/x", None),
    said("notice", "notifications/cancelled", {"requestId": 1}, by="client"),
    said("result", "tools/list", {**CACHED, "tools": []}),
    said("result", "tools/call", {"resultType": "input_required", "requestState": "s"}),
    said("result", "tools/call", {"resultType": "ticket", "ticket": "7"}),
    said("result", "tools/call", {"task": TASK}, date=OLD),
    said("result", "tools/call", {"content": [], "resultType": "input_required"}, date=OLD),
    said("result", "x/own", {"resultType": "complete"}),
    said("error", "", {"code": -32022, "message": "", "data": {"supported": [], "requested": ""}}),
    said("error", "", {"code": -32022, "message": ""}, date=OLD),
]

UNFIT = [
    (said("request", "tools/call", {}, by="client", date=OLD), '"name" is a required property'),
    (said("request", "tools/call", {"name": "t"}, date=OLD), "'tools/call' is not one of them at ['method']"),
    (said("notice", "notifications/initialized", None, date=OLD), "ServerNotification: 'notifications/init"),
    (said("request", "x/own", [], date=OLD), 'is not of type "object"'),
    (said("notice", "notifications/progress", {"progress": 1}), '"progressToken" is a required property'),
    (said("result", "tools/list", {"tools": []}), '"ttlMs" is a required property'),
    (said("result", "tools/call", {"task": {}}, date=OLD), "CreateTaskResult: "),
    (said("result", "tools/call", {"content": [{"type": "hologram"}]}, date=OLD), "is not valid under any"),
    (said("result", "tools/call", [], date=OLD), 'is not of type "object"'),
    (said("result", "x/own", {}), '"resultType" is a required property'),
    (said("error", "", {"code": 1.5, "message": ""}), 'is not of type "integer"'),
    (said("error", "", {"code": -32022, "message": ""}), '"data" is a required property'),
]


@pytest.mark.parametrize("fitting", FITTING)
def test_valid_messages_are_accepted(judge, fitting):
    assert judge.complaints(fitting) == []


@pytest.mark.parametrize(("unfit", "complaint"), UNFIT)
def test_mismatches_are_reported(judge, unfit, complaint):
    complaints = judge.complaints(unfit)
    assert any(complaint in each and each.startswith(unfit.date) for each in complaints), complaints


QUESTION = {"q": {"method": "elicitation/create", "params": {"message": "?"}}}

EXCUSED = [
    said("result", "x/own", {}, way="received"),
    said("result", "tools/list", {"resultType": "complete", "tools": []}, way="received"),
    said("result", "tools/list", {**CACHED, "ttlMs": -5, "tools": []}, way="received"),
    said(
        "result",
        "server/discover",
        {
            **CACHED,
            "supportedVersions": [],
            "capabilities": {},
            "_meta": {"io.modelcontextprotocol/serverInfo": 5},
        },
        way="received",
    ),
    said("result", "tools/list", {**CACHED, "tools": [7]}, way="received"),
    said("result", "subscriptions/listen", {"resultType": "complete"}, way="received"),
    said("result", "tools/call", {"resultType": "input_required", "inputRequests": QUESTION}, way="received"),
    said("request", "tools/call", {"name": "t", "arguments": []}, date=OLD, by="client", way="received"),
    said("request", "tools/list", {"cursor": None}, date=OLD, by="client", way="received"),
    said("notice", "notifications/message", {"level": "info", "data": 1, "logger": None}, way="received"),
    said("result", "tools/list", {"tools": [], "nextCursor": None}, date=OLD, way="received"),
    said("error", "", {"code": -32021, "message": "", "data": 7}, way="received"),
    said("request", "resources/read", {"uri": "u"}, date=OLD, by="client"),
    said("request", "resources/read", {"uri": "u"}, date=OLD, by="client", way="received"),
    said("notice", "notifications/resources/updated", {"uri": "u"}),
    said("notice", "notifications/resources/updated", {"uri": "u"}, way="received"),
    said("result", "resources/list", {"resources": [{"uri": "u", "name": ""}]}, date=OLD),
    said("result", "roots/list", {"roots": [{"uri": "u"}]}, date=OLD, by="client", way="received"),
    said("result", "tools/list", {"tools": [{"name": "t", "inputSchema": {}}]}, date=OLD),
    said("error", "", {"code": -32700, "message": ""}, date="2024-11-05")._replace(id=None),
    said(
        "request",
        "tools/call",
        {
            "name": "t",
            "inputResponses": {"a": 7},
            "_meta": {types.PROTOCOL_VERSION: "2026-07-28", types.CLIENT_CAPABILITIES: {}},
        },
        by="client",
        way="received",
    ),
]
"""One message for each excuse."""


@pytest.mark.parametrize("excused", EXCUSED)
def test_excused_messages_fail_no_test(judge, excused):
    assert judge.complaints(excused) == []


def test_every_excuse_excuses_something(judge, monkeypatch):
    excuses = [*recording.LENIENT, *recording.WAIVED]
    for excuse in excuses:
        for table in ("LENIENT", "WAIVED"):
            monkeypatch.setattr(recording, table, [each for each in excuses if each is not excuse])
        assert any(map(judge.complaints, EXCUSED)), f"nothing needs {excuse}"


# --------------------------------------------------------------------- that the test fails

TESTS = """
from pair import open_pair
from toolpost import types

def say(text):
    pair = open_pair("2025-11-25")
    _, incoming = pair.ask("tools/call", types.CallToolParams(name="t"))
    pair.server.reply(incoming.id, types.CallToolResult(content=[types.TextContent(text)]))

def test_says_what_fits(): say("text")
def test_says_what_does_not(): say(5)
def test_says_it_again(): say(5)
def test_is_not_blamed_for_another(): pass
"""


@pytest.fixture
def inner(pytester, monkeypatch):
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    tests = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), str(tests / "support")]))
    pytester.makeconftest('pytest_plugins = ["recording"]')
    pytester.makepyfile(TESTS)
    return pytester


def test_a_test_that_sends_an_invalid_message_fails(spec, inner):
    result = inner.runpytest_subprocess()
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(
        [
            "messages that the official schema does not allow:",
            "sent by the server in 2025-11-25 result tools/call",
            "  2025-11-25 CallToolResult: * is not valid under any *",
            '  {"content":*"text":5*',
        ]
    )


def test_without_the_specification_nothing_is_judged(inner, tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLPOST_SPEC", str(tmp_path))
    inner.runpytest_subprocess().assert_outcomes(passed=4)
