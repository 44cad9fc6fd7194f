"""The reports of the inspector about a conversation: pairs of messages, negotiated values, violations."""

import json

import pytest

from toolpost.cli.tap.inspector import MAX_PENDING, MessageInspector
from toolpost.protocol.line_framing import MAX_LINE, OversizedLine
from toolpost.protocol.methods import CLIENT, DATES, SERVER
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, REVISIONS
from toolpost.types.initialize import CLIENT_CAPABILITIES, PROTOCOL_VERSION

META = {PROTOCOL_VERSION: LATEST.date, CLIENT_CAPABILITIES: {}}
SERVES = {"tools": {}, "resources": {}, "prompts": {}, "logging": {}}


def say(method=None, params=None, id=None, **more):  # noqa: A002 - the protocol's word
    said = {"jsonrpc": "2.0", "id": id, "method": method, "params": params, **more}
    return json.dumps({name: value for name, value in said.items() if value is not None}).encode()


def hear(witness, *said):
    """Return the reports of the inspector about messages, each with its sender, one second apart."""
    return [seen for at, (by, data) in enumerate(said) for seen in witness.inspect(by, data, float(at))]


def session(date=LATEST_SESSION.date, capabilities=SERVES, client=None):
    """Return an inspector of a session after its handshake."""
    witness = MessageInspector()
    params = {
        "protocolVersion": date,
        "capabilities": client or {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    result = {
        "protocolVersion": date,
        "capabilities": capabilities,
        "serverInfo": {"name": "s", "version": "2"},
    }
    said = [
        (CLIENT, say("initialize", params, 0)),
        (SERVER, say(id=0, result=result)),
        (CLIENT, say("notifications/initialized")),
    ]
    assert not [each for seen in hear(witness, *said) for each in seen.violations]
    return witness


def stateless(method, params=None, id=1, **meta):  # noqa: A002 - the protocol's word
    return say(method, {**(params or {}), "_meta": {**META, **meta}}, id)


def result(of="", **members):
    kept = {"ttlMs": 0, "cacheScope": "private"} if of else {}
    return {"resultType": "complete", **kept, **members}


# --------------------------------------------------------------------- what it is


@pytest.mark.parametrize("date", [date for date in DATES if not REVISIONS[date].stateless])
def test_a_handshake_agrees_upon_a_revision(date):
    witness = session(date)
    assert witness.revision is REVISIONS[date]
    assert list(witness.seen_revisions) == [date]


def test_a_response_is_shown_with_the_method_of_its_request_and_its_duration():
    asked, answered = hear(
        session(),
        (CLIENT, say("tools/call", {"name": "add"}, "a")),
        (SERVER, say(id="a", result={"content": []})),
    )
    assert (asked.kind, asked.id, asked.method, asked.summary) == ("request", "a", "tools/call", "add")
    assert (answered.kind, answered.method, answered.summary, answered.duration) == (
        "result",
        "tools/call",
        "add",
        1.0,
    )
    assert asked.duration is None
    assert not asked.violations
    assert not answered.violations


def test_both_sides_may_use_the_same_ids():
    witness = session(client={"roots": {}})
    heard = hear(
        witness,
        (CLIENT, say("tools/list", id=1)),
        (SERVER, say("roots/list", id=1)),
        (CLIENT, say(id=1, result={"roots": []})),
        (SERVER, say(id=1, result={"tools": []})),
    )
    assert [seen.method for seen in heard] == ["tools/list", "roots/list", "roots/list", "tools/list"]
    assert not [each for seen in heard for each in seen.violations]


def test_an_error_and_a_tool_that_says_no_have_failed():
    _, error, _, outcome = hear(
        session(),
        (CLIENT, say("tools/call", {"name": "x"}, 1)),
        (SERVER, say(id=1, error={"code": -32602, "message": "no such tool"})),
        (CLIENT, say("tools/call", {"name": "x"}, 2)),
        (SERVER, say(id=2, result={"content": [], "isError": True})),
    )
    assert (error.kind, error.failed, error.summary) == ("error", True, "-32602 no such tool")
    assert (outcome.kind, outcome.failed) == ("result", True)


def test_an_oversized_line_is_identified_by_its_ends():
    witness = session()
    hear(witness, (CLIENT, say("resources/read", {"uri": "x:y"}, 7)))
    head, tail = b'{"jsonrpc":"2.0","id":7,"result":{"contents":[', b"]}}"
    (seen,) = witness.inspect(SERVER, OversizedLine(MAX_LINE + 1, MAX_LINE, head, tail), 9.0)
    assert (seen.kind, seen.id, seen.method, seen.size) == ("result", 7, "resources/read", MAX_LINE + 1)
    assert seen.duration == 9.0
    assert witness.inspect(CLIENT, OversizedLine(9, 8, b"{", b"}"), 9.0)[0].duration is None


def test_pending_requests_are_bounded():
    witness = session()
    for number in range(MAX_PENDING + 5):
        witness.inspect(CLIENT, say("tools/list", {"_meta": {"progressToken": number}}, number), 0)
    (early,) = witness.inspect(SERVER, say(id=0, result={"tools": []}), 1)
    (late,) = witness.inspect(SERVER, say(id=MAX_PENDING, result={"tools": []}), 1)
    assert early.violations
    assert not late.violations


# --------------------------------------------------------------------- what is wrong in a session

BEFORE = "sent before initialization, without a protocol version"


@pytest.mark.parametrize(
    ("by", "said", "wrong"),
    [
        (SERVER, b"Hello, world", "message is not JSON: JSON is malformed: invalid character (byte 0)"),
        (SERVER, b'{"id": 1}', 'member "jsonrpc" must be "2.0"'),
        (SERVER, say(id=9, result={}), "no request in flight has the id 9"),
        (CLIENT, say("tools/call", {}, 1), "Object missing required field `name`"),
        (
            CLIENT,
            say("tool/list", id=1),
            "unknown method; did you mean tools/list?",
        ),
        (
            CLIENT,
            say("roots/list", id=1),
            "a client must not send this in 2025-11-25: it is a request of the server in 2024-11-05",
        ),
        (CLIENT, say("completion/complete", {}, 1), "Object missing required field `ref`"),
        (SERVER, say("sampling/createMessage", {"messages": [], "maxTokens": 1}, 1), None),
        (SERVER, say("notifications/progress", {"progressToken": 5, "progress": 1}), None),
        (CLIENT, say("tools/list", {"_meta": {"progressToken": []}}, 1), None),
        (SERVER, b"[]", "a batch must hold 1 to 100 messages, not 0"),
        (SERVER, b'[{"jsonrpc":"2.0","method":"notifications/message"}]', None),
        (CLIENT, say("resources/subscribe", {"uri": "a:b"}, 1), None),
        (SERVER, say("notifications/tools/list_changed"), None),
    ],
)
def test_violations_in_a_session_are_reported(by, said, wrong):
    seen = hear(session(), (by, said))[0]
    assert seen.violations
    assert wrong is None or seen.violations[0].startswith(wrong)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (CLIENT, say("ping", id=1)),
        (SERVER, say("ping", id=1)),
        (CLIENT, say("vendor/own", id=1)),
        (SERVER, say("notifications/vendor")),
        (SERVER, say("notifications/message", {"level": "info", "data": {"a": 1}})),
        (SERVER, say(error={"code": -32700, "message": "what?"})),
        (CLIENT, say("notifications/cancelled", {"requestId": 99})),
        (CLIENT, say("notifications/cancelled")),
    ],
)
def test_valid_messages_have_no_violations(by, said):
    assert hear(session(), (by, said))[0].violations == []


