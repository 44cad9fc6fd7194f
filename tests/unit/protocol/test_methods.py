"""The rows of methods agree with the five official schemas, and results are decoded by their type."""

import json
from typing import get_args, get_type_hints

import pytest
from msgspec.structs import fields

from official_schema import Official
from pair import open_pair
from toolpost.errors import RemoteProtocolError
from toolpost.protocol.events import ErrorReceived, ResponseReceived
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import (
    ALWAYS,
    CLIENT,
    DATES,
    EARLY_REQUESTS,
    ELICITATION,
    ROWS,
    SERVER,
    SESSION,
    STATELESS,
    TASKS,
    PlainToolResult,
    Row,
    Span,
    suggest_method,
)
from toolpost.protocol.revisions import REVISIONS
from toolpost.types import (
    CallToolParams,
    CallToolResult,
    ClientCapabilities,
    InputRequiredResult,
    ListToolsResult,
    NotificationParams,
    Raw,
    Result,
    ServerCapabilities,
    TaskParams,
    TaskPayload,
)
from toolpost.types.content import CONTENT_TYPES
from toolpost.types.initialize import CacheableResult

ROW = {row.name: row for row in ROWS}
UNIONS = [
    # what we call it, what the schemas call it
    ("requests", CLIENT, "ClientRequest"),
    ("requests", SERVER, "ServerRequest"),
    ("notifications", CLIENT, "ClientNotification"),
    ("notifications", SERVER, "ServerNotification"),
]


@pytest.fixture(scope="module")
def officials(schemas):
    return {date: Official(date, schema) for date, schema in schemas.items()}


# --------------------------------------------------------------------- the rows and the schemas


def test_there_are_34_methods():
    assert len(ROWS) == len(ROW) == 34


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize(("part", "role", "union"), UNIONS)
def test_methods_are_those_of_the_schema(officials, date, part, role, union):
    assert set(getattr(REVISIONS[date], part)[role]) == officials[date].methods(union)


@pytest.mark.parametrize("date", DATES)
def test_asks_are_those_of_the_schema(officials, date):
    assert set(REVISIONS[date].input_requests) == officials[date].methods("InputRequest")


def test_every_method_of_every_schema_has_a_row(officials):
    unions = [union for _, _, union in UNIONS] + ["InputRequest"]
    named = {
        method for official in officials.values() for union in unions for method in official.methods(union)
    }
    assert named == ROW.keys()


@pytest.mark.parametrize(
    "union", ["ClientRequest", "ServerRequest", "ClientNotification", "ServerNotification"]
)
def test_each_method_is_alive_in_one_unbroken_run(officials, union):
    """So one pair of dates describes the lifetime of a method."""
    for method in ROW:
        alive = "".join("1" if method in officials[date].methods(union) else "0" for date in DATES)
        assert "01" not in alive.lstrip("0"), f"{method} came back: {alive}"


@pytest.mark.parametrize("date", DATES)
def test_only_requests_that_may_ask_have_a_second_kind_of_result(officials, date):
    """MRTR-2: the schemas of the responses define which results may require input."""
    official = officials[date]
    for name, row in REVISIONS[date].requests[CLIENT].items():
        response = official.definitions.get(official.result(name) + "Response")
        if response is not None:
            asks = "anyOf" in response["properties"]["result"]
            assert row.can_require_input is asks
            assert set(row.results) - {None} == ({"complete", "input_required"} if asks else {"complete"})


@pytest.mark.requirement("CACHE-1")
def test_cacheable_results_are_those_of_the_schema(officials):
    official = officials[DATES[-1]]
    for name, row in REVISIONS[DATES[-1]].requests[CLIENT].items():
        members = official.definitions[official.result(name)].get("properties", {})
        assert row.result is not None
        assert issubclass(row.result, CacheableResult) is row.is_cacheable is ("ttlMs" in members), name
    assert not ROW["tasks/list"].is_cacheable


def test_names_that_http_mirrors():
    mirrored = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
    assert {row.name: row.named for row in ROWS if row.named} == mirrored
    assert {row.name: row.member for row in ROWS if row.member} == mirrored


def test_methods_allowed_before_the_handshake_completes():
    notifications = {"initialized", "cancelled", "progress", "message"}
    assert {"initialize", "ping"} == EARLY_REQUESTS
    assert {row.name for row in ROWS if row.early} == EARLY_REQUESTS | {
        f"notifications/{name}" for name in notifications
    }


def test_only_requests_are_repeatable_and_only_notifications_are_listened_to():
    assert all(row.is_request for row in ROWS if row.repeatable)
    assert not any(row.is_request for row in ROWS if row.listened)
    assert not ROW["tools/call"].repeatable


