"""HTTP+SSE, the transport of 2024-11-05: one event stream for a whole conversation, and POSTs beside it.

The conversation lasts as long as its stream, on the worker that holds that. A POST may reach another worker,
which passes the message on. The meaning of a request is left to the conversation.
"""

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from msgspec.structs import replace

from toolpost.errors import ChannelClosed, MissingScopes
from toolpost.principal import Principal, explain_no_scopes
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import (
    InvalidJSONValue,
    JSONReader,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
)
from toolpost.protocol.methods import INITIALIZE, INITIALIZED
from toolpost.server.http.authorization import build_step_up_headers
from toolpost.server.http.exchange import HttpExchange, HTTPRefusal
from toolpost.server.http.sessions import get_owner, make_unknown_session
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.types.base import UNSET, RequestId, Struct

if TYPE_CHECKING:
    from toolpost.server.http.worker import Worker

MAX_QUEUED_POSTS: Final = 1024  # of one conversation; they wait only if its client does not read
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024  # the same in bytes: a few of the largest
RECEIPT_TIMEOUT: Final = 10.0  # seconds for another worker to take a message
_CREDENTIALS: Final = frozenset({"authorization", "dpop", "proxy-authorization"})  # stay on this worker
_WORKER_NUMBER: Final = re.compile("([0-9a-f]{1,5})-")  # the start of a session id


class SsePost(Struct, array_like=True):
    """A posted message, with the headers and the principal of its request."""

    data: bytes
    headers: Mapping[str, str]
    principal: Principal | None = None
    receipt: str = ""  # names the report for which another worker waits


class _RequestSubject(Struct):
    """The tool, prompt or resource of a request, if it names one."""

    name: str = ""
    uri: str = ""


_REQUEST_SUBJECT: Final = JSONReader(_RequestSubject)
_POST_ENCODER: Final = msgspec.msgpack.Encoder()
_POST_DECODER: Final = msgspec.msgpack.Decoder(SsePost)


