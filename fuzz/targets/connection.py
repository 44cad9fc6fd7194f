"""A conversation in each revision and in both roles: one message a line, from a peer that says anything.

Every request of the peer is answered as soon as it is there or at the end, and every request of ours may end
once: by an answer, by a failure or by the end of the conversation.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from fuzz.targets.jsonrpc import check_refusal
from toolpost.errors import InternalError, InvalidParams, RemoteProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import (
    CancellationReceived,
    ConnectionEvent,
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    MessageDropped,
    NotificationReceived,
    ProgressReceived,
    ResponseReceived,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, SERVER
from toolpost.protocol.revisions import REVISIONS, Revision
from toolpost.types import (
    ClientCapabilities,
    ElicitationCapability,
    Implementation,
    ListCapability,
    ResourcesCapability,
    SamplingCapability,
    ServerCapabilities,
)
from toolpost.types.base import RequestId

__all__ = ["TOKENS", "target"]

TOKENS: Final = (
    *(b'"jsonrpc":"2.0",', b'"id":1', b'"id":2', b'"id":"1"', b'"id":null', b'"method":"', b'"params":{'),
    *(b'"_meta":{', b'"progressToken":1', b'"result":{', b'"error":{"code":-32602,"message":""}', b"\n"),
    *(row.encode() for revision in REVISIONS.values() for row in revision.requests[CLIENT]),
    *(row.encode() for revision in REVISIONS.values() for row in revision.requests[SERVER]),
    *(row.encode() for revision in REVISIONS.values() for row in revision.notifications[CLIENT]),
    *(row.encode() for revision in REVISIONS.values() for row in revision.notifications[SERVER]),
    *(b'"requestId":1', b'"progress":1e400', b'"resultType":"input_required"', b'"io.modelcontextprotocol/'),
    *(b'"protocolVersion":"', *(f'"{date}"'.encode() for date in REVISIONS), b'"task":{}', b"[", b"]", b","),
)
FEW: Final = 8
"""Requests of a peer that may be in flight, so that a short input finds out what happens then."""

_CLIENT: Final = LocalPeer(
    Implementation("a client", "1"),
    ClientCapabilities(
        roots=ListCapability(list_changed=True),
        sampling=SamplingCapability(),
        elicitation=ElicitationCapability(),
    ),
)
_SERVER: Final = LocalPeer(
    Implementation("a server", "1"),
    ServerCapabilities(
        tools=ListCapability(list_changed=True),
        resources=ResourcesCapability(list_changed=True, subscribe=True),
        prompts=ListCapability(list_changed=True),
        completions={},
        logging={},
    ),
)
_ASKED: Final = {CLIENT: ("tools/list", "tools/call", "prompts/get"), SERVER: ("roots/list", "ping")}
_CALLED: Final[dict[str, dict[str, Any]]] = {
    "tools/call": {"name": "a", "arguments": {}},
    "prompts/get": {"name": "a"},
}


def target(data: bytes) -> None:
    """Whatever a peer says, each message is one event, and each request ends once."""
    lines = data.split(b"\n")
    for connection in _connections():
        _converse(connection, lines)


def _connections() -> Iterator[Connection]:
    """Conversations that nobody has opened yet, then those that stand, with requests of ours in flight."""
    yield Connection(_SERVER, limit=FEW)
    for revision in REVISIONS.values():
        for mine, other in ((_CLIENT, _SERVER), (_SERVER, _CLIENT)):
            yield _opened(revision, mine, other)


def _opened(revision: Revision, mine: LocalPeer, other: LocalPeer) -> Connection:
    if mine.role == SERVER and revision.stateless:  # such a server knows nobody, and asks nobody
        alone = LocalPeer(mine.info, mine.capabilities, supported=[revision.date])
        return Connection(alone, revision=revision, limit=FEW)
    peer = Peer(revision, other.capabilities, other.info)
    connection = Connection(mine, revision=revision, peer=peer, limit=FEW)
    for method in _ASKED[mine.role]:
        connection.request(method, _CALLED.get(method), progress=True)
    return connection


def _converse(connection: Connection, lines: list[bytes]) -> None:
    asked = set(connection.outgoing)
    ended: list[RequestId] = []
    for number, line in enumerate(lines):
        events = connection.receive(line)
        batch = connection.peer is not None and connection.peer.revision.batches
        assert len(events) == 1 or (batch and 0 < len(events) <= jsonrpc.MAX_BATCH)
        for event in events:
            ended += _check(connection, event)
        assert len(connection.incoming) <= FEW
        if number % 2:
            for request_id in list(connection.incoming):
                _answer(connection, request_id)
    assert len(ended) == len(set(ended)), "a request of ours ended twice"
    for request_id in list(connection.incoming):
        _answer(connection, request_id)
    left = [outgoing.id for outgoing in connection.close()]
    assert sorted(map(repr, (*ended, *left))) == sorted(map(repr, asked)), "a request of ours got lost"
    assert not connection.incoming
    assert not connection.outgoing


def _check(connection: Connection, event: ConnectionEvent) -> Iterator[RequestId]:
    """Look at an event; the id of a request of ours that it ends."""
    match event:
        case InboundRequest():
            assert connection.incoming[event.id] is event
            with suppress(InvalidParams):
                assert isinstance(event.meta, dict)
        case InvalidMessageReceived():
            if event.data is not None:
                answer = jsonrpc.decode(event.data)
                assert isinstance(answer, jsonrpc.JSONRPCErrorResponse)
                assert (answer.id, type(answer.id)) == (event.id, type(event.id))
                assert len(answer.message) < 1000, "a refusal repeats too much"
            if isinstance(event.error, RemoteProtocolError):
                check_refusal(event.error)
        case ResponseReceived() | ErrorReceived():
            yield event.request.id
        case CancellationReceived():
            assert event.request.id not in connection.incoming
        case MessageDropped():
            assert len(str(event.error)) < 2000
            assert connection.dropped_counts[event.reason] > 0
        case NotificationReceived() | ProgressReceived():
            pass


def _answer(connection: Connection, request_id: RequestId) -> None:
    """Answer a request of the peer, which is possible once."""
    incoming = connection.incoming[request_id]
    if incoming.row.name == "initialize":
        data = connection.reply(request_id, connection.local_peer.introduce(incoming.peer.revision))
    else:
        connection.report_progress(request_id, 1)
        data = connection.fail(request_id, InternalError("Internal error: nobody is at home"))
    assert data is not None
    answer = jsonrpc.decode(data)
    assert isinstance(answer, jsonrpc.JSONRPCResponse | jsonrpc.JSONRPCErrorResponse)
    assert (answer.id, type(answer.id)) == (incoming.id, type(incoming.id)), "another id"
    assert connection.fail(request_id, InternalError("Internal error: again")) is None
