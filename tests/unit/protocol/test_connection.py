"""One conversation from both ends, as tables over all revisions: bytes in, events out, no event loop."""

import doctest
import math
from typing import Any, cast

import pytest
from conversation import (
    CLIENT_CAN,
    CLIENT_PARTY,
    PARAMS,
    RESULTS,
    SERVER_CAN,
    SERVER_PARTY,
    SESSIONS,
    Conversation,
    cases,
    every_revision,
    every_session,
    marked,
    message,
    one,
    parse,
    party,
    refusal,
    talk,
    told,
    without,
)

from toolpost.errors import (
    CapabilityNotDeclared,
    ChannelClosed,
    InternalError,
    InvalidParams,
    LocalProtocolError,
    MethodNotFound,
    RemoteProtocolError,
    ResourceNotFound,
    RPCError,
    UnsupportedRevision,
    UrlElicitationRequired,
)
from toolpost.protocol import connection as connection_module
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import LOG_LEVEL_RANKS, MAX_IN_FLIGHT, Connection
from toolpost.protocol.eras import SESSION_ERA, STATELESS_ERA, Peer
from toolpost.protocol.events import (
    CancellationReceived,
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    MessageDropped,
    NotificationReceived,
    ProgressReceived,
    ResponseReceived,
)
from toolpost.protocol.jsonrpc import MAX_DEPTH
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, DATES, R_2024_11_05, R_2025_03_26, SERVER, Role, Row, Span
from toolpost.protocol.receive import MAX_EARLY_CANCELLATIONS
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, REVISIONS, Revision
from toolpost.types import (
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    UNSET,
    CallToolParams,
    CallToolResult,
    CancelledParams,
    ClientCapabilities,
    Implementation,
    InputRequiredResult,
    ListCapability,
    ListenResult,
    LogLevel,
    NotificationParams,
    PaginatedRequestParams,
    Params,
    Raw,
    ResourceUpdatedParams,
    Result,
    ServerCapabilities,
)

OLDEST, *_, NEWEST = DATES
CALL = PARAMS["tools/call"]
FOR_LISTENERS = {
    "notifications/cancelled",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
    "notifications/subscriptions/acknowledged",
    "notifications/tools/list_changed",
}
LONE = "\ud800"
"""A text that JSON cannot carry."""


def other(role: Role) -> Role:
    return SERVER if role == CLIENT else CLIENT


def requests(revision: Revision, by: Role):
    return revision.requests[by]


def notices(revision: Revision, by: Role):
    return revision.notifications[by]


def dropped(connection: Connection, data: bytes) -> str:
    """Return the reason why a message was dropped; check that it was counted."""
    before = dict(connection.dropped_counts)
    why = one(connection.receive(data), MessageDropped).reason
    assert connection.dropped_counts == {**before, why: before.get(why, 0) + 1}
    return why


# --------------------------------------------------------------------- asking and answering


@pytest.mark.requirement("MSG-9", "MSG-10", "LIFE-14")
@cases(requests, lambda _revision, _by, row: row.name not in {"initialize", "server/discover"})
def test_a_request_is_asked_and_answered(revision, by, row):
    conversation = talk(revision)
    outgoing, incoming = conversation.ask(row.name, by=by)
    asker, asked = conversation.end(by), conversation.end(other(by))
    assert (outgoing.row, incoming.row) == (row, row)
    assert isinstance(incoming.params, row.params)
    assert incoming.peer.revision is revision
    assert incoming.id == outgoing.id
    assert (list(asker.outgoing), list(asked.incoming)) == ([outgoing.id], [incoming.id])
    answer = asked.reply(incoming.id, RESULTS[row.name])
    assert answer is not None
    assert parse(answer).keys() == {"jsonrpc", "id", "result"}
    assert parse(answer)["id"] == outgoing.id
    replied = one(asker.receive(answer), ResponseReceived)
    assert replied.request is outgoing
    assert type(replied.result) is row.result
    assert replied.result.raw
    assert (asker.outgoing, asked.incoming) == ({}, {})


@pytest.mark.requirement("MSG-15", "MSG-16", "MSG-17")
@cases(requests, lambda _revision, _by, row: row.name not in {"initialize", "server/discover"})
def test_a_request_is_asked_and_refused(revision, by, row):
    conversation = talk(revision)
    outgoing, incoming = conversation.ask(row.name, by=by)
    answer = conversation.end(other(by)).fail(incoming.id, InvalidParams("No.", {"why": 1}))
    assert answer is not None
    assert parse(answer) == {
        "jsonrpc": "2.0",
        "id": outgoing.id,
        "error": {"code": -32602, "message": "No.", "data": {"why": 1}},
    }
    failed = one(conversation.end(by).receive(answer), ErrorReceived)
    assert failed.request is outgoing
    assert isinstance(failed.error, InvalidParams)
    assert failed.error.data == {"why": 1}
    assert failed.error.peer == ("a server" if by == CLIENT else "a client")
    assert (conversation.client.outgoing, conversation.server.incoming) == ({}, {})


@every_revision
@pytest.mark.parametrize("by", [CLIENT, SERVER])
def test_only_the_methods_of_the_revision_can_be_sent(revision, by):
    conversation = talk(revision)
    known = revision.requests[by]
    for method in sorted(set(RESULTS) | {"com.example/unknown"}):
        if method in known:
            continue
        with pytest.raises(LocalProtocolError, match=f"a {by} cannot send {method} in {revision.date}"):
            conversation.end(by).request(method, PARAMS.get(method))
    assert conversation.end(by).outgoing == {}


@every_revision
def test_only_the_methods_of_the_revision_are_answered(revision):
    server = talk(revision).server
    for method in sorted(set(RESULTS) | {"com.example/unknown"}):
        if method in revision.requests[CLIENT]:
            continue
        params = marked(PARAMS.get(method)) if revision.stateless else PARAMS.get(method, {})
        error = refusal(server.receive(message(id=9, method=method, params=params)))
        assert error == {"code": -32601, "message": f"Method not found: {method}"}


@every_session
def test_a_client_answers_only_the_methods_of_the_revision(revision):
    client = talk(revision).client
    for method in sorted(set(RESULTS) - set(revision.requests[SERVER]) - {"initialize"}):
        assert refusal(client.receive(told(revision, method, id=9)))["code"] == -32601


@every_revision
def test_params_that_do_not_fit_are_refused(revision):
    server = talk(revision).server
    params = {"name": 5}
    data = message(id="x", method="tools/call", params=marked(params) if revision.stateless else params)
    refused = one(server.receive(data), InvalidMessageReceived)
    assert isinstance(refused.error, InvalidParams)
    assert refused.id == "x"
    assert parse(refused.data) == {
        "jsonrpc": "2.0",
        "id": "x",
        "error": {
            "code": -32602,
            "message": "Invalid params for tools/call: Expected `str`, got `int` - at `$.name`",
        },
    }
    assert server.incoming == {}


def test_a_request_keeps_unknown_members():
    server = Connection(SERVER_PARTY)
    params = marked({"name": "add", "new": 1}, {"com.example/x": [1]})
    incoming = one(server.receive(message(id=1, method="tools/call", params=params)), InboundRequest)
    assert isinstance(incoming.raw, Raw)
    assert parse(bytes(incoming.raw)) == params
    assert incoming.meta == params["_meta"]
    ping = one(server.receive(message(id=2, method="ping")), InboundRequest)
    assert ping.raw is UNSET
    assert ping.meta == {}


def test_a_result_keeps_unknown_members():
    client = talk(LATEST).client
    outgoing = client.request("tools/call", CALL)
    result = {"content": [], "resultType": "complete", "new": 1}
    replied = one(client.receive(message(id=outgoing.id, result=result)), ResponseReceived)
    assert parse(replied.result.raw) == result


def test_a_raw_result_goes_out_untouched():
    conversation = talk(LATEST)
    incoming = conversation.ask("tools/list").incoming
    assert conversation.server.reply(incoming.id, Raw(b'{"tools":[ ]}')) == (
        b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[ ]}}' % incoming.id
    )


@pytest.mark.parametrize("revision", [LATEST, LATEST_SESSION], ids=str)
def test_a_result_that_cannot_be_encoded_leaves_the_request_answerable(revision):
    conversation = talk(revision)
    incoming = conversation.ask("tools/call").incoming
    with pytest.raises(LocalProtocolError):
        conversation.server.reply(incoming.id, CallToolResult(content=[], structured_content=object()))
    assert conversation.server.incoming == {incoming.id: incoming}
    assert conversation.server.reply(incoming.id, RESULTS["tools/call"])


def test_an_introduction_that_cannot_be_encoded_leaves_the_handshake_open():
    server = Conversation(LATEST_SESSION).open("opening").server
    [identity] = server.incoming
    with pytest.raises(LocalProtocolError):
        server.reply(identity, server.local_peer.introduce(server.incoming[identity].peer.revision, LONE))
    assert server.lifecycle.state == "opening"
    assert server.peer is None
    assert server.reply(identity, server.local_peer.introduce(server.incoming[identity].peer.revision))
    assert server.lifecycle.state == "greeted"


@pytest.mark.parametrize(
    "error", [RPCError("x", object()), RPCError(LONE), RPCError("x", {"a": {1: object()}})]
)
def test_an_error_that_cannot_be_encoded_becomes_an_internal_error(error):
    conversation = talk(LATEST)
    incoming = conversation.ask("tools/call").incoming
    assert parse(conversation.server.fail(incoming.id, error))["error"] == {
        "code": -32603,
        "message": "Internal error: the error cannot be encoded as JSON",
    }
    assert conversation.server.incoming == {}


