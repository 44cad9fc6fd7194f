"""Drives one connection over one channel: a task for each request that has to wait, none for the others.

Owns the tasks and futures of a conversation and ends them with it. Knows neither tools nor transports: it is
given a `Handler`, which serves, and a `Channel`.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable
from weakref import getweakrefcount

from toolpost.channel import Channel
from toolpost.errors import (
    ChannelClosed,
    InternalError,
    MCPError,
    NotDeclared,
    TransportError,
)
from toolpost.principal import Principal
from toolpost.protocol import inbox
from toolpost.protocol.events import (
    CancelReceived,
    Dropped,
    Event,
    FailureReceived,
    Incoming,
    NoticeReceived,
    Refused,
    ReplyReceived,
)
from toolpost.protocol.jsonrpc import Request
from toolpost.protocol.methods import Row
from toolpost.server.bare import StartedCall, call_bare
from toolpost.server.context import Context
from toolpost.server.delivery import Delivery
from toolpost.server.dispatch import Answer, answer, begin, failed
from toolpost.server.eager import Going, start, start_in
from toolpost.server.notify import Bulletin
from toolpost.server.passage import asked, heard, is_heard, said
from toolpost.server.pending import is_pending
from toolpost.server.questions import Questions
from toolpost.server.rested import Rested
from toolpost.types.base import JSON, RequestId, Result, Wire
from toolpost.types.notices import ElicitationCompleteParams, NoticeParams, ResourceUpdatedParams

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

__all__ = ["Conversation"]

logger: Final = logging.getLogger("toolpost.server")

HANDSHAKE: Final = 30.0
"""Seconds that a server may take to answer `initialize`: a client that waits longer has given up."""

_COUNTED: Final = hasattr(sys, "getrefcount")
"""Whether Python counts who holds on to an object."""

END_PATIENCE: Final = 2.0
"""Seconds that functions which are cancelled get to end, when their client has gone."""


@runtime_checkable
class _Web(Protocol):
    """A channel over HTTP: requests come with headers, and each has a stream of its own."""

    def headers_of(self, request_id: RequestId, /) -> Mapping[str, str]: ...

    def principal_of(self, request_id: RequestId | None, /) -> Principal | None: ...

    async def interrupt(self, request_id: RequestId, /) -> None: ...

    async def drop(self, request_id: RequestId, /) -> None: ...

    def settle(self, data: bytes, request_id: RequestId, /) -> bool: ...


@runtime_checkable
class _Handing(Protocol):
    """A channel that hands over what comes while the conversation waits for it, with nobody to be woken."""

    def serve(self, taker: "Conversation | None", /) -> None: ...


class Conversation:
    """A peer at the other end of a channel, for as long as the channel lives.

    Args:
        handler: what serves.
        channel: the way to the peer.
        lifespan: what the server's lifespan gave.
        principal: on whose behalf the peer speaks, where that is known.
    """

    def __init__(
        self,
        handler: "Handler",
        channel: Channel,
        lifespan: Any = None,
        *,
        principal: Principal | str | None = None,
    ) -> None:
        self.handler = handler
        self.channel = channel
        self.connection = handler.connection()
        self._rested: Rested | None = getattr(channel, "rested", None)
        if self._rested is not None:
            self._rested.connect(self.connection)
        self._holders = (0, 0, 0)
        self._web = channel if isinstance(channel, _Web) else None
        # Over HTTP the endpoint sees to it that this loop is running. In memory another one may be.
        self._start: Callable[[Coroutine[Any, Any, Any]], Any] = (
            start if self._web is None else partial(start_in, asyncio.get_running_loop())
        )
        self._handing = channel if isinstance(channel, _Handing) else None
        self.connection.unordered = self._web is not None
        self.lifespan = lifespan
        self.remote = not getattr(channel, "local", False)
        self._principal = Principal.of(principal)
        self.state: dict[str, Any] = {}
        self.watched: set[str] = set()
        self.visits: dict[str, None] = {}
        self._serving: dict[RequestId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = self._announcing = self._taking = False
        # An empty deque takes 0.7 KiB, and so does a stack: an idle session has none of them.
        self._later: list[tuple[bytes, Principal | None]] = []
        self._news = Bulletin()
        self._questions = Questions(self)
        self._lives: AsyncExitStack | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._delivery = Delivery(channel, self.chore)

    async def run(self) -> None:
        """Serve until the channel closes, then end everything that is still going on."""
        web = self._web
        self.handler.announcer.join(self)
        try:
            if self._handing is not None:
                self._handing.serve(self)
            if self._rested is not None:
                self._rested.end()
                for method, params in self._rested.news:
                    self.hear(method, params)
                self._rested = None
            while True:
                await self._delivery.relieved()
                data = await self.channel.receive()
                sender = None if web is None else web.principal_of(None)
                if not self._opening:
                    await self._take(data, sender)
                else:
                    self._keep(data, sender)
        except ChannelClosed as error:
            logger.debug("conversation over: %s", error)
            await self._delivery.paid()  # a client that says no more may still read
        finally:
            self.handler.announcer.leave(self)
            if self._handing is not None:
                self._handing.serve(None)
            await self._end()

    async def hand_over(self, handler: "Handler") -> None:
        """Let another handler serve all that comes from here on; its lifespan is held open until the end."""
        if self._lives is None:
            self._lives = AsyncExitStack()
        lifespan = await self._lives.enter_async_context(handler.alive())
        self.handler.announcer.leave(self)
        self.handler, self.lifespan = handler, lifespan
        self.connection.extra, self.connection.limit = handler.extra, handler.limit
        handler.announcer.join(self)

    def _keep(self, data: bytes, sender: Principal | None) -> None:
        """Keep what a client says before its handshake is answered."""
        if len(self._later) >= self.connection.limit:
            raise ChannelClosed("the client said too much before its handshake was answered")
        self._later.append((data, sender))

    async def _take(self, data: bytes, sender: Principal | None) -> None:
        if self.connection.peer is None:  # no session, to which what was declared is a promise
            self.connection.party = self.handler.party
        for event in self.connection.receive(data):
            await self.heed(event, sender)

    def serving(self, incoming: Incoming) -> "asyncio.Task[None] | None":
        """The task that serves a request, while it does."""
        return self._serving.get(incoming.id)

    def headers_of(self, incoming: Incoming | None) -> Mapping[str, str]:
        """The HTTP headers that a request came with; there are none on other transports."""
        return {} if incoming is None or self._web is None else self._web.headers_of(incoming.id)

    def principal_of(self, incoming: Incoming | None) -> Principal | None:
        """On whose behalf a request speaks: over HTTP, each has a token of its own."""
        if incoming is not None and self._web is not None:
            return self._web.principal_of(incoming.id) or self._principal
        return self._principal

    async def interrupt(self, incoming: Incoming) -> None:
        """Let the client of a request come back for the rest of its stream, where that is possible."""
        if self._web is not None:
            await self._web.interrupt(incoming.id)

    async def drain(self) -> None:
        """Wait until every request that is being served has its answer."""
        while self._serving:
            await asyncio.wait(self._serving.values())
        await self._delivery.paid()

    async def _end(self) -> None:
        self._questions.end(self.connection.close())
        tasks = self._tasks | self._chores
        for task in tasks:
            task.cancel()
        try:
            try:
                await _ended(tasks)
            except asyncio.CancelledError:
                await _ended(tasks)  # they are on their way out, and nobody else waits for them
                raise
            for uri in self.watched:
                context = Context(self.handler, self, "resources/unsubscribe", lifespan=self.lifespan)
                await self._quietly(self.handler.unsubscribe(uri, context))
        finally:
            await self.channel.close()
            if self._lives is not None:
                await self._lives.aclose()

    # ----------------------------------------------------------------- what arrives

    async def heed(self, event: Event, sender: Principal | None = None) -> None:
        """Do what an event asks for; `sender` is on whose behalf it came, where each message says so."""
        if isinstance(event, Incoming):
            await self._serve(event)
        elif isinstance(event, Refused):
            logger.debug("refused: %s", event.error)
            if event.data is not None:
                await self._delivery.answer(event.data, event.id)
        else:
            self._note(event, sender)
            if isinstance(event, CancelReceived) and self._web is not None:
                await self._web.drop(event.request.id)

    def _note(self, event: Event, sender: Principal | None) -> None:
        """Do what an event asks for that has no answer."""
        if isinstance(event, ReplyReceived | FailureReceived):
            self._questions.settle(event)
        elif isinstance(event, CancelReceived):
            task = self._serving.get(event.request.id)
            logger.debug(
                "%s (id %r) is cancelled: %s", event.request.row.name, event.request.id, event.reason
            )
            if task is not None:
                task.cancel()
        elif isinstance(event, NoticeReceived):
            self._noticed(event, sender)
        elif isinstance(event, Dropped):
            logger.debug("dropped: %s %s", event.why, event.error or "")

    def settle_in(self) -> None:
        """For channels: nobody but you and us holds on to this conversation yet."""
        if _COUNTED:
            self._holders = sys.getrefcount(self), sys.getrefcount(self.state), getweakrefcount(self)

    def rest(self, key: str, wake: Callable[[str], object]) -> Rested | None:
        """For channels: what is left of a conversation that may sleep, and has to end; None if it may not.

        Nothing may be under way, nothing kept that would be lost, and nobody may hold on to it: who has kept
        the context of a notice can speak to the client at any time.

        Args:
            key: by what it is woken.
            wake: called with the key when it has something to say.
        """
        kept = self.state or self.watched or self.visits or self._lives is not None
        busy = self._tasks or self._chores or self._later or self._news or not self.is_free()
        if kept or busy or not _COUNTED:
            return None
        if (sys.getrefcount(self), sys.getrefcount(self.state), getweakrefcount(self)) != self._holders:
            return None
        announcer = self.handler.announcer
        rested = Rested.of(self.connection, announcer, key, wake, known=self.handler.peers)
        if rested is None:
            return None
        announcer.leave(self)
        announcer.join(rested)
        return rested

    def is_free(self) -> bool:
        """For channels: whether the next message may be taken past `receive`."""
        return not (self._opening or self._taking) and self._delivery.is_free

    def take_data(self, data: bytes) -> None:
        """For channels: take a message that is the next, without a turn of the loop for it.

        What is answered at once takes half the time then.
        """
        self._taking = True  # what it says may be answered before it is done, in one process
        try:
            if self.connection.peer is None:
                self.connection.party = self.handler.party
            for event in self.connection.receive(data):
                if isinstance(event, Incoming):
                    said = self._begin(event)
                elif isinstance(event, Refused):
                    logger.debug("refused: %s", event.error)
                    said = event.data
                else:
                    self._note(event, None)
                    continue
                if said is not None:
                    self._delivery.tell(said, event.id)
        finally:
            self._taking = False

    def begin(self, request: Request) -> "bytes | tuple[Incoming, StartedCall | None]":
        """For channels: the answer to a request that is the next, if it is there at once.

        Otherwise what `go_on` has to be given before anything else happens.
        """
        connection = self.connection
        if connection.peer is None:
            connection.party = self.handler.party
        event = inbox.requested(connection, request, None, None)
        if not isinstance(event, Incoming):
            assert isinstance(event, Refused), "a request is taken or refused"
            logger.debug("refused: %s", event.error)
            return event.data or b""
        tool = self.handler.bare(event)
        started = None if tool is None else call_bare(tool, connection.party, event, self._start)
        if isinstance(started, bytes):
            return started if connection.answered(event.id) else b""
        return event, started

    def go_on(self, incoming: Incoming, started: StartedCall | None) -> None:
        """For channels: serve a request that was begun, and whose answer they settle."""
        assert self._web is not None, "only HTTP knows which request is the next before it is received"
        data = self._serve_begun(incoming, started)
        if data is None and incoming.id not in self._serving:
            data = b""  # nobody wants it any more
        if data is not None and not self._web.settle(data, incoming.id):
            self.chore(self._delivery.answer(data, incoming.id))  # behind what was said before

    async def _serve(self, incoming: Incoming) -> None:
        data = self._begin(incoming)
        if data is not None:
            await self._delivery.answer(data, incoming.id)

    def _begin(self, incoming: Incoming) -> bytes | None:
        """The answer, if there is one at once; the rest is given a task of its own."""
        tool = self.handler.bare(incoming)
        if tool is None:
            return self._serve_begun(incoming, None)
        started = call_bare(tool, self.connection.party, incoming, self._start)
        if isinstance(started, bytes):
            return started if self.connection.answered(incoming.id) else None
        return self._serve_begun(incoming, started)

    def _serve_begun(self, incoming: Incoming, started: StartedCall | None) -> bytes | None:
        """The answer, if there is one at once; the rest is given a task of its own."""
        handler, connection = self.handler, self.connection
        try:
            context = Context(handler, self, incoming.row.name, incoming, lifespan=self.lifespan)
            begun = (
                begin(handler.routes, handler.middleware, context, incoming)
                if started is None
                else started.go_on(context)
            )
            if not is_pending(begun):
                return connection.reply(incoming.id, begun)
            if incoming.row.name == "initialize":
                self._opening = True
                self._hold(incoming.id, asyncio.create_task(self._open(incoming, begun)), begun)
                return None
            answering = answer(connection, incoming, begun)
            rest = None if started is None else started.rest
            going: Going[bytes | None] | bytes | None = (
                cast("Going[bytes | None]", rest) if isinstance(rest, Going) else self._start(answering)
            )
        except BaseException as error:  # noqa: BLE001 - nothing is awaited here: it belongs to this request
            return failed(connection, incoming, error)
        if not isinstance(going, Going):
            return going
        finishing = self._finish(incoming, answering if going is rest else going)
        self._hold(incoming.id, going.go_on(finishing))
        return None

    def _hold(
        self, request_id: RequestId, task: asyncio.Task[None], begun: Awaitable[Any] | None = None
    ) -> None:
        """Remember the task that serves a request, and awaits this if it is not cancelled before."""
        self._serving[request_id] = task
        self._tasks.add(task)
        task.add_done_callback(partial(self._served, request_id, begun))

    def _served(self, request_id: RequestId, begun: Awaitable[Any] | None, task: asyncio.Task[None]) -> None:
        if iscoroutine(begun):
            begun.close()  # if it was cancelled before its task began, nobody has awaited it
        self._tasks.discard(task)
        if self._serving.get(request_id) is task:
            del self._serving[request_id]

    async def _open(self, incoming: Incoming, pending: Awaitable[Answer]) -> None:
        """Answer the handshake, then take what the client has said in the meantime."""

        async def in_time() -> Answer:
            limit = asyncio.timeout(HANDSHAKE)
            try:
                async with limit:
                    return await pending
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise InternalError(f"the handshake was not answered within {HANDSHAKE:g} s") from error

        await self._finish(incoming, answer(self.connection, incoming, in_time()))
        try:
            while self._later:
                await self._take(*self._later.pop(0))
        except ChannelClosed as error:
            logger.debug("the client has gone before what it said could be answered: %s", error)
        self._opening = False

    async def _finish(self, incoming: Incoming, answering: Awaitable[bytes | None]) -> None:
        try:
            data = await answering
        except asyncio.CancelledError as error:
            data = failed(self.connection, incoming, error)
            if data is None:  # nobody wants it any more; otherwise the function has cancelled itself
                raise
        if data is not None and not self._delivery.offer(data):
            await self._delivery.deliver(data, incoming.id)

    def _noticed(self, event: NoticeReceived, sender: Principal | None) -> None:
        if not is_heard(self.handler, event):
            return
        if len(self._chores) >= self.connection.limit:
            logger.warning(
                "dropped: %s, because %d notices are being served", event.method, len(self._chores)
            )
            return
        self.chore(heard(self.handler, self, self.lifespan, event, sender))

    # ----------------------------------------------------------------- what leaves

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Hand a message over to the peer."""
        await self.channel.send(data, related)

    async def tell(
        self, context: Context, method: str, params: Any, build: Callable[[Any], bytes | None]
    ) -> None:
        """Say something to the peer, once all middleware has seen it."""
        await said(self, context, method, params, build)

    async def ask(
        self,
        context: Context,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None,
        timeout: float | None,
        key: str | None = None,
    ) -> Result:
        """Ask the peer on the stream of its own request, and wait for the answer, if there is a session.

        Raises:
            RPCError: the peer says no.
            RequestTimeout: it says nothing in time.
            LocalProtocolError: it may not be asked, or whoever asks is no longer wanted.
        """
        return await asked(
            context,
            method,
            params,
            lambda context, params: self._questions.ask(context, method, params, timeout),
            key,
        )

    def hear(self, method: str, params: NoticeParams) -> None:
        """Tell a client of the session era what has changed, if it may be told."""
        connection = self.connection
        if connection.peer is None or connection.lifecycle.state != "ready":
            return
        if isinstance(params, ResourceUpdatedParams) and params.uri not in self.watched:
            return
        if isinstance(params, ElicitationCompleteParams):
            if params.elicitation_id not in self.visits:
                return  # somebody else's (ELIC-16), or told before
            del self.visits[params.elicitation_id]
        self._news.note(method, params)
        if not self._announcing:
            self._announcing = True
            self.chore(self._announce())

    async def _announce(self) -> None:
        """Tell the client what has changed, as fast as it listens."""
        while self._news:
            method, params = self._news.pop()
            context = Context(self.handler, self, method, lifespan=self.lifespan)
            try:
                await context.tell(method, params)
            except NotDeclared:
                logger.debug("not told: %s was declared neither then nor now", method)
        self._announcing = False

    def chore(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that nobody waits for, but that ends with the conversation."""
        task = asyncio.create_task(self._quietly(work))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        task.add_done_callback(lambda _: work.close())  # as above

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except TransportError as error:
            logger.debug("left undone: %s", error)
        except MCPError as error:
            logger.warning("a notice could not be served: %s", error)
        except BaseException:  # what a function raises ends neither the conversation nor the process
            logger.exception("a notice could not be served")


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    """Wait until tasks that were cancelled have ended, but not for ever."""
    if tasks:
        _, stuck = await asyncio.wait(tasks, timeout=END_PATIENCE)
        for task in stuck:
            logger.error("left behind, because it does not end when it is cancelled: %r", task)
