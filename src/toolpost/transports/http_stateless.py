"""POSTs that need no session: those of the stateless era, and those of old clients where sessions are off.

Each is served in the task of its own HTTP request, and a client that leaves cancels it (HTTPM-10). Knows a
server only by the `Host` promise.
"""

from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Any, cast

from toolpost.errors import (
    HeaderMismatch,
    InternalError,
    InvalidRequest,
    MissingScopes,
    RateLimited,
    RemoteProtocolError,
    RPCError,
)
from toolpost.principal import Principal
from toolpost.protocol import inbox, jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import Incoming, NoticeReceived, Refused
from toolpost.protocol.jsonrpc import Message, Notice, Request
from toolpost.protocol.revisions import Revision
from toolpost.protocol.route import Annotated, ToStateless, status, verify
from toolpost.transports.body import read_body
from toolpost.transports.exchange import Exchange
from toolpost.transports.gate import LATER, Refusal
from toolpost.transports.host import Caller, Host, Started
from toolpost.transports.http_load import LISTENS, Load
from toolpost.transports.keeper import step_up
from toolpost.types.base import UNSET, Struct

__all__ = [
    "Answered",
    "Taken",
    "begin_known",
    "begin_stateless",
    "full_of_streams",
    "hear_stateless",
    "serve_alone",
    "serve_stateless",
]


def begin_known(
    host: Host, incoming: Incoming, data: bytes, exchange: Exchange, load: Load | None = None
) -> "bytes | Taken":
    """The same as `begin_stateless` for a request whose head has come before.

    Nothing is made for it but its answer, if that is there at once, which takes 2 us less.

    Args:
        host: what serves it.
        incoming: what was read of it.
        data: where it was read.
        exchange: how it came.
        load: what else is under way; without it, nothing begins yet.

    Raises:
        Refusal: it is not served.
    """
    named, started = incoming.row.named, None
    if (
        load is not None
        and (named is None or getattr(incoming.params, named) == exchange.head.about)
        and (not load.calls or load.has_room(_named(exchange, exchange.principal)))
    ):
        started, load = host.begin(incoming), None  # it begins once
        if isinstance(started, bytes):
            return started
    if incoming.raw is UNSET:  # it was only compared with another one
        message = read_body(data)
        assert isinstance(message, Request), "as the other one was"
        route = ToStateless()
    else:
        message = Request(incoming.id, incoming.row.name, incoming.raw)
        route = ToStateless(incoming.peer, incoming.params.meta)
    return begin_stateless(host, message, route, exchange, load, started=started)


def begin_stateless(
    host: Host,
    message: Request,
    route: ToStateless,
    exchange: Exchange,
    load: Load | None = None,
    *,
    started: Started | None = None,
) -> "bytes | Taken":
    """The answer to a request of the stateless era, if it is there at once; else what was taken.

    Args:
        host: what serves it.
        message: the request.
        route: what it says of itself, if that was read.
        exchange: how it came.
        load: what else is under way; without it, nothing begins yet.
        started: as far as it has started before.

    Raises:
        Refusal: it is not served.
    """
    connection, head = host.connection(), exchange.head
    event = inbox.requested(connection, message, route.meta, route.peer)
    if isinstance(event, Refused):
        raise Answered(_status(event), event.data or b"")
    assert isinstance(event, Incoming), "a request is taken or refused"
    about = None if event.row.named is None else getattr(event.params, event.row.named)
    if about is not None and about != head.about:
        _check(event, exchange.headers)
        head.about = about
    if load is not None and (not load.calls or load.has_room(_named(exchange, exchange.principal))):
        started = host.begin(event)
        if isinstance(started, bytes):
            connection.answered(event.id)
            host.take_back(connection)
            return started
    if started is None and event.row.name == "tools/call":
        _check(event, exchange.headers, host.annotated(event.params.name))
    return Taken(connection, event, started)


def _check(event: Incoming, sent: Mapping[str, str], annotated: Annotated | None = None) -> None:
    """Return if the headers repeat what the body says.

    Raises:
        Refusal: they do not.
    """
    try:
        verify(sent, event, annotated)
    except HeaderMismatch as error:
        raise Answered(status(error.code), jsonrpc.encode_failure(event.id, error)) from error


class Answered(Refusal):
    """A request that is not served; its answer tells why."""

    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(status, "")
        self._data = data

    @property
    def body(self) -> bytes:
        """The answer."""
        return self._data


class Taken(Struct):
    """A request that may be served, and as far as it has started."""

    connection: Connection
    event: Incoming
    started: Started | None = None


async def serve_stateless(host: Host, taken: Taken, caller: Caller) -> None:
    """Answer a request of the stateless era, or go on with one that has started."""
    exchange, event = caller.exchange, taken.event
    data, error = await _answer(host, taken.connection, event, caller, taken.started)
    if exchange.streaming:
        await exchange.event(data)
        await exchange.end()
    elif error is None:
        await exchange.json(200, data)
    elif isinstance(error, MissingScopes):
        await _ask_for_more(caller, error.scopes, data)
    elif isinstance(error, RateLimited | _Crowded):
        await exchange.json(429, data, [(b"retry-after", _later(error))])
    else:
        await exchange.json(status(event.peer.revision.code(error.code)), data)