@pytest.mark.requirement("ERR-4", "ERR-6")
@every_revision
@pytest.mark.parametrize(
    ("error", "codes"),
    [
        pytest.param(ResourceNotFound("x"), (-32002, -32002, -32002, -32002, -32602), id="no resource"),
        pytest.param(UrlElicitationRequired("x"), (-32603, -32603, -32603, -32042, -32603), id="url"),
        pytest.param(RPCError("x", code=-32050), (-32603,) * 5, id="a code that nobody has defined"),
        pytest.param(RPCError("x", code=-32022), (-32022,) * 5, id="a code that somebody has"),
        pytest.param(RPCError("x", code=4), (4,) * 5, id="a code of one's own"),
    ],
)
def test_an_error_is_reported_in_the_codes_of_the_revision(revision, error, codes):
    conversation = talk(revision)
    incoming = conversation.ask("resources/read").incoming
    written = parse(conversation.server.fail(incoming.id, error))["error"]["code"]
    assert written == codes[DATES.index(revision.date)]


@pytest.mark.requirement("ERR-3", "ERR-7")
@pytest.mark.parametrize(
    ("revision", "code", "kind"),
    [
        (LATEST_SESSION, -32003, "tool not found"),
        (LATEST, -32003, "error"),
        (LATEST_SESSION, -32002, "resource not found"),
        (LATEST, -32002, "resource not found"),
    ],
)
def test_old_codes_have_a_meaning_in_sessions_only(revision, code, kind):
    client = talk(revision).client
    outgoing = client.request("tools/call", CALL)
    failed = one(
        client.receive(message(id=outgoing.id, error={"code": code, "message": "no"})), ErrorReceived
    )
    assert isinstance(failed.error, RPCError)
    assert failed.error.kind == kind


def test_an_error_of_an_unnamed_peer_names_no_peer():
    client = Connection(CLIENT_PARTY, peer=Peer(LATEST))
    outgoing = client.request("tools/list")
    failure = message(id=outgoing.id, error={"code": -32603, "message": "no"})
    assert one(client.receive(failure), ErrorReceived).error.peer is None


# --------------------------------------------------------------------- ids


@pytest.mark.requirement("MSG-5", "MSG-7", "MSG-8", "MRTR-21")
@every_revision
def test_no_id_is_used_twice(revision):
    conversation = talk(revision)
    seen: list[int | str] = []
    for _ in range(3):
        outgoing, incoming = conversation.ask("tools/call")
        seen.append(outgoing.id)
        answer = conversation.server.reply(incoming.id, RESULTS["tools/call"])
        assert answer
        conversation.client.receive(answer)
        seen.append(conversation.client.request("tools/list").id)
    assert all(type(identity) is int for identity in seen)
    assert len(set(seen)) == len(seen)


def test_a_request_that_cannot_be_encoded_uses_no_id():
    client = talk(LATEST).client
    before = client.next_id
    with pytest.raises(LocalProtocolError):
        client.request("tools/call", {"name": object()})
    assert (client.next_id, client.outgoing) == (before, {})


@every_revision
def test_ids_are_distinguished_by_type(revision):
    server = talk(revision).server
    number = one(server.receive(told(revision, "tools/call", id=1)), InboundRequest)
    text = one(server.receive(told(revision, "tools/call", id="1")), InboundRequest)
    assert server.incoming == {1: number, "1": text}
    assert parse(server.reply("1", RESULTS["tools/call"]))["id"] == "1"
    assert server.incoming == {1: number}
    assert parse(server.fail(1, InternalError("x")))["id"] == 1


@every_revision
@pytest.mark.parametrize("identity", [1, "1", "", 0, -5, 2**70])
def test_an_id_in_use_is_refused_and_the_first_request_lives_on(revision, identity):
    server = talk(revision).server
    first = one(server.receive(told(revision, "tools/call", id=identity)), InboundRequest)
    refused = one(server.receive(told(revision, "tools/list", id=identity)), InvalidMessageReceived)
    assert parse(refused.data)["error"]["code"] == -32600
    assert refused.id == identity
    assert server.incoming == {identity: first}
    assert parse(server.reply(identity, RESULTS["tools/call"]))["id"] == identity
    again = one(server.receive(told(revision, "tools/list", id=identity)), InboundRequest)
    assert again.row.name == "tools/list"
    assert server.answer(first, RESULTS["tools/call"]) is None  # it was answered, and its id is in use again
    assert server.incoming == {identity: again}


@every_session
def test_both_sides_count_for_themselves(revision):
    conversation = talk(revision)
    theirs, ours = conversation.server.request("ping"), conversation.client.request("ping")
    assert theirs.id in {1, 2}
    for receiver, sent in ((conversation.client, theirs), (conversation.server, ours)):
        assert one(receiver.receive(sent.data), InboundRequest).id == sent.id


@every_revision
def test_too_many_requests_are_refused(revision):
    conversation = talk(revision, limit=2)
    server = conversation.server
    for identity in (1, 2):
        one(server.receive(told(revision, "tools/call", id=identity)), InboundRequest)
    error = refusal(server.receive(told(revision, "tools/call", id=3)))
    assert error == {"code": -32603, "message": "Too many requests in flight: the limit is 2"}
    assert list(server.incoming) == [1, 2]
    server.reply(1, RESULTS["tools/call"])
    one(server.receive(told(revision, "tools/call", id=3)), InboundRequest)


def test_there_is_a_limit_by_default():
    assert Connection(SERVER_PARTY).limit == MAX_IN_FLIGHT


def test_a_handshake_that_is_too_much_can_be_tried_again():
    server = Connection(SERVER_PARTY, limit=1)
    one(server.receive(message(id=1, method="ping")), InboundRequest)
    assert refusal(server.receive(told(LATEST_SESSION, "initialize", id=2)))["code"] == -32603
    assert server.lifecycle.state == "new"
    server.reply(1, Result())
    one(server.receive(told(LATEST_SESSION, "initialize", id=2)), InboundRequest)


# --------------------------------------------------------------------- answers that are none


@every_revision
@pytest.mark.parametrize(
    ("identity", "why"),
    [
        pytest.param(1, "late response", id="answered"),
        pytest.param(9, "response to an unknown request", id="never asked"),
        pytest.param(0, "response to an unknown request", id="zero"),
        pytest.param(-1, "response to an unknown request", id="negative"),
        pytest.param("1", "late response", id="answered, as text"),
        pytest.param("two", "response to an unknown request", id="another text"),
    ],
)
@pytest.mark.parametrize("body", [{"result": {}}, {"error": {"code": 1, "message": "x"}}], ids=["ok", "no"])
def test_an_answer_that_has_no_waiter_is_counted_and_dropped(revision, identity, why, body):
    client = talk(revision).client  # its request 1 has been answered
    waiting = client.request("tools/list")
    assert waiting.id == 2
    assert dropped(client, message(id=identity, **body)) == why
    assert dropped(client, message(id=identity, **body)) == why
    assert client.dropped_counts == {why: 2}
    assert client.outgoing == {2: waiting}


@every_revision
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"result": {}, "error": {"code": 1, "message": "x"}}, id="both"),
        pytest.param({"error": {"code": "1", "message": "x"}}, id="code is a text"),
        pytest.param({"error": {"code": 1.5, "message": "x"}}, id="code is a fraction"),
        pytest.param({"error": {"message": "x"}}, id="no code"),
        pytest.param({"error": {"code": 1}}, id="no message"),
        pytest.param({"error": 5}, id="error is a number"),
    ],
)
def test_a_malformed_answer_fails_its_request_only(revision, broken):
    client = talk(revision).client
    first, second = client.request("tools/list"), client.request("tools/list")
    failed = one(client.receive(message(id=first.id, **broken)), ErrorReceived)
    assert failed.request is first
    assert isinstance(failed.error, RemoteProtocolError)
    assert client.outgoing == {second.id: second}
    assert dropped(client, message(id=first.id, **broken)) == "malformed response"
    assert dropped(client, message(id=1.5, **broken)) == "malformed response"
    assert dropped(client, message(**broken)) == "malformed response"


@every_revision
def test_a_malformed_answer_to_a_server_is_dropped(revision):
    server = talk(revision).server
    assert dropped(server, message(id=1, result={}, error={})) == "malformed response"


@every_revision
@pytest.mark.parametrize("members", [{}, {"id": None}])
def test_an_error_without_an_id_is_dropped_but_reported(revision, members):
    client = talk(revision).client
    waiting = client.request("tools/list")
    event = one(
        client.receive(message(error={"code": -32700, "message": "what?"}, **members)), MessageDropped
    )
    assert event.reason == "error without an id"
    assert isinstance(event.error, RPCError)
    assert (event.error.code, event.error.message, event.error.peer) == (-32700, "what?", "a server")
    assert client.outgoing == {waiting.id: waiting}


@cases(requests, lambda _revision, _by, row: row.name not in {"initialize", "tasks/result"})
@pytest.mark.parametrize("result", [5, [], {"_meta": 5}], ids=str)
def test_a_result_of_the_wrong_shape_fails_its_request_only(revision, by, row, result):
    asker = talk(revision).end(by)
    first, second = asker.request(row.name, PARAMS[row.name]), asker.request(row.name, PARAMS[row.name])
    failed = one(asker.receive(message(id=first.id, result=result)), ErrorReceived)
    assert failed.request is first
    assert isinstance(failed.error, RemoteProtocolError)
    assert row.name in failed.error.message
    assert asker.outgoing == {second.id: second}


@pytest.mark.requirement("MSG-12")
def test_a_result_without_a_type_is_complete():
    client = talk(LATEST).client
    outgoing = client.request("tools/call", CALL)
    replied = one(client.receive(message(id=outgoing.id, result={"content": []})), ResponseReceived)
    assert type(replied.result) is CallToolResult


@pytest.mark.requirement("MSG-13", "MSG-14")
@pytest.mark.parametrize("kind", ["task", "", "COMPLETE", 5, None])
def test_a_result_of_an_unknown_type_is_invalid(kind):
    client = talk(LATEST).client
    outgoing = client.request("tools/call", CALL)
    result = {"content": [], "resultType": kind}
    failed = one(client.receive(message(id=outgoing.id, result=result)), ErrorReceived)
    assert isinstance(failed.error, RemoteProtocolError)
    assert "tools/call: " in failed.error.message