@pytest.mark.parametrize("row", [row for row in ROWS if row.needs], ids=repr)
def test_a_capability_that_a_row_needs_exists(row):
    """A path that capabilities do not have would never be declared, and the method always rejected."""
    receivers = {CLIENT: ServerCapabilities, SERVER: ClientCapabilities}
    senders = {CLIENT: ClientCapabilities, SERVER: ServerCapabilities}
    for role in (CLIENT, SERVER):
        if getattr(row, role) or (role == SERVER and row.asked):
            kind = (receivers if row.result is not None else senders)[role]
            for name in row.needs.split("."):
                fields = get_type_hints(kind)
                assert name in fields
                kind = fields[name].__args__[0]


# --------------------------------------------------------------------- rows


def test_a_row_shows_its_name():
    assert repr(ROW["tools/call"]) == "<Row tools/call>"


def test_a_notification_has_no_result():
    row = Row("notifications/x", NotificationParams, server=ALWAYS)
    assert row.result is None
    assert row.results == {}
    assert not row.can_require_input


def test_a_custom_row():
    row = Row("com.example/x", TaskParams, Result, client=TASKS, needs="tools", named="task_id")
    assert (row.client, row.server, row.asked, row.needs) == (TASKS, None, None, "tools")
    assert (row.named, row.member) == ("task_id", "taskId")
    assert row.needs_since == DATES[0]
    assert set(row.results) == {"complete"}


SPANS = [
    # span, the revisions that it holds
    (ALWAYS, "11111"),
    (SESSION, "11110"),
    (STATELESS, "00001"),
    (TASKS, "00010"),
    (ELICITATION, "00110"),
    (Span(DATES[1], DATES[1]), "01000"),
]


@pytest.mark.parametrize(("span", "holds"), SPANS)
def test_a_span_holds_both_its_ends(span, holds):
    assert "".join(str(int(date in span)) for date in DATES) == holds


@pytest.mark.parametrize("date", ["2025-01-01", "", "2099-01-01", None])
def test_a_span_knows_only_revisions(date):
    """Dates are not compared as text: an unknown revision is a mistake."""
    with pytest.raises(ValueError, match="not in tuple"):
        assert date in ALWAYS


# --------------------------------------------------------------------- results


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.can_require_input])
def test_an_input_required_result_is_decoded(name):
    raw = Raw(b'{"resultType":"input_required","requestState":"s","new":1}')
    result = ROW[name].read_result(raw, "input_required")
    assert isinstance(result, InputRequiredResult)
    assert result.request_state == "s"
    assert result.raw == bytes(raw)


@pytest.mark.requirement("MSG-13")
@pytest.mark.parametrize("kind", ["task", "", "COMPLETE", "complete ", "input_required"])
def test_an_unknown_kind_of_result_is_refused(kind):
    with pytest.raises(RemoteProtocolError, match=f"unknown result type for tools/list: {kind!r}"):
        ROW["tools/list"].read_result(Raw(b'{"tools":[]}'), kind)


@pytest.mark.parametrize(
    ("name", "result", "path"),
    [
        ("tools/call", b"{}", "content"),
        ("tools/call", b'{"content":[5]}', "$.content[0]"),
        ("tools/list", b'{"tools":[{"name":"t"}]}', "$.tools[0]"),
        ("tools/list", b"[]", "object"),
        ("ping", b"null", "object"),
        ("ping", b'{"_meta":5}', "$._meta"),
    ],
)
def test_a_result_of_the_wrong_shape_is_refused(name, result, path):
    with pytest.raises(RemoteProtocolError, match=f"^invalid result for {name}: ") as caught:
        ROW[name].read_result(Raw(result), "complete")
    assert path in str(caught.value)
    assert caught.value.answer is None


SAID = [
    {"content": []},
    {"content": [{"type": "text", "text": "a", "_meta": {"k": 1}, "new": 1}]},
    {"content": [{"type": "text", "text": "a"}, {"type": "hologram", "rays": 2}], "isError": True},
    {
        "content": [{"type": "hologram"}],
        "structuredContent": None,
        "_meta": {"k": 1},
        "resultType": "complete",
    },
    {"content": [{"type": "tool_result", "toolUseId": "1", "content": [{"type": "hologram"}]}]},
    {
        "content": [{"type": "resource", "resource": {"uri": "a:", "text": ""}}],
        "structuredContent": {"a": [1]},
    },
    {
        "content": [],
        "structuredContent": 0,
        "isError": False,
        "_meta": {},
        "resultType": "complete",
        "new": 1,
    },
]


