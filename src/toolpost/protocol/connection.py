"""One conversation, seen from one end: bytes in, events out; calls in, bytes out.

A `Connection` remembers what is in flight in both directions and refuses what the protocol forbids. It does
no I/O, has no clock and starts nothing: whoever owns it moves the bytes, runs the requests and decides when
to give up.

    receive(data)  →  Incoming             the peer asks; answer it with `reply` or `fail`
                      NoticeReceived       the peer says something
                      CancelReceived       the peer no longer wants an answer; `reply` will return None
                      ProgressReceived     a request of ours has come further
                      ReplyReceived        a request of ours was answered
                      FailureReceived      … with an error, or with something that is no answer
                      Refused              the peer broke a rule; send `data` if there is any
                      Dropped              the message means nothing (any more); it was counted
    request(…)     →  Outgoing             send its `data`; an event will carry it again
    notify(…)      →  bytes                send them

Which era a request belongs to is told by the request. A server may hold a session and serve stateless
requests at the same time; a client is set to one revision, which `adopt` changes. Ids are told apart by type
(1 is not "1"), and a request that was answered or cancelled is forgotten, so that what comes later is late.
"""

from collections.abc import Mapping
from typing import Final

from toolpost.errors import (
    LocalProtocolError,
    NotDeclared,
    RemoteProtocolError,
    RPCError,
)
from toolpost.protocol import inbox, jsonrpc, keys, outbox
from toolpost.protocol.eras import ERAS, Peer, lacking
from toolpost.protocol.events import (
    Event,
    Incoming,
    Outgoing,
)
from toolpost.protocol.jsonrpc import Message, Request
from toolpost.protocol.lifecycle import Lifecycle, State
from toolpost.protocol.like import Like
from toolpost.protocol.methods import CLIENT, SERVER, Role, Row
from toolpost.protocol.params import dressed, wishes_task
from toolpost.protocol.party import Party, declares
from toolpost.protocol.revisions import Revision
from toolpost.types.base import JSON, Number, Raw, RequestId, Result, Wire
from toolpost.types.lifecycle import (
    LogLevel,
    RequestMeta,
)
from toolpost.types.notices import CancelledParams, NoticeParams

__all__ = ["MAX_IN_FLIGHT", "Connection"]

MAX_NAME: Final = 60
"""How many characters of a peer's name stand in front of an error."""

MAX_IN_FLIGHT: Final = 1024
"""How many requests of one peer may wait for an answer: far more than a host sends, far less than memory."""

_TASKS: Final = {
    "tools/call": "tasks.requests.tools.call",
    "sampling/createMessage": "tasks.requests.sampling.create_message",
    "elicitation/create": "tasks.requests.elicitation.create",
}
"""The capability behind running a request as a task."""

_NONE: Final[dict[str | Row, Like]] = {}
"""What no server has, and all of them share: an idle session must cost little."""