@every_session
def test_a_session_knows_no_type_of_a_result(revision):
    client = talk(revision).client
    outgoing = client.request("tools/call", CALL)
    result = {"content": [], "resultType": "input_required"}
    replied = one(client.receive(message(id=outgoing.id, result=result)), ResponseReceived)
    assert type(replied.result) is CallToolResult


# --------------------------------------------------------------------- messages that are none

BROKEN = [
    pytest.param(b"", None, -32700, id="nothing"),
    pytest.param(b"{", None, -32700, id="no JSON"),
    pytest.param(b'"\xff"', None, -32700, id="no UTF-8"),
    pytest.param(b"5", None, -32600, id="a number"),
    pytest.param(b'[{"jsonrpc":"2.0"', None, -32700, id="half a batch"),
    pytest.param(message(id=7), 7, -32600, id="neither question nor answer"),
    pytest.param(message(id=7, method=5), 7, -32600, id="method is a number"),
    pytest.param(message(id="7", method="ping", result={}), "7", -32600, id="question and answer"),
    pytest.param(message(id=1.5, method="ping"), None, -32600, id="id is a fraction"),
    pytest.param(message(id=None, method="ping"), None, -32600, id="id is null"),
    pytest.param(b'{"id":7,"method":"ping"}', 7, -32600, id="no JSON-RPC"),
]


@pytest.mark.requirement("MSG-6", "MSG-15")
@every_revision
@pytest.mark.parametrize(("data", "identity", "code"), BROKEN)
def test_a_server_answers_an_invalid_message(revision, data, identity, code):
    server = talk(revision).server
    refused = one(server.receive(data), InvalidMessageReceived)
    assert isinstance(refused.error, RemoteProtocolError)
    assert refused.id == identity
    written = parse(refused.data)
    assert written["error"]["code"] == code
    assert ("id" in written, written.get("id")) == (identity is not None, identity)
    assert server.incoming == {}


@pytest.mark.requirement("MSG-22", "STDIO-6")
@every_revision
@pytest.mark.parametrize(("data", "identity", "code"), BROKEN)
def test_a_client_answers_an_invalid_message_in_a_session_if_it_can(revision, data, identity, code):
    client = talk(revision).client
    if revision.stateless or identity is None:
        event = one(client.receive(data), MessageDropped)
        assert event.reason == "malformed message"
        assert isinstance(event.error, RemoteProtocolError)
        assert client.dropped_counts == {"malformed message": 1}
        return
    refused = one(client.receive(data), InvalidMessageReceived)
    assert parse(refused.data)["id"] == identity
    assert parse(refused.data)["error"]["code"] == code


def test_a_message_may_not_nest_too_deeply():
    def call(levels: int) -> bytes:
        arguments: dict[str, Any] = {}
        for _ in range(levels):
            arguments = {"a": arguments}
        return message(id=1, method="tools/call", params=marked({"name": "x", "arguments": arguments}))

    refused = one(Connection(SERVER_PARTY).receive(call(MAX_DEPTH)), InvalidMessageReceived)
    assert parse(refused.data)["error"]["code"] == -32600
    assert refused.id == 1
    one(Connection(SERVER_PARTY).receive(call(MAX_DEPTH - 4)), InboundRequest)


# --------------------------------------------------------------------- batches


@every_revision
def test_batches_are_part_of_one_revision_only(revision):
    server = talk(revision).server
    batch = b"[%s, %s]" % (told(revision, "tools/call", id=5), told(revision, "tools/list", id=6))
    events = server.receive(b" \n" + batch)
    if revision.date == R_2025_03_26:
        assert [type(event) for event in events] == [InboundRequest, InboundRequest]
        assert list(server.incoming) == [5, 6]
    else:
        assert refusal(events) == {
            "code": -32600,
            "message": "Invalid request: a batch is not allowed here",
        }


BATCHES = REVISIONS[R_2025_03_26]


def test_one_bad_message_does_not_spoil_a_batch():
    server = talk(BATCHES).server
    parts = [
        message(id=5, method="tools/call", params=CALL),
        b"5",
        message(id=5, method="tools/list"),
        message(id=6, method="initialize", params=PARAMS["initialize"]),
        message(method="notifications/cancelled", params={"requestId": 5}),
        message(id=99, result={}),
        message(id=5, method="tools/list"),
    ]
    events = server.receive(jsonrpc.encode_batch(parts))
    assert [type(event) for event in events] == [
        InboundRequest,
        InvalidMessageReceived,
        InvalidMessageReceived,
        InboundRequest,
        CancellationReceived,
        MessageDropped,
        InboundRequest,
    ]


def test_a_client_reads_a_batch_of_answers():
    client = talk(BATCHES).client
    first, second = client.request("tools/list"), client.request("tools/list")
    batch = jsonrpc.encode_batch(
        [message(id=second.id, result={"tools": []}), message(id=first.id, result={"tools": []})]
    )
    events = client.receive(batch)
    assert [one([event], ResponseReceived).request for event in events] == [second, first]


@pytest.mark.parametrize("until", ["new", "opening"])
def test_a_batch_has_to_wait_for_the_revision_that_has_them(until):
    server = Conversation(BATCHES).open(until).server
    events = server.receive(jsonrpc.encode_batch([message(id=5, method="ping")]))
    assert refusal(events)["code"] == -32600


@pytest.mark.parametrize(
    ("batch", "code"), [(b"[]", -32600), (b"[5", -32700), (b"[" + b"5," * 100 + b"5]", -32600)]
)
def test_a_batch_that_is_none_is_one_error(batch, code):
    assert refusal(talk(BATCHES).server.receive(batch))["code"] == code


# --------------------------------------------------------------------- the handshake

SERVER_STATES = ("new", "opening", "greeted", "ready", "closed")


def _in_state(revision: Revision, role: Role, state: str) -> Connection:
    """Return one end of a conversation in this state."""
    until = state if state != "closed" else "ready"
    end = Conversation(revision).open(until).end(role)
    if state == "closed":
        end.close()
    assert end.lifecycle.state == state
    return end


def _early(state: str, method: str) -> bool:
    """Return whether a session allows this request: a second implementation of the rule."""
    if state == "ready":
        return method != "initialize"
    return state != "closed" and (method == "ping" or (state, method) == ("new", "initialize"))


@pytest.mark.requirement("LIFE-1", "LIFE-5", "LIFE-6")
@cases(requests, lambda revision, _by, _row: not revision.stateless)
@pytest.mark.parametrize("state", SERVER_STATES)
def test_received_requests_in_each_state(revision, by, row, state):
    if by == SERVER and state == "greeted":
        return  # a client is never there
    asked = _in_state(revision, other(by), state)
    [event] = asked.receive(told(revision, row.name, id="x"))
    # The next requests of a client may overtake its `initialized`, and a proxy initializes for each client.
    if _early(state, row.name) or state == "greeted" or (state == "ready" and by == CLIENT):
        assert isinstance(event, InboundRequest)
    else:
        assert isinstance(event, InvalidMessageReceived)
        assert parse(event.data)["error"]["code"] == -32600
        assert "x" not in asked.incoming


@pytest.mark.requirement("LIFE-5", "LIFE-6")
@cases(requests, lambda revision, _by, _row: not revision.stateless)
@pytest.mark.parametrize("state", SERVER_STATES)
def test_allowed_requests_in_each_state(revision, by, row, state):
    if by == CLIENT and state == "greeted":
        return  # a client is never there
    asker = _in_state(revision, by, state)
    known = by == CLIENT or state not in {"new", "opening"}  # a server without a peer cannot send requests
    before = list(asker.outgoing)
    if known and _early(state, row.name):
        assert asker.request(row.name, PARAMS[row.name]).id in asker.outgoing
        return
    with pytest.raises(ChannelClosed if state == "closed" else LocalProtocolError):
        asker.request(row.name, PARAMS[row.name])
    assert list(asker.outgoing) == before


@every_session
def test_a_handshake_step_by_step(revision):
    conversation = Conversation(revision)
    client, server = conversation.client, conversation.server
    opening = SESSION_ERA.open(client)
    assert (client.lifecycle.state, client.peer, client.revision) == ("opening", None, revision)
    incoming = one(server.receive(opening.data), InboundRequest)
    assert (server.lifecycle.state, server.peer) == ("opening", None)
    answer = server.reply(incoming.id, server.local_peer.introduce(incoming.peer.revision))
    assert answer
    assert server.lifecycle.state == "greeted"
    assert server.peer == Peer(revision, CLIENT_CAN, Implementation("a client", "1"))
    assert one(client.receive(answer), ResponseReceived).request is opening
    assert client.lifecycle.state == "ready"
    notice = client.notify("notifications/initialized")
    assert parse(notice) == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (
        one(server.receive(notice), NotificationReceived).row
        is revision.notifications[CLIENT]["notifications/initialized"]
    )
    assert server.lifecycle.state == "ready"
    assert (client.dropped_counts, server.dropped_counts) == ({}, {})


@pytest.mark.parametrize("state", ["new", "opening", "ready"])
def test_initialized_means_nothing_but_after_the_greeting(state):
    server = _in_state(LATEST_SESSION, SERVER, state)
    data = message(method="notifications/initialized")
    assert dropped(server, data) == "unexpected notifications/initialized"
    assert server.lifecycle.state == state


@pytest.mark.requirement("LIFE-1")
@every_session
def test_a_second_initialize_before_the_answer_is_refused_and_changes_nothing(revision):
    server = _in_state(revision, SERVER, "opening")
    peer, waiting = server.peer, dict(server.incoming)
    error = refusal(server.receive(told(revision, "initialize", id="again")))
    assert error["code"] == -32600
    assert "already" in error["message"]
    assert (server.lifecycle.state, server.peer, server.incoming) == ("opening", peer, waiting)


