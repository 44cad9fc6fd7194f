"""One conversation, seen from one end: bytes in, events out; calls in, bytes out.

A `Connection` remembers the requests in flight in both directions and refuses what the protocol forbids. It
does no I/O, has no clock and starts nothing: its owner moves the bytes, runs the requests and decides when to
give up. `receive` and `send` hold the rules of the two directions, `eras` what differs between the eras.

    receive(data)  →  InboundRequest          a request; answer it with `reply` or `fail`
                      NotificationReceived    a notification
                      CancellationReceived    the peer no longer wants an answer; `reply` will return None
                      ProgressReceived        progress of a request of ours
                      ResponseReceived        the result of a request of ours
                      ErrorReceived           … its error, or a response that is invalid
                      InvalidMessageReceived  the peer broke a rule; send `data` if there is any
                      MessageDropped          the message has no effect; it was counted
    request(…)     →  OutboundRequest         send its `data`; an event will carry it again
    notify(…)      →  bytes                   send them

The request tells which era it belongs to. A server may hold a session and serve stateless requests at the
same time; a client is set to one revision, which `switch_revision` changes. Ids differ by type (1 is not
"1"), and a request that was answered or cancelled is forgotten. The session era has a handshake:

    server   new ─ initialize received → opening ─ answered → greeted ─ initialized received → ready
    client   new ─ initialize sent ────→ opening ─ answered → ready
    either   opening ─ initialize refused → new;   any state ─ closed → closed
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from toolpost.errors import (
    CapabilityNotDeclared,
    ChannelClosed,
    InvalidRequest,
    LocalProtocolError,
    RemoteProtocolError,
    RPCError,
)
from toolpost.protocol import eras, jsonrpc, send
from toolpost.protocol import receive as receive_module
from toolpost.protocol.downgrade import downgrade_value
from toolpost.protocol.eras import ERAS, Peer, find_missing_capability, is_task_request, prepare_params
from toolpost.protocol.events import ConnectionEvent, InboundRequest, OutboundRequest
from toolpost.protocol.jsonrpc import JSONRPCMessage, JSONRPCRequest, shorten
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import CANCELLED, CLIENT, EARLY_REQUESTS, INITIALIZE, SERVER, Role, Row
from toolpost.protocol.revisions import Revision
from toolpost.types.base import (
    JSON,
    UNSET,
    Number,
    Params,
    Raw,
    RequestId,
    Result,
    Struct,
    Unset,
    WireStruct,
)
from toolpost.types.initialize import LogLevel
from toolpost.types.notifications import CancelledParams, NotificationParams

LifecycleState: TypeAlias = Literal["new", "opening", "greeted", "ready", "closed"]
LifecycleEvent: TypeAlias = Literal["initialize", "answered", "refused", "initialized"]

_TRANSITIONS: Final[dict[tuple[Role, LifecycleState, LifecycleEvent], LifecycleState]] = {
    (SERVER, "new", INITIALIZE): "opening",
    (SERVER, "opening", "answered"): "greeted",
    (SERVER, "opening", "refused"): "new",
    (SERVER, "greeted", "initialized"): "ready",
    (CLIENT, "new", INITIALIZE): "opening",
    (CLIENT, "opening", "answered"): "ready",
    (CLIENT, "opening", "refused"): "new",
}

_STATES_OPEN_TO_PEER: Final = frozenset({"greeted", "ready"})
"""The states in which the peer may send any request: over HTTP its next one can overtake `initialized`."""

_NEXT_STEP_HINTS: Final[dict[tuple[Role, LifecycleState], str]] = {
    (SERVER, "new"): "the client has not sent initialize",
    (SERVER, "opening"): "answer initialize: reply(id, local_peer.introduce(revision))",
    (SERVER, "greeted"): "the client has not sent notifications/initialized",
    (CLIENT, "new"): "send what ERAS[revision.era].open(connection) returns",
    (CLIENT, "opening"): "the server has not answered initialize",
}


class Lifecycle:
    """The handshake of a session: which event leads to which state, and what may be sent in it."""

    __slots__ = ("role", "state")

    def __init__(self, role: Role, state: LifecycleState = "new") -> None:
        self.role: Role = role
        self.state: LifecycleState = state

    def move(self, event: LifecycleEvent) -> bool:
        """Move to the next state; return False, and change nothing, if the event is not for this one."""
        target = _TRANSITIONS.get((self.role, self.state, event))
        if target is None:
            return False
        self.state = target
        return True

    def check_incoming(self, method: str) -> None:
        """Raise InvalidRequest if the peer may not send this request now."""
        if self.state in _STATES_OPEN_TO_PEER and method != INITIALIZE:
            return
        why = self._explain_refusal(method)
        if why:
            raise InvalidRequest(f"Invalid request: {why}")

    def check_outgoing(self, method: str) -> None:
        """Raise ChannelClosed or LocalProtocolError if we may not send this now."""
        if self.state == "closed":
            raise ChannelClosed("the connection is closed", sent=False)
        why = self._explain_refusal(method)
        if why:
            raise LocalProtocolError(why, hint=_NEXT_STEP_HINTS.get((self.role, self.state)))

    def _explain_refusal(self, method: str) -> str | None:
        if self.state == "closed":
            return "the connection is closed"
        if self.state == "ready":
            return "the session is initialized already" if method == INITIALIZE else None
        if method == INITIALIZE:
            return None if self.state == "new" else "the session is being initialized already"
        if method in EARLY_REQUESTS:
            return None
        return f"{shorten(method)} has to wait until the session is initialized"


MAX_PEER_NAME: Final = 60
"""How many characters of a peer's name an error shows."""

