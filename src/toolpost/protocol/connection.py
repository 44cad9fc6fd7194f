"""One conversation, seen from one end: bytes in, events out; calls in, bytes out.

A `Connection` remembers the requests in flight in both directions and refuses what the protocol forbids. It
does no I/O, has no clock and starts nothing: its owner moves the bytes, runs the requests and decides when to
give up. `receive` handles received messages, `eras` what differs between the eras, `lifecycle` the handshake.

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

A request names its era. A server may hold a session and serve stateless requests at the same time; a client
is set to one revision, which `switch_revision` changes. Ids differ by type (1 is not "1"), and a request that
was answered or cancelled is forgotten.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, get_args

from msgspec.structs import replace

from toolpost.errors import CapabilityNotDeclared, LocalProtocolError, RemoteProtocolError, RPCError
from toolpost.protocol import eras, jsonrpc
from toolpost.protocol import receive as receive_module
from toolpost.protocol.downgrade import DOWNGRADES
from toolpost.protocol.eras import ERAS, Peer, find_missing_capability, prepare_params, stamp_request
from toolpost.protocol.events import ConnectionEvent, InboundRequest, OutboundRequest
from toolpost.protocol.forward import ForwardedResult, find_error_code, restamp_result
from toolpost.protocol.jsonrpc import JSONRPCMessage, JSONRPCRequest, JSONRPCResponse
from toolpost.protocol.lifecycle import Lifecycle
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import (
    CANCELLED,
    CLIENT,
    INITIALIZE,
    LOG_MESSAGE,
    PROGRESS,
    SERVER,
    SUBSCRIPTIONS_LISTEN,
    Role,
    Row,
    suggest_method,
)
from toolpost.protocol.revisions import LATEST, Revision
from toolpost.types.base import JSON, UNSET, Number, Params, Raw, RequestId, Result, Struct, Unset, WireStruct
from toolpost.types.initialize import SUBSCRIPTION_ID, LogLevel
from toolpost.types.notifications import CancelledParams, LogParams, NotificationParams, ProgressParams

LOG_LEVEL_RANKS: Final[dict[str, int]] = {level: rank for rank, level in enumerate(get_args(LogLevel))}
MAX_PEER_NAME: Final = 60  # characters of a peer's name that an error shows
MAX_IN_FLIGHT: Final = 1024  # unanswered requests of one peer: far more than a host sends


class RequestForm(Struct, gc=False):
    """The common part of the requests of one method, until the peer or the state changes.

    `params` is the type of their parameters if it has a `_meta` of raw bytes, and `downgrade` translates them
    for the peer. `meta` is the `_meta` that the era demands, `progress_meta` that up to the progress token.
    """

    row: Row
    revision: Revision
    params: type[Params] | None
    downgrade: Callable[[Any, Revision], Any] | None
    meta: Raw | Unset
    progress_meta: bytes


_NO_FORMS: Final[Mapping[str | Row, RequestForm]] = {}


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

    `party` is our end; `revision` is that of a client, by default the newest. `peer` is given
    if the handshake was done elsewhere. `limit` is how many requests of the peer may be in flight.
    """

    log_level: LogLevel | None = None
    is_unordered = False
    """Whether messages may overtake each other, as over HTTP."""
    early_cancellations: dict[RequestId, None] | None = None
    """Requests that were cancelled before they arrived."""
    next_id = 1
    request_forms = _NO_FORMS
    dropped_counts: Mapping[str, int] = {}

    def __init__(
        self,
        party: LocalPeer,
        *,
        revision: Revision | None = None,
        peer: Peer | None = None,
        limit: int = MAX_IN_FLIGHT,
    ) -> None:
        self.local_peer = party
        self.peer = peer
        self.lifecycle = Lifecycle(party.role, "new" if peer is None else "ready")
        self.incoming: dict[RequestId, InboundRequest] = {}
        self.outgoing: dict[RequestId, OutboundRequest] = {}
        self.limit = limit
        self._revision = revision or party.newest

    @property
    def role(self) -> Role:
        """Which side we are."""
        return self.local_peer.role

    @property
    def revision(self) -> Revision:
        """The negotiated revision, or before that the one we prefer."""
        return self._revision if self.peer is None else self.peer.revision

    def switch_revision(self, revision: Revision) -> None:
        """Switch to another revision, after a client found out which one its server supports."""
        self._revision = revision
        self.set_peer(None)
        # The response to an abandoned handshake is late.
        self.outgoing = {key: each for key, each in self.outgoing.items() if each.row.name != INITIALIZE}
        if self.lifecycle.state != "closed":
            self.lifecycle.state = "new"

    def set_peer(self, peer: Peer | None) -> None:
        """Set the other end, once a client knows it; None if the handshake begins again."""
        self.peer = peer
        self.request_forms = _NO_FORMS

    def find_row(self, method: str, revision: Revision, by: Role, *, is_request: bool) -> Row | None:
        """Return the row of a request or notification; extensions come before the protocol."""
        extra = self.local_peer.extra_rows.get(method)
        if extra is not None and extra.is_request is is_request and extra.is_sendable_by(by, revision.date):
            return extra
        rows = revision.requests if is_request else revision.notifications
        return rows[by].get(method)

    def _find_own_row(self, method: str | Row, revision: Revision, *, is_request: bool) -> Row:
        """Return the row of a method that we send. Raises LocalProtocolError if the revision has none."""
        if isinstance(method, Row):
            return method
        row = self.find_row(method, revision, self.role, is_request=is_request)
        if row is None:
            wrong = f"a {self.role} cannot send {method} in {revision.date}"
            raise LocalProtocolError(wrong, hint=suggest_method(method))
        return row

    # ----------------------------------------------------------------- receiving

    def receive(self, data: bytes) -> list[ConnectionEvent]:
        """Return the events for the peer's bytes: one for a message, several for a batch."""
        try:
            if self.peer is not None and self.peer.revision.batches and jsonrpc.is_batch(data):
                messages = jsonrpc.decode_batch(data)
            else:
                return [self.receive_message(jsonrpc.decode(data))]
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
        if type(message) is not JSONRPCRequest:
            return receive_module.handle_message(self, message)
        if self.local_peer.role == CLIENT and self.revision.stateless:  # it must not answer (MSG-21, MSG-22)
            return receive_module.drop(self, "request to a stateless client")
        return receive_module.handle_request(self, message)

    # ----------------------------------------------------------------- responses

    def reply(self, request_id: RequestId, result: Result | ForwardedResult | Raw) -> bytes | None:
        """Return the bytes of a response; None if the request was cancelled or answered.

        A `Result` is stamped as the era demands, a forwarded one gets the members of this connection, and raw
        bytes are sent as they are. Raises LocalProtocolError if the result cannot be encoded; the request
        then still waits for an answer.
        """
        incoming = self.incoming.get(request_id)
        return None if incoming is None else self.answer(incoming, result)

    def answer(self, incoming: InboundRequest, result: Result | ForwardedResult | Raw) -> bytes | None:
        """Return the bytes of the response to a request; as `reply`, also if its id was reused."""
        if self.incoming.get(incoming.id) is not incoming:
            return None
        whole: Any = result
        if type(result) is ForwardedResult:
            whole = restamp_result(self.local_peer, incoming, result)
        if isinstance(whole, Result):
            whole = ERAS[incoming.peer.revision.era].stamp_result(self.local_peer, incoming, whole)
        elif type(whole) is not Raw:
            raise LocalProtocolError(f"a response must be a Result or Raw, not {type(whole).__name__}")
        data = jsonrpc.encode(JSONRPCResponse(incoming.id, whole))
        del self.incoming[incoming.id]
        if incoming.row.name == INITIALIZE:
            self.lifecycle.move("answered")
            self.peer = incoming.peer
        return data

    def fail(self, request_id: RequestId, error: RPCError) -> bytes | None:
        """Return the bytes of an error response; None if the request was cancelled or answered."""
        incoming = self.incoming.pop(request_id, None)
        if incoming is None:
            return None
        if incoming.row.name == INITIALIZE:
            self.lifecycle.move("refused")
        code = incoming.peer.revision.translate_code(find_error_code(incoming.row.name, error))
        try:
            return jsonrpc.encode_error(incoming.id, error, code)
        except LocalProtocolError:
            plain = RPCError("Internal error: the error cannot be encoded as JSON", code=code)
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
        """Make a request; `method` is a row if no revision has it, `party` our end if it is another.

        Raises LocalProtocolError if this revision or this state forbids it, CapabilityNotDeclared if the peer
        did not declare what it needs, ChannelClosed if the conversation is over.
        """
        form = self.request_forms.get(method) or self._make_request_form(method, params)
        row, revision, request_id = form.row, form.revision, self.next_id
        token, task = request_id if progress else None, False
        whole: Any = params
        if type(whole) is form.params and whole.meta is UNSET and meta is None and party is None:
            # Most requests: nothing has to be merged with the `_meta` of the era, which is encoded already.
            task = revision.tasks and getattr(whole, "task", None) is not None
            if form.downgrade is not None:
                whole = form.downgrade(whole, revision)
            facts = form.meta if token is None else Raw(b"%b%d}" % (form.progress_meta, token))
            whole = replace(whole, meta=facts)
        else:
            for key in meta or ():
                wrong = eras.explain_invalid_meta_key(key)
                if wrong:
                    raise LocalProtocolError(f"invalid key in _meta: {wrong}")
            if revision.tasks:
                wanted = params.get("task") if isinstance(params, Mapping) else getattr(params, "task", None)
                task = wanted is not None
            stamp = stamp_request(party or self.local_peer, revision, meta, token)
            whole = prepare_params(params, stamp, revision)
        if task:  # it asks to be run as a task (TASK-4)
            self._check_declared(row, revision, params, task=True)
        data = jsonrpc.encode(JSONRPCRequest(request_id, row.name, whole))
        self.next_id += 1
        if row.name == INITIALIZE:
            self.lifecycle.move(INITIALIZE)
        outgoing = self.outgoing[request_id] = OutboundRequest(
            request_id, row, data, revision, token, None, task, params
        )
        return outgoing

    def _make_request_form(self, method: str | Row, params: object) -> RequestForm:
        """Check whether we may send a method now; a client keeps the form until something changes.

        The parameters of a server's requests decide which capability they need, so it keeps none.
        """
        revision = self.revision
        row = self._find_own_row(method, revision, is_request=True)
        if self.role == SERVER and revision.stateless:
            raise LocalProtocolError(f"cannot send {row.name}: there is no session with the client")
        if not revision.stateless or self.lifecycle.state == "closed":
            self.lifecycle.check_outgoing(row.name)
        if row.result is None:
            raise LocalProtocolError(f"{row.name} is a notification, not a request")
        self._check_declared(row, revision, params)
        facts = stamp_request(self.local_peer, revision, None, None)
        encoded = jsonrpc.encode(facts or {})
        members = encoded[:-1] + b"," if facts else encoded[:-1]
        form = RequestForm(
            row,
            revision,
            row.params if issubclass(row.params, Params) else None,
            DOWNGRADES[row.params],
            Raw(encoded) if facts else UNSET,
            members + b'"progressToken":',
        )
        is_reused = row is not method or row.is_kept
        if self.role == CLIENT and self.peer is not None and is_reused and row.name != INITIALIZE:
            self.request_forms = {**self.request_forms, method: form}
        return form

    def _check_declared(self, row: Row, revision: Revision, params: object, *, task: bool = False) -> None:
        """Raise CapabilityNotDeclared if the peer did not declare what the request needs."""
        declared = None if self.peer is None else self.peer.capabilities
        if declared is None:
            return
        gated = row.needs and row.name not in revision.ungated
        missing = find_missing_capability(declared, row, params) if gated else None
        why = f"does not offer {missing!r}, which {row.name} needs"
        if row.extension is not None and row.extension not in (declared.extensions or {}):
            missing, why = f"extensions.{row.extension}", f"does not offer the extension {row.extension}"
        if missing is None and task and row.task_needs and not has_capability(declared, row.task_needs):
            missing, why = row.task_needs, f"does not run {row.name} as a task"
        if missing is not None:
            raise CapabilityNotDeclared(
                missing, f"the {self.local_peer.peer_role} {why}", peer=self.peer_name
            )

    @property
    def peer_name(self) -> str | None:
        """The peer's name for errors, printable and shortened."""
        if self.peer is None or self.peer.info is None:
            return None
        name = filter(str.isprintable, self.peer.info.name[: 4 * MAX_PEER_NAME])
        return jsonrpc.shorten("".join(name), MAX_PEER_NAME)

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
        """Return the bytes of a notification; `to` is its request, which a stateless peer demands.

        Raises as `request` does; the capability is one that we have to declare.
        """
        revision = self.revision if to is None else to.peer.revision
        row = self._find_own_row(method, revision, is_request=False)
        if row.result is not None:
            raise LocalProtocolError(f"{row.name} is a request, not a notification")
        if self.lifecycle.state == "closed":
            self.lifecycle.check_outgoing(row.name)
        if to is None:
            self._check_unrelated(row, revision)
        elif revision.stateless:
            self._check_related(row, to)
        if row.needs and row.name not in revision.ungated and not self.local_peer.has_capability(row.needs):
            raise CapabilityNotDeclared(
                row.needs, f"this {self.role} does not declare {row.needs!r}, which {row.name} needs"
            )
        meta = None
        if to is not None and to.row.name == SUBSCRIPTIONS_LISTEN:
            meta = {SUBSCRIPTION_ID: to.id}  # META-19
        return jsonrpc.encode_notification(row.name, prepare_params(params, meta, revision))

    def _check_unrelated(self, row: Row, revision: Revision) -> None:
        """Refuse a notification without a request if there is no session; a stateless client may cancel."""
        if self.role == SERVER and revision.stateless:
            raise LocalProtocolError(
                f"{row.name} must belong to a request: there is no session with the client",
                hint="pass the request: notify(…, to=incoming)",
            )
        if not revision.stateless and not row.early:
            self.lifecycle.check_outgoing(row.name)

    def _check_related(self, row: Row, to: InboundRequest) -> None:
        """Refuse a notification that is not of this stateless request, or is late (SUB-10, STDIO-11)."""
        if self.incoming.get(to.id) is not to:
            raise LocalProtocolError(f"cannot send {row.name}: the request {to.id!r} has ended")
        listens = to.row.name == SUBSCRIPTIONS_LISTEN
        known = LATEST.notifications[SERVER].get(row.name) is row
        if known and row.listened is not listens:
            raise LocalProtocolError(f"{row.name} does not belong to {to.row.name}")

    def report_progress(
        self, request_id: RequestId, progress: Number, total: Number | None = None, message: str | None = None
    ) -> bytes | None:
        """Return the bytes of a progress notification for a request of the peer.

        None if the peer did not ask for it, has its answer, or has the same progress (PROG-3 … PROG-6).
        """
        incoming = self.incoming.get(request_id)
        if incoming is None or incoming.token is None or incoming.row.name == SUBSCRIPTIONS_LISTEN:
            return None
        if type(progress) is not int and isinstance(progress, float):
            if not isfinite(progress):
                return None
        elif not isinstance(progress, int):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
            raise LocalProtocolError(f"progress must be a number, not {progress!r}")
        if incoming.progress is not None and progress <= incoming.progress:
            return None
        if isinstance(total, float) and not isfinite(total):
            total = None
        params = ProgressParams(incoming.token, progress, total, message)
        data = jsonrpc.encode_notification(PROGRESS, params)
        incoming.progress = progress
        return data

    def log(
        self, level: LogLevel, data: JSON, *, logger: str | None = None, to: InboundRequest | None = None
    ) -> bytes | None:
        """Return the bytes of a log message; None if the client does not want it.

        A stateless client wants only those of a request that asked for logs; before a session there are none.
        """
        if to is not None and to.peer.revision.stateless:
            listens = to.row.name == SUBSCRIPTIONS_LISTEN
            is_over = self.incoming.get(to.id) is not to
            threshold = None if listens or is_over else to.peer.log_level
            is_wanted = threshold is not None
        else:
            threshold = self.log_level
            is_wanted = self.peer is not None and not self.revision.stateless
        if level not in LOG_LEVEL_RANKS:
            names = ", ".join(LOG_LEVEL_RANKS)
            raise LocalProtocolError(f"unknown log level {level!r}", hint=f"use one of {names}")
        if not is_wanted or (threshold is not None and LOG_LEVEL_RANKS[level] < LOG_LEVEL_RANKS[threshold]):
            return None
        return self.notify(LOG_MESSAGE, LogParams(level, data, logger), to=to)

    def close(self) -> list[OutboundRequest]:
        """End the conversation; return our requests that will not be answered."""
        self.lifecycle.state = "closed"
        self.request_forms = _NO_FORMS
        lost = list(self.outgoing.values())
        self.outgoing.clear()
        self.incoming.clear()
        return lost