async def _ask_for_more(caller: Caller, scopes: Sequence[str], data: bytes) -> None:
    """Answer that the token does not allow it, and what would."""
    await caller.exchange.json(403, data, step_up(caller.keeper, scopes, caller.principal))


class _Crowded(InternalError):
    """A client has more under way than it may."""


def _later(error: RPCError) -> bytes:
    """Seconds after which a client that has asked too much may come back."""
    if isinstance(error, _Crowded):
        return LATER[429]
    told: Any = error.data
    seconds: Any = cast("Any", told).get("retryAfter") if isinstance(told, dict) else None
    known = isinstance(seconds, int | float) and 0 < seconds < inf
    return b"%d" % (max(1, ceil(seconds)) if known else 1)


async def _answer(
    host: Host, connection: Connection, incoming: Incoming, caller: Caller, started: Started | None = None
) -> tuple[bytes, RPCError | None]:
    load, principal = caller.load, caller.principal
    peer = _named(caller.exchange, principal)
    listens = incoming.row.name == "subscriptions/listen"
    if listens:
        if load.streams >= load.max_streams:
            raise full_of_streams(load.max_streams)
        # Behind one address there may be many people; a principal is one.
        most = load.limit if principal is None else LISTENS
        if not load.listen(peer, most):
            return _too_many(connection, incoming, f"Too many subscriptions: at most {most} may be open")
    elif started is not None:
        load.add(peer)  # whatever its function has begun meanwhile
    elif (refused := load.begin(peer)) is not None:
        return _too_many(connection, incoming, refused)
    try:
        work = host.answer(connection, incoming, caller, started)
        return await caller.exchange.attend(work, unwanted=connection.close)
    except BaseException:  # also who is cancelled
        connection.close()  # a function in a thread learns that nobody waits for it
        raise
    finally:
        (load.unlisten if listens else load.end)(peer)


def _named(exchange: Exchange, principal: Principal | None) -> str:
    """By what name the calls of a client are counted that has no session."""
    return exchange.address if principal is None else principal.key


def _too_many(connection: Connection, incoming: Incoming, words: str) -> tuple[bytes, RPCError]:
    error = _Crowded(words)
    return connection.fail(incoming.id, error) or b"", error


def full_of_streams(most: int) -> Refusal:
    """Why a stream cannot be opened if there are as many as there may be."""
    return Refusal(
        503, f"There are {most} streams open, and no more are allowed: come back later (max_streams=)."
    )


async def hear_stateless(host: Host, notice: Message | None, caller: Caller) -> None:
    """Hear a notice of the stateless era."""
    assert isinstance(notice, Notice), "all else was rejected"
    await _heard(host, host.connection(), notice, caller)
    await caller.exchange.empty(202)


async def _heard(host: Host, connection: Connection, notice: Notice, caller: Caller) -> None:
    event = connection.take(notice)
    if isinstance(event, NoticeReceived):
        await host.hear(connection, event, caller)


def _status(event: Refused) -> int:
    return status(event.error.code) if isinstance(event.error, RPCError) else 400


# --------------------------------------------------------------------- old clients, without sessions


async def serve_alone(
    host: Host, message: Message | None, data: bytes, revision: Revision, caller: Caller
) -> None:
    """Answer a message of the session era, or a batch, as if it were the only one of its client.

    Raises:
        Refusal: it is a batch that cannot be read.
    """
    exchange = caller.exchange
    lacks: Sequence[str] = ()
    if message is not None:
        answers, lacks = await _alone(host, message, revision, caller)
    else:
        answers: list[bytes] = []
        for item in _items(data):
            answers += (await _alone(host, item, revision, caller))[0]
    if exchange.streaming:
        for answer in answers:
            await exchange.event(answer)
        await exchange.end()
    elif not answers:
        await exchange.empty(202)
    elif lacks:
        await _ask_for_more(caller, lacks, answers[0])
    else:
        await exchange.json(200, answers[0] if message is not None else jsonrpc.encode_batch(answers))


def _items(data: bytes) -> list[Message | RemoteProtocolError]:
    try:
        return jsonrpc.decode_batch(data)
    except RemoteProtocolError as error:
        raise Refusal(400, error.message) from error


async def _alone(
    host: Host, message: Message | RemoteProtocolError, revision: Revision, caller: Caller
) -> tuple[list[bytes], Sequence[str]]:
    """The answer to one message, if it wants any, and the scopes that it lacks."""
    if isinstance(message, RemoteProtocolError):
        answer = message.answer or InvalidRequest(message.message)
        return [jsonrpc.encode_failure(message.id, answer)], ()
    opening = isinstance(message, Request) and message.method == "initialize"
    connection = host.connection(None if opening else Peer(revision))
    if isinstance(message, Notice):
        await _heard(host, connection, message, caller)
        return [], ()
    event = connection.take(message)
    if isinstance(event, Incoming):
        data, error = await _answer(host, connection, event, caller)
        return [data], error.scopes if isinstance(error, MissingScopes) else ()
    return [event.data] if isinstance(event, Refused) and event.data else [], ()
