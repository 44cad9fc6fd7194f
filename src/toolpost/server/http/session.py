"""A session over HTTP, seen from the conversation: what was posted comes in, what is said goes to a stream.

Each POST that brings requests has a stream of its own, and what belongs to no request goes to the general
one, which a client reads with GET. A stream is a log in the store, so that whoever reads it can come back to
it, on any worker. Knows neither HTTP nor servers.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from toolpost.errors import ChannelClosed, InternalError, InvalidRequest, LocalProtocolError, RPCError
from toolpost.principal import Principal
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import JSONReader, JSONRPCRequest
from toolpost.protocol.methods import CANCELLED
from toolpost.server.http.capacity import STREAM_RETENTION, FinishedStreams, RequestCounts
from toolpost.stores.store import Store
from toolpost.types.base import UNSET, Raw, RequestId, Struct, Unset

logger: Final = logging.getLogger("toolpost.http")

GENERAL_STREAM: Final = "0"
"""The stream of what belongs to no request."""

INTERRUPTED_MARK: Final = b""
"""In a log: who reads the stream is to come back later."""

END_MARK: Final = b"-"
"""In a log: nothing more will come on this stream, not even an answer."""

LAST_PREFIX: Final = b"."
"""In a log, in front of a message: nothing comes behind it. An entry that says so could push it out."""

MAX_UNREAD_BYTES: Final = 1024 * 1024
"""Bytes that may wait on the one stream of HTTP+SSE: less than a log holds, for answers are among them."""

MAX_QUEUED_POSTS: Final = 1024
"""Posts that may wait for a conversation; it takes them at once, unless its client does not listen."""

MAX_QUEUED_POST_BYTES: Final = 16 * 1024 * 1024
"""The same in bytes: a few of the largest."""

MAX_ANSWERED_STREAMS: Final = 64
"""How many streams with their answers are dropped when a session ends; older ones go by themselves."""


class MessageOutline(Struct):
    """As much of a message of ours as tells what kind it is."""

    id: RequestId | Unset | None = UNSET
    method: str | Unset = UNSET
    error: Raw | Unset = UNSET

    @property
    def is_answer(self) -> bool:
        """Whether it is an answer."""
        return self.method is UNSET

    @property
    def is_request(self) -> bool:
        """Whether it is a request, which wants an answer."""
        return self.method is not UNSET and self.id is not UNSET


read_outline: Final = JSONReader(MessageOutline)


class ReaderLease(Struct):
    """The reader of a general stream, empty if it has none, and the last event that was sent."""

    holder: str
    last: str | None = None


read_lease: Final = JSONReader(ReaderLease)


class SessionPost(Struct):
    """What a client has posted."""

    data: Raw
    stream: str
    ids: tuple[RequestId, ...]
    headers: Mapping[str, str]
    ready: bool = False
    principal: Principal | None = None


AnswerFuture: TypeAlias = asyncio.Future[bytes | None]
"""Brings the answer to a request past its stream: nothing if there is none, None if it goes by its stream."""


class _PendingCall(Struct, eq=False):
    """A request that waits for its answer."""

    stream: str
    headers: Mapping[str, str]
    principal: Principal | None
    shortcut: AnswerFuture | None = None


class SleepingConversation(Protocol):
    """What is left of a conversation that sleeps."""

    def end(self) -> None:
        """Hear no more: the session has ended."""


class SessionConversation(Protocol):
    """A conversation, as far as it takes requests past the queue."""

    def is_free(self) -> bool:
        """Whether the next request may be taken now."""
        ...

    def begin(self, request: JSONRPCRequest) -> "bytes | StartedRequest":
        """The answer to a request that is the next, if it is there at once; else what `go_on` is given."""
        ...

    def go_on(self, incoming: InboundRequest, started: Any, /) -> None:
        """Serve a request that was begun, with nothing in between."""

    def settle_in(self) -> None:
        """Note that nothing else refers to it yet."""

    def rest(self, key: str, wake: Callable[[str], object], /) -> SleepingConversation | None:
        """What is left of it, if it may sleep; `wake` is called with the key when it has something to say."""
        ...


StartedRequest: TypeAlias = tuple[InboundRequest, Any]
"""A request that is taken, and as far as it has started, which its conversation knows."""


def session_key(session_id: str) -> str:
    """The key of a session's record."""
    return f"session/{session_id}"


def reader_key(session_id: str) -> str:
    """Return the key of the lease of a session's general stream."""
    return f"reader/{session_id}"


def stream_log(session_id: str, stream: str) -> str:
    """The log of one stream of a session."""
    return f"session/{session_id}/stream/{stream}"