class Connection:
    """One end of a conversation.

    How a session opens, without anything between the ends:

        >>> from toolpost.protocol.eras import ERAS
        >>> from toolpost.protocol.revisions import LATEST_SESSION
        >>> from toolpost.types import ClientCapabilities, Implementation, ListCapability, ServerCapabilities
        >>> asks = Party(Implementation("c", "1"), ClientCapabilities())
        >>> client = Connection(asks, revision=LATEST_SESSION)
        >>> offers = ServerCapabilities(tools=ListCapability())
        >>> server = Connection(Party(Implementation("s", "1"), offers))
        >>> opening = ERAS[client.revision.era].open(client)
        >>> [hello] = server.receive(opening.data)
        >>> introduction = server.party.introduce(hello.peer.revision)
        >>> [welcome] = client.receive(server.reply(hello.id, introduction))
        >>> _ = server.receive(client.notify("notifications/initialized"))
        >>> [asked] = server.receive(client.request("tools/list").data)
        >>> asked.row.name, asked.peer.info.name
        ('tools/list', 'c')

    Args:
        party: who we are.
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
        "dropped",
        "extra",
        "incoming",
        "lifecycle",
        "like",
        "limit",
        "log_level",
        "next_id",
        "other",
        "outgoing",
        "party",
        "peer",
        "role",
        "unordered",
        "withdrawn",
    )

    def __init__(
        self,
        party: Party,
        *,
        revision: Revision | None = None,
        peer: Peer | None = None,
        state: State | None = None,
        extra: Mapping[str, Row] | None = None,
        limit: int = MAX_IN_FLIGHT,
        depth: int = jsonrpc.MAX_DEPTH,
    ) -> None:
        self.party = party
        self.role: Role = party.role
        self.other: Role = party.other
        self.peer = peer
        self.lifecycle = Lifecycle(party.role, state or ("new" if peer is None else "ready"))
        self.extra = extra or {}
        self.log_level: LogLevel | None = None
        self.incoming: dict[RequestId, Incoming] = {}
        self.outgoing: dict[RequestId, Outgoing] = {}
        self.unordered = False
        """Whether what is sent later may arrive sooner, as over HTTP."""
        self.withdrawn: dict[RequestId, None] | None = None
        """Requests that were cancelled and have not come yet, if messages may overtake each other."""
        self.dropped: dict[str, int] = {}
        self.limit = limit
        self.depth = depth
        self.like: dict[str | Row, Like] = {} if party.role == CLIENT else _NONE
        self.next_id = 1
        self._revision = revision or party.newest

    @property
    def revision(self) -> Revision:
        """What is spoken, or, before that is agreed upon, what we would like to speak."""
        return self._revision if self.peer is None else self.peer.revision

    @property
    def idle(self) -> bool:
        """Whether the session is open, and nothing is under way in it."""
        return self.lifecycle.state == "ready" and not (self.incoming or self.outgoing)

    def adopt(self, revision: Revision) -> None:
        """Speak another revision from here on (a client that found out what its server speaks)."""
        self._revision = revision
        self.peer = None
        # An answer to a handshake that is given up comes too late.
        self.outgoing = {key: each for key, each in self.outgoing.items() if each.row.name != "initialize"}
        if self.lifecycle.state != "closed":
            self.lifecycle.state = "new"

    def request_row(self, method: str, revision: Revision, by: Role) -> Row | None:
        """The row of a request; that of an extension before that of the protocol."""
        extra = self.extra.get(method) if self.extra else None
        if extra is not None and extra.result is not None and extra.sent(by, revision.date):
            return extra
        return revision.requests[by].get(method)

    def notice_row(self, method: str, revision: Revision, by: Role) -> Row | None:
        """The row of a notice; that of an extension before that of the protocol."""
        extra = self.extra.get(method)
        if extra is not None and extra.result is None and extra.sent(by, revision.date):
            return extra
        return revision.notices[by].get(method)

    # ----------------------------------------------------------------- what arrives

    def receive(self, data: bytes) -> list[Event]:
        """What the peer's bytes mean: one event for a message, several for a batch where there are any."""
        try:
            if self.peer is not None and self.peer.revision.batches and jsonrpc.is_batch(data):
                messages = jsonrpc.decode_batch(data, depth=self.depth)
            else:
                return [self.take(jsonrpc.decode(data, depth=self.depth))]
        except RemoteProtocolError as error:
            return [inbox.broken(self, error)]
        return [
            inbox.broken(self, item) if isinstance(item, RemoteProtocolError) else self.take(item)
            for item in messages
        ]

    def broken(self, error: RemoteProtocolError) -> Event:
        """What a message means that is none, told by somebody who has read it (a line that was too long)."""
        return inbox.broken(self, error)

    def take(self, message: Message, *, meta: RequestMeta | None = None, peer: Peer | None = None) -> Event:
        """What a message means.

        Args:
            message: as decoded.
            meta: what it says of itself, where that was read before.
            peer: who sends it, where that was settled before (HTTP decides by headers).
        """
        if isinstance(message, Request):
            return inbox.requested(self, message, meta, peer)
        return inbox.take(self, message)

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
            result = ERAS[incoming.peer.revision.era].stamp_result(self.party, incoming, result)
        elif type(result) is not Raw:
            raise LocalProtocolError(f"an answer is a Result or Raw, not {type(result).__name__}")
        data = jsonrpc.encode_reply(incoming.id, result)  # 1 and True are one key, but not one id
        del self.incoming[request_id]
        if incoming.row.name == "initialize":
            self.lifecycle.move("answered")
            self.peer = incoming.peer
        return data

    def answered(self, request_id: RequestId) -> bool:
        """Note that a request has an answer that was made elsewhere; whether it was still waiting for one."""
        return self.incoming.pop(request_id, None) is not None

    def fail(self, request_id: RequestId, error: RPCError) -> bytes | None:
        """The bytes of an error answer; None if the request was cancelled or answered."""
        incoming = self.incoming.pop(request_id, None)
        if incoming is None:
            return None
        if incoming.row.name == "initialize":
            self.lifecycle.move("refused")
        code = incoming.peer.revision.code(error.code)
        try:
            return jsonrpc.encode_failure(incoming.id, error, code)
        except LocalProtocolError:
            plain = RPCError("Internal error: the error cannot be written as JSON", code=code)
            return jsonrpc.encode_failure(incoming.id, plain)

    # ----------------------------------------------------------------- what we ask

    def request(
        self,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None = None,
        *,
        meta: Mapping[str, JSON] | None = None,
        progress: bool = False,
        party: Party | None = None,
    ) -> Outgoing:
        """A request of ours.

        Args:
            method: its name, or a row of one's own for a method that is in no revision.
            params: its parameters.
            meta: what to put into `_meta` besides what the era demands.
            progress: whether we want to hear how far it has come.
            party: how we present ourselves in this one, where every request does that for itself.

        Raises:
            LocalProtocolError: this revision or this state forbids it.
            NotDeclared: the peer did not declare the capability for it.
            ChannelClosed: the conversation is over.
        """
        if meta is not None or party is not None:
            return self._ask(method, params, meta, party, progress=progress)
        like = self.like.get(method)
        if like is None or not like.holds(self, params):
            outgoing = self._ask(method, params, None, None, progress=progress)
            if outgoing.row is not method and (like := Like.of(self, outgoing, params)) is not None:
                self.like[outgoing.row.name] = like
            return outgoing
        request_id = self.next_id
        data = like.write(request_id, params, progress=progress)
        self.next_id += 1
        token = request_id if progress else None
        outgoing = self.outgoing[request_id] = Outgoing(request_id, like.row, data, like.revision, token)
        return outgoing

    def _ask(
        self,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None,
        meta: Mapping[str, JSON] | None,
        party: Party | None,
        *,
        progress: bool,
    ) -> Outgoing:
        """A request that is looked at in every way."""
        revision = self.revision
        row = method if isinstance(method, Row) else self._sendable(method, revision)
        if self.role == SERVER and revision.stateless:
            raise LocalProtocolError(f"{row.name} cannot be sent: there is no session with a client")
        if not revision.stateless or self.lifecycle.state == "closed":
            self.lifecycle.allow(row.name)
        if row.result is None:
            raise LocalProtocolError(f"{row.name} is a notice, not a request")
        if row.needs and row.name not in revision.ungated and self.peer is not None:
            self._check_declared(row, self.peer, params)
        task = wishes_task(params, revision)
        if task and self.peer is not None and not self._runs_tasks(row, self.peer):
            raise NotDeclared(
                _TASKS[row.name], f"the {self.other} does not run {row.name} as a task", peer=self.peer_name
            )
        for key in meta or ():
            wrong = keys.objection(key)
            if wrong:
                raise LocalProtocolError(f"a request cannot carry this key in _meta: {wrong}")
        request_id = self.next_id
        stamp = ERAS[revision.era].stamp_request(
            party or self.party, revision, meta, request_id if progress else None
        )
        data = jsonrpc.encode_request(request_id, row.name, dressed(params, stamp, revision))
        self.next_id += 1
        if row.name == "initialize":
            self.lifecycle.move("initialize")
        token = request_id if progress else None
        outgoing = Outgoing(request_id, row, data, revision, token, task=task)
        self.outgoing[request_id] = outgoing
        return outgoing

    def _sendable(self, method: str, revision: Revision) -> Row:
        row = self.request_row(method, revision, self.role)
        if row is None:
            raise outbox.unsendable(self, method, revision)
        return row

    def _check_declared(self, row: Row, peer: Peer, params: object) -> None:
        missing = None if peer.capabilities is None else lacking(peer.capabilities, row, params)
        if missing is not None:
            raise NotDeclared(
                missing,
                f"the {self.other} does not offer {missing!r}, which {row.name} needs",
                peer=self.peer_name,
            )

    def _runs_tasks(self, row: Row, peer: Peer) -> bool:
        path = _TASKS.get(row.name)
        return path is None or peer.capabilities is None or declares(peer.capabilities, path)

    @property
    def peer_name(self) -> str | None:
        """What the peer calls itself, for errors: as much of it as can be shown to people."""
        if self.peer is None or self.peer.info is None:
            return None
        name = self.peer.info.name[: 4 * MAX_NAME]
        return jsonrpc.shorten(
            name if name.isprintable() else "".join(filter(str.isprintable, name)), MAX_NAME
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
            data = jsonrpc.encode_notice("notifications/cancelled", params)
        del self.outgoing[request_id]
        return data

    # ----------------------------------------------------------------- what we say

    def notify(
        self,
        method: str | Row,
        params: NoticeParams | Mapping[str, JSON] | None = None,
        *,
        to: Incoming | None = None,
    ) -> bytes:
        """The bytes of a notice.

        Args:
            method: its name, or a row of one's own.
            params: its parameters.
            to: the request that it belongs to. A stateless peer hears nothing else.

        Raises:
            LocalProtocolError: this revision or this state forbids it.
            NotDeclared: we did not declare the capability for it.
            ChannelClosed: the conversation is over.
        """
        return outbox.notify(self, method, params, to)

    def progress(
        self, request_id: RequestId, progress: Number, total: Number | None = None, message: str | None = None
    ) -> bytes | None:
        """The bytes that tell how far a request of the peer's has come.

        None if the peer did not ask for it, has its answer, or has heard as much already (PROG-3 … PROG-6).
        """
        return outbox.progress(self, request_id, progress, total, message)

    def log(
        self, level: LogLevel, data: JSON, *, logger: str | None = None, to: Incoming | None = None
    ) -> bytes | None:
        """The bytes of a line for the client's log; None if it does not want to hear it.

        A stateless client hears only what belongs to a request that asked for logs, and before there is a
        session nobody hears.
        """
        return outbox.log(self, level, data, logger, to)

    # ----------------------------------------------------------------- the end

    def close(self) -> list[Outgoing]:
        """End the conversation: the requests of ours that will never be answered."""
        self.lifecycle.state = "closed"
        lost = list(self.outgoing.values())
        self.outgoing.clear()
        self.incoming.clear()
        return lost
