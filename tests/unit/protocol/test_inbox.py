"""Received messages: each one becomes exactly one event."""

import pytest
from conversation import (
    CLIENT_PARTY,
    SERVER_PARTY,
    Conversation,
    every_revision,
    every_session,
    marked,
    message,
    one,
    parse,
    refusal,
    talk,
)

from toolpost.errors import InvalidParams, LocalProtocolError, RemoteProtocolError
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import (
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    MessageDropped,
    ResponseReceived,
)
from toolpost.protocol.receive import MAX_IN_FLIGHT_BYTES, MAX_INPUT_RESPONSES, SMALL_REQUEST_BYTES
from toolpost.protocol.revisions import LATEST, LATEST_SESSION
from toolpost.types import CallToolParams, CallToolResult, CreateTaskResult, InputRequiredResult, TaskMetadata

TASK = {
    "task": {"taskId": "t", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": None},
}


# --------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("wish", "result", "kind"),
    [
        (True, TASK, CreateTaskResult),
        (True, {"content": []}, CallToolResult),
        (False, {"content": [], **TASK}, CallToolResult),
    ],
)
def test_a_call_that_requests_a_task_may_return_one(wish, result, kind):
    client = talk(LATEST_SESSION).client
    params = CallToolParams(name="add", task=TaskMetadata() if wish else None)
    outgoing = client.request("tools/call", params)
    answer = one(client.receive(message(id=outgoing.id, result=result)), ResponseReceived)
    assert type(answer.result) is kind


@pytest.mark.parametrize("result", [{"task": 5}, {"task": {"taskId": "t"}}])
def test_a_task_that_is_none_is_an_invalid_result(result):
    client = talk(LATEST_SESSION).client
    outgoing = client.request("tools/call", CallToolParams(name="add", task=TaskMetadata()))
    failure = one(client.receive(message(id=outgoing.id, result=result)), ErrorReceived)
    assert isinstance(failure.error, RemoteProtocolError)


@pytest.mark.requirement("MRTR-5")
@pytest.mark.parametrize("questions", [{}, {"inputRequests": {}}])
def test_an_input_required_result_without_questions_is_invalid(questions):
    client = talk(LATEST).client
    outgoing = client.request("tools/call", {"name": "x"})
    result = {"resultType": "input_required", **questions}
    failure = one(client.receive(message(id=outgoing.id, result=result)), ErrorReceived)
    assert "has no input requests" in str(failure.error)
    again = client.request("tools/call", {"name": "x"})
    answer = one(
        client.receive(message(id=again.id, result={**result, "requestState": "s"})), ResponseReceived
    )
    assert isinstance(answer.result, InputRequiredResult)


@every_revision
def test_an_error_keeps_its_code_with_any_data(revision):
    client = talk(revision).client
    outgoing = client.request("tools/list")
    head = b'{"jsonrpc":"2.0","id":%d,"error":{"code":-32602,"message":"m","data":' % int(outgoing.id)
    failure = one(client.receive(head + b'{"x":1e400}}}'), ErrorReceived)
    assert isinstance(failure.error, InvalidParams)
    assert failure.error.data == '{"x":1e400}'


# --------------------------------------------------------------------- the handshake


@every_session
def test_an_answer_to_a_handshake_that_was_given_up_changes_nothing(revision):
    conversation = Conversation(revision).open("opening")
    [identity] = conversation.server.incoming
    answer = conversation.server.reply(identity, conversation.server.local_peer.introduce(revision))
    conversation.client.switch_revision(LATEST)
    assert answer is not None
    conversation.client.receive(answer)
    assert conversation.client.peer is None
    assert conversation.client.revision is LATEST
    assert conversation.client.lifecycle.state == "new"


@every_session
@pytest.mark.parametrize(
    "answer", [{"error": {"code": -32603, "message": "no"}}, {"result": 5}], ids=["error", "nonsense"]
)
def test_a_ping_that_fails_during_the_handshake_does_not_undo_it(revision, answer):
    client = Connection(CLIENT_PARTY, revision=revision)
    ERAS[revision.era].open(client)
    ping = client.request("ping")
    one(client.receive(message(id=ping.id, **answer)), ErrorReceived)
    assert client.lifecycle.state == "opening"
    with pytest.raises(LocalProtocolError, match="not allowed before"):
        client.request("tools/list")


# --------------------------------------------------------------------- what is refused


@pytest.mark.requirement("MSG-19")
@every_revision
@pytest.mark.parametrize(
    "notice",
    [
        b'{"jsonrpc":"2.0","method":"notifications/x","params":' + b"[" * 80 + b"]" * 80 + b"}",
        b'{"jsonrpc":"2.0","method":"notifications/x","method":"notifications/x"}',
    ],
    ids=["deep", "a member twice"],
)
def test_a_notification_that_breaks_a_rule_is_counted_and_not_answered(revision, notice):
    server = talk(revision).server
    event = one(server.receive(notice), MessageDropped)
    assert isinstance(event.error, RemoteProtocolError)
    assert server.dropped_counts == {"malformed notification": 1}


