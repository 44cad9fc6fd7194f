"""One MCP request over HTTP, from the POST until its answer has come or cannot come any more.

Finds the answer in the response: one JSON body, an error page, or a stream that is cut and resumed. Messages
go to a queue. Knows nothing of other requests, or of headers that mirror a message.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, TypeGuard, cast

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
from toolpost.transports.backends.backend import Response
from toolpost.transports.event_stream import BoundedMessageQueue, ResumableStream, is_final
from toolpost.transports.http_sender import (
    JSON,
    HttpSender,
    build_refusal,
    is_json,
    is_success,
)
from toolpost.types.base import RequestId, Struct, WireStruct

_SESSION_LOST_REASON: Final = "the server does not know the session any more"
_OK: Final = 200
_BUSY_STATUSES: Final = frozenset({429, 503})
_AUTH_STATUSES: Final = frozenset({401, 403})


class _AgreedVersion(WireStruct):
    protocol_version: str


_AGREED_VERSION: Final = JSONReader(_AgreedVersion)


class SessionHeaders:
    """The headers that every request of a session after the first one carries (HTTPL-25, HTTPL-30)."""

    __slots__ = ("fields", "prepared")

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.prepared: Mapping[str, str] | None = None
        """The same, prepared by the sender, once that was done."""

    def set_header(self, name: str, value: str) -> None:
        """Add a header to every request from now on."""
        self.fields[name] = value
        self.prepared = None

    @property
    def id(self) -> str | None:
        """The session id; None if the server keeps no session."""
        return self.fields.get(headers.SESSION)

    def is_lost(self, response: Response | RequestFailed) -> bool:
        """Return whether a response says that the server has forgotten the session (HTTPL-28)."""
        return response.status == 404 and self.id is not None

    def make_lost_error(self, peer: str | None, *, sent: bool) -> SessionLost:
        """Return the error for a lost session."""
        return SessionLost(_SESSION_LOST_REASON, sent=sent, peer=peer)


class HttpCall(Struct, eq=False):
    """One request and its response; `session` is None in the stateless era, `task` runs it."""

    id: RequestId
    method: str
    session: SessionHeaders | None
    sender: HttpSender
    queue: BoundedMessageQueue
    limit: int
    stream: ResumableStream | None = None
    odd: RemoteProtocolError | None = None
    task: "asyncio.Task[None]" = cast(
        "asyncio.Task[None]", None
    )  # set at once, with a task that needs the call

    # ----------------------------------------------------------------- one body

    async def read_whole(self, response: Response) -> None:
        """Hand on the answer from a response that is not a stream; raise RequestFailed if it is none."""
        has_json = response.headers.get("content-type") == JSON or is_json(response)
        if response.status in _AUTH_STATUSES or not has_json:
            raise await self._make_refusal(response)
        body = await response.read(self.limit)
        try:
            data, message, answer = self._find_answer(body, alone=True)
        except RemoteProtocolError as error:
            raise await self._make_refusal(response, body, error.message) from error
        if response.status == _OK and type(answer) is JSONRPCResponse and self.method != INITIALIZE:
            self.queue.put_decoded(data, message)
            return
        if answer is None or (self._is_session_lost(response) and not self._is_unknown_method(answer)):
            raise await self._make_refusal(response, body, "it answers something else")
        if self._is_server_busy(response, answer):
            raise await build_refusal(response, body)
        if self._is_revision_refused(answer):
            assert self.session is not None
            raise self.session.make_lost_error(self.queue.peer, sent=False)
        if self.method == INITIALIZE:
            self._store_session_id(response)
            self._store_revision(answer)
        self.queue.put_decoded(data, message)

    def _is_session_lost(self, response: Response) -> bool:
        return self.session is not None and self.method != INITIALIZE and self.session.is_lost(response)

    def _is_server_busy(self, response: Response, answer: JSONRPCResponse | JSONRPCErrorResponse) -> bool:
        """Return whether the server is only busy, and says when to try again."""
        if response.status not in _BUSY_STATUSES or "retry-after" not in response.headers:
            return False
        return isinstance(answer, JSONRPCErrorResponse) and answer.code != RateLimited.code

    def _is_revision_refused(self, answer: JSONRPCResponse | JSONRPCErrorResponse) -> bool:
        """Return whether the server refuses the revision that it had agreed to (VER-7)."""
        if self.session is None or self.method == INITIALIZE:
            return False
        return isinstance(answer, JSONRPCErrorResponse) and answer.code == UnsupportedRevision.code

    def _is_unknown_method(self, answer: JSONRPCResponse | JSONRPCErrorResponse) -> bool:
        """Return whether an error is surely about the method, and not about the session."""
        return isinstance(answer, JSONRPCErrorResponse) and (answer.code, answer.id) == (
            MethodNotFound.code,
            self.id,
        )

    async def _make_refusal(
        self, response: Response, body: bytes | None = None, why: str | None = None
    ) -> RequestFailed | SessionLost:
        """Return the error for a response that is no answer."""
        if self._is_session_lost(response):
            assert self.session is not None
            return self.session.make_lost_error(self.queue.peer, sent=False)
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
        """Hand on one message of the stream."""
        assert self.stream is not None
        message = answer = None
        try:
            data, message, answer = self._find_answer(data, alone=False)
        except RemoteProtocolError as error:
            self.odd = error  # the reader of the queue counts it
        if answer is not None:
            self._store_revision(answer)
            self.stream.is_complete = True
        await self.queue.put_when_room(data, message)

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
                    f"the stream ended before the answer to {self.method} came{why}", peer=self.queue.peer
                )
            await stream.wait_before_reconnect()
            try:
                await stream.reopen(self.sender, session.fields)
                cut = None
            except RequestFailed as error:
                if session.is_lost(error):
                    raise session.make_lost_error(self.queue.peer, sent=True) from error
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
        if data[:1] != b"{" and jsonrpc.is_batch(data) and self._has_batches:
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

    @property
    def _has_batches(self) -> bool:
        """Whether the revision of the session has batches."""
        fields = {} if self.session is None else self.session.fields
        revision = REVISIONS.get(fields.get(headers.VERSION, ""))
        return revision is not None and revision.batches

    def _is_answer(
        self, item: JSONRPCMessage | RemoteProtocolError
    ) -> TypeGuard[JSONRPCResponse | JSONRPCErrorResponse]:
        return isinstance(item, JSONRPCResponse | JSONRPCErrorResponse) and item.id == self.id

    def _store_session_id(self, response: Response) -> None:
        """Store the id of a session that was opened."""
        name = response.headers.get(headers.SESSION)
        if name is None or self.method != INITIALIZE or self.session is None:
            return
        if not headers.is_valid_session_id(name):
            raise RequestFailed("the server names the session in a way that no header can carry")
        self.session.set_header(headers.SESSION, name)

    def _store_revision(self, answer: JSONRPCResponse | JSONRPCErrorResponse) -> None:
        """Store the revision of a session that was opened, before the answer is handed on."""
        if self.method != INITIALIZE or self.session is None or isinstance(answer, JSONRPCErrorResponse):
            return
        try:
            date = _AGREED_VERSION(answer.result).protocol_version
        except InvalidJSONValue:
            return  # the caller will reject it
        if date in REVISIONS:
            self.session.set_header(headers.VERSION, date)