def test_nothing_but_ping_comes_before_the_handshake():
    ping, early, notice = hear(
        MessageInspector(),
        (CLIENT, say("ping", id=1)),
        (CLIENT, say("tools/list", id=2)),
        (CLIENT, say("notifications/initialized")),
    )
    assert ping.violations == []
    assert early.violations == [BEFORE]
    assert notice.violations == []


def test_a_handshake_ends_in_a_revision_that_has_one():
    params = {"protocolVersion": "1", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    for date in ("1999-01-01", LATEST.date):
        answer = {"protocolVersion": date, "capabilities": {}, "serverInfo": {"name": "s", "version": "2"}}
        witness = MessageInspector()
        _, seen = hear(witness, (CLIENT, say("initialize", params, 1)), (SERVER, say(id=1, result=answer)))
        assert seen.violations == [f"unknown session revision {date!r}"]
        assert witness.revision is None


def test_an_id_is_in_use_until_it_is_answered():
    heard = hear(
        session(),
        (CLIENT, say("ping", id=1)),
        (CLIENT, say("ping", id=1)),
        (SERVER, say(id=1, result={})),
        (CLIENT, say("ping", id=1)),
    )
    assert [bool(seen.violations) for seen in heard] == [False, True, False, False]


def test_progress_goes_up_and_belongs_to_a_request_in_flight():
    def progress(value):
        return SERVER, say("notifications/progress", {"progressToken": "t", "progress": value, "total": 3})

    heard = hear(
        session(),
        (CLIENT, say("tools/call", {"name": "x", "_meta": {"progressToken": "t"}}, 1)),
        progress(1),
        progress(2),
        progress(2),
        (SERVER, say(id=1, result={"content": []})),
        progress(3),
    )
    assert [bool(seen.violations) for seen in heard] == [False, False, False, True, False, True]
    assert heard[1].summary == "1/3"


def test_a_request_that_was_cancelled_may_be_answered_all_the_same():
    heard = hear(
        session(),
        (CLIENT, say("tools/list", id=1)),
        (CLIENT, say("notifications/cancelled", {"requestId": 1, "reason": "bored"})),
        (SERVER, say(id=1, result={"tools": []})),
        (SERVER, say(id=1, result={"tools": []})),
    )
    assert [bool(seen.violations) for seen in heard] == [False, False, False, True]
    assert heard[1].summary == "of 1: bored"


def test_the_handshake_is_not_cancelled():
    params = {"protocolVersion": "1", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    _, seen = hear(
        MessageInspector(),
        (CLIENT, say("initialize", params, 1)),
        (CLIENT, say("notifications/cancelled", {"requestId": 1})),
    )
    assert seen.violations == ["the handshake cannot be cancelled"]


def test_a_capability_must_be_declared_by_the_receiver():
    (seen,) = hear(session(capabilities={"tools": {}}), (CLIENT, say("prompts/list", id=1)))
    assert seen.violations == ["requires 'prompts', which the server has not declared"]
    (seen,) = hear(session(), (SERVER, say("roots/list", id=1)))
    assert seen.violations == ["requires 'roots', which the client has not declared"]


def test_an_extension_may_have_methods_of_its_own():
    client = {"extensions": {"x/y": {}}}
    (seen,) = hear(session(client=client), (CLIENT, say("tool/list", id=1)))
    assert seen.violations == []


@pytest.mark.parametrize(
    ("date", "outcome", "wrong"),
    [
        (DATES[0], {"content": [{"type": "audio", "data": "", "mimeType": "audio/wav"}]}, "type 'audio'"),
        (DATES[1], {"content": [], "structuredContent": {}}, "has no structuredContent"),
        (DATES[2], {"content": [], "structuredContent": 5}, "must be an object"),
        (DATES[3], {"content": [{"type": "hologram"}]}, "type 'hologram'"),
        (DATES[3], {}, "missing required field `content`"),
        (DATES[3], [], "Expected `object`"),
    ],
)
def test_the_result_of_a_tool_is_one_of_its_revision(date, outcome, wrong):
    _, seen = hear(
        session(date), (CLIENT, say("tools/call", {"name": "x"}, 1)), (SERVER, say(id=1, result=outcome))
    )
    assert len(seen.violations) == 1
    assert wrong in seen.violations[0]


def test_the_blocks_of_a_prompt_are_looked_at_too():
    block = {"type": "resource_link", "uri": "a:b", "name": "c"}
    answer = {"messages": [{"role": "user", "content": block}]}
    _, seen = hear(
        session(DATES[0]), (CLIENT, say("prompts/get", {"name": "x"}, 1)), (SERVER, say(id=1, result=answer))
    )
    assert seen.violations == ["2024-11-05 has no content of type 'resource_link'"]


def test_output_is_held_against_the_schema_that_went_by():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"name": "count", "inputSchema": {"type": "object"}, "outputSchema": schema}]
    witness = session()
    hear(witness, (CLIENT, say("tools/list", id=1)), (SERVER, say(id=1, result={"tools": tools})))
    for structured, fits in (({"n": 1}, True), ({"n": "one"}, False)):
        outcome = {"content": [], "structuredContent": structured}
        _, seen = hear(
            witness, (CLIENT, say("tools/call", {"name": "count"}, 2)), (SERVER, say(id=2, result=outcome))
        )
        assert (not seen.violations) is fits


