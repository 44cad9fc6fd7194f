"""Repeated requests: the same bytes and the same checks as for the first one."""

import json
from typing import cast

import pytest
from conversation import (
    CLIENT_CAN,
    CLIENT_INFO,
    CLIENT_PARTY,
    PARAMS,
    SERVER_CAN,
    SERVER_INFO,
    cases,
    every_revision,
    every_session,
    one,
    parse,
    party,
    talk,
    without,
)

from toolpost.errors import CapabilityNotDeclared, ChannelClosed, LocalProtocolError
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import ErrorReceived, InboundRequest, MessageDropped, ResponseReceived
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, Row
from toolpost.protocol.revisions import LATEST, LATEST_SESSION
from toolpost.types import (
    CLIENT_CAPABILITIES,
    CallToolParams,
    CallToolResult,
    ClientCapabilities,
    ElicitationCapability,
    ElicitParams,
    Implementation,
    InitializeParams,
    InputRequiredResult,
    PaginatedRequestParams,
    Params,
    Raw,
    Result,
    TaskMetadata,
)

ADD = CallToolParams(name="add", arguments=Raw(b'{"a":1}'))


def called(revision, **options):
    """A conversation in which a tool was called before."""
    conversation = talk(revision, **options)
    conversation.client.request("tools/call", ADD, progress=True)
    return conversation


# --------------------------------------------------------------------- the same bytes


def _usual(revision, by, row):
    return by == CLIENT and row.name != "initialize"


@cases(lambda revision, by: revision.requests[by], _usual)
@pytest.mark.parametrize("progress", [True, False])
def test_a_templated_request_equals_an_ordinary_one(revision, by, row, progress):
    client = talk(revision).end(by)
    params = row.read_params(json.dumps(PARAMS[row.name]).encode())
    client.request(row.name, params)
    prepared = client.request(row.name, params, progress=progress)
    client.next_id -= 1
    looked_at = client.request(row.name, params, meta={}, progress=progress)
    assert parse(prepared.data) == parse(looked_at.data)
    for name in ("id", "row", "revision", "token", "progress", "task"):
        assert getattr(prepared, name) == getattr(looked_at, name), name
    assert client.outgoing[prepared.id] is looked_at


@every_revision
@pytest.mark.parametrize("progress", [True, False])
def test_it_is_understood_and_answered(revision, progress):
    conversation = called(revision)
    outgoing = conversation.client.request("tools/call", ADD, progress=progress)
    incoming = one(conversation.server.receive(outgoing.data), InboundRequest)
    assert (incoming.params.name, bytes(incoming.params.arguments)) == ("add", b'{"a":1}')
    assert incoming.token == (outgoing.id if progress else None)
    answer = conversation.server.reply(incoming.id, CallToolResult(content=[]))
    assert answer is not None
    assert one(conversation.client.receive(answer), ResponseReceived).request is outgoing


@every_revision
def test_names_may_look_like_blanks(revision):
    client = called(revision, client=LocalPeer(Implementation("100 % %d %b", "%s"), CLIENT_CAN)).client
    outgoing = client.request("tools/call", CallToolParams(name="50 %d"), progress=True)
    assert parse(outgoing.data)["params"]["name"] == "50 %d"
    if revision.stateless:
        assert b"100 % %d %b" in outgoing.data


@pytest.mark.requirement("MRTR-18")
@every_revision
def test_a_retry_is_encoded_for_the_revision(revision):
    params = CallToolParams(name="add", request_state="s", task=None)
    said = parse(called(revision).client.request("tools/call", params).data)["params"]
    assert said.get("requestState") == ("s" if revision.stateless else None)


def test_what_cannot_be_encoded_takes_no_id():
    client = called(LATEST).client
    before = client.next_id
    with pytest.raises(LocalProtocolError, match="JSON"):
        client.request("tools/call", CallToolParams(name=cast("str", object())))
    assert client.next_id == before
    assert before not in client.outgoing


# --------------------------------------------------------------------- no check less


@pytest.mark.requirement("LIFE-15")
@every_revision
def test_another_server_may_offer_less(revision):
    client = called(revision).client
    client.set_peer(Peer(revision, without(SERVER_CAN, "tools"), SERVER_INFO))
    with pytest.raises(CapabilityNotDeclared, match="tools"):
        client.request("tools/call", ADD)


