"""Sessions on HTTP requests: POST, GET and DELETE of Streamable HTTP, and the two endpoints of HTTP+SSE.

Owns the statuses and the header that names the session. Sessions themselves are in `session` and `sessions`,
their streams in `streams`.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote

from toolpost.errors import MissingScopes, RemoteProtocolError
from toolpost.principal import Principal, explain_no_scopes
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.http_routing import SessionRoute
from toolpost.protocol.jsonrpc import (
    InvalidJSONValue,
    JSONReader,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
)
from toolpost.protocol.methods import INITIALIZE, INITIALIZED
from toolpost.protocol.revisions import OLDEST_HTTP, REVISIONS, Revision
from toolpost.server.http.authorization import Authenticator, build_step_up_headers, find_missing_scopes
from toolpost.server.http.capacity import TooManySessions
from toolpost.server.http.request import HttpExchange
from toolpost.server.http.security import HTTPRefusal
from toolpost.server.http.session import GENERAL_STREAM, AnswerFuture, SessionPost, read_outline
from toolpost.server.http.sessions import SessionRecord, Sessions, StartedSessionRequest
from toolpost.server.http.streams import GeneralStreamReader, SessionStreams, TouchSession, acquire_lease
from toolpost.stores.store import LogEntry
from toolpost.types.base import UNSET, Raw, Struct

T = TypeVar("T")

_SESSION_HEADER: Final = headers.SESSION.encode()

_INITIALIZED: Final = INITIALIZED

_MISSING_SESSION_TEXT: Final = (
    f"The header {headers.SESSION} is missing: send `initialize` first, and then the id that it gives."
)
_UNKNOWN_SESSION_TEXT: Final = (
    "There is no such session, or there is none any more: send `initialize` without a session id."
)

_OWN_LIMIT_TEXT: Final = (
    "You have too many sessions, and a call runs in each of them: end one with DELETE, or wait "
    "(a quarter of max_sessions=)."
)
_SERVER_LIMIT_TEXT: Final = (
    "There are too many sessions, and a call runs in each of them: come back later (max_sessions=)."
)
_RETRY_LATER: Final = ((b"retry-after", b"5"),)


class _InitializeResult(Struct, rename="camel"):
    protocol_version: str


class _InitializeReply(Struct):
    result: _InitializeResult


_INITIALIZE_REPLY: Final = JSONReader(_InitializeReply)


class _RequestSubject(Struct):
    """What a request is about, if it is about anything."""

    name: str = ""
    uri: str = ""


_REQUEST_SUBJECT: Final = JSONReader(_RequestSubject)

RequiredScopes: TypeAlias = Callable[[str, str], frozenset[str]]
"""The scopes that a request needs, by its method and by what it is about."""


class _PostInSession(Struct, eq=False):
    """A post that wants answers: where it came in, of which session, what was posted, what is spoken."""

    exchange: HttpExchange
    session: str
    record: SessionRecord
    post: SessionPost
    revision: Revision


class SessionEndpoints:
    """What old clients use."""

    def __init__(
        self,
        sessions: Sessions,
        messages: str,
        keeper: Authenticator | None = None,
        needs: RequiredScopes | None = None,
    ) -> None:
        self._authenticator = keeper
        self._required_scopes = needs
        self._sessions = sessions
        self._streams = SessionStreams(sessions.store)
        self._touch: TouchSession = sessions.touch  # one object for all streams
        self._messages_path = messages
        # Streams have names of their own on all workers; who knows one still has to know the session.
        self._prefix = secrets.token_hex(4)
        self._numbers = count(1)

    # ----------------------------------------------------------------- POST

    async def post(
        self,
        exchange: HttpExchange,
        message: JSONRPCMessage | None,
        data: bytes,
        route: SessionRoute,
        principal: Principal | None,
        *,
        begun: StartedSessionRequest | None = None,
    ) -> None:
        """Hand a message or a batch to its session, and answer with what the session says."""
        if route.session is None:
            if not route.is_initialize:
                raise HTTPRefusal(400, _MISSING_SESSION_TEXT)  # HTTPL-26
            await self._initialize(exchange, data, message, principal)
            return
        record = await self._find_session(route.session, principal) if begun is None else begun.record
        revision = REVISIONS.get(record.revision, route.revision)
        if message is None and not revision.batches:
            raise HTTPRefusal(400, "A batch is not part of the protocol revision of this session.")
        post = self._make_post(message, data, exchange)
        if not post.ids:
            await self._hand_over(route.session, record, post)
            await exchange.send_empty(202)
            return
        asked = _PostInSession(exchange, route.session, record, post, revision)
        answers = await (
            self._post_and_read(asked) if begun is None else self._await_answer(asked, begun.go_on(post))
        )
        if answers is None:
            return
        lacks = self._find_missing_scopes(message, answers)
        if lacks:
            await exchange.send_json(
                403, answers[0], build_step_up_headers(self._authenticator, lacks, principal)
            )
        elif answers:
            await exchange.send_json(200, jsonrpc.encode_batch(answers) if message is None else answers[0])
        elif await self._sessions.touch(route.session):
            await exchange.send_empty(202)  # it was cancelled
        else:
            raise HTTPRefusal(404, _UNKNOWN_SESSION_TEXT)

    def _find_missing_scopes(self, message: JSONRPCMessage | None, answers: list[bytes]) -> list[str]:
        """The scopes that a request needs, if that is why it was refused."""
        if message is None or len(answers) != 1 or self._required_scopes is None:
            return []
        return find_missing_scopes(read_outline(answers[0]).error)

    async def _initialize(
        self, exchange: HttpExchange, data: bytes, message: JSONRPCMessage | None, principal: Principal | None
    ) -> None:
        """Open a session; its id goes out with the answer to the handshake, if that is no error."""
        session_id, record = await self._open_session(principal)
        post = self._make_post(message, data, exchange)
        before = exchange.extra
        exchange.extra = (*before, (_SESSION_HEADER, session_id.encode()))
        answers = await self._post_and_read(_PostInSession(exchange, session_id, record, post, OLDEST_HTTP))
        if answers is None:
            return  # what a session says before it is open comes from a server that breaks the rules
        if not answers:
            exchange.extra = before
            raise HTTPRefusal(503, "The session has ended before it was opened.")
        if read_outline(answers[0]).error is UNSET:
            await self._sessions.set_revision(
                session_id, record, _INITIALIZE_REPLY(answers[0]).result.protocol_version
            )
        else:
            exchange.extra = before
            await self._sessions.end(session_id, record, "the handshake has failed")
        await exchange.send_json(200, answers[0])

    async def _open_session(
        self, principal: Principal | None, *, single: bool = False
    ) -> tuple[str, SessionRecord]:
        try:
            return await self._sessions.open(principal, single=single)
        except TooManySessions as crowded:
            raise HTTPRefusal(
                *((429, _OWN_LIMIT_TEXT) if crowded.own else (503, _SERVER_LIMIT_TEXT)), _RETRY_LATER
            ) from None

    async def _post_and_read(self, asked: _PostInSession) -> list[bytes] | None:
        """The answers to a post; None if they went out as events."""
        async with self._streams.tail(asked.session, asked.post.stream) as entries:
            await self._hand_over(asked.session, asked.record, asked.post)
            return await self._read_answers(asked, entries)

    async def _await_answer(self, asked: _PostInSession, shortcut: AnswerFuture) -> list[bytes] | None:
        """The answer to a request that is being served; None if it went out as an event."""
        answer = (
            shortcut.result()
            if shortcut.done()
            else await self._run_while_connected(asked, _await_result(shortcut))
        )
        if answer is None:  # something was said before
            async with self._streams.tail(asked.session, asked.post.stream) as entries:
                return await self._read_answers(asked, entries)
        return [answer] if answer else []

    async def _read_answers(
        self, asked: _PostInSession, entries: AsyncIterator[LogEntry]
    ) -> list[bytes] | None:
        """The answers that stand on the stream of a post; None if they went out as events."""
        stream = asked.post.stream
        relay = self._streams.relay(asked.exchange, entries, asked.session, stream, asked.revision)
        answers = await self._run_while_connected(asked, relay)
        if answers is not None:
            await self._sessions.forget_stream(asked.session, stream)
        return answers

    async def _run_while_connected(self, asked: _PostInSession, work: Coroutine[Any, Any, T]) -> T:
        """What is waited for, while the client waits for it; until then the session is in use."""
        with self._sessions.track_waiting_client(asked.session):
            return await asked.exchange.run_while_connected(work, partial(self._check_worker, asked))

    async def _check_worker(self, asked: _PostInSession) -> None:
        """Wait no longer for an answer of a worker that has died; while we wait, the session is in use."""
        await self._sessions.touch(asked.session)
        if not await self._sessions.is_worker_alive(asked.record):
            asked.exchange.abort()

    async def _find_session(
        self, session_id: str, principal: Principal | None, *, single: bool = False
    ) -> SessionRecord:
        record = await self._sessions.find(session_id, principal, single=single)
        if record is None:
            raise HTTPRefusal(404, _UNKNOWN_SESSION_TEXT)  # HTTPL-27
        return record

    async def _hand_over(self, session_id: str, record: SessionRecord, post: SessionPost) -> None:
        if not await self._sessions.post(session_id, record, post):
            raise HTTPRefusal(404, _UNKNOWN_SESSION_TEXT)

    def _make_post(self, message: JSONRPCMessage | None, data: bytes, exchange: HttpExchange) -> SessionPost:
        """What a client has posted, told apart as far as a session has to know."""
        if isinstance(message, JSONRPCRequest):
            ids, ready = (message.id,), False
        else:
            items = _decode_batch(data) if message is None else [message]
            ids = tuple(item.id for item in items if isinstance(item, JSONRPCRequest))
            ready = any(
                isinstance(item, JSONRPCNotification) and item.method == _INITIALIZED for item in items
            )
        stream = f"{self._prefix}{next(self._numbers):x}" if ids else ""
        return SessionPost(Raw(data), stream, ids, exchange.headers, ready, exchange.principal)

    # ----------------------------------------------------------------- GET and DELETE

    async def get(
        self, exchange: HttpExchange, principal: Principal | None
    ) -> Coroutine[Any, Any, None] | None:
        """What relays the general stream of a session; None if another of its streams went on (HTTPL-20).

        Whoever awaits it waits in nothing else: an open stream takes as much memory as it takes frames.
        """
        session_id = _get_session_id(exchange)
        record = await self._find_session(session_id, principal)
        revision = REVISIONS.get(record.revision, OLDEST_HTTP)
        last = exchange.headers.get(headers.LAST_EVENT)
        stream, _, after = (last or GENERAL_STREAM).partition(".")
        if last and stream != GENERAL_STREAM:
            alive = partial(self._sessions.touch, session_id)
            with self._sessions.track_waiting_client(session_id):
                found = await self._streams.resume(exchange, session_id, last, revision, alive)
            if not found:
                raise HTTPRefusal(
                    400, f"The stream of event {headers.quote_value(last)} cannot be resumed any more."
                )
            return None
        lease = await acquire_lease(self._sessions.store, session_id, after if last else None)
        if lease is None:
            raise HTTPRefusal(409, "This session has a stream open already; a second one would hear nothing.")
        reading = GeneralStreamReader(self._sessions.store, exchange, session_id, lease, alive=self._touch)
        return reading.relay(revision)

    async def delete(self, exchange: HttpExchange, principal: Principal | None) -> None:
        """End a session."""
        session_id = _get_session_id(exchange)
        record = await self._find_session(session_id, principal)
        await self._sessions.end(session_id, record, "its client has ended it")
        await exchange.send_empty(200)

    # ----------------------------------------------------------------- HTTP+SSE

    async def serve_sse(self, exchange: HttpExchange, principal: Principal | None) -> None:
        """Open a session and relay all that it says, until the client goes (SSE-2)."""
        session_id, record = await self._open_session(principal, single=True)
        exchange.session = session_id
        endpoint = f"{quote(exchange.root)}{self._messages_path}?session_id={session_id}".encode()
        store, session = self._sessions.store, self._sessions.find_live(session_id)
        if session is None:
            raise HTTPRefusal(503, "The session has ended before it was opened.")
        try:
            lease = await acquire_lease(store, session_id, "")  # its id is not known elsewhere yet
            assert lease is not None, "it was taken over"
            reading = GeneralStreamReader(
                store, exchange, session_id, lease, alive=self._touch, taken=session.mark_read
            )
            await reading.relay(OLDEST_HTTP, endpoint)
        finally:
            await self._sessions.end(session_id, record, "its client has gone")

    async def post_message(
        self, exchange: HttpExchange, message: JSONRPCMessage | None, data: bytes, principal: Principal | None
    ) -> None:
        """Hand a message to the session that an `endpoint` event has named."""
        asked = parse_qs(exchange.query.decode("latin-1")).get("session_id")
        if not asked:
            raise HTTPRefusal(
                400, "The session_id is missing: post to the URI that the `endpoint` event names."
            )
        record = await self._find_session(asked[0], principal, single=True)
        if message is None:
            raise HTTPRefusal(400, "A batch is not part of HTTP+SSE.")
        if isinstance(message, JSONRPCRequest):
            self._check_scopes(message, principal)
            if message.method == INITIALIZE:
                await self._sessions.set_scopes(asked[0], record, principal)
        await self._hand_over(asked[0], record, self._make_post(message, data, exchange))
        await exchange.send_empty(202)

    def _check_scopes(self, message: JSONRPCRequest, principal: Principal | None) -> None:
        """Return if a request may be served: here it is answered on another stream, which has no status."""
        if self._required_scopes is None or message.params is UNSET:
            return
        try:
            about = _REQUEST_SUBJECT(message.params)
        except InvalidJSONValue:
            return  # the server will report what is wrong with it
        needed = self._required_scopes(message.method, about.name or about.uri)
        if principal is not None and not needed <= principal.scopes:
            raise HTTPRefusal(
                403,
                MissingScopes.for_scopes(needed, explain_no_scopes(principal)).message,
                build_step_up_headers(self._authenticator, needed, principal, sse=True),
            )


async def _await_result(shortcut: AnswerFuture) -> bytes | None:
    return await shortcut


def _get_session_id(exchange: HttpExchange) -> str:
    session_id = exchange.headers.get(headers.SESSION)
    if session_id is None:
        raise HTTPRefusal(400, _MISSING_SESSION_TEXT)
    if not headers.is_valid_session_id(session_id):
        raise HTTPRefusal(400, "The session id has characters that it may not have.")
    return session_id


def _decode_batch(data: bytes) -> list[JSONRPCMessage]:
    """Return the messages of a batch; refuse it if any of them cannot be read."""
    items: list[JSONRPCMessage] = []
    try:
        for item in jsonrpc.decode_batch(data):
            if isinstance(item, RemoteProtocolError):
                raise item
            items.append(item)
    except RemoteProtocolError as error:
        raise HTTPRefusal(400, error.message) from error
    return items