class SseServerChannel:
    """The channel of one conversation: POSTs come in, messages go to the event stream."""

    def __init__(self, worker: "Worker", exchange: HttpExchange, session_id: str) -> None:
        self._worker = worker
        self._exchange = exchange
        self.id = session_id
        self.owner = get_owner(exchange.principal)
        self.scopes = frozenset[str]()
        """A request needs these scopes to be one of this conversation."""
        seconds = worker.options.handshake
        why = f"the handshake was not completed within {seconds:g} s"
        self.handshake_timer = worker.loop.call_later(seconds, self.end, why)
        self._posts: deque[SsePost] = deque()
        self._queued_bytes = 0
        self._arrival = asyncio.Event()
        self._ended = ""
        self._requests: dict[RequestId, SsePost] = {}
        self.conversation = ServerConversation(
            worker.handler, self, worker.lifespan, principal=exchange.principal
        )
        self._last_principal: Principal | None = None

    def take(self, post: SsePost) -> None:
        """Take a posted message."""
        self._posts.append(post)
        self._queued_bytes += len(post.data)
        self._arrival.set()
        if len(self._posts) > MAX_QUEUED_POSTS or self._queued_bytes > MAX_QUEUED_BYTES:
            self.end("the client sends messages faster than it reads responses")

    def end(self, why: str) -> None:
        """End the conversation."""
        self._ended = self._ended or why
        self._worker.conversations.pop(self.id, None)
        self._arrival.set()
        self._exchange.abort()

    async def receive(self) -> bytes:
        """Return the next message that was posted."""
        while not self._posts or self._ended:
            if self._ended:
                raise ChannelClosed(self._ended)
            self._arrival.clear()
            await self._arrival.wait()
        post = self._posts.popleft()
        self._queued_bytes -= len(post.data)
        self._last_principal = post.principal
        request = jsonrpc.decode(post.data)
        if isinstance(request, JSONRPCRequest):
            self._requests.setdefault(request.id, post)
        return post.data

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Send a message on the stream."""
        del related
        if self._ended or self._exchange.is_disconnected:
            raise ChannelClosed(self._ended or "the client disconnected")
        await self._exchange.send_event(data, kind="message")

    async def answer(self, data: bytes, request_id: RequestId) -> None:
        """Send the answer to a request, and forget the request unless a running one has reused its id."""
        if request_id not in self.conversation.connection.incoming:
            self._requests.pop(request_id, None)
        await self.send(data)

    async def close(self) -> None:
        """End the channel."""
        self.end("the conversation has ended")

    @property
    def network(self) -> Mapping[str, str | int]:
        """How the client is connected."""
        return self._exchange.network

    def headers_of(self, request_id: RequestId) -> Mapping[str, str]:
        """Return the headers of a request that has no response yet."""
        post = self._requests.get(request_id)
        return {} if post is None else post.headers

    def principal_of(self, request_id: RequestId | None) -> Principal | None:
        """Return the principal of a request; without one, that of the last message."""
        if request_id is None:
            return self._last_principal
        post = self._requests.get(request_id)
        return None if post is None else post.principal

    async def drop(self, request_id: RequestId) -> None:
        """Forget a request that was cancelled."""
        self._requests.pop(request_id, None)


async def serve_sse(worker: "Worker", exchange: HttpExchange) -> None:
    """Hold a conversation over an event stream, until the client disconnects (SSE-2)."""
    session_id = f"{worker.number:x}-{secrets.token_urlsafe(24)}"
    channel = SseServerChannel(worker, exchange, session_id)
    options = worker.options
    public = urlsplit(options.public_url or "").path.rstrip("/")
    prefix = public.removesuffix(options.path.rstrip("/")) or quote(exchange.root)  # a proxy may remove it
    endpoint = f"{prefix}{options.messages}?session_id={session_id}".encode()
    worker.conversations[session_id] = channel
    running = worker.loop.create_task(channel.conversation.run())
    try:
        await exchange.open_stream()
        await exchange.send_event(endpoint, kind="endpoint")
        with exchange:
            await asyncio.wait([running])
        await exchange.end_stream()
    finally:
        channel.handshake_timer.cancel()
        channel.end("the client disconnected")
        await asyncio.wait([running])


async def post_message(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCMessage | None, data: bytes
) -> None:
    """Pass a message to the conversation that an `endpoint` event has named."""
    asked = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1")).get("session_id")
    if not asked:
        raise HTTPRefusal(400, "Missing session_id: POST to the URI from the `endpoint` event.")
    if message is None:
        raise HTTPRefusal(400, "HTTP+SSE does not support batches.")
    if isinstance(message, JSONRPCRequest):
        _check_scopes(worker, message, exchange.principal)
    post = SsePost(data, exchange.headers, exchange.principal)
    if asked[0] in worker.conversations:
        take_post(worker, asked[0], post, message)
    elif not await _send_to_holder(worker, asked[0], post):
        raise make_unknown_session()
    await exchange.respond(202)


async def _send_to_holder(worker: "Worker", session_id: str, post: SsePost) -> bool:
    """Send a message to the worker that holds the stream; return whether its conversation has taken it."""
    match = _WORKER_NUMBER.match(session_id)
    holder, receipt = int(match[1], 16) if match else 0, secrets.token_hex(8)
    headers = {name: value for name, value in post.headers.items() if name not in _CREDENTIALS}
    data = _POST_ENCODER.encode(replace(post, headers=headers, receipt=receipt))
    report: asyncio.Queue[bytes] = asyncio.Queue()
    worker.receipts[receipt] = report.put_nowait
    try:
        if holder in {0, worker.number} or not await worker.send(holder, "post", session_id, data):
            return False
        async with asyncio.timeout(RECEIPT_TIMEOUT):
            return bool(await report.get())
    except TimeoutError as error:
        raise HTTPRefusal(503, "The worker that holds the event stream does not respond.") from error
    finally:
        del worker.receipts[receipt]


def receive_post(worker: "Worker", sender: int, session_id: str, data: bytes) -> None:
    """Take a message that has reached another worker, and report whether the conversation is here."""
    post, taken = _POST_DECODER.decode(data), b"taken"
    try:
        take_post(worker, session_id, post, jsonrpc.decode(post.data))
    except HTTPRefusal:
        taken = b""
    worker.run_in_background(worker.send(sender, "posted", post.receipt, taken))


def take_post(worker: "Worker", session_id: str, post: SsePost, message: JSONRPCMessage) -> None:
    """Give a message to its conversation. Raises HTTPRefusal if that is over, or of another principal."""
    channel, principal = worker.conversations.get(session_id), post.principal
    scopes = frozenset[str]() if principal is None else principal.scopes
    if channel is None or channel.owner != get_owner(principal) or not channel.scopes <= scopes:
        raise make_unknown_session()
    if isinstance(message, JSONRPCRequest) and message.method == INITIALIZE and worker.handler.is_per_client:
        channel.scopes = scopes
    if isinstance(message, JSONRPCNotification) and message.method == INITIALIZED:
        channel.handshake_timer.cancel()
    channel.take(post)


def _check_scopes(worker: "Worker", message: JSONRPCRequest, principal: Principal | None) -> None:
    """Refuse a request that lacks scopes now: its answer on the event stream could not carry a status."""
    if not worker.needs_scopes or message.params is UNSET:
        return
    try:
        about = _REQUEST_SUBJECT(message.params)
    except InvalidJSONValue:
        return  # the server will report the error
    needed = worker.handler.get_required_scopes(message.method, about.name or about.uri)
    if principal is not None and not needed <= principal.scopes:
        error = MissingScopes.for_scopes(needed, explain_no_scopes(principal))
        challenge = build_step_up_headers(worker.authenticator, needed, principal, sse=True)
        raise HTTPRefusal(403, error.message, challenge)