@pytest.mark.parametrize("said", SAID)
def test_both_readers_decode_a_tool_result_in_the_same_way(said):
    raw = Raw(json.dumps(said).encode())
    result = ROW["tools/call"].read_result(raw, "complete")
    assert type(result) is CallToolResult
    assert result == JSONReader(CallToolResult)(raw)
    assert result.raw == bytes(raw)


def test_the_short_way_knows_every_kind_and_every_member():
    [content, *_] = fields(PlainToolResult)
    assert set(get_args(get_args(content.type)[0])) == set(CONTENT_TYPES.values())
    assert [(each.name, each.encode_name) for each in fields(PlainToolResult)] == [
        (each.name, each.encode_name) for each in fields(CallToolResult)
    ]


def test_a_payload_is_whatever_was_asked_for():
    raw = Raw(b'{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"1"}}}')
    payload = ROW["tasks/result"].read_result(raw, "complete")
    assert isinstance(payload, TaskPayload)
    assert payload.raw is not None
    assert isinstance(ROW["tools/call"].read_result(Raw(payload.raw), "complete"), CallToolResult)


def test_a_row_may_learn_a_kind_of_result():
    """As an extension does, without changing the rows of others."""
    row = Row("tools/call", CallToolParams, CallToolResult, client=ALWAYS)
    row.results["task"] = JSONReader(Result)
    assert type(row.read_result(Raw(b'{"resultType":"task"}'), "task")) is Result
    assert "task" not in ROW["tools/call"].results


# --------------------------------------------------------------------- results that arrive


def answered(date, result):
    """Return the event of a client for the response to its `tools/list`."""
    pair = open_pair(date)
    outgoing = pair.client.request("tools/list")
    message = {"jsonrpc": "2.0", "id": outgoing.id, "result": result}
    [event] = pair.client.receive(json.dumps(message).encode())
    return event


@pytest.mark.requirement("MSG-12")
@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("result", [{"tools": []}, {"tools": [], "resultType": "complete"}])
def test_a_result_without_a_type_is_complete(date, result):
    event = answered(date, result)
    assert isinstance(event, ResponseReceived)
    assert isinstance(event.result, ListToolsResult)


@pytest.mark.requirement("MSG-13")
@pytest.mark.parametrize("kind", ["task", "input_required", "", "new"])
def test_a_result_of_an_unknown_type_makes_the_answer_invalid(kind):
    event = answered(DATES[-1], {"tools": [], "resultType": kind})
    assert isinstance(event, ErrorReceived)
    assert isinstance(event.error, RemoteProtocolError)
    assert repr(kind) in str(event.error)


@pytest.mark.parametrize("kind", [None, 5, ["complete"]])
def test_a_result_type_that_is_not_a_string_is_invalid(kind):
    event = answered(DATES[-1], {"tools": [], "resultType": kind})
    assert isinstance(event, ErrorReceived)
    assert isinstance(event.error, RemoteProtocolError)


@pytest.mark.parametrize("date", DATES[:-1])
def test_a_session_takes_the_type_for_one_member_of_many(date):
    event = answered(date, {"tools": [], "resultType": "whatever"})
    assert isinstance(event, ResponseReceived)
    assert event.result.raw is not None
    assert json.loads(event.result.raw)["resultType"] == "whatever"


@pytest.mark.parametrize(
    ("method", "hint"),
    [
        ("tools/lst", "did you mean tools/list?"),
        ("xyz", "a custom method needs a Row"),
        ("notifications/initialized", f"it is a notification of the client in {DATES[0]} … {DATES[3]}"),
        ("server/discover", f"it is a request of the client in {DATES[4]}"),
        ("ping", f"it is a request of the client in {DATES[0]} … {DATES[3]} and a request of the server in"),
    ],
)
def test_an_unsupported_method_gets_a_suggestion(method, hint):
    assert suggest_method(method).startswith(hint)


def test_parameters_are_read_in_one_go_with_what_they_say_of_a_request():
    row = Row("tools/call", CallToolParams, CallToolResult)
    params = row.read_whole(b'{"name":"add","_meta":{"progressToken":7}}')
    assert issubclass(type(params), row.params)
    assert (params.name, params.meta.progress_token) == ("add", 7)
    for without in (b'{"name":"add"}', b'{"name":"add","_meta":null}'):
        assert row.read_whole(without).meta is None
    with pytest.raises(InvalidJSONValue):
        row.read_whole(b'{"name":"add","_meta":{"progressToken":{}}}')