@every_revision
def test_nothing_is_sent_over_a_conversation_that_is_over(revision):
    client = called(revision).client
    client.close()
    with pytest.raises(ChannelClosed):
        client.request("tools/call", ADD)
    with pytest.raises(ChannelClosed):
        client.request("tools/list", PaginatedRequestParams())


@pytest.mark.requirement("LIFE-5")
@every_session
def test_after_another_revision_was_chosen_there_is_a_handshake_first(revision):
    client = called(revision).client
    client.switch_revision(LATEST_SESSION)
    with pytest.raises(LocalProtocolError, match="initialized"):
        client.request("tools/call", ADD)


def test_another_revision_has_other_facts():
    client = called(LATEST_SESSION).client
    client.switch_revision(LATEST)
    assert CLIENT_CAPABILITIES in parse(client.request("tools/call", ADD).data)["params"]["_meta"]


def test_a_session_is_opened_once():
    client = Connection(CLIENT_PARTY, revision=LATEST_SESSION, peer=Peer(LATEST_SESSION, SERVER_CAN))
    client.lifecycle.state = "new"
    params = InitializeParams(
        protocol_version=LATEST_SESSION.date, capabilities=CLIENT_CAN, client_info=CLIENT_INFO
    )
    client.request("initialize", params)
    with pytest.raises(LocalProtocolError, match="already"):
        client.request("initialize", params)


@pytest.mark.requirement("TASK-4")
@every_revision
def test_a_task_request_is_validated(revision):
    wish = CallToolParams(name="add", task=TaskMetadata())
    client = called(revision).client
    outgoing = client.request("tools/call", wish)
    assert outgoing.task is revision.tasks
    assert ("task" in parse(outgoing.data)["params"]) is revision.tasks
    for params, is_task in (
        (ADD, False),
        ({"name": "a", "task": None}, False),
        ({"name": "a", "task": {}}, True),
    ):
        assert client.request("tools/call", params).task is (is_task and revision.tasks)
    client.set_peer(Peer(revision, without(SERVER_CAN, "tasks")))
    client.request("tools/call", ADD)
    if revision.tasks:
        with pytest.raises(CapabilityNotDeclared, match="task"):
            client.request("tools/call", wish)


@every_revision
def test_meta_is_validated(revision):
    client = called(revision).client
    with pytest.raises(LocalProtocolError, match="_meta"):
        client.request("tools/call", ADD, meta={"not/a/key": 1})
    own = CallToolParams(name="add", meta=Raw(b'{"progressToken":7,"com.example/a":1}'))
    meta = parse(client.request("tools/call", own).data)["params"]["_meta"]
    assert meta["com.example/a"] == 1
    assert "progressToken" not in meta


def test_a_request_may_have_another_identity():
    client = called(LATEST).client
    other = party(ClientCapabilities(), anonymous=True)
    facts = [
        parse(client.request("tools/call", ADD, party=who).data)["params"]["_meta"]
        for who in (None, other, None)
    ]
    assert facts[0] == facts[2] != facts[1]


@every_revision
def test_a_row_of_an_extension_comes_before_that_of_the_protocol(revision):
    mine = Row("tools/call", CallToolParams, Result)
    client = called(revision, extra={"tools/call": mine}).client
    assert client.request("tools/call", ADD).row is mine
    assert client.request("tools/call", ADD).row is mine


def test_a_row_that_is_handed_in_is_the_row():
    client = called(LATEST).client
    mine = Row("tools/call", CallToolParams, Result)
    assert [client.request(each, ADD).row is mine for each in (mine, "tools/call", mine)] == [
        True,
        False,
        True,
    ]


@pytest.mark.requirement("ELIC-9")
def test_what_a_server_asks_depends_on_what_it_asks():
    can = ClientCapabilities(elicitation=ElicitationCapability(form={}))
    server = talk(LATEST_SESSION, client=party(can)).server
    schema = {"type": "object", "properties": {}}
    server.request("elicitation/create", ElicitParams(message="Who?", requested_schema=schema))
    by_url = ElicitParams(mode="url", message="Pay", url="https://example.com", elicitation_id="e")
    with pytest.raises(CapabilityNotDeclared, match=r"elicitation\.url"):
        server.request("elicitation/create", by_url)


def test_a_client_keeps_what_its_requests_have_in_common_and_a_server_does_not():
    conversation = talk(LATEST_SESSION)
    assert not conversation.client.request_forms
    for end in (conversation.client, conversation.server):
        end.request("ping", Params())
        end.request(Row("x/y", Params, Result), Params())
    assert list(conversation.client.request_forms) == ["ping"]
    assert not conversation.server.request_forms