@every_session
def test_input_of_a_peer_is_not_echoed_in_full(revision):
    long = "x" * 100_000
    fresh = Connection(SERVER_PARTY)
    ready = talk(revision).server
    one(ready.receive(message(id=long, method="tools/list")), InboundRequest)
    refused = [
        fresh.receive(message(id=1, method=long)),
        ready.receive(message(id=1, method=long)),
        ready.receive(message(id=1, method="logging/setLevel", params={"level": long})),
        fresh.receive(message(id=1, method="tools/list", params=marked(revision=long))),
    ]
    for events in refused:
        assert len(one(events, InvalidMessageReceived).data or b"") < 1000
    [twice] = ready.receive(message(id=long, method="tools/list"))
    assert isinstance(twice, InvalidMessageReceived)
    assert len(str(twice.error)) < 200
    assert parse(twice.data)["id"] == long


@every_revision
def test_the_bytes_in_flight_are_bounded(revision):
    server = talk(revision).server
    size = MAX_IN_FLIGHT_BYTES // 8
    for number in range(7):
        one(server.receive(_call(number, size, stateless=revision.stateless)), InboundRequest)
    error = refusal(server.receive(_call(8, size, stateless=revision.stateless)))
    assert error["code"] == -32603
    assert str(MAX_IN_FLIGHT_BYTES) in error["message"]
    one(server.receive(_call(8, SMALL_REQUEST_BYTES // 2, stateless=revision.stateless)), InboundRequest)
    server.reply(0, CallToolResult(content=[]))
    one(server.receive(_call(9, size, stateless=revision.stateless)), InboundRequest)


def _call(identity: int, size: int, *, stateless: bool) -> bytes:
    params = {"name": "x", "arguments": {"text": "x" * size}}
    return message(id=identity, method="tools/call", params=marked(params) if stateless else params)


@every_revision
def test_meta_that_no_value_can_hold_is_the_requests_fault(revision):
    server = talk(revision).server
    params = marked(meta={"huge": 0}) if revision.stateless else {"_meta": {"huge": 0}}
    data = message(id=1, method="tools/list", params=params).replace(b'"huge": 0', b'"huge": 1e400')
    incoming = one(server.receive(data), InboundRequest)
    with pytest.raises(InvalidParams, match="_meta is not valid"):
        _ = incoming.meta


@every_revision
def test_an_answer_that_is_not_json_fails_its_request_at_once(revision):
    client = talk(revision).client
    outgoing = client.request("tools/call", {"name": "x"})
    text = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"a\\x41"}]}}'
    failure = one(client.receive(text % int(outgoing.id)), ErrorReceived)
    assert failure.request is outgoing
    assert "not JSON" in str(failure.error)
    assert client.outgoing == {}


@every_revision
def test_long_ids_count_as_bytes_in_flight(revision):
    server = talk(revision).server
    size = MAX_IN_FLIGHT_BYTES // 8
    params = marked() if revision.stateless else {}
    for number in range(7):
        one(
            server.receive(message(id=f"{number}" * size, method="tools/list", params=params)), InboundRequest
        )
    [refused] = server.receive(message(id="8" * size, method="tools/list", params=params))
    assert isinstance(refused, InvalidMessageReceived)
    assert "bytes in flight" in str(refused.error)


def test_a_request_brings_a_bounded_number_of_answers():
    server = talk(LATEST).server
    answers = {str(number): 0 for number in range(MAX_INPUT_RESPONSES)}
    params = {"name": "x", "inputResponses": answers}
    one(server.receive(message(id=1, method="tools/call", params=marked(params))), InboundRequest)
    answers["more"] = 0
    assert (
        refusal(server.receive(message(id=2, method="tools/call", params=marked(params))))["code"] == -32602
    )


@every_session
@pytest.mark.parametrize("late", [{"error": {"code": -32603, "message": "no"}}, {"result": {}}])
def test_a_late_end_of_one_handshake_does_not_touch_the_next(revision, late):
    client = Connection(CLIENT_PARTY, revision=revision)
    first = ERAS[revision.era].open(client)
    client.switch_revision(revision)
    second = ERAS[revision.era].open(client)
    one(client.receive(message(id=first.id, **late)), MessageDropped)
    assert client.cancel(first.id) is None
    assert client.lifecycle.state == "opening"
    assert list(client.outgoing) == [second.id]


@every_session
def test_a_dropped_response_fails_its_request(revision):
    server = talk(revision).server
    outgoing = server.request("ping")
    lost = RemoteProtocolError("too long", id=outgoing.id, reply=True)
    assert server.receive_invalid(lost) == ErrorReceived(outgoing, lost)
    assert server.outgoing == {}
