"""A client and a server joined by a bad line: messages are reordered, duplicated, dropped and corrupted.

A model keeps what is in flight at both ends and foretells what each message means there. A message that was
corrupted may mean anything, but never an exception and never something that breaks the model.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from conversation import PARAMS, RESULTS, SESSIONS, Conversation, message, parse, talk
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toolpost.errors import InternalError, LocalProtocolError, RPCError
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import SESSION_ERA
from toolpost.protocol.events import (
    CancellationReceived,
    ConnectionEvent,
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    MessageDropped,
    NotificationReceived,
    OutboundRequest,
    ProgressReceived,
    ResponseReceived,
)
from toolpost.protocol.methods import CLIENT, SERVER, Role
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, REVISIONS, Revision
from toolpost.types import CancelledParams, Number, RequestId

LIMIT = 4
"""Requests that one end may have in flight: few, so that the limit is met."""

ON_THE_WAY = 40
"""Messages on one way: no more are duplicated."""

LISTEN = "subscriptions/listen"
roles = st.sampled_from([CLIENT, SERVER])
picks = st.integers(0, 2**16)
counts = st.lists(st.integers(-2, 9) | st.sampled_from([0.5, 2.5]), min_size=1, max_size=4)
revisions = st.sampled_from([*REVISIONS.values(), LATEST])


def other(role: Role) -> Role:
    return SERVER if role == CLIENT else CLIENT


@dataclass(frozen=True)
class Parcel:
    """A message in transit, and its meaning."""

    data: bytes
    kind: str
    id: RequestId | None = None
    progress: Number | None = None
    sound: bool = True
    """Whether it arrived as it was sent; if it is a response, also its request."""


@dataclass
class End:
    """One end: the connection, and what the model knows of it."""

    connection: Connection
    wire: list[Parcel] = field(default_factory=list[Parcel])
    """The messages on their way to this end."""
    ours: dict[RequestId, OutboundRequest] = field(default_factory=dict[RequestId, OutboundRequest])
    theirs: dict[RequestId, InboundRequest] = field(default_factory=dict[RequestId, InboundRequest])
    unsound: set[RequestId] = field(default_factory=set[RequestId])
    """The ids of requests in `theirs` that were corrupted in transit."""
    made: set[RequestId] = field(default_factory=set[RequestId])
    heard: dict[RequestId, Number] = field(default_factory=dict[RequestId, Number])
    """The last progress that we received, by request."""
    told: dict[RequestId, Number] = field(default_factory=dict[RequestId, Number])
    """The last progress that we reported, by request."""
    dropped: Counter[str] = field(default_factory=Counter[str])

    def foretell(self, parcel: Parcel) -> tuple[type[ConnectionEvent], ...]:
        """Return the allowed events for a message that was not corrupted."""
        identity = parcel.id
        if parcel.kind in {"progress", "reply", "failure"} and identity == "1":
            identity = 1  # the id of a request of ours came back as text
        if parcel.kind == "request":
            return (
                (InvalidMessageReceived,)
                if identity in self.theirs or len(self.theirs) >= LIMIT
                else (InboundRequest,)
            )
        if parcel.kind == "notice":
            return (NotificationReceived,)
        if parcel.kind == "cancel" and identity in self.theirs:
            return (CancellationReceived,)
        if parcel.kind == "cancel":
            listens = identity in self.ours and self.ours[identity].row.name == LISTEN
            return (ResponseReceived,) if listens else (MessageDropped,)
        if identity not in self.ours:
            return (MessageDropped,)
        if parcel.kind == "progress":
            assert parcel.progress is not None
            asked = self.ours[identity].token is not None
            return (
                (ProgressReceived,)
                if asked and self._further(identity, parcel.progress)
                else (MessageDropped,)
            )
        if parcel.kind == "failure":
            return (ErrorReceived,)
        return (ResponseReceived,) if parcel.sound else (ResponseReceived, ErrorReceived)

    def _further(self, identity: RequestId, progress: Number) -> bool:
        return identity not in self.heard or progress > self.heard[identity]

    def note(self, event: ConnectionEvent, *, sound: bool) -> None:
        """Apply an event, which must be possible."""
        if isinstance(event, InboundRequest):
            assert event.id not in self.theirs
            assert len(self.theirs) < LIMIT
            self.theirs[event.id] = event
            self.told.pop(event.id, None)
            self.unsound.discard(event.id)
            if not sound:
                self.unsound.add(event.id)
        elif isinstance(event, CancellationReceived):
            assert self.theirs.pop(event.request.id) is event.request
        elif isinstance(event, ResponseReceived | ErrorReceived):
            assert event.request.id in self.made
            assert self.ours.pop(event.request.id) is event.request  # and so at most once
        elif isinstance(event, ProgressReceived):
            request = event.request
            assert self.ours[request.id] is request
            assert request.token is not None
            assert self._further(request.id, event.params.progress)
            self.heard[request.id] = event.params.progress
        elif isinstance(event, MessageDropped):
            self.dropped[event.reason] += 1


def flip(data: bytes, place: int, byte: int) -> bytes:
    """The message with one byte changed."""
    index = place % (len(data) or 1)
    return data[:index] + bytes([byte]) + data[index + 1 :]


def flip_digit(data: bytes, place: int, byte: int) -> bytes:
    """The message with one digit changed: most stay whole, but name another id, token or count."""
    digits = [index for index, code in enumerate(data) if code in b"0123456789"]
    return flip(data, digits[place % len(digits)], b"0123456789"[byte % 10]) if digits else data


def truncate(data: bytes, place: int, _byte: int) -> bytes:
    """The beginning of the message."""
    return data[: place % (len(data) or 1)]


MADE_UP: dict[str, Callable[[RequestId, Number], dict[str, Any]]] = {
    "cancel": lambda identity, _: {
        "method": "notifications/cancelled",
        "params": {"requestId": identity},
    },
    "failure": lambda identity, _: {"id": identity, "error": {"code": 1, "message": "no"}},
    "progress": lambda identity, progress: {
        "method": "notifications/progress",
        "params": {"progressToken": identity, "progress": progress},
    },
    "reply": lambda identity, _: {"id": identity, "result": {}},
}


class BadLine(RuleBasedStateMachine):
    """Both ends act at random within the rules; the line adds random faults."""

    revision: Revision
    ends: dict[Role, End]

    @initialize(revision=revisions)
    def open(self, revision):
        conversation = talk(revision, limit=LIMIT)
        self.revision = revision
        self.ends = {role: End(conversation.end(role)) for role in (CLIENT, SERVER)}
        self.standing = {
            role: (end.connection.lifecycle.state, end.connection.peer) for role, end in self.ends.items()
        }

    def post(self, by: Role, parcel: Parcel) -> None:
        self.ends[other(by)].wire.append(parcel)

    @property
    def asked(self) -> list[tuple[Role, InboundRequest]]:
        """The requests that each side may answer."""
        return [(role, incoming) for role, end in self.ends.items() for incoming in end.theirs.values()]

    @property
    def asking(self) -> list[tuple[Role, OutboundRequest]]:
        """The requests that each side waits for."""
        return [(role, outgoing) for role, end in self.ends.items() for outgoing in end.ours.values()]

    @property
    def sent(self) -> list[tuple[Role, int]]:
        """Which messages are on their way to whom."""
        return [(role, index) for role, end in self.ends.items() for index in range(len(end.wire))]

    # ----------------------------------------------------------------- what the ends do

    @rule(by=roles, pick=picks, progress=st.booleans(), at_once=st.booleans())
    def ask(self, by, pick, progress, at_once):
        end = self.ends[by]
        methods = sorted(set(self.revision.requests[by]) - {"initialize", "server/discover"})
        if not methods:
            with pytest.raises(LocalProtocolError):
                end.connection.request("ping")
            return
        if LISTEN in methods:
            methods += [LISTEN] * 3  # the one request that ends in more than one way
        method = methods[pick % len(methods)]
        outgoing = end.connection.request(method, PARAMS[method], progress=progress and method != LISTEN)
        assert outgoing.id not in end.made
        end.made.add(outgoing.id)
        end.ours[outgoing.id] = outgoing
        self.post(by, Parcel(outgoing.data, "request", outgoing.id))
        if at_once:
            self.arrive(other(by), self.ends[other(by)].wire.pop())

    @rule(by=roles, pick=picks)
    def say(self, by, pick):
        if by == SERVER and self.revision.stateless:
            with pytest.raises(LocalProtocolError):
                self.ends[by].connection.notify("notifications/tools/list_changed")
            return
        apart = {"notifications/initialized", "notifications/cancelled", "notifications/progress"}
        methods = sorted(set(self.revision.notifications[by]) - apart)
        if methods:
            method = methods[pick % len(methods)]
            data = self.ends[by].connection.notify(method, PARAMS[method])
            self.post(by, Parcel(data, "notice"))

    @precondition(lambda self: self.asked)
    @rule(pick=picks)
    def answer(self, pick):
        by, incoming = self.asked[pick % len(self.asked)]
        end = self.ends[by]
        data = end.connection.reply(incoming.id, RESULTS[incoming.row.name])
        assert data is not None
        del end.theirs[incoming.id]
        self.post(by, Parcel(data, "reply", incoming.id, sound=incoming.id not in end.unsound))

    @precondition(lambda self: self.asked)
    @rule(pick=picks)
    def refuse(self, pick):
        by, incoming = self.asked[pick % len(self.asked)]
        data = self.ends[by].connection.fail(incoming.id, InternalError("no"))
        assert data is not None
        del self.ends[by].theirs[incoming.id]
        self.post(by, Parcel(data, "failure", incoming.id))

    @precondition(lambda self: self.asked)
    @rule(pick=picks, steps=counts | counts.map(sorted))
    def go_on(self, pick, steps):
        by, incoming = self.asked[pick % len(self.asked)]
        told = self.ends[by].told
        for progress in steps:
            further = incoming.id not in told or progress > told[incoming.id]
            data = self.ends[by].connection.report_progress(incoming.id, progress)
            assert (data is not None) is (incoming.token is not None and further)
            if data is not None:
                told[incoming.id] = progress
                self.post(by, Parcel(data, "progress", incoming.token, progress))

    @precondition(lambda self: self.asking)
    @rule(pick=picks)
    def give_up(self, pick):
        by, outgoing = self.asking[pick % len(self.asking)]
        data = self.ends[by].connection.cancel(outgoing.id, "enough")
        assert data is not None
        del self.ends[by].ours[outgoing.id]
        self.post(by, Parcel(data, "cancel", outgoing.id))

    @precondition(lambda self: any(incoming.row.name == LISTEN for _, incoming in self.asked))
    @rule()
    def hang_up(self):
        """End a subscription as the server, which may also answer it."""
        to = next(incoming for _, incoming in self.asked if incoming.row.name == LISTEN)
        params = CancelledParams(request_id=to.id)
        data = self.ends[SERVER].connection.notify("notifications/cancelled", params, to=to)
        self.post(SERVER, Parcel(data, "cancel", to.id))

    @rule(by=roles, identity=st.integers(-1, 12) | st.sampled_from(["", "1"]))
    def come_too_late(self, by, identity):
        end = self.ends[by]
        if identity not in end.theirs:
            assert end.connection.reply(identity, RESULTS["ping"]) is None
            assert end.connection.fail(identity, InternalError("no")) is None
            assert end.connection.report_progress(identity, 1) is None
        if identity not in end.ours:
            assert end.connection.cancel(identity) is None

    # ----------------------------------------------------------------- what the line does

    @precondition(lambda self: self.sent)
    @rule(pick=picks, again=st.booleans())
    def deliver(self, pick, again):
        """Deliver any message, so that they are reordered; some are delivered again."""
        to, where = self.sent[pick % len(self.sent)]
        parcel = self.ends[to].wire.pop(where)
        if again and len(self.sent) < ON_THE_WAY:
            self.ends[to].wire.append(parcel)
        self.arrive(to, parcel)

    @precondition(lambda self: self.sent)
    @rule()
    def deliver_all(self):
        while self.sent:
            to, where = self.sent[0]
            self.arrive(to, self.ends[to].wire.pop(where))

    def arrive(self, to: Role, parcel: Parcel) -> None:
        end = self.ends[to]
        sound = parcel.kind != "noise"
        foretold = end.foretell(parcel) if sound else None
        events = end.connection.receive(parcel.data)
        assert events
        for event in events:
            assert foretold is None or isinstance(event, foretold), (event, parcel)
            end.note(event, sound=sound)
            if isinstance(event, InvalidMessageReceived):
                assert parse(event.data).keys() <= {"jsonrpc", "id", "error"}
                assert event.data
                self.post(to, Parcel(event.data, "failure", event.id))

    @precondition(lambda self: self.sent)
    @rule(pick=picks)
    def drop(self, pick):
        to, where = self.sent[pick % len(self.sent)]
        del self.ends[to].wire[where]

    @precondition(lambda self: self.sent)
    @rule(
        pick=picks,
        change=st.sampled_from([flip_digit, flip, truncate]),
        place=picks,
        byte=st.integers(0, 255),
    )
    def corrupt(self, pick, change, place, byte):
        to, where = self.sent[pick % len(self.sent)]
        parcel = self.ends[to].wire[where]
        data = change(parcel.data, place, byte)
        self.ends[to].wire[where] = replace(parcel, data=data, kind="noise")

    @rule(to=roles, kind=st.sampled_from(sorted(MADE_UP)), pick=picks, progress=st.integers(0, 9))
    def make_up(self, to, kind, pick, progress):
        """Inject a message as an intermediary, often about an existing request."""
        about = [*self.ends[to].ours, *self.ends[to].theirs, 1, 99, "1"]
        identity = about[pick % len(about)]
        if kind != "progress" or to == CLIENT or not self.revision.stateless:
            members = MADE_UP[kind](identity, progress)
            self.arrive(to, Parcel(message(**members), kind, identity, progress, sound=False))

    # ----------------------------------------------------------------- what always holds

    @invariant()
    def tables_are_as_the_model_says(self):
        for role, end in self.ends.items():
            connection = end.connection
            assert connection.outgoing == end.ours
            assert connection.incoming == end.theirs
            assert connection.dropped_counts == end.dropped
            assert (connection.lifecycle.state, connection.peer) == self.standing[role]

    def teardown(self):
        for end in self.ends.values():
            assert end.connection.close() == list(end.ours.values())
            assert end.connection.incoming == end.connection.outgoing == {}


TestBadLine = BadLine.TestCase
# Long runs: what is interesting needs several messages in flight.
TestBadLine.settings = settings(stateful_step_count=100)


# --------------------------------------------------------------------- the handshake on the same line

moves = st.lists(
    st.tuples(roles, st.sampled_from(["deliver", "deliver", "deliver", "duplicate", "drop"]), picks),
    max_size=30,
)


def _answer(conversation: Conversation, to: Role, event: ConnectionEvent) -> bytes | None:
    """The messages that each end sends in response."""
    end = conversation.end(to)
    if isinstance(event, InboundRequest):
        introduces = event.row.name == "initialize"
        return end.reply(
            event.id, end.local_peer.introduce(event.peer.revision) if introduces else RESULTS["ping"]
        )
    if isinstance(event, ResponseReceived) and event.request.row.name == "initialize":
        return end.notify("notifications/initialized")
    return event.data if isinstance(event, InvalidMessageReceived) else None


@given(revision=st.sampled_from(SESSIONS), moves=moves)
def test_a_handshake_is_completed_by_both_or_by_none(revision, moves):
    conversation = Conversation(revision)
    client, server = conversation.client, conversation.server
    wires: dict[Role, list[bytes]] = {
        CLIENT: [],
        SERVER: [SESSION_ERA.open(client).data, client.request("ping").data],
    }
    for to, move, pick in moves:
        wire = wires[to]
        if not wire:
            continue
        where = pick % len(wire)
        if move == "duplicate":
            wire.append(wire[where])
            continue
        data = wire.pop(where)
        if move == "deliver":
            [event] = conversation.end(to).receive(data)
            answer = _answer(conversation, to, event)
            wires[other(to)] += [] if answer is None else [answer]
        assert server.lifecycle.state in {"new", "greeted", "ready"}
        assert (server.peer is None) is (server.lifecycle.state == "new")
        assert (client.peer is None) is (client.lifecycle.state != "ready")
        if client.peer:
            assert server.peer
            assert client.revision is server.revision is revision
        if server.lifecycle.state == "ready":
            assert client.lifecycle.state == "ready"


# --------------------------------------------------------------------- anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
identities = st.integers(-1, 4) | st.sampled_from(["", "1", "2"]) | json_values
known_params: st.SearchStrategy[Any] = st.sampled_from(list(PARAMS.values()))
envelopes = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | json_values},
    optional={
        "id": identities,
        "method": st.sampled_from([*PARAMS, "com.example/x"]) | json_values,
        "params": known_params | json_values | st.fixed_dictionaries({"_meta": json_values}),
        "result": st.just({}) | json_values,
        "error": st.fixed_dictionaries({"code": st.integers(), "message": st.text(max_size=3)}) | json_values,
    },
)


def _in_flight(role: Role, revision: Revision, until: str) -> Connection:
    """An end with a request of each side in flight, as far as there can be."""
    conversation = Conversation(revision).open(until)
    asking: tuple[Role, ...] = (CLIENT, SERVER) if revision is LATEST_SESSION else (CLIENT,)
    if until == "ready":
        for by in asking:
            conversation.ask("tools/call" if by == CLIENT else "roots/list", by=by, progress=True)
    return conversation.end(role)


@pytest.mark.parametrize("role", [CLIENT, SERVER])
@pytest.mark.parametrize("until", ["new", "opening", "ready"])
@pytest.mark.parametrize("revision", [LATEST, LATEST_SESSION], ids=str)
@given(data=st.binary(max_size=40) | envelopes.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=60)
def test_every_input_is_an_event(role, until, revision, data):
    end = _in_flight(role, revision, until)
    before = {**end.dropped_counts}
    incoming, outgoing = dict(end.incoming), dict(end.outgoing)
    [event] = end.receive(data)
    assert isinstance(event, ConnectionEvent)
    if isinstance(event, MessageDropped):
        assert sum(end.dropped_counts.values()) == sum(before.values()) + 1
    if isinstance(event, InvalidMessageReceived):
        assert (end.incoming, end.outgoing) == (incoming, outgoing)
        assert "error" in parse(event.data)
    if isinstance(event, InboundRequest):
        assert end.incoming == {**incoming, event.id: event}
        answer = end.fail(event.id, RPCError("no"))
        assert parse(answer)["id"] == event.id
