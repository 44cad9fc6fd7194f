"""The validator of all messages: what it records and accepts, and that an invalid message fails the test."""

import json
from typing import Any

import pytest

import recording
from pair import open_pair
from recording import Said
from toolpost import types
from toolpost.errors import InvalidParams, InvalidRequest, RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InvalidMessageReceived, MessageDropped
from toolpost.server.http.exchange import HTTPRefusal


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


def test_every_message_that_a_connection_writes_is_recorded(heard):
    pair = open_pair("2025-11-25")
    outgoing, incoming = pair.ask("tools/list", progress=True)
    other, _ = pair.ask("tools/list")
    heard()
    pair.server.report_progress(incoming.id, 1)
    pair.server.log("info", "hello")
    pair.client.cancel(other.id)
    pair.server.receive(b"{")
    pair.client.receive(jsonrpc.encode_error(outgoing.id, InvalidParams("no")))
    sent = [(by, kind, method) for way, by, kind, method in heard() if way == "sent"]
    assert sent == [
        ("server", "notice", "notifications/progress"),
        ("server", "notice", "notifications/message"),
        ("client", "notice", "notifications/cancelled"),
        ("server", "error", ""),
    ]


def test_every_message_that_a_connection_accepts_is_recorded(heard):
    pair = open_pair("2026-07-28")
    outgoing, incoming = pair.ask("tools/list", progress=True)
    progress = pair.server.report_progress(incoming.id, 1)
    listens, hears = pair.ask(
        "subscriptions/listen", types.ListenParams(notifications=types.SubscriptionFilter())
    )
    cancelled = pair.server.notify("notifications/cancelled", {"requestId": listens.id}, to=hears)
    heard()
    assert progress is not None
    pair.client.receive(progress)
    pair.client.receive(cancelled)
    pair.client.receive(jsonrpc.encode_error(outgoing.id, RPCError("no", code=1, data={"a": 1})))
    received = [(by, kind, method) for way, by, kind, method in heard() if way == "received"]
    assert [each for each in received if each[0] == "server"] == [
        ("server", "notice", "notifications/progress"),
        ("server", "notice", "notifications/cancelled"),
        ("server", "error", ""),
    ]


@pytest.mark.parametrize(
    ("data", "event"),
    [
        ({"id": 7, "method": "tools/call"}, InvalidMessageReceived),
        ({"method": "notifications/progress", "params": {}}, MessageDropped),
        ({"method": "x/unknown", "params": []}, object),
    ],
)
def test_rejected_messages_are_not_validated(heard, data, event):
    server = open_pair("2025-11-25").server
    heard()
    [got] = server.receive(json.dumps({"jsonrpc": "2.0", **data}).encode())
    assert isinstance(got, event)
    assert not [way for way, *_ in heard() if way == "received"]


def test_errors_of_others_are_judged_by_the_newest_revision(heard):
    error = InvalidRequest("no")
    jsonrpc.encode_error(None, error)  # a test's own
    assert heard() == []
    assert b"no" in HTTPRefusal(400, "no").body
    [said] = recording.pending.values()
    assert (said.date, said.kind, said.id) == ("2026-07-28", "error", None)


# --------------------------------------------------------------------- how it is judged


def said(
    kind: str, method: str, body: Any, *, date: str = "2026-07-28", by: Any = "server", way="sent"
) -> Said:
    identity = None if kind == "notice" else int
    return Said(way, date, by, kind, method, identity, b"" if body is None else json.dumps(body).encode())
