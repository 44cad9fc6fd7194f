"""One conversation, seen from one end: bytes in, events out; calls in, bytes out.

A `Connection` remembers what is in flight in both directions and refuses what the protocol forbids. It does
no I/O, has no clock and starts nothing: whoever owns it moves the bytes, runs the requests and decides when
to give up.

    receive(data)  →  Incoming             the peer asks; answer it with `reply` or `fail`
                      NotificationReceived       the peer says something
                      CancellationReceived       the peer no longer wants an answer; `reply` will return None
                      ProgressReceived     a request of ours has come further
                      ResponseReceived        a request of ours was answered
                      ErrorReceived      … with an error, or with something that is no answer
                      Refused              the peer broke a rule; send `data` if there is any
                      Dropped              the message means nothing (any more); it was counted
    request(…)     →  Outgoing             send its `data`; an event will carry it again
    notify(…)      →  bytes                send them

Which era a request belongs to is told by the request. A server may hold a session and serve stateless
requests at the same time; a client is set to one revision, which `switch_revision` changes. Ids are told
apart by type (1 is not "1"), and a request that was answered or cancelled is forgotten, so that what comes
later is late.

PART lifecycle: The handshake of the session era, as a table: which event leads where, what may be asked when.

    server   new ─ initialize received → opening ─ answered → greeted ─ initialized received → ready
    client   new ─ initialize sent ────→ opening ─ answered → ready
    either   opening ─ initialize refused → new;   any state ─ closed → closed

Knows no message but by name; the stateless era has no lifecycle and never comes here.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

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
from toolpost.protocol.eras import ERAS, Peer, find_missing_capability, is_task_request, prepare_params
from toolpost.protocol.events import ConnectionEvent, InboundRequest, OutboundRequest
from toolpost.protocol.jsonrpc import JSONRPCMessage, JSONRPCRequest, shorten
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import CLIENT, SERVER, Role, Row
from toolpost.protocol.request_templates import RequestTemplate
from toolpost.protocol.revisions import Revision
from toolpost.types.base import JSON, Number, Raw, RequestId, Result, WireStruct
from toolpost.types.initialize import LogLevel, RequestMeta
from toolpost.types.notifications import CancelledParams, NotificationParams

LifecycleState: TypeAlias = Literal["new", "opening", "greeted", "ready", "closed"]
LifecycleEvent: TypeAlias = Literal["initialize", "answered", "refused", "initialized"]

_TRANSITIONS: Final[dict[tuple[Role, LifecycleState, LifecycleEvent], LifecycleState]] = {
    (SERVER, "new", "initialize"): "opening",
    (SERVER, "opening", "answered"): "greeted",
    (SERVER, "opening", "refused"): "new",
    (SERVER, "greeted", "initialized"): "ready",
    (CLIENT, "new", "initialize"): "opening",
    (CLIENT, "opening", "answered"): "ready",
    (CLIENT, "opening", "refused"): "new",
}

# Before the handshake is complete nothing but ping may be asked (LIFE-5, LIFE-6).
_EARLY_REQUESTS: Final[dict[LifecycleState, frozenset[str]]] = {
    "new": frozenset({"initialize", "ping"}),
    "opening": frozenset({"ping"}),
    "greeted": frozenset({"ping"}),
}

_STATES_OPEN_TO_PEER: Final = frozenset({"greeted", "ready"})
"""Where a peer may ask anything. Who has the answer to its `initialize` may: over HTTP what it asks next can
overtake its `initialized`."""

_NEXT_STEP_HINTS: Final[dict[tuple[Role, LifecycleState], str]] = {
    (SERVER, "new"): "the client has not sent initialize",
    (SERVER, "opening"): "answer initialize: reply(id, party.introduce(revision))",
    (SERVER, "greeted"): "the client has not sent notifications/initialized",
    (CLIENT, "new"): "send what ERAS[revision.era].open(connection) returns",
    (CLIENT, "opening"): "the server has not answered initialize",
}


class Lifecycle:
    """Where a session stands."""

    __slots__ = ("role", "state")

    def __init__(self, role: Role, state: LifecycleState = "new") -> None:
        self.role: Role = role
        self.state: LifecycleState = state

    def move(self, event: LifecycleEvent) -> bool:
        """Go on to the next state; False, and no change, if the event means nothing in this one."""
        target = _TRANSITIONS.get((self.role, self.state, event))
        if target is None:
            return False
        self.state = target
        return True

    def check_incoming(self, method: str) -> None:
        """Accept that the peer asks this now.

        Raises:
            InvalidRequest: the peer may not.
        """
        if self.state in _STATES_OPEN_TO_PEER and method != "initialize":
            return
        why = self._explain_refusal(method)
        if why:
            raise InvalidRequest(f"Invalid request: {why}")

    def check_outgoing(self, method: str) -> None:
        """Accept that we ask this now.

        Raises:
            ChannelClosed: the conversation is over.
            LocalProtocolError: the handshake is not complete.
        """
        if self.state == "closed":
            raise ChannelClosed("the connection is closed", sent=False)
        why = self._explain_refusal(method)
        if why:
            raise LocalProtocolError(why, hint=_NEXT_STEP_HINTS.get((self.role, self.state)))

    def _explain_refusal(self, method: str) -> str | None:
        if self.state == "closed":
            return "the connection is closed"
        if self.state == "ready":
            return "the session is initialized already" if method == "initialize" else None
        if method in _EARLY_REQUESTS.get(self.state, ()):
            return None
        if method == "initialize":
            return "the session is being initialized already"
        return f"{shorten(method)} has to wait until the session is initialized"


# --------------------------------------------------------------------- connection

MAX_PEER_NAME: Final = 60
"""How many characters of a peer's name stand in front of an error."""

