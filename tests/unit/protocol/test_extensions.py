"""Rows of extensions, and connections whose revision changes."""

import json
from typing import Any, cast

import pytest
from conversation import SERVER_PARTY, Conversation, marked, message, one, refusal, talk

from toolpost.errors import LocalProtocolError
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import SESSION_ERA
from toolpost.protocol.events import (
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    NotificationReceived,
    ResponseReceived,
)
from toolpost.protocol.jsonrpc import JSONReader, decode
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import ALWAYS, CLIENT, SERVER, STATELESS, Row
from toolpost.protocol.revisions import LATEST, LATEST_SESSION
from toolpost.types.base import Result
from toolpost.types.initialize import Implementation, ServerCapabilities
from toolpost.types.notifications import NotificationParams
from toolpost.types.tools import CallToolParams, CallToolResult


class Started(Result):
    """The extension's result type."""

    ticket: str


def _calling() -> Row:
    """`tools/call` as an extension knows it, which may be answered with a ticket."""
    row = Row("tools/call", CallToolParams, CallToolResult, client=STATELESS, needs="tools", named="name")
    row.results["ticket"] = JSONReader[Result](Started)
    return row


@pytest.mark.requirement("MSG-13", "MSG-14")
def test_a_result_type_of_an_extension_is_known_only_where_the_extension_is():
    answer = {"resultType": "ticket", "ticket": "7"}
    for extra, kind in (({"tools/call": _calling()}, ResponseReceived), ({}, ErrorReceived)):
        client = talk(LATEST, extra=extra).client
        outgoing = client.request("tools/call", {"name": "add"})
        event = one(client.receive(message(id=outgoing.id, result=answer)), kind)
        if isinstance(event, ResponseReceived):
            assert event.result == Started(ticket="7", result_type="ticket")


def test_a_row_of_an_extension_has_its_own_span():
    """In a session the row of the protocol serves, because the extension is stateless."""
    extra = {"tools/call": _calling()}
    assert talk(LATEST, extra=extra).client.request("tools/call", {"name": "a"}).row is extra["tools/call"]
    assert (
        talk(LATEST_SESSION, extra=extra).client.request("tools/call", {"name": "a"}).row
        is not extra["tools/call"]
    )


def test_a_notification_of_an_extension_has_its_own_span():
    row = Row("com.example/hail", NotificationParams, server=STATELESS)
    client = talk(LATEST, extra={row.name: row}).client
    assert one(client.receive(message(method=row.name)), NotificationReceived).row is row
    session = talk(LATEST_SESSION, extra={row.name: row}).client
    assert one(session.receive(message(method=row.name)), NotificationReceived).row is None
    with pytest.raises(LocalProtocolError):
        client.notify(row.name)


@pytest.mark.parametrize(
    ("client", "server", "by", "allowed"),
    [
        (None, None, CLIENT, True),
        (None, None, SERVER, True),
        (ALWAYS, None, CLIENT, True),
        (ALWAYS, None, SERVER, False),
        (None, STATELESS, SERVER, False),
    ],
)
def test_a_row_names_its_senders(client, server, by, allowed):
    row = Row("com.example/x", NotificationParams, client=client, server=server)
    assert row.is_sendable_by(by, LATEST_SESSION.date) is allowed


def test_a_client_that_changed_its_mind_may_shake_hands_again():
    conversation = Conversation(LATEST_SESSION).open()
    conversation.client.switch_revision(LATEST)
    conversation.client.switch_revision(LATEST_SESSION)
    assert SESSION_ERA.open(conversation.client).row.name == "initialize"


def test_a_closed_connection_stays_closed_whatever_it_adopts():
    client = talk(LATEST_SESSION).client
    client.close()
    client.switch_revision(LATEST)
    assert client.lifecycle.state == "closed"


def test_a_late_discovery_does_not_undo_a_session():
    """The answer to a probe may come after the client has given up on it."""
    conversation = Conversation(LATEST)
    probe = conversation.client.request("server/discover")
    conversation.client.switch_revision(LATEST_SESSION)
    answer = {"supportedVersions": [LATEST.date], "capabilities": {}, "resultType": "complete"}
    one(conversation.client.receive(message(id=probe.id, result=answer)), ResponseReceived)
    assert conversation.client.revision is LATEST_SESSION


def test_a_handshake_that_is_let_in_by_hand_is_still_one_at_a_time():
    server = Conversation(LATEST_SESSION).open("opening").server
    again = decode(
        message(
            id=9,
            method="initialize",
            params={
                "protocolVersion": LATEST_SESSION.date,
                "capabilities": {},
                "clientInfo": {"name": "c", "version": "1"},
            },
        )
    )
    event = server.receive_message(again)
    assert isinstance(event, InvalidMessageReceived)
    assert event.data is not None
    assert json.loads(event.data)["error"]["code"] == -32600


@pytest.mark.requirement("MSG-18")
def test_a_name_that_is_unknown_is_not_repeated_whole():
    events = Connection(SERVER_PARTY).receive(message(id=1, method="x" * 100_000, params=marked({})))
    assert len(refusal(events)["message"]) < 200
    assert not any(isinstance(event, InboundRequest) for event in events)


def test_a_row_knows_whether_it_is_a_request():
    client = talk(LATEST_SESSION).client
    with pytest.raises(LocalProtocolError, match="is a notification"):
        client.request(Row("com.example/hail", NotificationParams))
    with pytest.raises(LocalProtocolError, match="is a request"):
        client.notify(_calling())


def test_an_answer_is_a_result_made_of_blocks():
    conversation = talk(LATEST_SESSION)
    incoming = conversation.ask("tools/call").incoming
    wrong: list[Any] = [{"content": []}, CallToolResult(content=cast("Any", "hello"))]
    for result in wrong:
        with pytest.raises(
            LocalProtocolError, match=r"a response must be a Result|consist of content blocks"
        ):
            conversation.server.reply(incoming.id, result)
    assert conversation.server.reply(incoming.id, CallToolResult(content=[]))


def test_one_revision_is_still_a_list():
    with pytest.raises(TypeError, match="must be a list"):
        LocalPeer(Implementation("s", "1"), ServerCapabilities(), supported="2025-11-25")


def test_an_empty_message_is_called_empty():
    refused = one(Connection(SERVER_PARTY).receive(b" \n"), InvalidMessageReceived)
    assert str(refused.error) == "message is not JSON: the message is empty"