MAX_IN_FLIGHT: Final = 1024
"""How many requests of one peer may be unanswered: far more than a host sends."""


class RequestForm(Struct, gc=False):
    """What the requests of one method have in common, until the peer or the state changes.

    `meta` is the `_meta` that the era demands, and `progress_meta` the same up to the progress token.
    """

    row: Row
    revision: Revision
    peer: Peer | None
    state: LifecycleState
    meta: Raw | Unset
    progress_meta: bytes


_NO_FORMS: Final[dict[str | Row, RequestForm]] = {}
"""Shared by all servers, which keep none: an idle session must cost little."""


class Connection:
    """One end of a conversation.

    How a session opens, without anything between the ends:

        >>> from toolpost.protocol.eras import ERAS
        >>> from toolpost.protocol.revisions import LATEST_SESSION
        >>> from toolpost.types import ClientCapabilities, Implementation, ListCapability, ServerCapabilities
        >>> asks = LocalPeer(Implementation("c", "1"), ClientCapabilities())
        >>> client = Connection(asks, revision=LATEST_SESSION)
        >>> offers = ServerCapabilities(tools=ListCapability())
        >>> server = Connection(LocalPeer(Implementation("s", "1"), offers))
        >>> opening = ERAS[client.revision.era].open(client)
        >>> [hello] = server.receive(opening.data)
        >>> introduction = server.local_peer.introduce(hello.peer.revision)
        >>> [welcome] = client.receive(server.reply(hello.id, introduction))
        >>> _ = server.receive(client.notify("notifications/initialized"))
        >>> [asked] = server.receive(client.request("tools/list").data)
        >>> asked.row.name, asked.peer.info.name
        ('tools/list', 'c')

    Args:
        party: our end.
        revision: for a client, the revision to speak or to offer; without it the newest that we speak.
        peer: the other end, if the handshake was done elsewhere (on another worker, or not at all).
        state: the state of that session.
        extra: rows of extensions, in both directions.
        limit: how many requests of the peer may be in flight.
        depth: how deeply a message may nest.
    """

    __slots__ = (
        "_revision",
        "depth",
        "dropped_counts",
        "early_cancellations",
        "extra",
        "incoming",
        "is_unordered",
        "lifecycle",
        "limit",
        "local_peer",
        "log_level",
        "next_id",
        "outgoing",
        "peer",
        "peer_role",
        "request_forms",
        "role",
    )

    def __init__(
        self,
        party: LocalPeer,
        *,
        revision: Revision | None = None,
        peer: Peer | None = None,
        state: LifecycleState | None = None,
        extra: Mapping[str, Row] | None = None,
        limit: int = MAX_IN_FLIGHT,
        depth: int = jsonrpc.MAX_DEPTH,
    ) -> None:
        self.local_peer = party
        self.role: Role = party.role
        self.peer_role: Role = party.peer_role
        self.peer = peer
        self.lifecycle = Lifecycle(party.role, state or ("new" if peer is None else "ready"))
        self.extra = extra or {}
        self.log_level: LogLevel | None = None
        self.incoming: dict[RequestId, InboundRequest] = {}
        self.outgoing: dict[RequestId, OutboundRequest] = {}
        self.is_unordered = False
        """Whether messages may overtake each other, as over HTTP."""
        self.early_cancellations: dict[RequestId, None] | None = None
        """Requests that were cancelled before they came."""
        self.dropped_counts: dict[str, int] = {}
        self.limit = limit
        self.depth = depth
        self.request_forms: dict[str | Row, RequestForm] = {} if party.role == CLIENT else _NO_FORMS
        self.next_id = 1
        self._revision = revision or party.newest

    @property
    def revision(self) -> Revision:
        """The negotiated revision, or before that the one we prefer."""
        return self._revision if self.peer is None else self.peer.revision

    def switch_revision(self, revision: Revision) -> None:
        """Switch to another revision, after a client found out which one its server speaks."""
        self._revision = revision
        self.peer = None
        # The response to an abandoned handshake is late.
        self.outgoing = {key: each for key, each in self.outgoing.items() if each.row.name != INITIALIZE}
        if self.lifecycle.state != "closed":
            self.lifecycle.state = "new"

    def find_request_row(self, method: str, revision: Revision, by: Role) -> Row | None:
        """Return the row of a request; extensions come before the protocol."""
        extra = self.extra.get(method) if self.extra else None
        if extra is not None and extra.result is not None and extra.is_sendable_by(by, revision.date):
            return extra
        return revision.requests[by].get(method)

    def find_notification_row(self, method: str, revision: Revision, by: Role) -> Row | None:
        """Return the row of a notification; extensions come before the protocol."""
        extra = self.extra.get(method)
        if extra is not None and extra.result is None and extra.is_sendable_by(by, revision.date):
            return extra
        return revision.notifications[by].get(method)

    # ----------------------------------------------------------------- receiving

    def receive(self, data: bytes) -> list[ConnectionEvent]:
        """Return the events for the peer's bytes: one for a message, several for a batch."""
        if self.outgoing:
            response = receive_module.read_plain_response(self, data)
            if response is not None:
                return [response]
        try:
            if self.peer is not None and self.peer.revision.batches and jsonrpc.is_batch(data):
                messages = jsonrpc.decode_batch(data, depth=self.depth)
            else:
                return [self.receive_message(jsonrpc.decode(data, depth=self.depth))]
        except RemoteProtocolError as error:
            return [receive_module.handle_invalid(self, error)]
        return [
            receive_module.handle_invalid(self, item)
            if isinstance(item, RemoteProtocolError)
            else self.receive_message(item)
            for item in messages
        ]

    def receive_invalid(self, error: RemoteProtocolError) -> ConnectionEvent:
        """Return the event for a message that the transport found invalid, such as a line too long."""
        return receive_module.handle_invalid(self, error)

    def receive_message(self, message: JSONRPCMessage) -> ConnectionEvent:
        """Return the event for a message."""
        if isinstance(message, JSONRPCRequest):
            return receive_module.handle_request(self, message)
        return receive_module.handle_message(self, message)

    # ----------------------------------------------------------------- responses

    def reply(self, request_id: RequestId, result: Result | Raw) -> bytes | None:
        """Return the bytes of a response; None if the request was cancelled or answered.

        A `Result` is stamped as the era demands, raw bytes are sent as they are. Raises LocalProtocolError if
        the result cannot be encoded; the request then still waits for an answer.
        """
        incoming = self.incoming.get(request_id)
        if incoming is None:
            return None
        if isinstance(result, Result):
            result = ERAS[incoming.peer.revision.era].stamp_result(self.local_peer, incoming, result)
        elif type(result) is not Raw:
            raise LocalProtocolError(f"an answer is a Result or Raw, not {type(result).__name__}")
        data = jsonrpc.encode_response(incoming.id, result)  # 1 and True are one key, but not one id
        del self.incoming[request_id]
        if incoming.row.name == INITIALIZE:
            self.lifecycle.move("answered")
            self.peer = incoming.peer
        return data

    def mark_answered(self, request_id: RequestId) -> bool:
        """Forget a request that was answered elsewhere; return whether it was in flight."""
        return self.incoming.pop(request_id, None) is not None

    def fail(self, request_id: RequestId, error: RPCError) -> bytes | None:
        """Return the bytes of an error response; None if the request was cancelled or answered."""
        incoming = self.incoming.pop(request_id, None)
        if incoming is None:
            return None
        if incoming.row.name == INITIALIZE:
            self.lifecycle.move("refused")
        code = incoming.peer.revision.translate_code(error.code)
        try:
            return jsonrpc.encode_error(incoming.id, error, code)
        except LocalProtocolError:
            plain = RPCError("Internal error: the error cannot be written as JSON", code=code)
            return jsonrpc.encode_error(incoming.id, plain)

    # ----------------------------------------------------------------- requests

    def request(
        self,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        meta: Mapping[str, JSON] | None = None,
        progress: bool = False,
        party: LocalPeer | None = None,
    ) -> OutboundRequest:
        """Make a request.

        Args:
            method: its name, or a row for a method that is in no revision.
            params: its parameters.
            meta: additional members of `_meta`.
            progress: whether to ask for progress notifications.
            party: our end as this request describes it, in the stateless era.

        Raises:
            LocalProtocolError: this revision or this state forbids it.
            CapabilityNotDeclared: the peer did not declare the capability for it.
            ChannelClosed: the conversation is over.
        """
        form = self.request_forms.get(method)
        if form is None or form.peer is not self.peer or form.state != self.lifecycle.state:
            form = self._make_request_form(method, params)
        row, revision = form.row, form.revision
        task = revision.tasks and is_task_request(params, revision)
        if task:
            self._check_declared(row, revision, params, task=True)
        request_id = self.next_id
        token = request_id if progress else None
        if isinstance(params, Params) and params.meta is UNSET and meta is None and party is None:
            # Most requests: nothing has to be merged with the `_meta` of the era, which is encoded already.
            facts = form.meta if token is None else Raw(b"%b%d}" % (form.progress_meta, token))
            whole = replace(downgrade_value(params, revision), meta=facts)
        else:
            for key in meta or ():
                wrong = eras.explain_invalid_meta_key(key)
                if wrong:
                    raise LocalProtocolError(f"a request cannot carry this key in _meta: {wrong}")
            stamp = ERAS[revision.era].stamp_request(party or self.local_peer, revision, meta, token)
            whole = prepare_params(params, stamp, revision)
        data = jsonrpc.encode_request(request_id, row.name, whole)
        self.next_id += 1
        if row.name == INITIALIZE:
            self.lifecycle.move(INITIALIZE)
        outgoing = self.outgoing[request_id] = OutboundRequest(
            request_id, row, data, revision, token, task=task, params=params
        )
        return outgoing

    def _make_request_form(self, method: str | Row, params: object) -> RequestForm:
        """Check whether we may send a method now; a client keeps the form until something changes.

        The parameters of a server's requests decide which capability they need, so it keeps none.
        """
        revision = self.revision
        row = method if isinstance(method, Row) else self.find_request_row(method, revision, self.role)
        if row is None:
            raise send.make_unsendable_error(self, str(method), revision)
        if self.role == SERVER and revision.stateless:
            raise LocalProtocolError(f"{row.name} cannot be sent: there is no session with a client")
        if not revision.stateless or self.lifecycle.state == "closed":
            self.lifecycle.check_outgoing(row.name)
        if row.result is None:
            raise LocalProtocolError(f"{row.name} is a notice, not a request")
        self._check_declared(row, revision, params)
        facts = ERAS[revision.era].stamp_request(self.local_peer, revision, None, None)
        encoded = jsonrpc.encode(facts or {})
        members = encoded[:-1] + b"," if facts else encoded[:-1]
        form = RequestForm(
            row,
            revision,
            self.peer,
            self.lifecycle.state,
            Raw(encoded) if facts else UNSET,
            members + b'"progressToken":',
        )
        if self.role == CLIENT and self.peer is not None and row is not method:
            self.request_forms[row.name] = form
        return form

    def _check_declared(self, row: Row, revision: Revision, params: object, *, task: bool = False) -> None:
        """Raise CapabilityNotDeclared if the peer did not declare what the request needs."""
        declared = None if self.peer is None else self.peer.capabilities
        if declared is None:
            return
        gated = row.needs and row.name not in revision.ungated
        missing = find_missing_capability(declared, row, params) if gated else None
        why = f"does not offer {missing!r}, which {row.name} needs"
        if missing is None and task and row.task_needs and not has_capability(declared, row.task_needs):
            missing, why = row.task_needs, f"does not run {row.name} as a task"
        if missing is not None:
            raise CapabilityNotDeclared(missing, f"the {self.peer_role} {why}", peer=self.peer_name)

    @property
    def peer_name(self) -> str | None:
        """The peer's name for errors, printable and shortened."""
        if self.peer is None or self.peer.info is None:
            return None
        name = self.peer.info.name[: 4 * MAX_PEER_NAME]
        return jsonrpc.shorten(
            name if name.isprintable() else "".join(filter(str.isprintable, name)), MAX_PEER_NAME
        )

    def cancel(self, request_id: RequestId, reason: str | None = None) -> bytes | None:
        """Forget a request of ours; return the cancellation to send, or None if it was answered.

        `initialize` must not be cancelled on the wire (LIFE-16). On HTTP in the stateless era closing the
        stream cancels the request, and the bytes are not needed.
        """
        outgoing = self.outgoing.get(request_id)
        if outgoing is None:
            return None
        data = None
        if outgoing.row.name == INITIALIZE:
            self.lifecycle.move("refused")
        else:
            params = CancelledParams(request_id=request_id, reason=reason)
            data = jsonrpc.encode_notification(CANCELLED, params)
        del self.outgoing[request_id]
        return data

    # ----------------------------------------------------------------- notifications

    def notify(
        self,
        method: str | Row,
        params: NotificationParams | Mapping[str, JSON] | None = None,
        *,
        to: InboundRequest | None = None,
    ) -> bytes:
        """Return the bytes of a notification.

        Args:
            method: its name, or a row for a method that is in no revision.
            params: its parameters.
            to: the request that it belongs to, which a stateless peer demands.

        Raises:
            LocalProtocolError: this revision or this state forbids it.
            CapabilityNotDeclared: we did not declare the capability for it.
            ChannelClosed: the conversation is over.
        """
        return send.build_notification(self, method, params, to)

    def report_progress(
        self, request_id: RequestId, progress: Number, total: Number | None = None, message: str | None = None
    ) -> bytes | None:
        """Return the bytes of a progress notification for a request of the peer.

        None if the peer did not ask for it, has its answer, or has the same progress (PROG-3 … PROG-6).
        """
        return send.build_progress(self, request_id, progress, total, message)

    def log(
        self, level: LogLevel, data: JSON, *, logger: str | None = None, to: InboundRequest | None = None
    ) -> bytes | None:
        """Return the bytes of a log message; None if the client does not want it.

        A stateless client wants only those of a request that asked for logs; before a session there are none.
        """
        return send.build_log_message(self, level, data, logger, to)

    def close(self) -> list[OutboundRequest]:
        """End the conversation; return our requests that will not be answered."""
        self.lifecycle.state = "closed"
        lost = list(self.outgoing.values())
        self.outgoing.clear()
        self.incoming.clear()
        return lost
