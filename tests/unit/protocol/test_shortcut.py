"""The short cut of a client: the same bytes and the same results as on the long way, and no check less."""

import pytest
from conversation import CLIENT_CAN, every_revision, one, parse, talk

from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import (
    ErrorReceived,
    InboundRequest,
    MessageDropped,
    OutboundRequest,
    ResponseReceived,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import PlainToolResult, Row
from toolpost.protocol.request_templates import MAX_CALL_TEMPLATES, make_tool_call, read_plain_response
from toolpost.protocol.revisions import LATEST, LATEST_SESSION
from toolpost.types import (
    CallToolParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    Params,
    Raw,
    Result,
    TextContent,
)

ADD = CallToolParams(name="add", arguments=Raw(b'{"a":1}'))
SAID = b'{"content":[{"type":"text","text":"3"}],"structuredContent":{"result":3},"resultType":"complete"}'


def client_of(revision, **options) -> Connection:
    """A client that has called a tool before."""
    client = talk(revision, **options).client
    client.request("tools/call", ADD, progress=True)
    return client


def call(client: Connection, name: str = "add", arguments: bytes = b'{"a":1}') -> OutboundRequest:
    outgoing = make_tool_call(client, name, Raw(arguments))
    assert outgoing is not None
    return outgoing


def answer(outgoing: OutboundRequest, result: bytes = SAID) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (outgoing.id, result)


# --------------------------------------------------------------------- calls


@every_revision
@pytest.mark.parametrize("name", ["add", "50 % %d %b", 'a "b"', "Müller", ""])
@pytest.mark.parametrize("arguments", [b"{}", b'{"a":1}', b'{"text":"%d %b"}'])
def test_a_call_is_what_it_would_be_anyway(revision, name, arguments):
    client = client_of(revision, client=LocalPeer(Implementation("100 % %d", "%s"), CLIENT_CAN))
    for _ in range(2):  # as it is made, and as it was kept
        short = call(client, name, arguments)
        client.next_id -= 1
        params = CallToolParams(name=name, arguments=Raw(arguments))
        long = client.request("tools/call", params, meta={}, progress=True)
        assert parse(short.data) == parse(long.data)
        for field in ("id", "row", "revision", "token", "progress", "task"):
            assert getattr(short, field) == getattr(long, field), field
        assert (short.plain, long.plain) == (True, False)


@every_revision
def test_a_call_is_understood_and_answered(revision):
    conversation = talk(revision)
    conversation.client.request("tools/call", ADD)
    outgoing = call(conversation.client)
    incoming = one(conversation.server.receive(outgoing.data), InboundRequest)
    assert (incoming.params.name, bytes(incoming.params.arguments)) == ("add", b'{"a":1}')
    assert incoming.token == outgoing.token == outgoing.id
    data = conversation.server.reply(incoming.id, CallToolResult([TextContent("3")]))
    assert data is not None
    event = read_plain_response(conversation.client, data)
    assert event is not None
    assert event.request is outgoing


def test_the_first_call_of_all_is_looked_at():
    assert make_tool_call(talk(LATEST).client, "add", Raw(b"{}")) is None


@pytest.mark.parametrize("name", [1, None, ["add"]])
def test_what_is_no_name_is_for_others_to_refuse(name):
    client = client_of(LATEST)
    before = client.next_id
    assert make_tool_call(client, name, Raw(b"{}")) is None
    assert client.next_id == before


@pytest.mark.parametrize("change", ["peer", "state", "party", "extra"])
def test_a_call_after_a_change_is_looked_at(change):
    client = client_of(LATEST_SESSION)
    call(client)
    match change:
        case "peer":
            client.peer = Peer(LATEST_SESSION, None, None)
        case "state":
            client.lifecycle.state = "closed"
        case "party":
            client.local_peer = LocalPeer(Implementation("another", "1"), CLIENT_CAN)
        case _:
            client.extra = {"tools/call": Row("tools/call", Params, Result)}
    assert make_tool_call(client, "add", Raw(b"{}")) is None


def test_only_so_many_tools_are_kept():
    client = client_of(LATEST)
    for number in range(MAX_CALL_TEMPLATES + 1):
        outgoing = call(client, f"tool {number}")
        assert parse(outgoing.data)["params"]["name"] == f"tool {number}"
    assert list(client.templates["tools/call"].call_templates) == [f"tool {MAX_CALL_TEMPLATES}"]


# --------------------------------------------------------------------- answers


@every_revision
@pytest.mark.parametrize(
    "result",
    [
        SAID,
        b'{"content":[],"resultType":"complete"}',
        b'{"resultType":"complete","content":[],"isError":true,"_meta":{"a":[1]},"unknown":{"b":[[2]]}}',
        b'{"content":[],"structuredContent":null,"resultType":"complete","x":"' + b"-" * 500 + b'"}',
    ],
)
def test_a_plain_answer_is_what_it_would_be_anyway(revision, result):
    client = client_of(revision)
    outgoing = call(client)
    data = answer(outgoing, result)
    event = read_plain_response(client, data)
    assert event is not None
    assert event.request is outgoing
    assert outgoing.id not in client.outgoing
    said = event.result
    assert type(said) is PlainToolResult
    client.outgoing[outgoing.id] = outgoing
    told = one(client.receive(data), ResponseReceived).result
    assert isinstance(told, CallToolResult)
    for field in ("content", "structured_content", "is_error", "meta", "result_type", "raw"):
        assert getattr(said, field) == getattr(told, field), field


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
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"new"}],"resultType":"complete","_meta":{}}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"_meta":{"a":1e400}}}',
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":"\xff","_meta":{}}}',
    '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":"ü","_meta":{}}}'.encode(),
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":%b,"_meta":{}}}' % (b"[" * 99 + b"]" * 99),
    b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":"%b","_meta":{}}}' % (b"[" * 99),
]