@every_session
@pytest.mark.parametrize("state", ["greeted", "ready"])
@pytest.mark.parametrize("is_refused", [True, False])
def test_initialize_again_changes_only_the_client_and_only_once_it_is_answered(revision, state, is_refused):
    server = _in_state(revision, SERVER, state)
    running = one(server.receive(told(revision, "tools/call", id=7)), InboundRequest)
    peer = server.peer
    again = one(server.receive(told(revision, "initialize", id="again")), InboundRequest)
    assert (server.lifecycle.state, server.peer) == (state, peer)
    assert refusal(server.receive(told(revision, "initialize", id="again")))["code"] == -32600
    assert server.incoming == {7: running, "again": again}
    if is_refused:
        assert server.fail(again.id, InternalError("no")) is not None
    else:
        assert server.reply(again.id, SERVER_PARTY.introduce(again.peer.revision)) is not None
    assert (server.lifecycle.state, server.peer) == (state, peer if is_refused else again.peer)
    assert running.peer is peer
    assert server.incoming == {7: running}


@every_session
@pytest.mark.parametrize("state", ["opening", "ready"])
def test_a_client_initializes_once(revision, state):
    with pytest.raises(LocalProtocolError, match="already"):
        SESSION_ERA.open(_in_state(revision, CLIENT, state))


def test_a_refused_handshake_can_be_tried_again():
    conversation = Conversation(LATEST_SESSION).open("opening")
    [identity] = conversation.server.incoming
    refused = conversation.server.fail(identity, InternalError("not now"))
    assert refused
    assert conversation.server.lifecycle.state == "new"
    one(conversation.client.receive(refused), ErrorReceived)
    assert (conversation.client.lifecycle.state, conversation.client.peer) == ("new", None)
    conversation.open()
    assert conversation.client.lifecycle.state == conversation.server.lifecycle.state == "ready"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"result": {}}, id="empty"),
        pytest.param({"result": 5}, id="a number"),
        pytest.param({"result": {}, "error": {"code": 1, "message": ""}}, id="result and error"),
        pytest.param({"error": {"code": 1}}, id="half an error"),
    ],
)
def test_a_handshake_that_was_answered_with_nonsense_can_be_tried_again(answer):
    client = Connection(CLIENT_PARTY, revision=LATEST_SESSION)
    opening = SESSION_ERA.open(client)
    one(client.receive(message(id=opening.id, **answer)), ErrorReceived)
    assert client.lifecycle.state == "new"
    assert SESSION_ERA.open(client).id != opening.id


def test_a_handshake_whose_params_do_not_fit_can_be_tried_again():
    server = Connection(SERVER_PARTY)
    params = {**PARAMS["initialize"], "clientInfo": {}}
    assert refusal(server.receive(message(id=1, method="initialize", params=params)))["code"] == -32602
    assert server.lifecycle.state == "new"
    one(server.receive(told(LATEST_SESSION, "initialize", id=1)), InboundRequest)


# --------------------------------------------------------------------- negotiation


@pytest.mark.requirement("LIFE-9", "LIFE-10", "LIFE-11")
@pytest.mark.parametrize(
    ("offered", "supported", "agreed"),
    [
        *((revision.date, DATES, revision.date) for revision in SESSIONS),
        ("1999-01-01", DATES, LATEST_SESSION.date),
        ("2099-01-01", DATES, LATEST_SESSION.date),
        ("", DATES, LATEST_SESSION.date),
        (NEWEST, DATES, LATEST_SESSION.date),
        (LATEST_SESSION.date, [OLDEST], OLDEST),
        (LATEST_SESSION.date, [OLDEST, R_2025_03_26, NEWEST], R_2025_03_26),
        (OLDEST, [LATEST_SESSION.date], LATEST_SESSION.date),
    ],
)
def test_a_server_agrees_or_names_its_newest(offered, supported, agreed):
    server = Connection(party(SERVER_CAN, supported=supported))
    params = {**PARAMS["initialize"], "protocolVersion": offered}
    incoming = one(server.receive(message(id=1, method="initialize", params=params)), InboundRequest)
    assert incoming.peer.revision is REVISIONS[agreed]
    written = parse(server.reply(1, server.local_peer.introduce(server.incoming[1].peer.revision)))["result"]
    assert written["protocolVersion"] == agreed
    assert server.revision is REVISIONS[agreed]


@pytest.mark.requirement("LIFE-14")
@pytest.mark.parametrize("offered", SESSIONS, ids=str)
@pytest.mark.parametrize("answered", SESSIONS, ids=str)
def test_a_client_uses_the_revision_of_the_server(offered, answered):
    conversation = Conversation(offered, server=party(SERVER_CAN, supported=[answered.date])).open()
    assert conversation.client.revision is conversation.server.revision is answered
    outgoing, _ = conversation.ask("tools/call")
    assert outgoing.revision is answered


@pytest.mark.parametrize("answered", [NEWEST, "1999-01-01", "", R_2025_03_26])
def test_a_client_rejects_an_unsupported_revision(answered):
    client = Connection(party(CLIENT_CAN, supported=[OLDEST, NEWEST]), revision=REVISIONS[OLDEST])
    opening = SESSION_ERA.open(client)
    result = {
        "protocolVersion": answered,
        "capabilities": {},
        "serverInfo": {"name": "a server", "version": "2"},
    }
    failed = one(client.receive(message(id=opening.id, result=result)), ErrorReceived)
    assert isinstance(failed.error, RemoteProtocolError)
    assert str(failed.error) == (
        f"unsupported protocol revision of the server: {answered} (this client supports {OLDEST}, {NEWEST})"
    )
    assert (client.lifecycle.state, client.peer) == ("new", None)


@pytest.mark.requirement("VER-8")
@every_session
def test_a_stateless_server_reports_its_revisions(revision):
    conversation = Conversation(revision, server=party(SERVER_CAN, supported=[NEWEST]))
    opening = SESSION_ERA.open(conversation.client)
    refused = one(conversation.server.receive(opening.data), InvalidMessageReceived)
    assert refused.data
    assert conversation.server.lifecycle.state == "new"
    failed = one(conversation.client.receive(refused.data), ErrorReceived)
    assert isinstance(failed.error, UnsupportedRevision)
    assert failed.error.data == {"supported": [NEWEST], "requested": revision.date}
    assert NEWEST in failed.error.message
    assert conversation.client.lifecycle.state == "new"


def test_a_handshake_that_is_marked_stateless_does_not_exist():
    server = Connection(SERVER_PARTY)
    data = message(id=1, method="initialize", params=marked(PARAMS["initialize"]))
    assert refusal(server.receive(data))["code"] == -32601
    assert server.lifecycle.state == "new"


@pytest.mark.parametrize(
    ("versions", "spoken"),
    [([NEWEST], LATEST), (["2099-01-01", NEWEST], LATEST), ([OLDEST], None), ([], None)],
)
def test_a_client_discovers_the_revisions_of_a_server(versions, spoken):
    client = Connection(CLIENT_PARTY)
    opening = STATELESS_ERA.open(client)
    result = {"supportedVersions": versions, "capabilities": {"tools": {}}}
    one(client.receive(message(id=opening.id, result=result)), ResponseReceived)
    if spoken is None:
        assert client.peer is None
    else:
        assert client.peer == Peer(spoken, ServerCapabilities(tools=ListCapability()))


@pytest.mark.requirement("DISC-3")
@pytest.mark.parametrize("tag", [{"name": "half a tag"}, 5, None])
def test_a_name_tag_that_cannot_be_read_does_not_hide_a_server(tag):
    client = Connection(CLIENT_PARTY)
    opening = STATELESS_ERA.open(client)
    result = {"supportedVersions": [NEWEST], "capabilities": {}, "_meta": {SERVER_INFO: tag}}
    one(client.receive(message(id=opening.id, result=result)), ResponseReceived)
    assert client.peer == Peer(LATEST, ServerCapabilities())


# --------------------------------------------------------------------- from one era to the other


@every_session
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"error": {"code": -32601, "message": "?"}}, id="method not found"),
        pytest.param({"error": {"code": -32600, "message": "?"}}, id="not now"),
        pytest.param({"result": {}}, id="an empty result"),
        pytest.param(None, id="silence"),
    ],
)
def test_a_client_falls_back_from_a_probe_to_a_session(revision, answer):
    conversation = Conversation(LATEST, server=party(SERVER_CAN, supported=[revision.date]))
    client, server = conversation.client, conversation.server
    probe = STATELESS_ERA.open(client)
    if answer is None:
        assert client.cancel(probe.id)
    else:
        one(client.receive(message(id=probe.id, **answer)), ErrorReceived)
    client.switch_revision(revision)
    assert (client.revision, client.peer) == (revision, None)
    conversation.open()
    assert client.lifecycle.state == server.lifecycle.state == "ready"
    assert client.next_id == 3  # ids go on
    if answer is None:
        assert dropped(client, message(id=probe.id, result={})) == "late response"
    conversation.ask("tools/call")


def test_adopting_a_revision_forgets_the_peer():
    client = talk(LATEST).client
    client.switch_revision(LATEST_SESSION)
    assert (client.revision, client.peer) == (LATEST_SESSION, None)
    with pytest.raises(LocalProtocolError, match="not allowed before"):
        client.request("tools/list")


def test_responses_are_decoded_in_the_revision_of_their_request():
    client = Connection(CLIENT_PARTY)
    asked = client.request("tools/call", CALL)
    client.switch_revision(LATEST_SESSION)
    result = {"resultType": "input_required", "requestState": "s"}
    replied = one(client.receive(message(id=asked.id, result=result)), ResponseReceived)
    assert isinstance(replied.result, InputRequiredResult)