class HttpSession:
    """The conversation's end of a session: a channel."""

    def __init__(
        self,
        session_id: str,
        owner: str,
        store: Store,
        kept: FinishedStreams,
        load: RequestCounts,
        *,
        single: bool = False,
        json_only: bool = False,
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.opened_at = self.used_at = time.monotonic()
        self.ready = self.asleep = False
        self.rested: SleepingConversation | None = None
        self.waiting_clients = 0
        self._store = store
        self._finished_streams = kept
        self._counts = load
        self._peer = owner or session_id  # by whom its calls are counted: a principal may have other sessions
        self._calls = self._queued_requests = 0
        self._single = single
        self._json_only = json_only
        # An idle session has neither a deque nor an event, to save memory.
        self._posts: list[SessionPost] = []
        self._arrival: asyncio.Future[None] | None = None
        self._ended = ""
        self._write_lock = asyncio.Lock()
        self._unread_bytes = self._queued_bytes = self._writers = 0
        self._room_freed: asyncio.Event | None = None
        self.answered_streams: list[str] = []
        self._pending_calls: dict[RequestId, _PendingCall] = {}
        self._stream_sizes: Counter[str] = Counter()
        self._last_principal: Principal | None = None
        self._conversation: SessionConversation | None = None
        self._is_receiving = False  # whether the conversation waits for what comes next

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, or to be served at all."""
        return bool(self._pending_calls) or self._queued_requests > 0

    @property
    def has_pending_output(self) -> bool:
        """Whether it is busy, or its client has not taken all that was said to it (HTTP+SSE)."""
        return self.is_busy or self._writers > 0 or self._unread_bytes > 0

    @property
    def is_ended(self) -> bool:
        """Whether it takes nothing more."""
        return self._ended != ""

    def deliver(self, post: SessionPost) -> None:
        """Take what was posted."""
        self.used_at = time.monotonic()
        self.ready = self.ready or post.ready
        self._posts.append(post)
        self._queued_requests += len(post.ids)
        self._count_queued(memoryview(post.data).nbytes)
        self._notify()
        if len(self._posts) > MAX_QUEUED_POSTS or self._queued_bytes > MAX_QUEUED_POST_BYTES:
            self.end("its client says more than it hears")

    def begin(self, request: JSONRPCRequest, now: float) -> bytes | StartedRequest | None:
        """The answer to a request, if nothing is before it and it is there at once.

        None if it has to be delivered; else as far as it is begun, to go on with nothing in between.
        """
        taker = self._conversation
        if taker is None or not self._is_receiving or self._posts or self._ended or not taker.is_free():
            return None
        if request.id in self._pending_calls or (
            self._counts.calls and not self._counts.has_room(self._peer)
        ):
            return None  # it will be refused when its turn comes
        self.used_at = now
        return taker.begin(request)

    def go_on(self, begun: StartedRequest, post: SessionPost) -> AnswerFuture:
        """Continue a request that was begun, without a stream; return the future of its answer."""
        taker, (incoming, started) = self._conversation, begun
        assert taker is not None, "it has begun it"
        self._counts.add(self._peer)
        self._calls += 1
        shortcut: AnswerFuture = asyncio.get_running_loop().create_future()
        self._pending_calls[incoming.id] = _PendingCall(post.stream, post.headers, post.principal, shortcut)
        self._last_principal = post.principal
        taker.go_on(incoming, started)
        return shortcut

    def serve(self, taker: SessionConversation | None) -> None:
        """Let requests be served at once while the conversation waits for them; None if it has ended."""
        if not self._single:
            self._conversation = taker
            if taker is not None:
                taker.settle_in()

    def rest(self, wake: Callable[[str], object]) -> SleepingConversation | None:
        """What is left of the conversation, which ends, if the session may sleep, which does not."""
        taker = self._conversation
        if taker is None or not self.ready or not self._is_receiving or self._posts or self._ended:
            return None
        if self.has_pending_output or self.waiting_clients:
            return None
        talk = taker.rest(self.id, wake)
        if talk is None:
            return None
        self.asleep = True
        self._ended = "it sleeps"
        self._notify()
        return talk

    def wake(self, talk: SleepingConversation, answered: Iterable[str], used: float) -> None:
        """Be a session that has slept, with this conversation and these streams, and was last used then."""
        self.ready = True
        self.rested = talk
        self.used_at = used
        self.answered_streams = list(answered)

    @property
    def queued_bytes(self) -> int:
        """How many bytes wait for the conversation, unless it ends."""
        return 0 if self._ended else self._queued_bytes

    def _count_queued(self, size: int) -> None:
        self._queued_bytes += size
        if not self._ended:
            self._counts.waiting += size

    def end(self, why: str) -> None:
        """Let the conversation end, behind what was posted before."""
        self._counts.waiting -= self.queued_bytes
        self._ended = self._ended or why
        self._notify()
        if self._room_freed is not None:
            self._room_freed.set()

    def _notify(self) -> None:
        """Let the conversation look what there is."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # ----------------------------------------------------------------- the channel

    async def receive(self) -> bytes:
        """The next message that was posted, or the next batch."""
        while True:
            while not self._posts:
                if self._ended:
                    raise ChannelClosed(self._ended)
                self._arrival = asyncio.get_running_loop().create_future()
                self._is_receiving = True
                try:
                    await self._arrival
                finally:
                    self._is_receiving = False
            post = self._posts.pop(0)  # they are few: the conversation takes them at once
            self._count_queued(-memoryview(post.data).nbytes)
            admitted = await self._admit(post)
            self._queued_requests -= len(post.ids)
            if admitted:
                self._last_principal = post.principal
                return bytes(post.data)

    async def _admit(self, post: SessionPost) -> bool:
        """Whether the requests in a post can be served; remember where each is answered."""
        stream = GENERAL_STREAM if self._single else post.stream
        error = self._count_requests(post.ids) if post.ids else None
        if error is not None:
            for request_id in post.ids:
                await self._write(stream, jsonrpc.encode_error(request_id, error))
            if not self._single:
                self._remember_stream(stream)
                await self._close_stream(stream, END_MARK)
            return False
        for request_id in post.ids:
            self._pending_calls[request_id] = _PendingCall(stream, post.headers, post.principal)
        return True

    def _count_requests(self, ids: tuple[RequestId, ...]) -> RPCError | None:
        """Count the requests of a post; what is wrong if they have not ids of their own, or are too many."""
        times = Counter(ids)
        taken = next((each for each in times if each in self._pending_calls or times[each] > 1), None)
        if taken is not None:
            shown = jsonrpc.shorten(repr(taken))
            return InvalidRequest(f"Invalid request: id {shown} is in use by another request")
        refused = self._counts.begin(self._peer, len(ids))
        if refused is not None:
            return InternalError(refused)
        self._calls += len(ids)
        return None

    def headers_of(self, request_id: RequestId) -> Mapping[str, str]:
        """The headers that a request came with, as long as it waits for its answer."""
        call = self._pending_calls.get(request_id)
        return {} if call is None else call.headers

    def principal_of(self, request_id: RequestId | None) -> Principal | None:
        """On whose behalf a request speaks, as long as it waits for its answer; None: what came last."""
        if request_id is None:
            return self._last_principal
        call = self._pending_calls.get(request_id)
        return None if call is None else call.principal

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Say something on the stream of the request that it belongs to."""
        if self._ended:
            raise ChannelClosed(self._ended)
        said = read_outline(data)
        if said.is_answer and related is not None:
            await self.answer(data, related)
            return
        call = None if related is None else self._pending_calls.get(related)
        if call is None and related is not None and said.method != CANCELLED:
            return  # its request does not wait any more (HTTPL-14)
        # A question outlives the request that it was asked for, until the client hears.
        stream = GENERAL_STREAM if call is None else call.stream
        if said.is_request:
            await self._check_reachable(stream)
        elif self._json_only and related is not None and not self._single:
            logger.debug("not sent, because only answers are: %s", said.method)
            return
        if call is not None:
            _switch_to_stream(call)
        await self._write(stream, data)

    async def answer(self, data: bytes, request_id: RequestId) -> None:
        """Answer a request that still waits for it."""
        if self._ended:
            raise ChannelClosed(self._ended)
        if self.settle(data, request_id):
            return
        call = self._pending_calls.get(request_id)
        if call is None:
            return  # its request does not wait any more (HTTPL-14)
        if self._finish_call(request_id, call):
            await self._close_stream(call.stream, LAST_PREFIX + data)
        else:
            await self._write(call.stream, data)

    def settle(self, data: bytes, request_id: RequestId) -> bool:
        """Whether a request was answered past its stream; nothing, if it has no answer."""
        call = self._pending_calls.get(request_id)
        if call is None or call.shortcut is None:
            return False
        self._release_call(request_id)
        if not call.shortcut.done():  # the client may have gone
            call.shortcut.set_result(data)
        return True

    async def _write(self, stream: str, data: bytes) -> None:
        self._writers += 1
        try:
            async with self._write_lock:  # who speaks fast lets others read: a log does not hold everything
                if self._single:
                    await self._wait_for_room(len(data))
                try:
                    await self._append(stream, data)
                except BaseException:  # also a cancellation: it will not be read
                    self.mark_read(len(data) if self._single else 0)
                    raise
                await asyncio.sleep(0)
        finally:
            self._writers -= 1

    async def _wait_for_room(self, size: int) -> None:
        while self._unread_bytes > MAX_UNREAD_BYTES and not self._ended:
            self._room_freed = asyncio.Event()
            await self._room_freed.wait()
        if self._ended:
            raise ChannelClosed(self._ended)
        self._unread_bytes += size

    def mark_read(self, size: int) -> None:
        """The client of HTTP+SSE has taken so many bytes."""
        self._unread_bytes -= size
        if self._room_freed is not None:
            self._room_freed.set()

    async def _check_reachable(self, stream: str) -> None:
        """Return if a question can reach the client."""
        if stream != GENERAL_STREAM and self._json_only:
            raise LocalProtocolError(
                "the client cannot be asked: the server answers with plain JSON",
                hint="serve with json_only=False",
            )
        if stream == GENERAL_STREAM and not self._single and not await has_reader(self.id, self._store):
            raise LocalProtocolError(
                "the client cannot be asked: it does not listen, and no request of its own is being served",
                hint="ask while you serve a request, through its own context",
            )

    async def drop(self, request_id: RequestId) -> None:
        """End the stream of a request that was cancelled."""
        call = self._pending_calls.get(request_id)
        if call is None or self.settle(b"", request_id):
            return
        if self._finish_call(request_id, call):
            await self._close_stream(call.stream, END_MARK)

    def _release_call(self, request_id: RequestId) -> None:
        del self._pending_calls[request_id]
        self._calls -= 1
        self._counts.end(self._peer)

    def _finish_call(self, request_id: RequestId, call: _PendingCall) -> bool:
        """Whether the stream of a request is over with it."""
        self._release_call(request_id)
        stream = call.stream
        if stream == GENERAL_STREAM or any(other.stream == stream for other in self._pending_calls.values()):
            return False
        self._remember_stream(stream)
        return True

    def _remember_stream(self, stream: str) -> None:
        """Remember a stream that is over, to drop it with the session."""
        self.answered_streams.append(stream)
        del self.answered_streams[:-MAX_ANSWERED_STREAMS]

    async def forget_stream(self, stream: str) -> None:
        """Drop a stream that cannot be resumed."""
        if stream in self.answered_streams:
            self.answered_streams.remove(stream)
        await self._finished_streams.drop(stream_log(self.id, stream))

    async def interrupt(self, request_id: RequestId) -> None:
        """Let the client of a request come back for the rest of its stream, instead of holding it open."""
        call = self._pending_calls.get(request_id)
        if call is not None and call.stream != GENERAL_STREAM and not self._json_only:
            _switch_to_stream(call)
            await self._append(call.stream, INTERRUPTED_MARK)

    async def close(self) -> None:
        """Forget the session and its streams, unless it sleeps."""
        if self.asleep:
            return
        self.end("the session has ended")
        for request_id in tuple(self._pending_calls):
            self.settle(b"", request_id)
        if self._calls:
            self._counts.end(self._peer, self._calls)
            self._calls = 0
        posted = (post.stream for post in self._posts if post.stream)
        served = (call.stream for call in self._pending_calls.values())
        await forget_session(
            self.id, {*self.answered_streams, *served, *posted}, self._store, self._finished_streams
        )

    # ----------------------------------------------------------------- its streams

    async def renew_streams(self) -> None:
        """Keep the streams of requests that are still being served."""
        for stream in {call.stream for call in self._pending_calls.values() if call.shortcut is None}:
            await self._store.logs.touch(stream_log(self.id, stream), STREAM_RETENTION)

    async def _append(self, stream: str, data: bytes) -> None:
        self._stream_sizes[stream] += len(data)
        await self._store.logs.append(stream_log(self.id, stream), data, STREAM_RETENTION)

    async def _close_stream(self, stream: str, data: bytes) -> None:
        """Say the last on a stream, which a client may still come back to."""
        # First, since who reads it may forget it at once.
        await self._finished_streams.add(
            stream_log(self.id, stream), self._stream_sizes.pop(stream, 0) + len(data)
        )
        await self._store.logs.append(stream_log(self.id, stream), data, STREAM_RETENTION)


async def has_reader(session_id: str, store: Store) -> bool:
    """Return whether the general stream of a session has a reader."""
    found = await store.records.get(reader_key(session_id))
    return found is not None and read_lease(found).holder != ""


async def forget_session(
    session_id: str, streams: Iterable[str], store: Store, kept: FinishedStreams
) -> None:
    """Forget a session and its streams."""
    await store.records.delete(session_key(session_id))
    await store.records.delete(reader_key(session_id))
    for stream in {GENERAL_STREAM, *streams}:
        await kept.drop(stream_log(session_id, stream))


def _switch_to_stream(call: _PendingCall) -> None:
    """Send the answer by the stream: another message comes before it."""
    shortcut, call.shortcut = call.shortcut, None
    if shortcut is not None and not shortcut.done():
        shortcut.set_result(None)
