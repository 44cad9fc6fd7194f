"""The official example messages, as a peer would send them: a connection recognises each one."""

import json
from typing import Any

from conversation import marked, message

import pair
from schema_definitions import HOMES
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import (
    CancellationReceived,
    ConnectionEvent,
    ErrorReceived,
    InboundRequest,
    MessageDropped,
    NotificationReceived,
    OutboundRequest,
    ProgressReceived,
    ResponseReceived,
)
from toolpost.protocol.methods import CLIENT, SERVER, Role, Row
from toolpost.protocol.revisions import LATEST, Revision
from toolpost.types import PROTOCOL_VERSION

PARTIES = {CLIENT: pair.CLIENT, SERVER: pair.SERVER}
OTHER: dict[Role, Role] = {CLIENT: SERVER, SERVER: CLIENT}


# --------------------------------------------------------------------- how it is taken


def end(role: Role, revision: Revision) -> Connection:
    """One end of a conversation that is under way, with a peer that can do everything."""
    peer = Peer(revision, PARTIES[OTHER[role]].capabilities)
    stateless_server = revision.stateless and role == SERVER  # every request identifies its sender
    return Connection(PARTIES[role], revision=revision, peer=None if stateless_server else peer)


def take(connection: Connection, value: Any) -> ConnectionEvent:
    [event] = connection.receive(json.dumps(value).encode())
    return event


def asked(revision: Revision, value: Any) -> bool:
    method = value["method"]
    by: Role = CLIENT if method in revision.requests[CLIENT] else SERVER
    connection = Connection(PARTIES[SERVER]) if method == "initialize" else end(OTHER[by], revision)
    params = value.get("params", {})
    if revision.stateless and PROTOCOL_VERSION not in params.get("_meta", {}):
        value = value | {"params": marked(params, params.get("_meta"))}  # the pages leave out what all have
    event = take(connection, value)
    return isinstance(event, InboundRequest) and isinstance(event.params, event.row.params)


def told(revision: Revision, value: Any) -> bool:
    method, params = value["method"], value.get("params", {})
    by: Role = CLIENT if method in revision.notifications[CLIENT] else SERVER
    connection = end(OTHER[by], revision)
    if method == "notifications/initialized":
        connection.lifecycle.state = "greeted"
    if method == "notifications/cancelled":
        request = message(id=params["requestId"], method="tools/list", params=marked({}))
        connection = end(SERVER, LATEST)
        connection.receive(request)
        return isinstance(take(connection, value), CancellationReceived)
    if method == "notifications/progress":
        token = params["progressToken"]
        connection = end(CLIENT, revision)
        row = revision.requests[CLIENT]["tools/list"]
        connection.outgoing[token] = OutboundRequest(token, row, b"", revision, token)
        return isinstance(take(connection, value), ProgressReceived)
    event = take(connection, value)
    return isinstance(event, NotificationReceived) and event.row is not None


def answered(revision: Revision, value: Any, method: str) -> bool:
    by: Role = CLIENT if method in revision.requests[CLIENT] else SERVER
    connection = end(by, revision)
    if method == "initialize":
        connection.lifecycle.state = "opening"
    row = connection.find_row(method, revision, by, is_request=True)
    assert row is not None
    connection.outgoing[value["id"]] = OutboundRequest(value["id"], row, b"", revision, task=True)
    return isinstance(take(connection, value), ResponseReceived)


def failed(revision: Revision, value: Any) -> bool:
    connection = end(CLIENT, revision)
    if value.get("id") is None:
        event = take(connection, value)
        return isinstance(event, MessageDropped) and event.reason == "error without an id"
    row = revision.requests[CLIENT]["tools/call"]
    connection.outgoing[value["id"]] = OutboundRequest(value["id"], row, b"", revision)
    event = take(connection, value)
    return isinstance(event, ErrorReceived) and getattr(event.error, "code", None) == value["error"]["code"]


def accepted(revision: Revision, value: Any, answers: str = "") -> bool:
    if "method" in value:
        return (asked if "id" in value else told)(revision, value)
    return answered(revision, value, answers) if "result" in value else failed(revision, value)


# --------------------------------------------------------------------- what is taken


def test_every_example_message_is_accepted(examples):
    messages = {
        (kind, name): value
        for kind, files in examples.items()
        for name, data in files.items()
        if "jsonrpc" in (value := json.loads(data))
    }
    assert len(messages) >= 32
    refused = []
    for (kind, name), value in messages.items():
        row = HOMES[kind]
        if not accepted(LATEST, value, row.name if isinstance(row, Row) else ""):
            refused.append((kind, name))
    assert refused == []