@pytest.mark.requirement("STATE-1")
@every_session
def test_a_session_and_stateless_requests_side_by_side(revision):
    conversation = Conversation(revision)
    server = conversation.server
    for number, until in enumerate(("new", "opening", "greeted", "ready")):
        server = Conversation(revision).open(until).server
        state, peer, level = server.lifecycle.state, server.peer, server.log_level
        incoming = one(server.receive(told(LATEST, "tools/call", id=f"s{number}")), InboundRequest)
        assert incoming.peer == Peer(LATEST, ClientCapabilities())
        assert (server.lifecycle.state, server.peer, server.log_level) == (state, peer, level)
        written = parse(server.reply(incoming.id, RESULTS["tools/call"]))
        assert written["result"]["resultType"] == "complete"


@every_session
def test_each_request_is_answered_in_its_own_era(revision):
    conversation = talk(revision)
    server = conversation.server
    _, session = conversation.ask("tools/list")
    stateless = one(server.receive(told(LATEST, "tools/list", id="s")), InboundRequest)
    assert session.peer.revision is revision
    assert "resultType" in parse(server.reply(stateless.id, RESULTS["tools/list"]))["result"]
    assert "resultType" not in parse(server.reply(session.id, RESULTS["tools/list"]))["result"]
    # both share one space of ids
    one(server.receive(told(LATEST, "tools/list", id="x")), InboundRequest)
    assert refusal(server.receive(told(revision, "tools/list", id="x")))["code"] == -32600


def test_a_server_cannot_make_a_session_stateless():
    client = talk(LATEST_SESSION).client
    incoming = one(client.receive(message(id=1, method="ping", params=marked())), InboundRequest)
    assert incoming.peer is client.peer


def test_a_session_does_not_learn_the_methods_of_the_other_era():
    server = talk(LATEST_SESSION).server
    assert refusal(server.receive(message(id=1, method="server/discover")))["code"] == -32601
    assert refusal(server.receive(message(id=1, method="ping", params=marked())))["code"] == -32601
    one(server.receive(message(id=1, method="ping")), InboundRequest)


@pytest.mark.requirement("MSG-21", "STDIO-7")
@pytest.mark.parametrize(
    "method", ["ping", "roots/list", "sampling/createMessage", Row("x/y", Params, Result)]
)
def test_a_server_cannot_send_requests_without_a_session(method):
    server = talk(LATEST).server
    with pytest.raises(LocalProtocolError):
        server.request(method)
    assert server.outgoing == {}


@pytest.mark.requirement("MSG-22", "STDIO-6")
@pytest.mark.parametrize("method", ["ping", "roots/list", "elicitation/create", "nonsense"])
def test_a_stateless_client_is_asked_nothing(method):
    client = talk(LATEST).client
    data = message(id=1, method=method, params=PARAMS.get(method, {}))
    assert dropped(client, data) == "request to a stateless client"
    assert client.incoming == {}


# --------------------------------------------------------------------- capabilities


def _needs(revision: Revision, _by: Role, row: Row) -> bool:
    return row.needs is not None and row.name not in revision.ungated


def _less(role: Role, path: str):
    return party(without(CLIENT_CAN, path) if role == CLIENT else without(SERVER_CAN, path))


@pytest.mark.requirement("LIFE-15", "ERR-10")
@cases(requests, _needs)
def test_undeclared_methods_are_not_found(revision, by, row):
    conversation = talk(revision, **{other(by): _less(other(by), row.needs)})
    asked = conversation.end(other(by))
    refused = one(asked.receive(told(revision, row.name, id="x")), InvalidMessageReceived)
    assert isinstance(refused.error, MethodNotFound)
    assert parse(refused.data)["error"] == {
        "code": -32601,
        "message": f"Method not found: {row.name} (this {other(by)} does not offer {row.needs})",
    }
    assert "x" not in asked.incoming


@pytest.mark.requirement("LIFE-15")
@cases(requests, _needs)
def test_undeclared_methods_are_not_requested(revision, by, row):
    conversation = talk(revision, **{other(by): _less(other(by), row.needs)})
    asker = conversation.end(by)
    with pytest.raises(CapabilityNotDeclared) as refused:
        asker.request(row.name, PARAMS[row.name])
    assert refused.value.capability == row.needs
    assert row.needs in refused.value.message
    assert row.name in refused.value.message
    assert refused.value.peer == ("a server" if by == CLIENT else "a client")
    assert asker.outgoing == {}


@pytest.mark.requirement("LIFE-15")
@cases(notices, _needs)
def test_undeclared_notifications_are_not_sent(revision, by, row):
    conversation = talk(revision, **{by: _less(by, row.needs)})
    to = None
    if by == SERVER and revision.stateless:
        to = conversation.ask("subscriptions/listen" if row.name in FOR_LISTENERS else "tools/call").incoming
    with pytest.raises(CapabilityNotDeclared) as refused:
        conversation.end(by).notify(row.name, PARAMS[row.name], to=to)
    assert refused.value.capability == row.needs


@pytest.mark.requirement("COMP-1")
@every_revision
def test_completions_need_no_capability_where_there_is_none(revision):
    conversation = talk(revision, server=_less(SERVER, "completions"))
    if revision.date == R_2024_11_05:
        assert conversation.ask("completion/complete")
    else:
        with pytest.raises(CapabilityNotDeclared, match="completions"):
            conversation.ask("completion/complete")


def test_nothing_is_known_of_a_server_that_was_not_discovered():
    client = Connection(CLIENT_PARTY)
    assert client.request("tools/call", CALL)


def test_a_peer_without_a_name_is_refused_without_one():
    client = Connection(CLIENT_PARTY, peer=Peer(LATEST, ServerCapabilities()))
    with pytest.raises(CapabilityNotDeclared) as refused:
        client.request("tools/list")
    assert refused.value.peer is None


def test_a_peer_whose_capabilities_are_not_known_is_asked():
    client = Connection(CLIENT_PARTY, peer=Peer(LATEST_SESSION))
    assert client.request("tools/list")


# --------------------------------------------------------------------- cancellation


@pytest.mark.requirement("CANC-1", "CANC-2", "CANC-4", "STDIO-9")
@cases(requests, lambda _revision, _by, row: row.name in {"tools/call", "ping", "roots/list"})
@pytest.mark.parametrize("reason", [None, "too slow"])
def test_a_request_is_cancelled(revision, by, row, reason):
    conversation = talk(revision)
    outgoing, incoming = conversation.ask(row.name, by=by, progress=True)
    asker, asked = conversation.end(by), conversation.end(other(by))
    data = asker.cancel(outgoing.id, reason)
    assert data is not None
    members = {"reason": reason} if reason else {}
    assert parse(data) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": outgoing.id, **members},
    }
    cancelled = one(asked.receive(data), CancellationReceived)
    assert cancelled.request is incoming
    assert cancelled.reason == reason
    assert (asker.outgoing, asked.incoming) == ({}, {})
    # too late for anything
    assert asked.reply(incoming.id, RESULTS[row.name]) is None
    assert asked.fail(incoming.id, InternalError("x")) is None
    assert asked.report_progress(incoming.id, 1) is None
    assert asker.cancel(outgoing.id) is None
    assert dropped(asked, data) == "cancellation of an unknown request"


@pytest.mark.requirement("CANC-5", "CANC-6")
@every_revision
def test_an_answer_that_crosses_a_cancellation_is_late(revision):
    conversation = talk(revision)
    outgoing, incoming = conversation.ask("tools/call", progress=True)
    progress = conversation.server.report_progress(incoming.id, 1)
    answer = conversation.server.reply(incoming.id, RESULTS["tools/call"])
    cancel = conversation.client.cancel(outgoing.id)
    assert progress
    assert answer
    assert cancel
    assert dropped(conversation.client, progress) == "progress of an unknown request"
    assert dropped(conversation.client, answer) == "late response"
    assert dropped(conversation.server, cancel) == "cancellation of an unknown request"


@every_revision
@pytest.mark.parametrize("identity", ["a", 7, ""])
def test_ids_of_both_types_can_be_cancelled(revision, identity):
    server = talk(revision).server
    incoming = one(server.receive(told(revision, "tools/call", id=identity)), InboundRequest)
    wrong = str(identity) if identity == 7 else 7
    data = message(method="notifications/cancelled", params={"requestId": wrong})
    assert dropped(server, data) == "cancellation of an unknown request"
    data = message(method="notifications/cancelled", params={"requestId": identity, "reason": "r"})
    assert one(server.receive(data), CancellationReceived).request is incoming


@pytest.mark.requirement("CANC-6")
def test_a_cancellation_that_overtakes_its_request_is_remembered_where_messages_may_overtake_each_other():
    for unordered in (False, True):
        server = talk(REVISIONS[DATES[3]]).server
        server.is_unordered = unordered
        for number in range(100, 100 + MAX_EARLY_CANCELLATIONS + 1):
            cancel = message(method="notifications/cancelled", params={"requestId": number})
            assert dropped(server, cancel) == "cancellation of an unknown request"
        pings = [message(method="ping", id=number) for number in range(100, 101 + MAX_EARLY_CANCELLATIONS)]
        kinds = [type(server.receive(ping)[0]) for ping in pings]
        expected = (
            [InvalidMessageReceived] * MAX_EARLY_CANCELLATIONS
            if unordered
            else [InboundRequest] * MAX_EARLY_CANCELLATIONS
        )
        assert kinds == [InboundRequest, *expected]  # the oldest was forgotten
        assert not server.early_cancellations


def test_a_cancellation_whose_reason_cannot_be_encoded_can_be_tried_again():
    client = talk(LATEST).client
    outgoing = client.request("tools/call", CALL)
    with pytest.raises(LocalProtocolError):
        client.cancel(outgoing.id, LONE)
    assert client.outgoing == {outgoing.id: outgoing}
    assert client.cancel(outgoing.id)


