"""HTTP+SSE, the transport of 2024-11-05: one event stream for a whole conversation, and POSTs beside it.

The conversation lasts as long as its stream, on the worker that holds that. A POST may reach another worker,
which passes the message on. What a request means is left to the conversation.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote

import msgspec

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
from toolpost.server.http.request import HttpExchange
from toolpost.server.http.security import HTTPRefusal
from toolpost.server.http.sessions import get_owner, make_unknown_session
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.types.base import UNSET, RequestId, Struct

if TYPE_CHECKING:
    from toolpost.server.http.worker import Worker

logger: Final = logging.getLogger("toolpost.http")

MAX_QUEUED_POSTS: Final = 1024
"""Posts that may wait for a conversation; it takes them at once, unless its client does not read."""

MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
"""The same in bytes: a few of the largest."""


MAX_NUMBER_DIGITS: Final = 5
"""Digits of the number of a worker in a session id."""

_HEX_DIGITS: Final = frozenset("0123456789abcdef")


class SsePost(Struct, array_like=True):
    """A posted message, with what its request has to know."""

    data: bytes
    headers: Mapping[str, str]
    principal: Principal | None = None


class _RequestSubject(Struct):
    """What a request is about, if it is about anything."""

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
        self.is_ready = False
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
            self.end("its client says more than it hears")

    def end(self, why: str) -> None:
        """Let the conversation end."""
        self._ended = self._ended or why
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
            raise ChannelClosed(self._ended or "the client has gone")
        await self._exchange.send_event(data, kind="message")

    async def answer(self, data: bytes, request_id: RequestId) -> None:
        """Send the answer to a request, and forget the request."""
        self._requests.pop(request_id, None)
        await self.send(data)

    async def close(self) -> None:
        """End the channel."""
        self.end("the conversation is over")

    def headers_of(self, request_id: RequestId) -> Mapping[str, str]:
        """Return the headers that a request came with, as long as it waits for its answer."""
        post = self._requests.get(request_id)
        return {} if post is None else post.headers

    def principal_of(self, request_id: RequestId | None) -> Principal | None:
        """Return the principal of a request; without one, that of the last message."""
        if request_id is None:
            return self._last_principal
        post = self._requests.get(request_id)
        return None if post is None else post.principal

    async def interrupt(self, request_id: RequestId) -> None:
        """Do nothing: this transport has no stream to come back to."""

    async def drop(self, request_id: RequestId) -> None:
        """Forget a request that was cancelled."""
        self._requests.pop(request_id, None)


async def serve_sse(worker: "Worker", exchange: HttpExchange) -> None:
    """Hold a conversation over an event stream, until the client goes (SSE-2)."""
    session_id = f"{worker.number:x}-{secrets.token_urlsafe(24)}"
    channel = SseServerChannel(worker, exchange, session_id)
    endpoint = f"{quote(exchange.root)}{worker.options.messages}?session_id={session_id}".encode()
    worker.conversations[session_id] = channel
    seconds = worker.options.handshake
    handshake = worker.loop.call_later(seconds, _end_unless_ready, channel, seconds)
    running = worker.loop.create_task(channel.conversation.run())
    try:
        await exchange.open_stream()
        await exchange.send_event(endpoint, kind="endpoint")
        await exchange.run_while_connected(_wait(running))
        await exchange.end_stream()
    finally:
        handshake.cancel()
        del worker.conversations[session_id]
        channel.end("its client has gone")
        await asyncio.wait([running])


def _end_unless_ready(channel: SseServerChannel, seconds: float) -> None:
    if not channel.is_ready:
        channel.end(f"the handshake was not completed within {seconds:g} s")


async def _wait(task: "asyncio.Task[None]") -> None:
    await asyncio.wait([task])


async def post_message(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCMessage | None, data: bytes
) -> None:
    """Pass a message to the conversation that an `endpoint` event has named."""
    asked = parse_qs(exchange.query.decode("latin-1")).get("session_id")
    if not asked:
        raise HTTPRefusal(400, "The session_id is missing: post to the URI that the `endpoint` event names.")
    if message is None:
        raise HTTPRefusal(400, "A batch is not part of HTTP+SSE.")
    if isinstance(message, JSONRPCRequest):
        _check_scopes(worker, message, exchange.principal)
    post = SsePost(data, exchange.headers, exchange.principal)
    channel = worker.conversations.get(asked[0])
    if channel is not None:
        take_post(worker, channel, post, message)
    elif not await _send_to_holder(worker, asked[0], post):
        raise make_unknown_session()
    await exchange.send_empty(202)


async def _send_to_holder(worker: "Worker", session_id: str, post: SsePost) -> bool:
    """Send a message to the worker that holds the stream; return whether there is one."""
    number = session_id.partition("-")[0]
    is_number = 0 < len(number) <= MAX_NUMBER_DIGITS and set(number) <= _HEX_DIGITS
    holder = int(number, 16) if is_number else 0
    return holder not in {0, worker.number} and await worker.send(
        holder, "post", session_id, _POST_ENCODER.encode(post)
    )


def receive_post(worker: "Worker", session_id: str, data: bytes) -> None:
    """Take a message that has reached another worker."""
    channel = worker.conversations.get(session_id)
    if channel is None:
        return
    post = _POST_DECODER.decode(data)
    try:
        take_post(worker, channel, post, jsonrpc.decode(post.data))
    except HTTPRefusal as refusal:
        logger.debug("dropped: a message to a conversation of another client: %s", refusal)


def take_post(worker: "Worker", channel: SseServerChannel, post: SsePost, message: JSONRPCMessage) -> None:
    """Give a message to its conversation. Raises HTTPRefusal if it belongs to another principal."""
    principal = post.principal
    scopes = frozenset[str]() if principal is None else principal.scopes
    if channel.owner != get_owner(principal) or not channel.scopes <= scopes:
        raise make_unknown_session()
    if isinstance(message, JSONRPCRequest) and message.method == INITIALIZE and worker.handler.is_per_client:
        channel.scopes = scopes
    if isinstance(message, JSONRPCNotification) and message.method == INITIALIZED:
        channel.is_ready = True
    channel.take(post)


def _check_scopes(worker: "Worker", message: JSONRPCRequest, principal: Principal | None) -> None:
    """Refuse a request that lacks scopes: it is answered on another stream, which has no status."""
    if not worker.needs_scopes or message.params is UNSET:
        return
    try:
        about = _REQUEST_SUBJECT(message.params)
    except InvalidJSONValue:
        return  # the server will report what is wrong with it
    needed = worker.handler.get_required_scopes(message.method, about.name or about.uri)
    if principal is not None and not needed <= principal.scopes:
        raise HTTPRefusal(
            403,
            MissingScopes.for_scopes(needed, explain_no_scopes(principal)).message,
            build_step_up_headers(worker.authenticator, needed, principal, sse=True),
        )
