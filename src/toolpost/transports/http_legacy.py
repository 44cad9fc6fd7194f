"""Sessions on HTTP requests: POST, GET and DELETE of Streamable HTTP, and the two endpoints of HTTP+SSE.

Owns which status answers what, and which header names the session. What a session is and how its streams are
read is told in `http_session`, `http_sessions`, `http_streams` and `http_reading`; which messages may be sent
when, nowhere here.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote

from toolpost.errors import MissingScopes, RemoteProtocolError
from toolpost.principal import Principal, scopeless
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.jsonrpc import Message, Notice, Reader, Request, Unfit
from toolpost.protocol.revisions import OLDEST_HTTP, REVISIONS, Revision
from toolpost.protocol.route import ToSession
from toolpost.stores.promise import Entry
from toolpost.transports.exchange import Exchange
from toolpost.transports.gate import Refusal
from toolpost.transports.http_reading import Alive, Reading, leased
from toolpost.transports.http_room import Crowded
from toolpost.transports.http_session import GENERAL, Post, Shortcut, outline
from toolpost.transports.http_sessions import Record, Sessions, Underway
from toolpost.transports.http_streams import Streams
from toolpost.transports.keeper import Keeper, lacking, step_up
from toolpost.types.base import UNSET, Raw, Struct

__all__ = ["Legacy"]

T = TypeVar("T")

_SESSION: Final = headers.SESSION.encode()

_READY: Final = "notifications/initialized"

_MISSING: Final = (
    f"The header {headers.SESSION} is missing: send `initialize` first, and then the id that it gives."
)
_GONE: Final = "There is no such session, or there is none any more: send `initialize` without a session id."

_TOO_MANY: Final = (
    "You have too many sessions, and a call runs in each of them: end one with DELETE, or wait "
    "(a quarter of max_sessions=)."
)
_FULL: Final = (
    "There are too many sessions, and a call runs in each of them: come back later (max_sessions=)."
)
_LATER: Final = ((b"retry-after", b"5"),)


class _Agreed(Struct, rename="camel"):
    protocol_version: str


class _Welcome(Struct):
    result: _Agreed


_WELCOME: Final = Reader(_Welcome)


class _About(Struct):
    """What a request is about, if it is about anything."""

    name: str = ""
    uri: str = ""


_ABOUT: Final = Reader(_About)

Needs: TypeAlias = Callable[[str, str], frozenset[str]]
"""The scopes that a request needs, by its method and by what it is about."""


class _Asked(Struct, eq=False):
    """A post that wants answers: where it came in, of which session, what was posted, what is spoken."""

    exchange: Exchange
    session: str
    record: Record
    post: Post
    revision: Revision


class Legacy:
    """What old clients use.

    Args:
        sessions: their sessions.
        messages: the path to which a client of HTTP+SSE posts.
        keeper: who asks for tokens.
        needs: tells which scopes a request needs; None if nobody has any.
    """

    def __init__(
        self, sessions: Sessions, messages: str, keeper: Keeper | None = None, needs: Needs | None = None
    ) -> None:
        self._keeper = keeper
        self._needs = needs
        self._sessions = sessions
        self._streams = Streams(sessions.store)
        self._alive: Alive = sessions.touch  # one object for all streams
        self._messages = messages
        # Streams have names of their own on all workers; who knows one still has to know the session.
        self._prefix = secrets.token_hex(4)
        self._numbers = count(1)

    # ----------------------------------------------------------------- POST

    async def post(
        self,
        exchange: Exchange,
        message: Message | None,
        data: bytes,
        route: ToSession,
        principal: Principal | None,
        *,
        begun: Underway | None = None,
    ) -> None:
        """Hand a message or a batch to its session, and answer with what the session says.

        Raises:
            Refusal: there is no such session, or the batch cannot be read.
        """
        if route.session is None:
            if not route.opening:
                raise Refusal(400, _MISSING)  # HTTPL-26
            await self._open(exchange, data, message, principal)
            return
        record = await self._found(route.session, principal) if begun is None else begun.record
        revision = REVISIONS.get(record.revision, route.revision)
        if message is None and not revision.batches:
            raise Refusal(400, "A batch is not part of the protocol revision of this session.")
        post = self._post(message, data, exchange)
        if not post.ids:
            await self._hand_over(route.session, record, post)
            await exchange.empty(202)
            return
        asked = _Asked(exchange, route.session, record, post, revision)
        answers = await (self._answers(asked) if begun is None else self._brought(asked, begun.go_on(post)))
        if answers is None:
            return
        lacks = self._lacks(message, answers)
        if lacks:
            await exchange.json(403, answers[0], step_up(self._keeper, lacks, principal))
        elif answers:
            await exchange.json(200, jsonrpc.encode_batch(answers) if message is None else answers[0])
        elif await self._sessions.touch(route.session):
            await exchange.empty(202)  # it was cancelled
        else:
            raise Refusal(404, _GONE)

    def _lacks(self, message: Message | None, answers: list[bytes]) -> list[str]:
        """The scopes that a request needs, if that is why it was refused."""
        if message is None or len(answers) != 1 or self._needs is None:
            return []
        return lacking(outline(answers[0]).error)

    async def _open(
        self, exchange: Exchange, data: bytes, message: Message | None, principal: Principal | None
    ) -> None:
        """Open a session; its id goes out with the answer to the handshake, if that is no error."""
        session_id, record = await self._opened(principal)
        post = self._post(message, data, exchange)
        before = exchange.extra
        exchange.extra = (*before, (_SESSION, session_id.encode()))
        answers = await self._answers(_Asked(exchange, session_id, record, post, OLDEST_HTTP))
        if answers is None:
            return  # what a session says before it is open comes from a server that breaks the rules
        if not answers:
            exchange.extra = before
            raise Refusal(503, "The session has ended before it was opened.")
        if outline(answers[0]).error is UNSET:
            await self._sessions.agree(session_id, record, _WELCOME(answers[0]).result.protocol_version)
        else:
            exchange.extra = before
            await self._sessions.end(session_id, record, "the handshake has failed")
        await exchange.json(200, answers[0])

    async def _opened(self, principal: Principal | None, *, single: bool = False) -> tuple[str, Record]:
        try:
            return await self._sessions.open(principal, single=single)
        except Crowded as crowded:
            raise Refusal(*((429, _TOO_MANY) if crowded.own else (503, _FULL)), _LATER) from None

    async def _answers(self, asked: _Asked) -> list[bytes] | None:
        """The answers to a post; None if they went out as events."""
        async with self._streams.tail(asked.session, asked.post.stream) as entries:
            await self._hand_over(asked.session, asked.record, asked.post)
            return await self._read(asked, entries)

    async def _brought(self, asked: _Asked, shortcut: Shortcut) -> list[bytes] | None:
        """The answer to a request that is being served; None if it went out as an event."""
        answer = shortcut.result() if shortcut.done() else await self._attended(asked, _result_of(shortcut))
        if answer is None:  # something was said before
            async with self._streams.tail(asked.session, asked.post.stream) as entries:
                return await self._read(asked, entries)
        return [answer] if answer else []

    async def _read(self, asked: _Asked, entries: AsyncIterator[Entry]) -> list[bytes] | None:
        """The answers that stand on the stream of a post; None if they went out as events."""
        stream = asked.post.stream
        relay = self._streams.relay(asked.exchange, entries, asked.session, stream, asked.revision)
        answers = await self._attended(asked, relay)
        if answers is not None:
            await self._sessions.forget(asked.session, stream)
        return answers

    async def _attended(self, asked: _Asked, work: Coroutine[Any, Any, T]) -> T:
        """What is waited for, while the client waits for it; until then the session is in use."""
        with self._sessions.awaited(asked.session):
            return await asked.exchange.attend(work, partial(self._check_served, asked))

    async def _check_served(self, asked: _Asked) -> None:
        """Wait no longer for an answer of a worker that has died; while we wait, the session is in use."""
        await self._sessions.touch(asked.session)
        if not await self._sessions.served(asked.record):
            asked.exchange.hang_up()

    async def _found(self, session_id: str, principal: Principal | None, *, single: bool = False) -> Record:
        record = await self._sessions.find(session_id, principal, single=single)
        if record is None:
            raise Refusal(404, _GONE)  # HTTPL-27
        return record

    async def _hand_over(self, session_id: str, record: Record, post: Post) -> None:
        if not await self._sessions.post(session_id, record, post):
            raise Refusal(404, _GONE)

    def _post(self, message: Message | None, data: bytes, exchange: Exchange) -> Post:
        """What a client has posted, told apart as far as a session has to know.

        Raises:
            Refusal: it is a batch of which something cannot be read.
        """
        if isinstance(message, Request):
            ids, ready = (message.id,), False
        else:
            items = _items(data) if message is None else [message]
            ids = tuple(item.id for item in items if isinstance(item, Request))
            ready = any(isinstance(item, Notice) and item.method == _READY for item in items)
        stream = f"{self._prefix}{next(self._numbers):x}" if ids else ""
        return Post(Raw(data), stream, ids, exchange.headers, ready, exchange.principal)

    # ----------------------------------------------------------------- GET and DELETE

    async def get(self, exchange: Exchange, principal: Principal | None) -> Coroutine[Any, Any, None] | None:
        """What relays the general stream of a session; None if another of its streams went on (HTTPL-20).

        Whoever awaits it waits in nothing else: an open stream takes as much memory as it takes frames.

        Raises:
            Refusal: there is no such session or no such stream, or another one reads it.
        """
        session_id = _session_of(exchange)
        record = await self._found(session_id, principal)
        revision = REVISIONS.get(record.revision, OLDEST_HTTP)
        last = exchange.headers.get(headers.LAST_EVENT)
        stream, _, after = (last or GENERAL).partition(".")
        if last and stream != GENERAL:
            alive = partial(self._sessions.touch, session_id)
            with self._sessions.awaited(session_id):
                found = await self._streams.resume(exchange, session_id, last, revision, alive)
            if not found:
                raise Refusal(400, f"The stream of event {headers.show(last)} cannot be resumed any more.")
            return None
        lease = await leased(self._sessions.store, session_id, after if last else None)
        if lease is None:
            raise Refusal(409, "This session has a stream open already; a second one would hear nothing.")
        reading = Reading(self._sessions.store, exchange, session_id, lease, alive=self._alive)
        return reading.relay(revision)

    async def delete(self, exchange: Exchange, principal: Principal | None) -> None:
        """End a session.

        Raises:
            Refusal: there is no such session.
        """
        session_id = _session_of(exchange)
        record = await self._found(session_id, principal)
        await self._sessions.end(session_id, record, "its client has ended it")
        await exchange.empty(200)

    # ----------------------------------------------------------------- HTTP+SSE

    async def sse(self, exchange: Exchange, principal: Principal | None) -> None:
        """Open a session and relay all that it says, until the client goes (SSE-2)."""
        session_id, record = await self._opened(principal, single=True)
        exchange.session = session_id
        endpoint = f"{quote(exchange.root)}{self._messages}?session_id={session_id}".encode()
        store, session = self._sessions.store, self._sessions.held(session_id)
        if session is None:
            raise Refusal(503, "The session has ended before it was opened.")
        try:
            lease = await leased(store, session_id, "")  # nobody else knows of it
            assert lease is not None, "it was taken over"
            reading = Reading(store, exchange, session_id, lease, alive=self._alive, taken=session.taken)
            await reading.relay(OLDEST_HTTP, endpoint)
        finally:
            await self._sessions.end(session_id, record, "its client has gone")

    async def message(
        self, exchange: Exchange, message: Message | None, data: bytes, principal: Principal | None
    ) -> None:
        """Hand a message to the session that an `endpoint` event has named.

        Raises:
            Refusal: there is no such session, or it is a batch.
        """
        asked = parse_qs(exchange.query.decode("latin-1")).get("session_id")
        if not asked:
            raise Refusal(400, "The session_id is missing: post to the URI that the `endpoint` event names.")
        record = await self._found(asked[0], principal, single=True)
        if message is None:
            raise Refusal(400, "A batch is not part of HTTP+SSE.")
        if isinstance(message, Request):
            self._check_scopes(message, principal)
            if message.method == "initialize":
                await self._sessions.choose(asked[0], record, principal)
        await self._hand_over(asked[0], record, self._post(message, data, exchange))
        await exchange.empty(202)

    def _check_scopes(self, message: Request, principal: Principal | None) -> None:
        """Return if a request may be served: here it is answered on another stream, which has no status."""
        if self._needs is None or message.params is UNSET:
            return
        try:
            about = _ABOUT(message.params)
        except Unfit:
            return  # whoever serves it will say what is wrong with it
        needed = self._needs(message.method, about.name or about.uri)
        if principal is not None and not needed <= principal.scopes:
            raise Refusal(
                403,
                MissingScopes.of(needed, scopeless(principal)).message,
                step_up(self._keeper, needed, principal, sse=True),
            )


async def _result_of(shortcut: Shortcut) -> bytes | None:
    return await shortcut


def _session_of(exchange: Exchange) -> str:
    session_id = exchange.headers.get(headers.SESSION)
    if session_id is None:
        raise Refusal(400, _MISSING)
    if not headers.session_id_ok(session_id):
        raise Refusal(400, "The session id has characters that it may not have.")
    return session_id


def _items(data: bytes) -> list[Message]:
    """The messages of a batch, all or none: an answer to one that has no id could be nobody's."""
    items: list[Message] = []
    try:
        for item in jsonrpc.decode_batch(data):
            if isinstance(item, RemoteProtocolError):
                raise item
            items.append(item)
    except RemoteProtocolError as error:
        raise Refusal(400, error.message) from error
    return items