@pytest.mark.requirement("CANC-9")
@every_revision
@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"requestId": 99}, "cancellation of an unknown request"),
        ({}, "cancellation without a request id"),
        ({"requestId": None}, "cancellation without a request id"),
        ({"requestId": 1.5}, "malformed notification"),
        ({"requestId": 5, "reason": 5}, "malformed notification"),
        ({"requestId": [5]}, "malformed notification"),
        (5, "malformed notification"),
    ],
)
def test_a_cancellation_of_nothing_is_dropped(revision, params, why):
    server = talk(revision).server
    waiting = one(server.receive(told(revision, "tools/call", id=5)), InboundRequest)
    event = one(server.receive(message(method="notifications/cancelled", params=params)), MessageDropped)
    assert event.reason == why
    assert isinstance(event.error, RemoteProtocolError) is (why == "malformed notification")
    assert server.incoming == {5: waiting}


@pytest.mark.requirement("LIFE-16")
@every_session
def test_initialize_is_not_cancelled(revision):
    conversation = Conversation(revision).open("opening")
    [identity] = conversation.server.incoming
    forbidden = message(method="notifications/cancelled", params={"requestId": identity})
    assert dropped(conversation.server, forbidden) == "cancellation of an unknown request"
    assert conversation.server.reply(
        identity,
        conversation.server.local_peer.introduce(conversation.server.incoming[identity].peer.revision),
    )


@pytest.mark.requirement("LIFE-16")
@every_session
def test_initialize_is_given_up_without_a_word(revision):
    client = Connection(CLIENT_PARTY, revision=revision)
    opening = SESSION_ERA.open(client)
    assert client.cancel(opening.id) is None
    assert client.lifecycle.state == "new"
    result = {"protocolVersion": revision.date, "capabilities": {}, "serverInfo": {"name": "", "version": ""}}
    assert dropped(client, message(id=opening.id, result=result)) == "late response"
    assert (client.lifecycle.state, client.peer) == ("new", None)
    assert SESSION_ERA.open(client)


@every_session
def test_a_cancellation_goes_one_way_only(revision):
    """A peer cancels its own requests, not ours, though both may have the same id."""
    conversation = talk(revision)
    ours = conversation.server.request("roots/list")
    conversation.server.receive(told(revision, "tools/call", id=ours.id))
    data = message(method="notifications/cancelled", params={"requestId": ours.id})
    one(conversation.server.receive(data), CancellationReceived)
    assert conversation.server.outgoing == {ours.id: ours}
    assert dropped(conversation.server, data) == "cancellation of an unknown request"
    assert conversation.server.outgoing == {ours.id: ours}


# --------------------------------------------------------------------- progress


@pytest.mark.requirement("PROG-1", "PROG-2", "PROG-5", "PROG-7")
@cases(requests, lambda _revision, _by, row: row.name in {"tools/call", "ping", "roots/list"})
def test_progress_comes_back_to_its_request(revision, by, row):
    conversation = talk(revision)
    asker, asked = conversation.end(by), conversation.end(other(by))
    first, second = (conversation.ask(row.name, by=by, progress=True) for _ in range(2))
    assert first.outgoing.token != second.outgoing.token
    assert first.incoming.token == first.outgoing.token
    data = asked.report_progress(second.incoming.id, 1, 4, "a quarter")
    assert data
    assert parse(data) == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {
            "progressToken": second.outgoing.token,
            "progress": 1,
            "total": 4,
            "message": "a quarter",
        },
    }
    event = one(asker.receive(data), ProgressReceived)
    assert event.request is second.outgoing
    assert (event.params.progress, event.params.total, event.params.message) == (1, 4, "a quarter")


@every_revision
def test_progress_is_not_sent_unless_requested(revision):
    conversation = talk(revision)
    outgoing, incoming = conversation.ask("tools/call")
    assert conversation.server.report_progress(incoming.id, 1) is None
    assert conversation.server.report_progress("unknown", 1) is None
    unasked = message(method="notifications/progress", params={"progressToken": outgoing.id, "progress": 1})
    assert dropped(conversation.client, unasked) == "progress of an unknown request"


@pytest.mark.requirement("PROG-3")
@every_revision
@pytest.mark.parametrize("token", ["t", 5])
def test_our_progress_only_increases(revision, token):
    server = talk(revision).server
    params = {**CALL, "_meta": {"progressToken": token}}
    params = marked(CALL, params["_meta"]) if revision.stateless else params
    server.receive(message(id=1, method="tools/call", params=params))
    said = [server.report_progress(1, value) for value in (1, 1, 0.5, -3, 1.5, 2, 2.0, 3)]
    assert [None if data is None else parse(data)["params"] for data in said] == [
        {"progressToken": token, "progress": 1},
        None,
        None,
        None,
        {"progressToken": token, "progress": 1.5},
        {"progressToken": token, "progress": 2},
        None,
        {"progressToken": token, "progress": 3},
    ]


@pytest.mark.requirement("PROG-3")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_progress_that_is_not_a_number_is_not_sent(value):
    conversation = talk(LATEST)
    incoming = conversation.ask("tools/call", progress=True).incoming
    try:
        data = conversation.server.report_progress(incoming.id, value)
    except LocalProtocolError:
        data = None
    assert data is None
    assert conversation.server.report_progress(incoming.id, 1)
    assert conversation.server.report_progress(incoming.id, 1) is None


def test_progress_may_be_any_number():
    conversation = talk(LATEST)
    incoming = conversation.ask("tools/call", progress=True).incoming
    assert parse(conversation.server.report_progress(incoming.id, 10**400))["params"]["progress"] == 10**400


def test_progress_that_cannot_be_encoded_was_not_sent():
    conversation = talk(LATEST)
    incoming = conversation.ask("tools/call", progress=True).incoming
    with pytest.raises(LocalProtocolError):
        conversation.server.report_progress(incoming.id, 1, message=LONE)
    assert conversation.server.report_progress(incoming.id, 1)


@pytest.mark.requirement("PROG-3")
@every_revision
def test_their_progress_has_to_increase(revision):
    client = talk(revision).client
    outgoing = client.request("tools/call", CALL, progress=True)

    def said(value):
        params = {"progressToken": outgoing.token, "progress": value}
        return client.receive(message(method="notifications/progress", params=params))

    assert one(said(0), ProgressReceived).params.progress == 0
    for value in (0, 0.0, -1):
        assert one(said(value), MessageDropped).reason == "progress that does not increase"
    assert one(said(0.5), ProgressReceived).params.progress == 0.5
    assert one(said("1"), MessageDropped).reason == "malformed notification"
    assert client.dropped_counts == {"progress that does not increase": 3, "malformed notification": 1}


@pytest.mark.requirement("PROG-5", "PROG-6")
@every_revision
def test_there_is_no_progress_after_the_end(revision):
    conversation = talk(revision)
    outgoing, incoming = conversation.ask("tools/call", progress=True)
    assert conversation.server.reply(incoming.id, RESULTS["tools/call"])
    assert conversation.server.report_progress(incoming.id, 1) is None
    answer = message(id=outgoing.id, result={"content": []})
    conversation.client.receive(answer)
    late = message(method="notifications/progress", params={"progressToken": outgoing.token, "progress": 1})
    assert dropped(conversation.client, late) == "progress of an unknown request"


@every_revision
@pytest.mark.parametrize("token", [99, "1", "two", ""])
def test_progress_of_an_unknown_token_is_dropped(revision, token):
    client = talk(revision).client
    assert client.request("tools/call", CALL, progress=True).token == 2
    data = message(method="notifications/progress", params={"progressToken": token, "progress": 1})
    assert dropped(client, data) == "progress of an unknown request"


# --------------------------------------------------------------------- logs

GRAVITY: tuple[LogLevel, ...] = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)


def test_levels_are_ranked():
    assert {level: rank for rank, level in enumerate(GRAVITY)} == LOG_LEVEL_RANKS


@pytest.mark.requirement("LOG-10")
@every_session
@pytest.mark.parametrize("wanted", [None, *GRAVITY])
def test_a_session_receives_its_level_and_above(revision, wanted):
    conversation = talk(revision)
    incoming = conversation.ask("tools/call").incoming
    conversation.server.log_level = wanted
    for rank, level in enumerate(GRAVITY):
        data = conversation.server.log(level, {"a": 1}, logger="l")
        assert conversation.server.log(level, {"a": 1}, logger="l", to=incoming) == data
        assert (data is not None) is (wanted is None or rank >= GRAVITY.index(wanted))
        if data:
            notice = one(conversation.client.receive(data), NotificationReceived)
            assert (notice.params.level, notice.params.data, notice.params.logger) == (level, {"a": 1}, "l")


@pytest.mark.requirement("LOG-6", "LOG-7")
@pytest.mark.parametrize("wanted", [None, *GRAVITY])
def test_a_stateless_request_receives_its_log_level(wanted):
    server = talk(LATEST_SESSION).server
    server.log_level = "debug"  # of the session next door
    meta = {} if wanted is None else {LOG_LEVEL: wanted}
    incoming = one(
        server.receive(message(id="x", method="tools/call", params=marked(CALL, meta))), InboundRequest
    )
    for rank, level in enumerate(GRAVITY):
        data = server.log(level, "hello", to=incoming)
        assert (data is not None) is (wanted is not None and rank >= GRAVITY.index(wanted))


@pytest.mark.requirement("LOG-7", "STDIO-11")
@pytest.mark.parametrize("end", ["reply", "fail", "cancel"])
def test_a_stateless_request_receives_nothing_after_its_end(end):
    server = Connection(SERVER_PARTY)
    params = marked(CALL, {LOG_LEVEL: "debug", "progressToken": 1})
    incoming = one(server.receive(message(id="x", method="tools/call", params=params)), InboundRequest)
    assert server.log("error", "before", to=incoming)
    if end == "reply":
        assert server.reply("x", RESULTS["tools/call"])
    elif end == "fail":
        assert server.fail("x", InternalError("x"))
    else:
        server.receive(message(method="notifications/cancelled", params={"requestId": "x"}))
    assert server.report_progress("x", 1) is None
    assert server.log("error", "after", to=incoming) is None
    with pytest.raises(LocalProtocolError):
        server.notify("notifications/message", PARAMS["notifications/message"], to=incoming)


