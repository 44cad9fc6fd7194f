"""Drives one connection over one channel: a task for each request that has to wait, none for the others.

Owns the tasks and futures of a conversation and ends them with it. Knows neither tools nor transports: it is
given a `Handler`, which serves, and a `Channel`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from toolpost.channel import Channel
from toolpost.errors import ChannelClosed, LocalProtocolError, MCPError, NotDeclared, RequestTimeout
from toolpost.protocol.eras import ERAS
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
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.server.dispatch import Answer, answer, begin, failed
from toolpost.server.notify import wants
from toolpost.types.base import JSON, RequestId, Result, Wire
from toolpost.types.inputs import InputRequest
from toolpost.types.notices import (
    AcknowledgedParams,
    ListenResult,
    NoticeParams,
    ResourceUpdatedParams,
    SubscriptionFilter,
)

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

__all__ = ["Conversation"]

logger: Final = logging.getLogger("toolpost.server")


class Conversation:
    """A peer at the other end of a channel, for as long as the channel lives.

    Args:
        handler: what serves.
        channel: the way to the peer.
        lifespan: what the server's lifespan gave.
    """

    def __init__(self, handler: "Handler", channel: Channel, lifespan: Any = None) -> None:
        self.handler = handler
        self.channel = channel
        self.connection = handler.connection()
        self.lifespan = lifespan
        self.state: dict[str, Any] = {}
        self.headers: Mapping[str, str] = {}
        self.watched: set[str] = set()
        self._serving: dict[RequestId, asyncio.Task[None]] = {}
        self._waiting: dict[RequestId, asyncio.Future[Result]] = {}
        self._chores: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the channel closes, then end everything that is still going on."""
        self.handler.announcer.join(self)
        try:
            while True:
                data = await self.channel.receive()
                if self.connection.peer is None:  # no session, to which what was declared is a promise
                    self.connection.party = self.handler.party
                for event in self.connection.receive(data):
                    await self._heed(event)
        except ChannelClosed as error:
            logger.debug("conversation over: %s", error)
        finally:
            self.handler.announcer.leave(self)
            await self._end()

    async def drain(self) -> None:
        """Wait until every request that is being served has its answer."""
        while self._serving:
            await asyncio.wait(self._serving.values())

    async def _end(self) -> None:
        for outgoing in self.connection.close():
            future = self._waiting.get(outgoing.id)
            if future is not None and not future.done():
                future.set_exception(ChannelClosed("the client has gone"))
        tasks = [*self._serving.values(), *self._chores]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.channel.close()

    # ----------------------------------------------------------------- what arrives

    async def _heed(self, event: Event) -> None:
        if isinstance(event, Incoming):
            await self._serve(event)
        elif isinstance(event, ReplyReceived | FailureReceived):
            self._settle(event)
        elif isinstance(event, CancelReceived):
            task = self._serving.get(event.request.id)
            if task is not None:
                task.cancel()
        elif isinstance(event, Refused):
            logger.debug("refused: %s", event.error)
            if event.data is not None:
                await self.send(event.data)
        elif isinstance(event, NoticeReceived):
            self._noticed(event)
        elif isinstance(event, Dropped):
            logger.debug("dropped: %s %s", event.why, event.error or "")

    async def _serve(self, incoming: Incoming) -> None:
        """Answer at once what can be answered at once; give the rest a task of its own."""
        handler = self.handler
        context = Context(handler, self, incoming, lifespan=self.lifespan)
        try:
            begun = begin(handler.routes, handler.middleware, context, incoming)
            if not isawaitable(begun):
                data = self.connection.reply(incoming.id, begun)
                if data is not None:
                    await self.send(data, incoming.id)
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this request
            data = failed(self.connection, incoming, error)
            if data is not None:
                await self.send(data, incoming.id)
            return
        if incoming.row.name == "initialize":
            # Nothing else is read until the handshake is answered: a client may have sent more already.
            await self._finish(incoming, begun)
            return
        task = asyncio.create_task(self._finish(incoming, begun))
        self._serving[incoming.id] = task
        task.add_done_callback(lambda _: self._served(incoming.id, task))

    def _served(self, request_id: RequestId, task: asyncio.Task[None]) -> None:
        if self._serving.get(request_id) is task:
            del self._serving[request_id]

    async def _finish(self, incoming: Incoming, pending: Awaitable[Answer]) -> None:
        data = await answer(self.connection, incoming, pending)
        if data is not None:
            try:
                await self.send(data, incoming.id)
            except ChannelClosed:
                logger.debug("the client has gone before its answer to %r", incoming.id)

    def _settle(self, event: ReplyReceived | FailureReceived) -> None:
        future = self._waiting.get(event.request.id)
        if future is None or future.done():
            return
        if isinstance(event, ReplyReceived):
            future.set_result(event.result)
        else:
            future.set_exception(event.error)

    def _noticed(self, event: NoticeReceived) -> None:
        serve = self.handler.notices.get(event.method)
        if serve is not None:
            self.chore(serve(event))

    # ----------------------------------------------------------------- what leaves

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Hand a message over to the peer."""
        await self.channel.send(data, related)

    async def ask(
        self,
        incoming: Incoming,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None,
        timeout: float | None,
    ) -> Result:
        """Ask the peer on the stream of its own request, and wait for the answer.

        Raises:
            RPCError: the peer says no.
            RequestTimeout: it says nothing in time.
        """
        connection = self.connection
        revision = incoming.peer.revision
        if isinstance(method, Row):
            outgoing = connection.request(method, params)
        else:
            assert isinstance(params, Wire)
            carried = ERAS[revision.era].ask(connection, incoming, method, params)
            if isinstance(carried, InputRequest):
                raise LocalProtocolError(
                    f"{method} cannot be asked in the middle of a call in {revision.date}"
                )
            outgoing = carried
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[outgoing.id] = future
        try:
            await self.send(outgoing.data, incoming.id)
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError as error:
            raise RequestTimeout(
                f"the client did not answer {outgoing.row.name} within {timeout} s"
            ) from error
        finally:
            del self._waiting[outgoing.id]
            notice = connection.cancel(outgoing.id, "no longer wanted")
            if notice is not None:
                self.chore(self.send(notice, incoming.id))

    def hear(self, method: str, params: NoticeParams) -> None:
        """Tell a client of the session era what has changed, if it may be told."""
        connection = self.connection
        if connection.peer is None or connection.lifecycle.state != "ready":
            return
        if isinstance(params, ResourceUpdatedParams) and params.uri not in self.watched:
            return
        try:
            data = connection.notify(method, params)
        except NotDeclared:
            return  # declared neither then nor now: the client does not expect it
        self.chore(self.send(data))

    def chore(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that nobody waits for, but that ends with the conversation."""
        task = asyncio.create_task(self._quietly(work))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except MCPError as error:
            logger.debug("left undone: %s", error)
        except Exception:
            logger.exception("a notice could not be served")


class Listen:
    """A subscription of a stateless client: what it wants to hear, until either side ends it."""

    def __init__(self, context: Context, wishes: SubscriptionFilter) -> None:
        self._context = context
        self._wishes = wishes
        self._heard: asyncio.Queue[tuple[str, NoticeParams] | None] = asyncio.Queue()

    def hear(self, method: str, params: NoticeParams) -> None:
        """Take note of a notice that was asked for."""
        if wants(self._wishes, method, params):
            self._heard.put_nowait((method, params))

    def end(self) -> None:
        """End the subscription from our side."""
        self._heard.put_nowait(None)

    async def run(self) -> ListenResult:
        """Acknowledge, then pass on what is heard."""
        await self._context.tell(
            "notifications/subscriptions/acknowledged", AcknowledgedParams(notifications=self._wishes)
        )
        while (notice := await self._heard.get()) is not None:
            await self._context.tell(*notice)
        return ListenResult()
