"""One request over HTTP, from the POST until its answer is there or cannot come any more.

Owns how the answer is found in what comes back, be it one JSON text, an error page or a stream that is cut
and resumed. What arrives goes to a mailbox. Knows nothing of other requests, of channels or of headers that
mirror a message.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

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
from toolpost.protocol.jsonrpc import Failure, Message, Reader, Reply, Unfit
from toolpost.protocol.revisions import REVISIONS
from toolpost.transports.courier import Courier
from toolpost.transports.http_backend import Response
from toolpost.transports.refusal import JSON, is_events, is_json, is_success, refusal
from toolpost.transports.trail import Basin, Trail, is_final
from toolpost.types.base import RequestId, Wire

__all__ = ["HttpCall", "Session"]

_FORGOTTEN: Final = "the server does not know the session any more"
_OK: Final = 200
_BUSY: Final = frozenset({429, 503})
_UNAUTHORIZED: Final = frozenset({401, 403})


class _Opened(Wire):
    protocol_version: str


_OPENED: Final = Reader(_Opened)


class Session:
    """A conversation of the session era, as far as headers tell of it.

    Attributes:
        fields: the headers that every request after the first one carries (HTTPL-25, HTTPL-30).
    """

    __slots__ = ("dressed", "fields")

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.dressed: Mapping[str, str] | None = None
        """What is sent for them, once that was made."""

    def carry(self, name: str, value: str) -> None:
        """Have every request carry a header from now on."""
        self.fields[name] = value
        self.dressed = None

    @property
    def id(self) -> str | None:
        """What the server calls it; None if it does not keep one."""
        return self.fields.get(headers.SESSION)

    def lost(self, response: Response | RequestFailed) -> bool:
        """Whether a response says that the server has forgotten the session (HTTPL-28)."""
        return response.status == 404 and self.id is not None

    def gone(self, peer: str | None, *, sent: bool) -> SessionLost:
        """The error for whoever needed it."""
        return SessionLost(_FORGOTTEN, sent=sent, peer=peer)


class HttpCall:
    """One request and what comes back.

    Args:
        request_id: the id of the request.
        method: its method.
        session: the session that it belongs to; None in the stateless era.
        courier: carries it.
        box: where the messages go that come back.
        limit: the largest answer, in bytes.

    Attributes:
        task: which runs it.
    """

    __slots__ = ("_box", "_courier", "_limit", "_odd", "_trail", "id", "method", "session", "task")

    def __init__(
        self,
        request_id: RequestId,
        method: str,
        session: Session | None,
        courier: Courier,
        box: Basin,
        *,
        limit: int,
    ) -> None:
        self.id = request_id
        self.method = method
        self.session = session
        self._courier = courier
        self._box = box
        self._limit = limit
        self._trail: Trail | None = None
        self._odd: RemoteProtocolError | None = None
        self.task: asyncio.Task[None]

    @property
    def opens(self) -> bool:
        """Whether it opens a session."""
        return self.method == "initialize"

    async def run(self, data: bytes, fields: Mapping[str, str]) -> None:
        """Post the request, and hand on what comes back until the answer was handed on.

        Args:
            data: the request.
            fields: the headers to send, dressed by the courier.

        Raises:
            RequestFailed: the answer cannot come any more.
            SessionLost: … because the server has forgotten the session.
        """
        cut = None
        try:
            async with self._courier.send("POST", fields, data, dressed=True) as response:
                if response.headers.get("content-type") == JSON or not is_events(response):
                    await self._whole(response)
                    return
                self._admit(response)
                self._trail = Trail(self._hear, self._limit)
                await self._trail.follow(response.chunks())
        except RequestFailed as error:
            if self._trail is None:
                raise
            cut = error
        await self._resume(self._trail, cut)

    # ----------------------------------------------------------------- one body

    async def _whole(self, response: Response) -> None:
        """Hand on the answer from a response that is not a stream."""
        if response.status in _UNAUTHORIZED or not is_json(response):
            raise await self._refused(response)
        body = await response.read(self._limit)
        # Nearly all are what was asked for, and then nothing else has to be looked at.
        head = b'{"jsonrpc":"2.0","id":%a,' % self.id
        if response.status == _OK and body.startswith(head) and self._box.settle(body):
            return
        try:
            data, message, answer = self._find(body, alone=True)
        except RemoteProtocolError as error:
            raise await self._refused(response, body, error.message) from error
        if answer is None or (self._forgotten(response) and not self._unknown_method(answer)):
            raise await self._refused(response, body, "it answers something else")
        if self._later(response, answer):
            raise await refusal(response, body)
        if self._outdated(answer):
            assert self.session is not None
            raise self.session.gone(self._box.peer, sent=False)
        if self.opens:
            self._admit(response)
            self._learn(answer)
        self._box.hand(data, message)

    def _forgotten(self, response: Response) -> bool:
        return self.session is not None and not self.opens and self.session.lost(response)

    def _later(self, response: Response, answer: Reply | Failure) -> bool:
        """Whether the server is only busy, and says when it is not; what else it says is for people."""
        if response.status not in _BUSY or "retry-after" not in response.headers:
            return False
        return isinstance(answer, Failure) and answer.code != RateLimited.code

    def _outdated(self, answer: Reply | Failure) -> bool:
        """Whether the server refuses the revision that it has agreed to: it is another one now (VER-7)."""
        if self.session is None or self.opens:
            return False
        return isinstance(answer, Failure) and answer.code == UnsupportedRevision.code

    def _unknown_method(self, answer: Reply | Failure) -> bool:
        """Whether an error says for sure that it is about the method, and not about the session."""
        return isinstance(answer, Failure) and (answer.code, answer.id) == (MethodNotFound.code, self.id)

    async def _refused(
        self, response: Response, body: bytes | None = None, why: str | None = None
    ) -> RequestFailed | SessionLost:
        """The error for a response that is no answer."""
        if self._forgotten(response):
            assert self.session is not None
            return self.session.gone(self._box.peer, sent=False)
        if why is not None and is_success(response):
            return RequestFailed(
                f"the server did not answer {self.method} with JSON-RPC: {why}", status=response.status
            )
        return await refusal(response, body)

    # ----------------------------------------------------------------- a stream

    async def _hear(self, data: bytes) -> None:
        """Hand on one message of the stream."""
        assert self._trail is not None
        message = answer = None
        try:
            data, message, answer = self._find(data, alone=False)
        except RemoteProtocolError as error:
            self._odd = error  # whoever reads the mailbox counts it
        if answer is not None:
            self._learn(answer)
            self._trail.over = True
        await self._box.take(data, message)

    async def _resume(self, trail: Trail, cut: RequestFailed | None) -> None:
        """Come back for the answer, as often as makes sense (HTTPL-4, HTTPL-20)."""
        session = self.session
        while not trail.over:
            if session is None or not trail.last or trail.lost or (cut is not None and is_final(cut)):
                odd = cut or self._odd
                why = "" if odd is None else f": {odd.message}"
                raise RequestFailed(
                    f"the stream ended before the answer to {self.method} came{why}", peer=self._box.peer
                )
            await trail.pause()
            try:
                await trail.reopen(self._courier, session.fields)
                cut = None
            except RequestFailed as error:
                if session.lost(error):
                    raise session.gone(self._box.peer, sent=True) from error
                cut = error

    # ----------------------------------------------------------------- the answer

    def _find(self, data: bytes, *, alone: bool) -> tuple[bytes, Message | None, Reply | Failure | None]:
        """The message as it is handed on, what it was read as, and the answer if it is or holds that.

        An error that has lost the id gets it back: a server that could not read the request does not know
        it, but the response tells. If nothing else came, an error is the answer, whatever its id.

        Raises:
            RemoteProtocolError: it is no message.
        """
        # Read as strictly as by whoever gets it: an answer that is dropped there would be waited for in vain.
        if jsonrpc.is_batch(data) and self._batches:
            return data, None, self._among(jsonrpc.decode_batch(data))
        message = jsonrpc.decode(data)
        if isinstance(message, Failure) and message.id != self.id and (alone or message.id is None):
            error = RPCError(message.message, message.data, code=message.code)
            return jsonrpc.encode_failure(self.id, error), None, message
        return data, message, self._among((message,))

    @property
    def _batches(self) -> bool:
        """Whether the revision of the session has batches."""
        revision = (
            None if self.session is None else REVISIONS.get(self.session.fields.get(headers.VERSION, ""))
        )
        return revision is not None and revision.batches

    def _among(self, messages: Iterable[Message | RemoteProtocolError]) -> Reply | Failure | None:
        for message in messages:
            if isinstance(message, Reply | Failure) and message.id == self.id:
                return message
        return None

    def _admit(self, response: Response) -> None:
        """Note the id of a session that was opened.

        Raises:
            RequestFailed: no header can carry it.
        """
        name = response.headers.get(headers.SESSION)
        if name is None or not self.opens or self.session is None:
            return
        if not headers.session_id_ok(name):
            raise RequestFailed("the server names the session in a way that no header can carry")
        self.session.carry(headers.SESSION, name)

    def _learn(self, answer: Reply | Failure) -> None:
        """Note the revision of a session that was opened, before anybody hears of it."""
        if not self.opens or self.session is None or isinstance(answer, Failure):
            return
        try:
            date = _OPENED(answer.result).protocol_version
        except Unfit:
            return  # whoever asked will see it, and go no further
        if date in REVISIONS:
            self.session.carry(headers.VERSION, date)