@pytest.mark.requirement("LOG-2")
def test_an_unknown_level_is_invalid():
    server = talk(LATEST_SESSION).server
    params = marked(CALL, {LOG_LEVEL: "loud"})
    assert refusal(server.receive(message(id=1, method="tools/call", params=params)))["code"] == -32602
    error = refusal(server.receive(message(id=1, method="logging/setLevel", params={"level": "loud"})))
    assert error["code"] == -32602


@pytest.mark.requirement("LOG-1")
@every_revision
def test_a_server_that_did_not_declare_logging_logs_nothing(revision):
    server = talk(revision, server=_less(SERVER, "logging")).server
    params = marked(CALL, {LOG_LEVEL: "debug"})
    to = one(server.receive(message(id="x", method="tools/call", params=params)), InboundRequest)
    with pytest.raises(CapabilityNotDeclared, match="logging"):
        server.log("error", "x", to=to if revision.stateless else None)


@pytest.mark.requirement("LIFE-6")
def test_a_session_receives_logs_before_it_is_complete():
    conversation = Conversation(LATEST_SESSION).open("greeted")
    assert conversation.server.log("info", "soon")
    with pytest.raises(LocalProtocolError, match="not allowed before"):
        conversation.server.notify("notifications/tools/list_changed")


def test_without_a_session_a_log_message_needs_a_request():
    assert talk(LATEST).server.log("error", "x") is None
    assert Connection(SERVER_PARTY).log("error", "x") is None


# --------------------------------------------------------------------- notifications


def _unasked(revision: Revision, by: Role, row: Row) -> bool:
    told_apart = {"notifications/initialized", "notifications/cancelled", "notifications/progress"}
    return row.name not in told_apart and (by == CLIENT or not revision.stateless)


@pytest.mark.requirement("MSG-19", "MSG-20")
@cases(notices, _unasked)
def test_a_notification_is_sent_and_received(revision, by, row):
    conversation = talk(revision)
    data = conversation.end(by).notify(row.name, PARAMS[row.name])
    assert "id" not in parse(data)
    heard = one(conversation.end(other(by)).receive(data), NotificationReceived)
    assert (heard.method, heard.row) == (row.name, row)
    assert type(heard.params) is row.params


@every_revision
@pytest.mark.parametrize("by", [CLIENT, SERVER])
def test_only_the_notifications_of_the_revision_can_be_sent(revision, by):
    end = talk(revision).end(by)
    for method in PARAMS:
        if method.startswith("notifications/") and method not in revision.notifications[by]:
            with pytest.raises(LocalProtocolError, match=f"a {by} cannot send {method} in {revision.date}"):
                end.notify(method, PARAMS[method])


@cases(notices, lambda revision, by, _row: revision.stateless and by == SERVER)
def test_a_stateless_notification_belongs_to_a_request(revision, by, row):
    conversation = talk(revision)
    with pytest.raises(LocalProtocolError, match=f"{row.name} must belong to a request"):
        conversation.server.notify(row.name, PARAMS[row.name])


@pytest.mark.requirement("META-19", "SUB-6")
@pytest.mark.parametrize("identity", [7, "7"])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("notifications/subscriptions/acknowledged", {"notifications": {}}),
        ("notifications/tools/list_changed", None),
        ("notifications/prompts/list_changed", NotificationParams()),
        ("notifications/resources/list_changed", {"_meta": {"com.example/a": 1}}),
        ("notifications/resources/updated", ResourceUpdatedParams(uri="u", meta={"com.example/a": 1})),
        ("notifications/cancelled", CancelledParams(request_id=7)),
    ],
)
def test_a_subscription_notification_names_its_subscription(identity, method, params):
    server = Connection(SERVER_PARTY)
    to = one(server.receive(told(LATEST, "subscriptions/listen", id=identity)), InboundRequest)
    meta = parse(server.notify(method, params, to=to))["params"]["_meta"]
    assert meta[SUBSCRIPTION_ID] == identity
    own = params["_meta"] if isinstance(params, dict) and "_meta" in params else getattr(params, "meta", None)
    assert meta == {**(own or {}), SUBSCRIPTION_ID: identity}


@pytest.mark.requirement("SUB-10", "LOG-8", "CANC-14")
@pytest.mark.parametrize("method", sorted(LATEST.notifications[SERVER]))
def test_listeners_and_callers_hear_different_things(method):
    server = Connection(SERVER_PARTY)
    listener = one(server.receive(told(LATEST, "subscriptions/listen", id=1)), InboundRequest)
    caller = one(server.receive(told(LATEST, "tools/call", id=2)), InboundRequest)
    right, wrong = (listener, caller) if method in FOR_LISTENERS else (caller, listener)
    assert server.notify(method, PARAMS[method], to=right)
    with pytest.raises(LocalProtocolError):
        server.notify(method, PARAMS[method], to=wrong)


def test_a_request_notification_names_no_subscription():
    server = Connection(SERVER_PARTY)
    caller = one(server.receive(told(LATEST, "tools/call", id=2)), InboundRequest)
    written = parse(server.notify("notifications/message", PARAMS["notifications/message"], to=caller))
    assert written["params"] == PARAMS["notifications/message"]


@pytest.mark.requirement("SUB-10", "LOG-8")
def test_a_listener_receives_neither_progress_nor_logs_though_it_asked_for_them():
    server = Connection(SERVER_PARTY)
    params = marked({"notifications": {}}, {"progressToken": 1, LOG_LEVEL: "debug"})
    to = one(server.receive(message(id=1, method="subscriptions/listen", params=params)), InboundRequest)
    assert server.report_progress(1, 1) is None
    assert server.log("error", "x", to=to) is None


@pytest.mark.requirement("CANC-13")
@pytest.mark.parametrize("order", ["cancel first", "result first", "cancel twice"])
def test_a_server_ends_a_subscription_in_any_order(order):
    conversation = talk(LATEST)
    client, server = conversation.client, conversation.server
    outgoing, incoming = conversation.ask("subscriptions/listen")
    cancel = server.notify("notifications/cancelled", CancelledParams(request_id=incoming.id), to=incoming)
    result = server.reply(incoming.id, RESULTS["subscriptions/listen"])
    assert result
    first, second = {
        "cancel first": (cancel, result),
        "result first": (result, cancel),
        "cancel twice": (cancel, cancel),
    }[order]
    ended = one(client.receive(first), ResponseReceived)
    assert ended.request is outgoing
    assert isinstance(ended.result, ListenResult)
    late = "late response" if second is result else "cancellation of an unknown request"
    assert dropped(client, second) == late


def test_a_client_ends_a_subscription():
    conversation = talk(LATEST)
    outgoing, incoming = conversation.ask("subscriptions/listen")
    cancel = conversation.client.cancel(outgoing.id)
    assert cancel
    assert one(conversation.server.receive(cancel), CancellationReceived).request is incoming
    assert conversation.server.reply(incoming.id, RESULTS["subscriptions/listen"]) is None


def test_a_client_believes_no_cancellation_but_of_subscriptions():
    client = talk(LATEST).client
    outgoing = client.request("tools/call", CALL)
    forged = message(method="notifications/cancelled", params={"requestId": outgoing.id})
    assert dropped(client, forged) == "cancellation of an unknown request"
    assert client.outgoing == {outgoing.id: outgoing}


@every_revision
def test_an_unknown_notification_is_passed_on(revision):
    for end in (talk(revision).client, talk(revision).server):
        heard = one(end.receive(message(method="com.example/news", params={"a": 1})), NotificationReceived)
        assert (heard.method, heard.params, heard.row) == ("com.example/news", None, None)
        assert isinstance(heard.raw, Raw)
        assert parse(bytes(heard.raw)) == {"a": 1}


@every_revision
@pytest.mark.parametrize("method", ["notifications/tools/list_changed", "tools/call"])
def test_a_notification_that_clients_do_not_send_is_unknown(revision, method):
    heard = one(talk(revision).server.receive(message(method=method, params=CALL)), NotificationReceived)
    assert (heard.method, heard.row) == (method, None)


def test_a_notification_of_the_other_era_is_understood():
    """A server with a session still reads what its stateless clients say, and the other way round."""
    client = talk(LATEST_SESSION).client
    data = told(LATEST_SESSION, "notifications/subscriptions/acknowledged")
    assert one(client.receive(data), NotificationReceived).row


@every_revision
def test_a_malformed_notification_is_dropped(revision):
    client = talk(revision).client
    event = one(
        client.receive(message(method="notifications/message", params={"level": "loud"})), MessageDropped
    )
    assert event.reason == "malformed notification"
    assert event.error
    assert "notifications/message" in event.error.message


# --------------------------------------------------------------------- custom methods


class Weather(Params):
    town: str


class Forecast(Result):
    sunny: bool


class Storm(NotificationParams):
    town: str


EXTRA = {
    "com.example/weather": Row("com.example/weather", Weather, Forecast),
    "com.example/storm": Row("com.example/storm", Storm),
    "com.example/gated": Row("com.example/gated", Weather, Forecast, needs="experimental"),
}


@every_revision
@pytest.mark.parametrize("by", [CLIENT, SERVER])
def test_custom_rows_go_both_ways(revision, by):
    conversation = talk(revision, extra=EXTRA)
    asker, asked = conversation.end(by), conversation.end(other(by))
    if by == CLIENT or not revision.stateless:
        storm = one(
            asked.receive(asker.notify("com.example/storm", Storm(town="Bonn"))), NotificationReceived
        )
        assert storm.params.town == "Bonn"
        outgoing = asker.request("com.example/weather", Weather(town="Bonn"))
        incoming = one(asked.receive(outgoing.data), InboundRequest)
        assert incoming.params.town == "Bonn"
        answer = asked.reply(incoming.id, Forecast(sunny=True))
        assert answer
        replied = one(asker.receive(answer), ResponseReceived).result
        assert isinstance(replied, Forecast)
        assert replied.sunny is True