def test_the_messages_of_a_batch_are_shown_one_by_one():
    batch = b"[" + say("ping", id=1) + b"," + say("ping", id=2) + b"," + b'{"jsonrpc":"1"}' + b"]"
    first, second, junk = hear(session(DATES[1]), (CLIENT, batch))
    assert [first.violations, second.violations] == [[], []]
    assert junk.kind == "junk"
    first, *_ = hear(session(DATES[2]), (CLIENT, batch))
    assert first.violations == ["batches are not allowed in the negotiated revision"]


def test_a_request_may_become_a_task_if_it_was_meant_to():
    made = {"task": {"taskId": "t", "status": "working", "createdAt": "", "lastUpdatedAt": "", "ttl": None}}
    witness = session(capabilities={"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}})
    call = {"name": "x", "task": {"ttl": 5}}
    _, seen = hear(witness, (CLIENT, say("tools/call", call, 1)), (SERVER, say(id=1, result=made)))
    assert seen.violations == []


# --------------------------------------------------------------------- what is wrong without a session


def test_a_stateless_conversation_breaks_no_rule():
    witness = MessageInspector()
    found = result("discover", supportedVersions=[LATEST.date], capabilities=SERVES)
    heard = hear(
        witness,
        (CLIENT, stateless("server/discover")),
        (SERVER, say(id=1, result=found)),
        (CLIENT, stateless("tools/list", id=2)),
        (SERVER, say(id=2, result=result("list", tools=[]))),
        (CLIENT, stateless("subscriptions/listen", {"notifications": {}}, 3)),
        (SERVER, say("notifications/subscriptions/acknowledged", {"notifications": {}})),
    )
    assert not [each for seen in heard for each in seen.violations]
    assert witness.revision is None
    assert list(witness.seen_revisions) == [LATEST.date]


def test_a_request_names_a_revision_that_there_is_and_its_facts():
    lost, bare = hear(
        MessageInspector(),
        (CLIENT, say("tools/list", {"_meta": {PROTOCOL_VERSION: "2099-01-01"}}, 1)),
        (CLIENT, say("tools/list", {"_meta": {PROTOCOL_VERSION: LATEST.date}}, 2)),
    )
    assert lost.violations == ["'2099-01-01' is not a protocol revision"]
    assert bare.violations == [f"_meta lacks {CLIENT_CAPABILITIES}"]


def test_a_result_says_what_it_is_and_how_long_it_may_be_kept():
    _, seen = hear(
        MessageInspector(), (CLIENT, stateless("tools/list")), (SERVER, say(id=1, result={"tools": []}))
    )
    assert seen.violations == ["resultType is missing", "ttlMs is missing", "cacheScope is missing"]


def test_a_server_without_a_session_asks_by_returning():
    _, seen = hear(MessageInspector(), (CLIENT, stateless("tools/list")), (SERVER, say("roots/list", id=1)))
    assert seen.violations[0] == "without a session, a server must return its requests in a result"


@pytest.mark.parametrize(
    ("declared", "asks", "wrong"),
    [
        ({"roots": {}}, {"a": {"method": "roots/list"}}, None),
        (
            {},
            {"a": {"method": "roots/list"}},
            "roots/list requires 'roots', which the client has not declared",
        ),
        ({}, {"a": {"method": "tools/list"}}, "tools/list (a) is not a request for a client"),
        ({}, None, "input is required, but there are no input requests"),
    ],
)
def test_input_requests_in_a_result_are_checked(declared, asks, wrong):
    asked = stateless("tools/call", {"name": "x"}, **{CLIENT_CAPABILITIES: declared})
    answer = {"resultType": "input_required", **({} if asks is None else {"inputRequests": asks})}
    _, seen = hear(MessageInspector(), (CLIENT, asked), (SERVER, say(id=1, result=answer)))
    assert seen.violations == ([] if wrong is None else [wrong])


def test_a_revision_negotiated_elsewhere_can_be_passed():
    (seen,) = hear(MessageInspector(REVISIONS[DATES[1]]), (CLIENT, say("tools/list", id=1)))
    assert seen.violations == []
    (seen,) = hear(
        MessageInspector(LATEST),
        (SERVER, say("notifications/subscriptions/acknowledged", {"notifications": {}})),
    )
    assert seen.violations == []