def test_nothing_is_kept_before_a_server_is_known():
    client = Connection(CLIENT_PARTY, revision=LATEST)
    client.request("tools/call", ADD)
    assert not client.request_forms


# --------------------------------------------------------------------- answers

SAID = b'{"content":[{"type":"text","text":"3"}],"structuredContent":{"result":3},"resultType":"complete"}'


@pytest.mark.requirement("MSG-12")
@every_revision
@pytest.mark.parametrize(
    "result",
    [
        SAID,
        b'{"content":[]}',
        b'{"resultType":"complete","content":[],"isError":true,"_meta":{"a":[1]},"unknown":{"b":[[2]]}}',
        b'{"content":[],"structuredContent":null,"resultType":"complete","x":"' + b"-" * 500 + b'"}',
    ],
)
def test_the_result_of_a_tool_is_read_into_the_struct_of_its_row(revision, result):
    client = called(revision).client
    outgoing = client.request("tools/call", ADD)
    data = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (outgoing.id, result)
    event = one(client.receive(data), ResponseReceived)
    assert event.request is outgoing
    assert type(event.result) is CallToolResult
    assert event.result.raw == result
    assert outgoing.id not in client.outgoing
    one(client.receive(data), MessageDropped)


@pytest.mark.parametrize(
    "result",
    [b"[]", b"{}", b'{"content":"text","resultType":"complete"}', b'{"content":[],"_meta":{"a":1e400}}'],
)
def test_a_result_of_another_shape_fails_the_request(result):
    client = called(LATEST).client
    outgoing = client.request("tools/call", ADD)
    data = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (outgoing.id, result)
    failed = one(client.receive(data), ErrorReceived)
    assert failed.request is outgoing
    assert "invalid result for" in str(failed.error)


def test_an_input_required_result_has_its_own_type():
    client = called(LATEST).client
    outgoing = client.request("tools/call", ADD)
    asking = b'{"resultType":"input_required","requestState":"s","_meta":{}}'
    data = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (outgoing.id, asking)
    assert isinstance(one(client.receive(data), ResponseReceived).result, InputRequiredResult)


ODD = [
    # what stands around the result
    b'{"jsonrpc":"2.0","result":%b,"id":ID}' % SAID,
    b'{"jsonrpc": "2.0", "id": ID, "result": %b}' % SAID,
    b'{"jsonrpc":"1.0","id":ID,"result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":"ID","result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":0ID,"result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":+ID,"result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":-ID,"result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":ID.0,"result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":,"result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":12345678901234567890123,"result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":ID000,"result":%b}' % SAID,
    b'{"jsonrpc":"2.0","id":ID,"result":%b,"result":%b}' % (SAID, SAID),
    b'{"jsonrpc":"2.0","id":ID,"result":%b,"id":{}}' % SAID,
    b'{"jsonrpc":"2.0","id":ID,"result":%b,"x":{}}' % SAID,
    b'{"jsonrpc":"2.0","id":ID,"result":%b]' % SAID,
    b'{"jsonrpc":"2.0","id":ID,"result":%b}}' % SAID,
    b'{"jsonrpc":"2.0","id":ID,"result":%b} ' % SAID,
    b'{"jsonrpc":"2.0","id":ID,"result":%b' % SAID,
    b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"no","data":{}}}',
    b'{"jsonrpc":"2.0","id":ID,"result":[]}',
    b'{"jsonrpc":"2.0","id":ID}',
    b'{"jsonrpc":"2.0","id":ID',
    b'{"jsonrpc":"2.0","id":',
    b"",
    # the result itself
    b'{"jsonrpc":"2.0","id":ID,"result":{}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":"text","resultType":"complete","_meta":{}}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"_meta":{"a":1e400}}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":"\xff","_meta":{}}}',
    '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":"ü","_meta":{}}}'.encode(),
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":%b,"_meta":{}}}' % (b"[" * 99 + b"]" * 99),
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":"%b","_meta":{}}}' % (b"[" * 99),
]


@pytest.mark.parametrize("data", ODD)
def test_an_odd_response_becomes_one_event(data):
    client = called(LATEST).client
    outgoing = client.request("tools/call", ADD)
    assert len(client.receive(data.replace(b"ID", b"%d" % outgoing.id))) == 1