@pytest.mark.parametrize("method", ["tools/call", "subscriptions/listen"])
def test_a_custom_notification_belongs_to_any_request(method):
    conversation = talk(LATEST, extra=EXTRA)
    to = conversation.ask(method).incoming
    data = conversation.server.notify("com.example/storm", Storm(town="Bonn"), to=to)
    assert one(conversation.client.receive(data), NotificationReceived).params.town == "Bonn"


def test_a_notification_of_an_extension_belongs_to_any_request_whatever_its_span():
    hail = Row("com.example/hail", Storm, server=Span(OLDEST, NEWEST))
    conversation = talk(LATEST, extra={hail.name: hail})
    for method in ("tools/call", "subscriptions/listen"):
        assert conversation.server.notify(hail.name, {"town": "Bonn"}, to=conversation.ask(method).incoming)


def test_custom_rows_may_need_a_capability():
    conversation = talk(LATEST, extra=EXTRA)
    with pytest.raises(CapabilityNotDeclared, match="experimental"):
        conversation.client.request("com.example/gated", {"town": "Bonn"})
    data = message(id=1, method="com.example/gated", params=marked({"town": "Bonn"}))
    assert refusal(conversation.server.receive(data))["code"] == -32601


def test_a_row_can_be_handed_over():
    conversation = talk(LATEST_SESSION)
    outgoing = conversation.client.request(EXTRA["com.example/weather"], {"town": "Bonn"})
    assert parse(outgoing.data)["method"] == "com.example/weather"
    notice = conversation.server.notify(EXTRA["com.example/storm"], {"town": "Bonn"})
    assert parse(notice) == {"jsonrpc": "2.0", "method": "com.example/storm", "params": {"town": "Bonn"}}


def test_a_custom_notification_is_not_a_request():
    conversation = talk(LATEST, extra=EXTRA)
    with pytest.raises(LocalProtocolError):
        conversation.client.request("com.example/storm", {"town": "Bonn"})
    data = message(id=1, method="com.example/storm", params=marked({"town": "Bonn"}))
    assert refusal(conversation.server.receive(data))["code"] == -32601


def test_a_custom_request_is_not_a_notification():
    conversation = talk(LATEST, extra=EXTRA)
    with pytest.raises(LocalProtocolError):
        conversation.client.notify("com.example/weather", {"town": "Bonn"})
    heard = one(
        conversation.server.receive(message(method="com.example/weather", params={"town": "Bonn"})),
        NotificationReceived,
    )
    assert heard.row is None


# --------------------------------------------------------------------- parameters and their meta


@every_revision
@pytest.mark.parametrize(
    "params",
    [None, {}, {"cursor": "c"}, PaginatedRequestParams(), PaginatedRequestParams(cursor="c")],
    ids=repr,
)
def test_parameters_are_plain_or_typed(revision, params):
    client = talk(revision).client
    said = parse(client.request("tools/list", params).data).get("params", {})
    said.pop("_meta", None)
    cursor = params.cursor if isinstance(params, PaginatedRequestParams) else (params or {}).get("cursor")
    assert said == ({} if cursor is None else {"cursor": cursor})


def test_parameters_are_not_changed_in_place():
    client = Connection(CLIENT_PARTY)
    typed, plain = CallToolParams(name="add"), {"name": "add"}
    for params in (typed, plain):
        assert "_meta" in parse(client.request("tools/call", params).data)["params"]
    assert (typed, plain) == (CallToolParams(name="add"), {"name": "add"})


@every_revision
@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"name": "add", "_meta": {"com.example/a": 1}}, id="plain"),
        pytest.param(CallToolParams(name="add", meta=Raw(b'{"com.example/a":1}')), id="typed"),
    ],
)
@pytest.mark.parametrize("progress", [False, True])
def test_the_meta_of_parameters_is_not_lost(revision, params, progress):
    client = talk(revision).client
    said = parse(client.request("tools/call", params, progress=progress).data)["params"]["_meta"]
    assert said["com.example/a"] == 1
    assert ("progressToken" in said) is progress
    assert (PROTOCOL_VERSION in said) is revision.stateless


@every_revision
def test_meta_may_be_null(revision):
    client = talk(revision).client
    said = parse(client.request("tools/call", {"name": "add", "_meta": None}, progress=True).data)
    assert said["params"]["_meta"]["progressToken"] == said["id"]


@pytest.mark.parametrize(
    "params",
    [{"name": "add", "_meta": 5}, CallToolParams(name="add", meta=Raw(b"5"))],
    ids=["plain", "typed"],
)
def test_meta_that_is_not_an_object_cannot_be_encoded(params):
    client = Connection(CLIENT_PARTY)
    with pytest.raises(LocalProtocolError):
        client.request("tools/call", params)
    assert client.outgoing == {}


@pytest.mark.requirement("META-2", "META-5")
@pytest.mark.parametrize("key", ["io.modelcontextprotocol/mine", "a b", "-/x", "9.com/x"])
def test_a_key_of_meta_that_is_not_ours_is_refused(key):
    client = Connection(CLIENT_PARTY)
    with pytest.raises(LocalProtocolError, match="invalid key in _meta"):
        client.request("tools/list", meta={"com.example/fine": 1, key: 1})
    assert client.outgoing == {}


# --------------------------------------------------------------------- what was settled elsewhere


def test_a_session_goes_on_in_another_place():
    peer = talk(LATEST_SESSION).server.peer
    server = Connection(SERVER_PARTY, peer=peer)
    assert (server.lifecycle.state, server.revision) == ("ready", LATEST_SESSION)
    assert one(server.receive(message(id=1, method="tools/list")), InboundRequest).peer is peer
    greeted = Connection(SERVER_PARTY, peer=peer)
    greeted.lifecycle.state = "greeted"
    one(greeted.receive(message(id=1, method="tools/list")), InboundRequest)
    greeted.receive(message(method="notifications/initialized"))
    one(greeted.receive(message(id=3, method="tools/list")), InboundRequest)


# --------------------------------------------------------------------- the end


@every_revision
def test_the_end(revision):
    conversation = talk(revision)
    first, incoming = conversation.ask("tools/call", progress=True)
    second = conversation.client.request("tools/list")
    assert conversation.client.close() == [first, second]
    assert conversation.client.close() == []
    with pytest.raises(ChannelClosed):
        conversation.client.request("tools/list")
    assert conversation.client.cancel(first.id) is None
    assert dropped(conversation.client, message(id=first.id, result={})) == "late response"
    assert conversation.server.close() == []
    assert conversation.server.reply(incoming.id, RESULTS["tools/call"]) is None
    assert conversation.server.fail(incoming.id, InternalError("x")) is None
    assert conversation.server.report_progress(incoming.id, 1) is None


@every_session
@pytest.mark.parametrize(
    ("role", "method"),
    [
        (SERVER, "notifications/tools/list_changed"),
        (SERVER, "notifications/message"),
        (CLIENT, "notifications/roots/list_changed"),
        (CLIENT, "notifications/initialized"),
    ],
)
def test_a_closed_connection_says_nothing(revision, role, method):
    with pytest.raises(ChannelClosed) as closed:
        _in_state(revision, role, "closed").notify(method, PARAMS[method])
    assert closed.value.sent is False


def test_a_closed_server_serves_nothing():
    server = Connection(SERVER_PARTY)
    server.close()
    events = server.receive(told(LATEST, "tools/call", id=1))
    assert not any(isinstance(event, InboundRequest) for event in events)
    assert server.incoming == {}


@pytest.mark.parametrize("total", [math.inf, math.nan, None])
def test_a_total_that_json_cannot_represent_is_not_sent(total):
    conversation = talk(LATEST_SESSION)
    incoming = conversation.ask("tools/call", progress=True).incoming
    assert "total" not in parse(conversation.server.report_progress(incoming.id, 1, total))["params"]


def test_a_client_offers_the_newest_revision_that_it_speaks():
    old = LocalPeer(Implementation("n", "v"), ClientCapabilities(), supported=DATES[:2])
    assert Connection(old).revision.date == DATES[1]


@pytest.mark.parametrize(
    ("end", "until", "hint"),
    [
        (CLIENT, "new", "open(connection)"),
        (CLIENT, "opening", "the server has not responded"),
        (SERVER, "opening", "respond to initialize"),
        (SERVER, "greeted", "the client has not sent"),
    ],
)
def test_an_early_request_reports_what_has_to_come_first(end, until, hint):
    conversation = Conversation(LATEST_SESSION).open(until)
    speaker = conversation.end(end)
    if end == SERVER:
        speaker.peer = speaker.peer or Peer(LATEST_SESSION)
    with pytest.raises(LocalProtocolError, match="not allowed before") as caught:
        speaker.request("tools/list" if end == CLIENT else "roots/list")
    assert hint in (caught.value.hint or "")


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(connection_module) == (0, 14)


@every_revision
def test_a_level_that_does_not_exist_cannot_be_logged(revision):
    conversation = talk(revision)
    incoming = conversation.ask("tools/call").incoming
    with pytest.raises(LocalProtocolError, match="unknown log level"):
        conversation.server.log(cast("Any", "bogus"), "x", to=incoming)


def test_before_the_session_no_log_is_sent():
    party = LocalPeer(Implementation("n", "v"), SERVER_PARTY.capabilities, supported=[LATEST_SESSION.date])
    assert Connection(party).log("error", "x") is None


def test_an_answer_has_the_id_of_the_request():
    server = talk(LATEST_SESSION).server
    one(server.receive(message(id=1, method="ping")), InboundRequest)
    assert parse(server.reply(True, Result()))["id"] == 1
    one(server.receive(message(id=1, method="ping")), InboundRequest)
    assert parse(server.fail(True, InternalError("x")))["id"] == 1


def test_progress_is_a_number():
    conversation = talk(LATEST_SESSION)
    incoming = conversation.ask("tools/call", progress=True).incoming
    with pytest.raises(LocalProtocolError, match="progress must be a number, not 'x'"):
        conversation.server.report_progress(incoming.id, cast("Any", "x"))
