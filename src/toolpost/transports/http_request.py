"""One MCP request over HTTP, from the POST until its response arrives or can no longer arrive.

Finds the answer in the response: one JSON body, an error page, or a stream that is cut and resumed. Messages
go to a queue. `ResumableStream` is one event stream over several connections: its position, and when to
reconnect. Knows nothing of other requests, or of headers that mirror a message.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, TypeGuard, cast

from msgspec import field

from toolpost.errors import (
    MethodNotFound,
    RateLimited,
    RemoteProtocolError,
    RequestFailed,
    RPCError,
    SessionLost,
    UnsupportedRevision,
)
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.jsonrpc import (
    InvalidJSONValue,
    JSONReader,
    JSONRPCErrorResponse,
    JSONRPCMessage,
    JSONRPCResponse,
)
from toolpost.protocol.methods import INITIALIZE
from toolpost.protocol.revisions import REVISIONS
from toolpost.protocol.sse import EventStreamDecoder
from toolpost.transports.backends.backend import Response
from toolpost.transports.http_sender import (
    EVENTS,
    JSON,
    HttpSender,
    build_refusal,
    is_success,
    open_event_stream,
)
from toolpost.transports.memory import MessageQueue
from toolpost.types.base import RequestId, Struct
from toolpost.types.initialize import InitializeResult

DEFAULT_RETRY_DELAY: Final = 1.0  # seconds before a reconnect if the server names no delay
MAX_BACKOFF: Final = 30.0  # seconds to which the delay grows while the server cannot be reached
MAX_RETRY_DELAY: Final = 3600.0  # the longest delay, regardless of the server: longer than any caller waits
MIN_RETRY_DELAY: Final = 0.5  # the shortest delay, regardless of the server
RETRY_JITTER: Final = 0.2  # the random part, so that not all clients of a server reconnect at once
MAX_RECONNECTS: Final = 4  # failed attempts after which a stream is given up: about 15 seconds by default
MAX_DOUBLINGS: Final = 6  # how often the delay is doubled, for a stream that is never given up
STREAM_END_TIMEOUT: Final = 2.0  # seconds for the end after the answer; later, its connection is not reused
_TRANSIENT_STATUSES: Final = frozenset({408, 409, 425, 429})  # refusals that only mean: try again later
MAX_EVENT_ID: Final = 4096  # the longest event id to send back: half of what servers accept for all headers

logger: Final = logging.getLogger("toolpost.http")


class ResumableStream:
    """Follows one event stream, and passes the data of each message to `take`.

    `take` sets `is_complete` when the stream has brought its answer. `last_event_id` is empty if no id
    can be sent back. `limit` is the largest event in bytes.
    """

    def __init__(self, take: Callable[[bytes], Awaitable[None]], limit: int) -> None:
        self.is_complete = False
        self.has_opened = False
        self.last_event_id = ""
        self._take = take
        self._limit = limit
        self._retry: float | None = None
        self._tries = 0

    @property
    def is_lost(self) -> bool:
        """Whether too many attempts to reconnect have failed."""
        return self._tries >= MAX_RECONNECTS

    async def reopen(self, sender: HttpSender, fields: Mapping[str, str]) -> None:
        """Open the stream or resume it, and hand out its messages until it ends (HTTPL-11).

        A RequestFailed with a status means that the server offers no such stream.
        """
        again = {headers.LAST_EVENT: self.last_event_id} if self.last_event_id else {}
        async with sender.send("GET", {**fields, "accept": EVENTS, **again}) as response:
            await self.follow(await open_event_stream(response))

    async def keep_open(self, sender: HttpSender, fields: Mapping[str, str]) -> RequestFailed:
        """Keep the stream open; return the refusal of a server that does not offer it."""
        while True:
            try:
                await self.reopen(sender, fields)
            except RequestFailed as error:
                logger.debug("could not open the stream: %s", error)
                if is_final(error):
                    return error
            await self.wait_before_reconnect()

    async def follow(self, chunks: AsyncIterator[bytes]) -> None:
        """Hand out the messages of one connection until it ends; raise RequestFailed if it was cut off."""
        self.has_opened = True
        decoder = EventStreamDecoder(self._limit)
        try:
            async with asyncio.timeout(None) as patience:
                async for chunk in chunks:
                    self._tries = 0
                    for event in decoder.feed(chunk):
                        # A priming event has no data; other event types are not MCP messages.
                        if event.data and event.event == "message":
                            await self._take(event.data)
                    self._store_position(decoder)
                    if self.is_complete and patience.when() is None:
                        patience.reschedule(asyncio.get_running_loop().time() + STREAM_END_TIMEOUT)
                decoder.feed(b"")  # the last chunk may have been too much for it
        except RemoteProtocolError as error:
            self.last_event_id = ""  # it would only be sent again
            logger.warning("dropped an event: %s", error.message)
            raise RequestFailed(error.message) from error
        except TimeoutError:
            logger.debug("the server left a stream open after its response")
        except RequestFailed:
            if not self.is_complete:
                raise

    async def wait_before_reconnect(self) -> None:
        """Wait as long as the server asks for (HTTPL-6), and longer after failed attempts."""
        wait = DEFAULT_RETRY_DELAY if self._retry is None else max(self._retry, MIN_RETRY_DELAY)
        if self._tries:
            wait = max(wait, min(MAX_BACKOFF, wait * 2**self._tries))
        self._tries = min(self._tries + 1, MAX_DOUBLINGS)
        await asyncio.sleep(wait * (1 + random.uniform(0, RETRY_JITTER)))  # noqa: S311 - no secret

    def _store_position(self, decoder: EventStreamDecoder) -> None:
        name = decoder.last_event_id
        if name and len(name) <= MAX_EVENT_ID and name.isascii() and name.isprintable():
            self.last_event_id = name
        if decoder.retry is not None:
            self._retry = min(decoder.retry / 1000, MAX_RETRY_DELAY)


def is_final(refusal: RequestFailed) -> bool:
    """Return whether a server that refuses a stream will refuse it again."""
    return refusal.status is not None and refusal.status < 500 and refusal.status not in _TRANSIENT_STATUSES


# --------------------------------------------------------------------- one request

SESSION_LOST_REASON: Final = "the server no longer knows the session"
_INITIALIZE_RESULT: Final = JSONReader(InitializeResult)


class SessionHeaders(Struct, eq=False):
    """The headers that every request of a session after the first one carries (HTTPL-25, HTTPL-30)."""

    fields: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def id(self) -> str | None:
        """The session id; None if the server keeps no session."""
        return self.fields.get(headers.SESSION)

    def is_lost(self, response: Response | RequestFailed) -> bool:
        """Return whether a response says that the server has forgotten the session (HTTPL-28)."""
        return response.status == 404 and self.id is not None


class HttpCall(Struct, eq=False):
    """One request and its response; `session` is None in the stateless era, `task` runs it."""

    id: RequestId
    method: str
    session: SessionHeaders | None
    sender: HttpSender
    queue: MessageQueue
    limit: int
    stream: ResumableStream | None = None
    odd: RemoteProtocolError | None = None
    task: "asyncio.Task[None]" = cast("asyncio.Task[None]", None)  # set at once: the task needs the call

    # ----------------------------------------------------------------- one body

    async def read_whole(self, response: Response) -> None:
        """Hand on the answer from a response that is not a stream; raise RequestFailed if it is none."""
        kind = response.headers.get("content-type")
        if response.status in {401, 403} or (kind != JSON and not headers.is_json(kind)):
            raise await self._make_refusal(response)
        body = await response.read(self.limit)
        try:
            data, message, answer = self._find_answer(body, alone=True)
        except RemoteProtocolError as error:
            raise await self._make_refusal(response, body, error.message) from error
        if response.status == 200 and type(answer) is JSONRPCResponse and self.method != INITIALIZE:
            self.queue.put(data, message)
            return
        code = answer.code if isinstance(answer, JSONRPCErrorResponse) else None
        # Such an error is surely about the method, and not about the session.
        is_unknown_method = code == MethodNotFound.code and answer is not None and answer.id == self.id
        if answer is None or (self._is_session_lost(response) and not is_unknown_method):
            if isinstance(answer, JSONRPCErrorResponse) and answer.data == headers.NOT_EXECUTED:
                raise SessionLost(SESSION_LOST_REASON, sent=False, peer=self.queue.peer)
            raise await self._make_refusal(response, body, "it is not the response to this request")
        is_busy = response.status in {429, 503} and "retry-after" in response.headers
        if is_busy and code not in {None, RateLimited.code}:
            raise await build_refusal(response, body)
        # The server refuses the revision that it had agreed to (VER-7).
        is_refused = response.status == 400 and code == UnsupportedRevision.code
        if is_refused and self.session is not None and self.method != INITIALIZE:
            raise SessionLost(SESSION_LOST_REASON, sent=False, peer=self.queue.peer)
        self._store_session_id(response)
        self._store_revision(answer)
        self.queue.put(data, message)

    def _is_session_lost(self, response: Response) -> bool:
        return self.session is not None and self.method != INITIALIZE and self.session.is_lost(response)

    async def _make_refusal(
        self, response: Response, body: bytes | None = None, why: str | None = None
    ) -> RequestFailed | SessionLost:
        """Return the error for a response without an answer."""
        if self._is_session_lost(response):
            # The session may have ended while the request was served.
            return SessionLost(SESSION_LOST_REASON, sent=True, peer=self.queue.peer)
        if why is not None and is_success(response):
            return RequestFailed(
                f"the server did not answer {self.method} with JSON-RPC: {why}", status=response.status
            )
        return await build_refusal(response, body)

    # ----------------------------------------------------------------- a stream

    async def read_stream(self, response: Response) -> None:
        """Hand on the messages of a stream until it ends. Raises RequestFailed if it was cut off."""
        self._store_session_id(response)
        self.stream = ResumableStream(self._take_event, self.limit)
        await self.stream.follow(response.chunks())

    async def _take_event(self, data: bytes) -> None:
        assert self.stream is not None
        message = answer = None
        try:
            data, message, answer = self._find_answer(data, alone=False)
        except RemoteProtocolError as error:
            self.odd = error  # the reader of the queue counts it
        if answer is not None:
            self._store_revision(answer)
            self.stream.is_complete = True
        await self.queue.put_when_room(data, message, self.id)

    async def resume_stream(self, cut: RequestFailed | None) -> None:
        """Reconnect for the answer, as often as makes sense (HTTPL-4, HTTPL-20); `cut` is how it ended."""
        session, stream = self.session, self.stream
        assert stream is not None
        while not stream.is_complete:
            is_refused = cut is not None and is_final(cut)
            if session is None or not stream.last_event_id or stream.is_lost or is_refused:
                odd = cut or self.odd
                why = "" if odd is None else f": {odd.message}"
                raise RequestFailed(
                    f"the stream ended before the response to {self.method}{why}", peer=self.queue.peer
                )
            await stream.wait_before_reconnect()
            try:
                await stream.reopen(self.sender, session.fields)
                cut = None
            except RequestFailed as error:
                if session.is_lost(error):
                    raise SessionLost(SESSION_LOST_REASON, sent=True, peer=self.queue.peer) from error
                cut = error

    # ----------------------------------------------------------------- the answer

    def _find_answer(
        self, data: bytes, *, alone: bool
    ) -> tuple[bytes, JSONRPCMessage | None, JSONRPCResponse | JSONRPCErrorResponse | None]:
        """Return the message to hand on, its decoded form, and the answer if it is or contains that.

        An error without an id gets ours: a server that could not read the request does not know it. If the
        error is all that came (`alone`), it is the answer whatever its id.
        """
        # As strict as the reader of the queue: if that drops an answer, its caller would wait without end.
        date = "" if self.session is None else self.session.fields.get(headers.VERSION, "")
        has_batches = date in REVISIONS and REVISIONS[date].batches
        if has_batches and data[:1] != b"{" and jsonrpc.is_batch(data):
            answers = [item for item in jsonrpc.decode_batch(data) if self._is_answer(item)]
            return data, None, answers[0] if answers else None
        message = jsonrpc.decode(data)
        if type(message) is JSONRPCResponse and message.id == self.id:  # nearly always
            return data, message, message
        is_ours = alone or getattr(message, "id", None) is None
        if isinstance(message, JSONRPCErrorResponse) and message.id != self.id and is_ours:
            error = RPCError(message.message, message.data, code=message.code)
            return jsonrpc.encode_error(self.id, error), None, message
        return data, message, message if self._is_answer(message) else None

    def _is_answer(
        self, item: JSONRPCMessage | RemoteProtocolError
    ) -> TypeGuard[JSONRPCResponse | JSONRPCErrorResponse]:
        return (
            isinstance(item, JSONRPCResponse | JSONRPCErrorResponse)
            and jsonrpc.restore_id(item.id) == self.id
        )

    def _store_session_id(self, response: Response) -> None:
        name = response.headers.get(headers.SESSION)
        if name is None or self.method != INITIALIZE or self.session is None:
            return
        if not headers.is_valid_session_id(name):
            raise RequestFailed("the server sent an invalid session id")
        self.session.fields[headers.SESSION] = name

    def _store_revision(self, answer: JSONRPCResponse | JSONRPCErrorResponse) -> None:
        """Store the revision of a session that was opened, before the answer is handed on."""
        if self.method != INITIALIZE or self.session is None or isinstance(answer, JSONRPCErrorResponse):
            return
        try:
            date = _INITIALIZE_RESULT(answer.result).protocol_version
        except InvalidJSONValue:
            return  # the caller will reject it
        if date in REVISIONS:
            self.session.fields[headers.VERSION] = date
