"""POSTs that need no session: those of the stateless era, and those of old clients where sessions are off.

Each is served in the task of its own HTTP request, and a client that leaves cancels it (HTTPM-10). Knows a
server only by the `Host` promise.
"""

from collections.abc import Sequence
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
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import Incoming, NoticeReceived, Refused
from toolpost.protocol.jsonrpc import Message, Notice, Request
from toolpost.protocol.revisions import Revision
from toolpost.protocol.route import ToStateless, status, verify
from toolpost.transports.gate import LATER, Refusal
from toolpost.transports.host import Caller, Host
from toolpost.transports.http_load import LISTENS
from toolpost.transports.keeper import step_up

__all__ = ["full_of_streams", "serve_alone", "serve_stateless"]


async def serve_stateless(
    host: Host, connection: Connection, message: Message, route: ToStateless, caller: Caller
) -> None:
    """Answer a message of the stateless era."""
    exchange = caller.exchange
    if isinstance(message, Notice):
        await _heard(host, connection, message, caller)
        await exchange.empty(202)
        return
    event = connection.take(message, meta=route.meta, peer=route.peer)
    if isinstance(event, Refused):
        await exchange.json(_status(event), event.data or b"")
        return
    assert isinstance(event, Incoming), "a request is taken or refused"
    annotated = host.annotated(event.params.name) if event.row.name == "tools/call" else None
    try:
        verify(exchange.headers, event, annotated)
    except HeaderMismatch as error:
        await exchange.json(status(error.code), jsonrpc.encode_failure(event.id, error))
        return
    data, error = await _answer(host, connection, event, caller)
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
    host: Host, connection: Connection, incoming: Incoming, caller: Caller
) -> tuple[bytes, RPCError | None]:
    load, principal = caller.load, caller.principal
    peer = caller.exchange.address if principal is None else principal.key
    listens = incoming.row.name == "subscriptions/listen"
    if listens:
        if load.streams >= load.max_streams:
            raise full_of_streams(load.max_streams)
        # Behind one address there may be many people; a principal is one.
        most = load.limit if principal is None else LISTENS
        if not load.listen(peer, most):
            return _too_many(connection, incoming, f"Too many subscriptions: at most {most} may be open")
    elif (refused := load.begin(peer)) is not None:
        return _too_many(connection, incoming, refused)
    try:
        work = host.answer(connection, incoming, caller)
        return await caller.exchange.attend(work, unwanted=connection.close)
    except BaseException:  # also who is cancelled
        connection.close()  # a function in a thread learns that nobody waits for it
        raise
    finally:
        (load.unlisten if listens else load.end)(peer)


def _too_many(connection: Connection, incoming: Incoming, words: str) -> tuple[bytes, RPCError]:
    error = _Crowded(words)
    return connection.fail(incoming.id, error) or b"", error


def full_of_streams(most: int) -> Refusal:
    """Why a stream cannot be opened if there are as many as there may be."""
    return Refusal(
        503, f"There are {most} streams open, and no more are allowed: come back later (max_streams=)."
    )


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
