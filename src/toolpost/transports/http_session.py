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
from toolpost.protocol.events import Incoming
from toolpost.protocol.jsonrpc import Reader, Request
from toolpost.stores.promise import Store
from toolpost.transports.http_kept import KEPT, Kept
from toolpost.transports.http_load import Load
from toolpost.types.base import UNSET, Raw, RequestId, Struct, Unset

__all__ = [
    "GENERAL",
    "INTERRUPTED",
    "KEPT",
    "LAST",
    "OVER",
    "Begun",
    "Lease",
    "Outline",
    "Post",
    "Session",
    "Shortcut",
    "Talk",
    "forgotten",
    "heard",
    "key_of",
    "lease_of",
    "log_of",
    "outline",
    "reader_of",
]

logger: Final = logging.getLogger("toolpost.http")

GENERAL: Final = "0"
"""The stream of what belongs to no request."""

INTERRUPTED: Final = b""
"""In a log: who reads the stream is to come back later."""

OVER: Final = b"-"
"""In a log: nothing more will come on this stream, not even an answer."""

LAST: Final = b"."
"""In a log, in front of a message: nothing comes behind it. An entry that says so could push it out."""

UNREAD: Final = 1024 * 1024
"""Bytes that may wait on the one stream of HTTP+SSE: less than a log holds, for answers are among them."""

WAITING: Final = 1024
"""Posts that may wait for a conversation; it takes them at once, unless its client does not listen."""

WAITING_SIZE: Final = 16 * 1024 * 1024
"""The same in bytes: a few of the largest."""

ANSWERED: Final = 64
"""How many streams with their answers are dropped when a session ends; older ones go by themselves."""


class Outline(Struct):
    """As much of a message of ours as tells what kind it is."""

    id: RequestId | Unset | None = UNSET
    method: str | Unset = UNSET
    error: Raw | Unset = UNSET

    @property
    def answers(self) -> bool:
        """Whether it is an answer."""
        return self.method is UNSET

    @property
    def asks(self) -> bool:
        """Whether it is a request, which wants an answer."""
        return self.method is not UNSET and self.id is not UNSET


outline: Final = Reader(Outline)


class Lease(Struct):
    """Who reads a general stream, if anybody does, and the last event that was handed out."""

    holder: str
    last: str | None = None


lease_of: Final = Reader(Lease)


class Post(Struct):
    """What a client has posted.

    Args:
        data: a message, or a batch.
        stream: where it is answered.
        ids: those of the requests in it.
        headers: what it came with.
        ready: whether it completes the handshake.
        principal: on whose behalf it speaks: that of the session, with what its own token allows.
    """

    data: Raw
    stream: str
    ids: tuple[RequestId, ...]
    headers: Mapping[str, str]
    ready: bool = False
    principal: Principal | None = None


Shortcut: TypeAlias = asyncio.Future[bytes | None]
"""Brings the answer to a request past its stream: nothing if there is none, None if it goes by its stream."""


class _Call(Struct, eq=False):
    """A request that waits for its answer."""

    stream: str
    headers: Mapping[str, str]
    principal: Principal | None
    shortcut: Shortcut | None = None


class Talk(Protocol):
    """What is left of a conversation that sleeps."""

    def end(self) -> None:
        """Hear no more: the session has ended."""
        ...


class Taker(Protocol):
    """A conversation, as far as it takes requests past the queue."""

    def is_free(self) -> bool:
        """Whether the next request may be taken now."""
        ...

    def begin(self, request: Request) -> "bytes | Begun":
        """The answer to a request that is the next, if it is there at once; else what `go_on` is given."""
        ...

    def go_on(self, incoming: Incoming, started: Any, /) -> None:
        """Serve a request that was begun, with nothing in between."""
        ...

    def settle_in(self) -> None:
        """Note that nobody else holds on to it yet."""
        ...

    def rest(self, key: str, wake: Callable[[str], object], /) -> Talk | None:
        """What is left of it, if it may sleep; `wake` is called with the key when it has something to say."""
        ...


Begun: TypeAlias = tuple[Incoming, Any]
"""A request that is taken, and as far as it has started, which its conversation knows."""


def key_of(session_id: str) -> str:
    """The key of a session's record."""
    return f"session/{session_id}"


def reader_of(session_id: str) -> str:
    """The key of the record that somebody reads a session's general stream, and how far."""
    return f"reader/{session_id}"


def log_of(session_id: str, stream: str) -> str:
    """The log of one stream of a session."""
    return f"session/{session_id}/stream/{stream}"


