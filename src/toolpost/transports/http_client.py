"""The channel to a server over Streamable HTTP, in both of its shapes; the era is that of each message.

A request is posted by a task, and what comes back goes to the mailbox. In a session its id and revision go
with everything, and one more stream is open for what the server says unasked; outside of one the headers
mirror the message, and closing the response cancels. Owns the session and all tasks, and ends them. Knows
nothing of what tools do or when to try again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from toolpost.channel import unattended
from toolpost.errors import (
    AuthError,
    ChannelClosed,
    LocalProtocolError,
    RemoteProtocolError,
    RequestFailed,
    SessionLost,
    TransportError,
)
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.eras import is_marked
from toolpost.protocol.jsonrpc import Message, Notice, Reader, Request, Unfit
from toolpost.protocol.methods import CLIENT
from toolpost.protocol.revisions import LATEST
from toolpost.protocol.route import mirrored
from toolpost.transports.address import Http
from toolpost.transports.courier import Courier
from toolpost.transports.http_call import HttpCall, Session
from toolpost.transports.refusal import EVENTS, JSON, accepted
from toolpost.transports.trail import Basin, Trail
from toolpost.types.base import UNSET, RequestId, Struct, Unset, Wire
from toolpost.types.lifecycle import PROTOCOL_VERSION
from toolpost.types.notices import CancelledParams

__all__ = ["Annotated", "HttpChannel"]

GOODBYE: Final = 2.0
"""Seconds to tell the server that its session is over: it will find out by itself if it does not hear us."""

ACCEPT_WAIT: Final = 60.0
"""Seconds for the server to take a message that has no answer: whoever sends one has no other time-out."""

MAX_ANSWERING: Final = 64
"""How many answers are posted at once. How much there is to answer is up to the server, and each post is a
connection."""

CLOSE_PATIENCE: Final = 2.0
"""Seconds for our tasks to end; all they have to do is to close a connection."""

MAX_HEADS: Final = 256
"""For how many tools and methods headers are kept: more than a server has."""

Annotated = Callable[[str], Mapping[str, tuple[str, ...]] | None]
"""The annotated parameters of a tool, if they are known."""

_CLOSED: Final = "the channel was closed"
_NAMED: Final = frozenset(
    name for name, row in LATEST.requests[CLIENT].items() if row.member in {None, "name"}
)
"""Requests whose headers repeat nothing of the params but a name."""
_NAMES: Final = {headers.VERSION, headers.METHOD, headers.NAME}
_POSTED: Final = {"content-type": JSON, "accept": f"{JSON}, {EVENTS}"}

logger: Final = logging.getLogger("toolpost.http")


class _Facts(Struct, rename={"version": PROTOCOL_VERSION}):
    version: str | Unset = UNSET


class _Params(Struct, rename={"facts": "_meta"}):
    name: str | Unset = UNSET
    facts: _Facts | None = None


class _Asked(Struct):
    """As much of a request as most headers need."""

    id: RequestId
    method: str
    params: _Params | Unset = UNSET

    @property
    def key(self) -> tuple[str, str | Unset, str] | None:
        """What the headers of a stateless request say, if they say no more; None in a session."""
        facts = None if self.params is UNSET else self.params.facts
        if facts is None or facts.version is UNSET or self.params is UNSET:
            return None
        return self.method, self.params.name, facts.version


class _Called(Wire):
    name: str


_ASKED: Final = Reader(_Asked)
_CALLED: Final = Reader(_Called)
_CANCELLED: Final = Reader(CancelledParams)


class HttpChannel:
    """The channel to an HTTP server. Made where an event loop runs; it connects when something is sent.

    Args:
        http: where the server is.

    Attributes:
        annotated: what is known of the annotated parameters of a tool. By default nothing is.

    Raises:
        ConnectFailed: the library that should carry the requests is not installed.
    """

    def __init__(self, http: Http) -> None:
        self.annotated: Annotated = _unknown
        self._http = http
        self._courier = Courier(http)
        self._box = Basin(http.label)
        self._tell: Callable[[RequestId, TransportError | AuthError], object] = _log_lost
        self._courier.on_detained(self._detain)
        self._posting: set[asyncio.Timeout] = set()
        self._session: Session | None = None
        self._forgotten = False
        self._listener: asyncio.Task[None] | None = None
        self._asked: dict[RequestId, HttpCall] = {}
        self._heads: dict[tuple[str, str | Unset, str], Mapping[str, str]] = {}
        self._answering = asyncio.Semaphore(MAX_ANSWERING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Future[None] | None = None

    def on_message(self, tell: Callable[[bytes | Message], object]) -> None:
        """Have each message told as it comes, instead of keeping it for `receive`."""
        self._box.listen(tell)

    def on_answer(self, settle: Callable[[bytes], bool]) -> None:
        """Have an answer looked at by who has asked, before it is here; True if that was all it takes."""
        self._box.settle = settle

    def on_lost(self, tell: Callable[[RequestId, TransportError | AuthError], object]) -> None:
        """Tell somebody of each request whose answer cannot come any more; by default the log is told."""
        self._tell = tell

    def on_detained(self, tell: Callable[[bool], object]) -> None:
        """Tell somebody when requests begin to wait for a login, and when none does any more."""
        self._courier.on_detained(tell)

    def _detain(self, waiting: bool) -> None:
        """Let no clock run while somebody logs in."""
        until = None if waiting else asyncio.get_running_loop().time() + ACCEPT_WAIT
        for scope in self._posting:
            if not scope.expired():
                scope.reschedule(until)

    async def receive(self) -> bytes:
        """The next message of the server, from whatever stream. Cancelling it loses no message.

        Raises:
            SessionLost: the server has forgotten the session.
            ChannelClosed: the channel was closed.
            LocalProtocolError: another task is receiving already.
        """
        try:
            return await self._box.receive()
        except ChannelClosed as error:
            raise self._end(error.message, sent=error.sent) from None

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - HTTP tells
        """Post one message. A request is posted by a task, and this returns at once.

        Raises:
            ChannelClosed: the channel was closed, or the server has forgotten the session.
            RequestFailed: a notice or an answer was not accepted, or no header can carry what a request has
                to repeat there.
            LocalProtocolError: this is no message, or one that may not be posted now.
        """
        if self._box.reason is not None:
            raise self._end(self._box.reason, sent=False)
        try:
            message = jsonrpc.decode(data)
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"this cannot be posted: {error.message}") from error
        if isinstance(message, Request):
            self._ask(message, data)
        elif isinstance(message, Notice):
            await self._say(message, data)
        elif self._session is None:
            raise LocalProtocolError("outside of a session no answer may be posted")  # HTTPM-4
        else:
            session = self._session
            async with self._answering:
                await self._post(data, session.fields, session)

    def offer(self, data: bytes) -> bool:
        """Post a request, if that is as simple as it mostly is; False if `send` has to look at it.

        Here it is read once and not six times, and its headers were made for one like it. That saves 18 µs of
        the 47 that a call costs besides what aiohttp does.
        """
        try:
            asked = _ASKED(data)
        except Unfit:
            return False
        session, key = self._session, asked.key
        if key is not None:
            session, fields = None, self._made(*key)
        elif session is not None and asked.method != "initialize":
            fields = session.dressed
            if fields is None:
                fields = session.dressed = self._courier.dress({**_POSTED, **session.fields})
        else:
            fields = None
        if fields is None or self._box.reason is not None:
            return False
        self._begin(asked.id, asked.method, session, data, fields)
        return True

    async def close(self) -> None:
        """End every stream, and the session. Closing twice is fine, and nothing is raised."""
        if self._closing is not None:
            await asyncio.wait({self._closing})
            return
        self._closing = asyncio.get_running_loop().create_future()
        self._box.shut(_CLOSED)
        try:
            await self._hush()
            await self._part()
        finally:
            try:
                await self._courier.close()
            finally:
                self._closing.set_result(None)

    # ----------------------------------------------------------------- what we say

    def _ask(self, request: Request, data: bytes) -> None:
        session, fields = self._session, {}
        if request.method == "initialize":
            session = self._session = Session()
            self._unlisten()
        elif is_marked(request.params):
            session, fields = None, self._mirrored(request)
            self._keep(data, fields)
        elif session is not None:
            fields = session.fields
        dressed = self._courier.dress({**_POSTED, **fields})
        self._begin(request.id, request.method, session, data, dressed)

    def _begin(
        self,
        request_id: RequestId,
        method: str,
        session: Session | None,
        data: bytes,
        fields: Mapping[str, str],
    ) -> None:
        limit = self._http.max_answer
        call = HttpCall(request_id, method, session, self._courier, self._box, limit=limit)
        if request_id in self._asked:
            self._retire(self._asked[request_id].task)
        # Kept here until it ends, and not in `_tasks`: a callback at its end would cost 0.8 µs.
        call.task = asyncio.get_running_loop().create_task(self._run(call, data, fields))
        self._asked[request_id] = call

    async def _run(self, call: HttpCall, data: bytes, fields: Mapping[str, str]) -> None:
        try:
            await call.run(data, fields)
        except (TransportError, AuthError) as error:
            self._lost(call, error)
        except Exception as error:
            logger.exception("%s: a request failed", self._http.label)
            failure = RequestFailed(f"the request failed: {type(error).__name__}", peer=self._http.label)
            failure.__cause__ = error
            self._lost(call, failure)
        finally:
            if self._asked.get(call.id) is call:
                del self._asked[call.id]

    def _lost(self, call: HttpCall, error: TransportError | AuthError) -> None:
        self._tell(call.id, error)
        if isinstance(error, SessionLost):
            self._lose(call.session)

    async def _say(self, notice: Notice, data: bytes) -> None:
        if notice.method == "notifications/cancelled" and not self._withdraw(notice):
            return
        session = self._session
        if session is None or is_marked(notice.params):
            await self._post(data, self._mirrored(notice), None)
            return
        await self._post(data, session.fields, session)
        if notice.method == "notifications/initialized" and self._session is session:
            self._unlisten()
            self._listener = self._spawn(self._listen(session))

    def _withdraw(self, notice: Notice) -> bool:
        """Close the response of a request that is cancelled. Whether the server has to be told besides."""
        try:
            request_id = _CANCELLED(notice.params).request_id
        except Unfit:
            request_id = None
        if request_id is None or request_id not in self._asked:
            return self._session is not None
        call = self._asked.pop(request_id)
        self._retire(call.task)
        call.task.cancel()
        return call.session is not None

    async def _post(self, data: bytes, fields: Mapping[str, str], session: Session | None) -> None:
        """Post what has no answer."""
        scope = asyncio.timeout(None if self._courier.detained else ACCEPT_WAIT)
        self._posting.add(scope)
        try:
            async with scope, self._courier.send("POST", {**_POSTED, **fields}, data) as response:
                if session is not None and session.lost(response):
                    self._lose(session)
                    raise session.gone(self._http.label, sent=False)
                await accepted(response)
        except TimeoutError:
            raise RequestFailed(
                f"the server did not say within {ACCEPT_WAIT:g} s that it has taken a message",
                peer=self._http.label,
            ) from None
        finally:
            self._posting.discard(scope)

    def _made(self, method: str, name: str | Unset, version: str) -> Mapping[str, str] | None:
        """Headers that were made before; None if there are none, or they have to repeat arguments as well."""
        if method == "tools/call" and name is not UNSET and self.annotated(name):
            return None
        return self._heads.get((method, name, version))

    def _keep(self, data: bytes, fields: Mapping[str, str]) -> None:
        """Keep the headers of a stateless request for others like it, if they repeat no more than a name."""
        try:
            asked = _ASKED(data)
        except Unfit:
            return
        if asked.key is not None and asked.method in _NAMED and fields.keys() <= _NAMES:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[asked.key] = self._courier.dress({**_POSTED, **fields})

    def _mirrored(self, message: Request | Notice) -> dict[str, str]:
        try:
            annotated = None
            if message.method == "tools/call" and self.annotated is not _unknown:
                annotated = self.annotated(_CALLED(message.params).name)
            return mirrored(message, annotated)
        except ValueError as error:
            raise RequestFailed(str(error), sent=False, peer=self._http.label) from error

    # ----------------------------------------------------------------- what the server says unasked

    async def _listen(self, session: Session) -> None:
        """Keep the stream open on which a server says what belongs to no request, if it offers one."""
        trail = Trail(self._box.take, self._http.max_answer)
        try:
            with unattended():
                refused = await trail.stay(self._courier, session.fields)
        except AuthError as error:
            logger.warning("%s: what the server says unasked is not heard: %s", self._http.label, error)
            return
        except Exception:  # calls go on without it
            logger.exception("%s: the stream for what the server says unasked failed", self._http.label)
            return
        if session.lost(refused) and trail.opened:  # else it may only mean that there is no such stream
            self._lose(session)

    def _unlisten(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None

    # ----------------------------------------------------------------- the end

    def _lose(self, session: Session | None) -> None:
        """The server has forgotten a session; if it is ours, nothing can be said any more."""
        if session is not None and session is self._session:
            self._session, self._forgotten = None, True
            self._unlisten()
            self._box.end("the server does not know the session any more")

    def _end(self, reason: str, *, sent: bool) -> ChannelClosed:
        kind = SessionLost if self._forgotten else ChannelClosed
        return kind(reason, sent=sent, peer=self._http.label)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._retire(task)
        return task

    def _retire(self, task: asyncio.Task[None]) -> None:
        """Keep a task that nobody asks for any more until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hush(self) -> None:
        tasks = [*self._tasks, *(call.task for call in self._asked.values())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_PATIENCE)

    async def _part(self) -> None:
        """Tell the server that the session is over (HTTPL-29)."""
        session, self._session = self._session, None
        if session is None or session.id is None:
            return
        try:
            with unattended():
                async with asyncio.timeout(GOODBYE), self._courier.send("DELETE", session.fields):
                    pass
        except Exception as error:  # noqa: BLE001 - whatever it is, we leave
            logger.debug("%s: the session could not be ended: %r", self._http.label, error)


def _unknown(_tool: str) -> None:
    return None


def _log_lost(request_id: RequestId, error: TransportError | AuthError) -> None:
    logger.warning("request %s was lost: %s", request_id, error)