MAX_IN_FLIGHT: Final = 1024
"""How many requests of one peer may wait for an answer: far more than a host sends, far less than memory."""

_TASK_CAPABILITIES: Final = {
    "tools/call": "tasks.requests.tools.call",
    "sampling/createMessage": "tasks.requests.sampling.create_message",
    "elicitation/create": "tasks.requests.elicitation.create",
}
"""The capability behind running a request as a task."""

_NO_TEMPLATES: Final[dict[str | Row, RequestTemplate]] = {}
"""What no server has, and all of them share: an idle session must cost little."""


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
        local_peer: who we are.
        revision: for a client, the revision to speak or to offer; without it the newest that we speak.
        peer: the other end, where the handshake was done elsewhere (on another worker, or not at all).
        state: where that session stands.
        extra: rows that extensions and authors add, in both directions.
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
        "role",
        "templates",
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
        """Whether what is sent later may arrive sooner, as over HTTP."""
        self.early_cancellations: dict[RequestId, None] | None = None
        """Requests that were cancelled and have not come yet, if messages may overtake each other."""
        self.dropped_counts: dict[str, int] = {}
        self.limit = limit
        self.depth = depth
        self.templates: dict[str | Row, RequestTemplate] = {} if party.role == CLIENT else _NO_TEMPLATES
        self.next_id = 1
        self._revision = revision or party.newest

    @property
    def revision(self) -> Revision:
        """What is spoken, or, before that is agreed upon, what we would like to speak."""
        return self._revision if self.peer is None else self.peer.revision

    @property
    def is_idle(self) -> bool:
        """Whether the session is open, and nothing is under way in it."""
        return self.lifecycle.state == "ready" and not (self.incoming or self.outgoing)

    def switch_revision(self, revision: Revision) -> None:
        """Speak another revision from here on (a client that found out what its server speaks)."""
        self._revision = revision
        self.peer = None
        # An answer to a handshake that is given up comes too late.
        self.outgoing = {key: each for key, each in self.outgoing.items() if each.row.name != "initialize"}
        if self.lifecycle.state != "closed":
            self.lifecycle.state = "new"

    def find_request_row(self, method: str, revision: Revision, by: Role) -> Row | None:
        """The row of a request; that of an extension before that of the protocol."""
        extra = self.extra.get(method) if self.extra else None
        if extra is not None and extra.result is not None and extra.is_sendable_by(by, revision.date):
            return extra
        return revision.requests[by].get(method)

    def find_notification_row(self, method: str, revision: Revision, by: Role) -> Row | None:
        """The row of a notice; that of an extension before that of the protocol."""
        extra = self.extra.get(method)
        if extra is not None and extra.result is None and extra.is_sendable_by(by, revision.date):
            return extra
        return revision.notifications[by].get(method)

    # ----------------------------------------------------------------- what arrives

    def receive(self, data: bytes) -> list[ConnectionEvent]:
        """What the peer's bytes mean: one event for a message, several for a batch where there are any."""
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
        """What a message means that is none, told by somebody who has read it (a line that was too long)."""
        return receive_module.handle_invalid(self, error)

    def receive_message(
        self, message: JSONRPCMessage, *, meta: RequestMeta | None = None, peer: Peer | None = None
    ) -> ConnectionEvent:
        """What a message means.

        Args:
            message: as decoded.
            meta: what it says of itself, where that was read before.
            peer: who sends it, where that was settled before (HTTP decides by headers).
        """
        if isinstance(message, JSONRPCRequest):
            return receive_module.handle_request(self, message, meta, peer)
        return receive_module.handle_message(self, message)

    # ----------------------------------------------------------------- what we answer

    def reply(self, request_id: RequestId, result: Result | Raw) -> bytes | None:
        """The bytes of an answer; None if the request was cancelled or answered.

        Args:
            request_id: of the peer's request.
            result: a result, which is stamped as the era demands, or the raw bytes of one that was.

        Raises:
            LocalProtocolError: the result cannot be said; the request still waits for an answer.
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
        if incoming.row.name == "initialize":
            self.lifecycle.move("answered")
            self.peer = incoming.peer
        return data

    def mark_answered(self, request_id: RequestId) -> bool:
        """Note that a request has an answer that was made elsewhere; whether it was still waiting for one."""
        return self.incoming.pop(request_id, None) is not None

    def fail(self, request_id: RequestId, error: RPCError) -> bytes | None:
        """The bytes of an error answer; None if the request was cancelled or answered."""
        incoming = self.incoming.pop(request_id, None)
        if incoming is None:
            return None
        if incoming.row.name == "initialize":
            self.lifecycle.move("refused")
        code = incoming.peer.revision.translate_code(error.code)
        try:
            return jsonrpc.encode_error(incoming.id, error, code)
        except LocalProtocolError:
            plain = RPCError("Internal error: the error cannot be written as JSON", code=code)
            return jsonrpc.encode_error(incoming.id, plain)

    # ----------------------------------------------------------------- what we ask

    def request(
        self,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        meta: Mapping[str, JSON] | None = None,
        progress: bool = False,
        party: LocalPeer | None = None,
    ) -> OutboundRequest:
        """A request of ours.

        Args:
            method: its name, or a row of one's own for a method that is in no revision.
            params: its parameters.
            meta: what to put into `_meta` besides what the era demands.
            progress: whether we want to hear how far it has come.
            party: how we present ourselves in this one, where every request does that for itself.

        Raises:
            LocalProtocolError: this revision or this state forbids it.
            CapabilityNotDeclared: the peer did not declare the capability for it.
            ChannelClosed: the conversation is over.
        """
        if meta is not None or party is not None:
            return self._request_checked(method, params, meta, party, progress=progress)
        like = self.templates.get(method)
        if like is None or not like.is_applicable(self, params):
            outgoing = self._request_checked(method, params, None, None, progress=progress)
            if (
                outgoing.row is not method
                and (like := RequestTemplate.from_request(self, outgoing, params)) is not None
            ):
                self.templates[outgoing.row.name] = like
            return outgoing
        request_id = self.next_id
        data = like.write(request_id, params, progress=progress)
        self.next_id += 1
        token = request_id if progress else None
        outgoing = self.outgoing[request_id] = OutboundRequest(
            request_id, like.row, data, like.revision, token
        )
        return outgoing

    def _request_checked(
        self,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        meta: Mapping[str, JSON] | None,
        party: LocalPeer | None,
        *,
        progress: bool,
    ) -> OutboundRequest:
        """A request that is looked at in every way."""
        revision = self.revision
        row = method if isinstance(method, Row) else self._find_sendable_row(method, revision)
        if self.role == SERVER and revision.stateless:
            raise LocalProtocolError(f"{row.name} cannot be sent: there is no session with a client")
        if not revision.stateless or self.lifecycle.state == "closed":
            self.lifecycle.check_outgoing(row.name)
        if row.result is None:
            raise LocalProtocolError(f"{row.name} is a notice, not a request")
        if row.needs and row.name not in revision.ungated and self.peer is not None:
            self._check_declared(row, self.peer, params)
        task = is_task_request(params, revision)
        if task and self.peer is not None and not self._can_run_task(row, self.peer):
            raise CapabilityNotDeclared(
                _TASK_CAPABILITIES[row.name],
                f"the {self.peer_role} does not run {row.name} as a task",
                peer=self.peer_name,
            )
        for key in meta or ():
            wrong = eras.explain_invalid_meta_key(key)
            if wrong:
                raise LocalProtocolError(f"a request cannot carry this key in _meta: {wrong}")
        request_id = self.next_id
        stamp = ERAS[revision.era].stamp_request(
            party or self.local_peer, revision, meta, request_id if progress else None
        )
        data = jsonrpc.encode_request(request_id, row.name, prepare_params(params, stamp, revision))
        self.next_id += 1
        if row.name == "initialize":
            self.lifecycle.move("initialize")
        token = request_id if progress else None
        outgoing = OutboundRequest(request_id, row, data, revision, token, task=task)
        self.outgoing[request_id] = outgoing
        return outgoing

    def _find_sendable_row(self, method: str, revision: Revision) -> Row:
        row = self.find_request_row(method, revision, self.role)
        if row is None:
            raise send.make_unsendable_error(self, method, revision)
        return row

    def _check_declared(self, row: Row, peer: Peer, params: object) -> None:
        missing = (
            None if peer.capabilities is None else find_missing_capability(peer.capabilities, row, params)
        )
        if missing is not None:
            raise CapabilityNotDeclared(
                missing,
                f"the {self.peer_role} does not offer {missing!r}, which {row.name} needs",
                peer=self.peer_name,
            )

    def _can_run_task(self, row: Row, peer: Peer) -> bool:
        path = _TASK_CAPABILITIES.get(row.name)
        return path is None or peer.capabilities is None or has_capability(peer.capabilities, path)

    @property
    def peer_name(self) -> str | None:
        """What the peer calls itself, for errors: as much of it as can be shown to people."""
        if self.peer is None or self.peer.info is None:
            return None
        name = self.peer.info.name[: 4 * MAX_PEER_NAME]
        return jsonrpc.shorten(
            name if name.isprintable() else "".join(filter(str.isprintable, name)), MAX_PEER_NAME
        )

    def cancel(self, request_id: RequestId, reason: str | None = None) -> bytes | None:
        """Forget a request of ours; the bytes that tell the peer, None if it was answered or may not be told.

        `initialize` is forgotten without a word (LIFE-16). On HTTP in the stateless era closing the stream
        tells the peer, and the bytes are not needed.
        """
        outgoing = self.outgoing.get(request_id)
        if outgoing is None:
            return None
        data = None
        if outgoing.row.name == "initialize":
            self.lifecycle.move("refused")
        else:
            params = CancelledParams(request_id=request_id, reason=reason)
            data = jsonrpc.encode_notification("notifications/cancelled", params)
        del self.outgoing[request_id]
        return data

    # ----------------------------------------------------------------- what we say

    def notify(
        self,
        method: str | Row,
        params: NotificationParams | Mapping[str, JSON] | None = None,
        *,
        to: InboundRequest | None = None,
    ) -> bytes:
        """The bytes of a notice.

        Args:
            method: its name, or a row of one's own.
            params: its parameters.
            to: the request that it belongs to. A stateless peer hears nothing else.

        Raises:
            LocalProtocolError: this revision or this state forbids it.
            CapabilityNotDeclared: we did not declare the capability for it.
            ChannelClosed: the conversation is over.
        """
        return send.build_notification(self, method, params, to)

    def report_progress(
        self, request_id: RequestId, progress: Number, total: Number | None = None, message: str | None = None
    ) -> bytes | None:
        """The bytes that tell how far a request of the peer's has come.

        None if the peer did not ask for it, has its answer, or has heard as much already (PROG-3 … PROG-6).
        """
        return send.build_progress(self, request_id, progress, total, message)

    def log(
        self, level: LogLevel, data: JSON, *, logger: str | None = None, to: InboundRequest | None = None
    ) -> bytes | None:
        """The bytes of a line for the client's log; None if it does not want to hear it.

        A stateless client hears only what belongs to a request that asked for logs, and before there is a
        session nobody hears.
        """
        return send.build_log_message(self, level, data, logger, to)

    # ----------------------------------------------------------------- the end

    def close(self) -> list[OutboundRequest]:
        """End the conversation: the requests of ours that will never be answered."""
        self.lifecycle.state = "closed"
        lost = list(self.outgoing.values())
        self.outgoing.clear()
        self.incoming.clear()
        return lost