class Session:
    """The conversation's end of a session: a channel.

    Args:
        session_id: its name, known to the client.
        owner: the principal whose it is, by their key; empty if nobody knows.
        store: where its streams are.
        kept: those that are over.
        load: how much is under way on this worker.
        single: whether all that it says goes to the general stream (HTTP+SSE).
        json_only: whether only the answer itself reaches the client of a request.
    """

    def __init__(
        self,
        session_id: str,
        owner: str,
        store: Store,
        kept: Kept,
        load: Load,
        *,
        single: bool = False,
        json_only: bool = False,
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.opened = self.used = time.monotonic()
        self.ready = self.asleep = False
        self.rested: Talk | None = None
        self.awaited = 0
        self._store = store
        self._kept = kept
        self._load = load
        self._peer = owner or session_id  # by whom its calls are counted: a principal may have other sessions
        self._calls = self._asked = 0
        self._single = single
        self._json_only = json_only
        # An empty deque takes 0.7 KiB, and so does an event: an idle session has neither.
        self._posts: list[Post] = []
        self._news: asyncio.Future[None] | None = None
        self._ended = ""
        self._turn = asyncio.Lock()
        self._unread = self._waiting = self._saying = 0
        self._room: asyncio.Event | None = None
        self.answered: list[str] = []
        self._served: dict[RequestId, _Call] = {}
        self._said: Counter[str] = Counter()
        self._sender: Principal | None = None
        self._taker: Taker | None = None
        self._resting = False  # whether the conversation waits for what comes next

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer, or to be served at all."""
        return bool(self._served) or self._asked > 0

    @property
    def owing(self) -> bool:
        """Whether it is busy, or its client has not taken all that was said to it (HTTP+SSE)."""
        return self.busy or self._saying > 0 or self._unread > 0

    @property
    def ended(self) -> bool:
        """Whether it takes nothing more."""
        return self._ended != ""

    def deliver(self, post: Post) -> None:
        """Take what was posted."""
        self.used = time.monotonic()
        self.ready = self.ready or post.ready
        self._posts.append(post)
        self._asked += len(post.ids)
        self._wait(memoryview(post.data).nbytes)
        self._wake()
        if len(self._posts) > WAITING or self._waiting > WAITING_SIZE:
            self.end("its client says more than it hears")

    def begin(self, request: Request, now: float) -> bytes | Begun | None:
        """The answer to a request, if nothing is before it and it is there at once.

        None if it has to be delivered; else as far as it is begun, to go on with nothing in between.
        """
        taker = self._taker
        if taker is None or not self._resting or self._posts or self._ended or not taker.is_free():
            return None
        if request.id in self._served or (self._load.calls and not self._load.has_room(self._peer)):
            return None  # it will be refused when its turn comes
        self.used = now
        return taker.begin(request)

    def go_on(self, begun: Begun, post: Post) -> Shortcut:
        """What will bring the answer to a request that was begun.

        As good as `deliver`, in a quarter of the time: what is answered without a word before has no need of
        a stream to come back to.
        """
        taker, (incoming, started) = self._taker, begun
        assert taker is not None, "it has begun it"
        self._load.add(self._peer)
        self._calls += 1
        shortcut: Shortcut = asyncio.get_running_loop().create_future()
        self._served[incoming.id] = _Call(post.stream, post.headers, post.principal, shortcut)
        self._sender = post.principal
        taker.go_on(incoming, started)
        return shortcut

    def serve(self, taker: Taker | None) -> None:
        """Let requests be served at once while the conversation waits for them; None if it has ended."""
        if not self._single:
            self._taker = taker
            if taker is not None:
                taker.settle_in()

    def rest(self, wake: Callable[[str], object]) -> Talk | None:
        """What is left of the conversation, which ends, if the session may sleep, which does not.

        Args:
            wake: called with its id when it has something to say.
        """
        taker = self._taker
        if taker is None or not self.ready or not self._resting or self._posts or self._ended:
            return None
        if self.owing or self.awaited:
            return None
        talk = taker.rest(self.id, wake)
        if talk is None:
            return None
        self.asleep = True
        self._ended = "it sleeps"
        self._wake()
        return talk

    def wake(self, talk: Talk, answered: Iterable[str], used: float) -> None:
        """Be a session that has slept, with this conversation and these streams, and was last used then."""
        self.ready = True
        self.rested = talk
        self.used = used
        self.answered = list(answered)

    @property
    def waiting(self) -> int:
        """How many bytes wait for the conversation, unless it ends."""
        return 0 if self._ended else self._waiting

    def _wait(self, size: int) -> None:
        self._waiting += size
        if not self._ended:
            self._load.waiting += size

    def end(self, why: str) -> None:
        """Let the conversation end, behind what was posted before."""
        self._load.waiting -= self.waiting
        self._ended = self._ended or why
        self._wake()
        if self._room is not None:
            self._room.set()

    def _wake(self) -> None:
        """Let the conversation look what there is."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # ----------------------------------------------------------------- the channel

    async def receive(self) -> bytes:
        """The next message that was posted, or the next batch."""
        while True:
            while not self._posts:
                if self._ended:
                    raise ChannelClosed(self._ended)
                self._news = asyncio.get_running_loop().create_future()
                self._resting = True
                try:
                    await self._news
                finally:
                    self._resting = False
            post = self._posts.pop(0)  # they are few: the conversation takes them at once
            self._wait(-memoryview(post.data).nbytes)
            admitted = await self._admit(post)
            self._asked -= len(post.ids)
            if admitted:
                self._sender = post.principal
                return bytes(post.data)

    async def _admit(self, post: Post) -> bool:
        """Whether the requests in a post can be served; remember where each is answered."""
        stream = GENERAL if self._single else post.stream
        error = self._count(post.ids) if post.ids else None
        if error is not None:
            for request_id in post.ids:
                await self._say(stream, jsonrpc.encode_failure(request_id, error))
            if not self._single:
                self._note(stream)
                await self._close(stream, OVER)
            return False
        for request_id in post.ids:
            self._served[request_id] = _Call(stream, post.headers, post.principal)
        return True

    def _count(self, ids: tuple[RequestId, ...]) -> RPCError | None:
        """Count the requests of a post; what is wrong if they have not ids of their own, or are too many."""
        times = Counter(ids)
        taken = next((each for each in times if each in self._served or times[each] > 1), None)
        if taken is not None:
            shown = jsonrpc.shorten(repr(taken))
            return InvalidRequest(f"Invalid request: id {shown} is in use by another request")
        refused = self._load.begin(self._peer, len(ids))
        if refused is not None:
            return InternalError(refused)
        self._calls += len(ids)
        return None

    def headers_of(self, request_id: RequestId) -> Mapping[str, str]:
        """The headers that a request came with, as long as it waits for its answer."""
        call = self._served.get(request_id)
        return {} if call is None else call.headers

    def principal_of(self, request_id: RequestId | None) -> Principal | None:
        """On whose behalf a request speaks, as long as it waits for its answer; None: what came last."""
        if request_id is None:
            return self._sender
        call = self._served.get(request_id)
        return None if call is None else call.principal

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Say something on the stream of the request that it belongs to.

        Raises:
            LocalProtocolError: it is a question, and nobody could hear it.
        """
        if self._ended:
            raise ChannelClosed(self._ended)
        said = outline(data)
        if said.answers and related is not None:
            await self.answer(data, related)
            return
        call = None if related is None else self._served.get(related)
        if call is None and related is not None and said.method != "notifications/cancelled":
            return  # nobody waits for it any more (HTTPL-14)
        # A question outlives the request that it was asked for, until the client hears.
        stream = GENERAL if call is None else call.stream
        if said.asks:
            await self._check_heard(stream)
        elif self._json_only and related is not None and not self._single:
            logger.debug("not sent, because only answers are: %s", said.method)
            return
        if call is not None:
            _by_stream(call)
        await self._say(stream, data)

    async def answer(self, data: bytes, request_id: RequestId) -> None:
        """Answer a request, if anybody still waits for it."""
        if self._ended:
            raise ChannelClosed(self._ended)
        if self.settle(data, request_id):
            return
        call = self._served.get(request_id)
        if call is None:
            return  # nobody waits for it any more (HTTPL-14)
        if self._retire(request_id, call):
            await self._close(call.stream, LAST + data)
        else:
            await self._say(call.stream, data)

    def settle(self, data: bytes, request_id: RequestId) -> bool:
        """Whether a request was answered past its stream; nothing, if it has no answer."""
        call = self._served.get(request_id)
        if call is None or call.shortcut is None:
            return False
        self._let_go(request_id)
        if not call.shortcut.done():  # whoever waits may have gone, and nobody could come back
            call.shortcut.set_result(data)
        return True

    async def _say(self, stream: str, data: bytes) -> None:
        self._saying += 1
        try:
            async with self._turn:  # who speaks fast lets others read: a log does not hold everything
                if self._single:
                    await self._wait_for_room(len(data))
                try:
                    await self._append(stream, data)
                except BaseException:  # also who is cancelled: nobody will read it
                    self.taken(len(data) if self._single else 0)
                    raise
                await asyncio.sleep(0)
        finally:
            self._saying -= 1

    async def _wait_for_room(self, size: int) -> None:
        while self._unread > UNREAD and not self._ended:
            self._room = asyncio.Event()
            await self._room.wait()
        if self._ended:
            raise ChannelClosed(self._ended)
        self._unread += size

    def taken(self, size: int) -> None:
        """The client of HTTP+SSE has taken so many bytes."""
        self._unread -= size
        if self._room is not None:
            self._room.set()

    async def _check_heard(self, stream: str) -> None:
        """Return if a question can reach the client."""
        if stream != GENERAL and self._json_only:
            raise LocalProtocolError(
                "the client cannot be asked: the server answers with plain JSON",
                hint="serve with json_only=False",
            )
        if stream == GENERAL and not self._single and not await heard(self.id, self._store):
            raise LocalProtocolError(
                "the client cannot be asked: it does not listen, and no request of its own is being served",
                hint="ask while you serve a request, through its own context",
            )

    async def drop(self, request_id: RequestId) -> None:
        """Nothing more will come for a request: nobody wants it any more."""
        call = self._served.get(request_id)
        if call is None or self.settle(b"", request_id):
            return
        if self._retire(request_id, call):
            await self._close(call.stream, OVER)

    def _let_go(self, request_id: RequestId) -> None:
        del self._served[request_id]
        self._calls -= 1
        self._load.end(self._peer)

    def _retire(self, request_id: RequestId, call: _Call) -> bool:
        """Whether the stream of a request is over with it."""
        self._let_go(request_id)
        stream = call.stream
        if stream == GENERAL or any(other.stream == stream for other in self._served.values()):
            return False
        self._note(stream)
        return True

    def _note(self, stream: str) -> None:
        """Remember a stream that is over, to drop it with the session."""
        self.answered.append(stream)
        del self.answered[:-ANSWERED]

    async def forget(self, stream: str) -> None:
        """Drop a stream to which nobody can come back."""
        if stream in self.answered:
            self.answered.remove(stream)
        await self._kept.drop(log_of(self.id, stream))

    async def interrupt(self, request_id: RequestId) -> None:
        """Let the client of a request come back for the rest of its stream, instead of holding it open."""
        call = self._served.get(request_id)
        if call is not None and call.stream != GENERAL and not self._json_only:
            _by_stream(call)
            await self._append(call.stream, INTERRUPTED)

    async def close(self) -> None:
        """Forget the session and its streams, unless it sleeps."""
        if self.asleep:
            return
        self.end("the session has ended")
        for request_id in tuple(self._served):
            self.settle(b"", request_id)
        if self._calls:
            self._load.end(self._peer, self._calls)
            self._calls = 0
        posted = (post.stream for post in self._posts if post.stream)
        served = (call.stream for call in self._served.values())
        await forgotten(self.id, {*self.answered, *served, *posted}, self._store, self._kept)

    # ----------------------------------------------------------------- its streams

    async def keep(self) -> None:
        """Keep the streams of requests that are still being served."""
        for stream in {call.stream for call in self._served.values() if call.shortcut is None}:
            await self._store.logs.touch(log_of(self.id, stream), KEPT)

    async def _append(self, stream: str, data: bytes) -> None:
        self._said[stream] += len(data)
        await self._store.logs.append(log_of(self.id, stream), data, KEPT)

    async def _close(self, stream: str, data: bytes) -> None:
        """Say the last on a stream, which a client may still come back to."""
        # First, since who reads it may forget it at once.
        await self._kept.add(log_of(self.id, stream), self._said.pop(stream, 0) + len(data))
        await self._store.logs.append(log_of(self.id, stream), data, KEPT)


async def heard(session_id: str, store: Store) -> bool:
    """Whether somebody reads the general stream of a session."""
    found = await store.records.get(reader_of(session_id))
    return found is not None and lease_of(found).holder != ""


async def forgotten(session_id: str, streams: Iterable[str], store: Store, kept: Kept) -> None:
    """Forget a session and its streams."""
    await store.records.delete(key_of(session_id))
    await store.records.delete(reader_of(session_id))
    for stream in {GENERAL, *streams}:
        await kept.drop(log_of(session_id, stream))


def _by_stream(call: _Call) -> None:
    """Let whoever waits for an answer read the stream: something is said before."""
    shortcut, call.shortcut = call.shortcut, None
    if shortcut is not None and not shortcut.done():
        shortcut.set_result(None)