@pytest.mark.parametrize("data", ODD)
def test_what_is_not_plain_is_looked_at(data):
    client = client_of(LATEST)
    outgoing = call(client)
    assert read_plain_response(client, data.replace(b"ID", b"%d" % outgoing.id)) is None
    assert client.outgoing[outgoing.id] is outgoing


@pytest.mark.requirement("MSG-12")
@every_revision
def test_only_a_session_may_leave_out_what_kind_of_result_it_is(revision):
    client = client_of(revision)
    data = answer(call(client), b'{"content":[]}')
    assert (read_plain_response(client, data) is None) is revision.stateless
    if revision.stateless:
        assert isinstance(one(client.receive(data), ResponseReceived).result, CallToolResult)


def test_a_wish_for_input_is_read_on_the_long_way():
    client = client_of(LATEST)
    data = answer(call(client), b'{"resultType":"input_required","requestState":"s","_meta":{}}')
    assert read_plain_response(client, data) is None
    assert isinstance(one(client.receive(data), ResponseReceived).result, InputRequiredResult)


def test_a_request_that_was_made_otherwise_is_answered_otherwise():
    client = client_of(LATEST)
    outgoing = client.request("tools/call", ADD)
    assert read_plain_response(client, answer(outgoing)) is None
    assert isinstance(one(client.receive(answer(outgoing)), ResponseReceived).result, CallToolResult)


def test_an_answer_that_comes_twice_or_late_is_nobodys():
    client = client_of(LATEST)
    outgoing = call(client)
    assert read_plain_response(client, answer(outgoing)) is not None
    assert read_plain_response(client, answer(outgoing)) is None
    one(client.receive(answer(outgoing)), MessageDropped)


def test_such_a_call_may_fail():
    client = client_of(LATEST)
    outgoing = call(client)
    data = b'{"jsonrpc":"2.0","id":%d,"error":{"code":-32602,"message":"no"}}' % outgoing.id
    assert read_plain_response(client, data) is None
    assert one(client.receive(data), ErrorReceived).request is outgoing
