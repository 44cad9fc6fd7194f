"""The questions to a client that wait for its answer, and the functions that wait with them.

Owns their futures. A question ends with its answer, with its time, with the request that it was asked for, or
with the conversation, whichever comes first; the client is told unless it has answered.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from toolpost.errors import ChannelClosed, LocalProtocolError, RequestTimeout
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import SESSION_ERA
from toolpost.protocol.events import ErrorReceived, InboundRequest, OutboundRequest, ResponseReceived
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.types.base import JSON, RequestId, Result, WireStruct

if TYPE_CHECKING:
    from toolpost.server.runtime.conversation import ServerConversation


class PendingClientRequests:
    """The questions of one conversation."""

    def __init__(self, conversation: "ServerConversation") -> None:
        self._conversation = conversation
        self._futures: dict[RequestId, asyncio.Future[Result]] = {}
        self._loop = asyncio.get_running_loop()

    async def send_request(
        self,
        context: Context,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
    ) -> Result:
        """The client's answer to a question on the stream of its own request.

        Raises:
            RPCError: the client says no.
            RequestTimeout: it says nothing in time.
            LocalProtocolError: it may not be asked, or whoever asks is no longer wanted.
        """
        if context.cancelled:
            raise make_abandoned_error(context)
        conversation = self._conversation
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "a context was used in another event loop than its own; in a thread, take a SyncContext"
            )
        outgoing = build_client_request(conversation.connection, context.incoming, method, params)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._futures[outgoing.id] = future
        # A function in a thread is not stopped by the end of its request: what it waits for has to end.
        serving = None if context.incoming is None else conversation.get_request_task(context.incoming)

        def give_up(_: object) -> None:
            if not future.done():
                future.set_exception(make_abandoned_error(context))

        if serving is not None:
            serving.add_done_callback(give_up)
        try:
            await self._send(outgoing, context)
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError as error:
            await self._cancel_request(outgoing, context)  # while the stream of the request is open
            raise RequestTimeout(
                f"the client did not answer {outgoing.row.name} within {timeout} s"
            ) from error
        finally:
            if serving is not None:
                serving.remove_done_callback(give_up)
            del self._futures[outgoing.id]
            if not future.cancel() and not future.cancelled():
                future.exception()  # whoever has gone before the question was sent does not look at it
            if outgoing.id in conversation.connection.outgoing:
                conversation.run_in_background(self._cancel_request(outgoing, context))

    async def _send(self, outgoing: OutboundRequest, context: Context) -> None:
        try:
            await self._conversation.send(outgoing.data, context.related)
        except Exception:  # it has not left us: there is nothing to withdraw
            self._conversation.connection.cancel(outgoing.id)
            raise

    async def _cancel_request(self, outgoing: OutboundRequest, context: Context) -> None:
        """Tell the client that it need not answer, unless it has."""
        notice = self._conversation.connection.cancel(outgoing.id, "no longer wanted")
        if notice is not None:
            await self._conversation.send(notice, context.related)

    def resolve(self, event: ResponseReceived | ErrorReceived) -> None:
        """Hand an answer to whoever waits for it."""
        future = self._futures.get(event.request.id)
        if future is None or future.done():
            return
        if isinstance(event, ResponseReceived):
            future.set_result(event.result)
        else:
            future.set_exception(event.error)

    def fail_lost(self, lost: Iterable[OutboundRequest]) -> None:
        """The client has gone, and will not answer these."""
        for outgoing in lost:
            future = self._futures.get(outgoing.id)
            if future is not None and not future.done():
                future.set_exception(ChannelClosed("the client has gone"))


def build_client_request(
    connection: Connection,
    incoming: InboundRequest | None,
    method: str | Row,
    params: WireStruct | Mapping[str, JSON] | None,
) -> OutboundRequest:
    """The request by which a client is asked.

    Raises:
        CapabilityNotDeclared: the client did not declare the capability.
        LocalProtocolError: it may not be asked.
    """
    if incoming is None or isinstance(method, Row):
        return connection.request(method, params)
    assert isinstance(params, WireStruct)
    return SESSION_ERA.make_client_request(connection, incoming, method, params)


def make_abandoned_error(context: Context) -> LocalProtocolError:
    """The error for who asks although nobody waits for what comes of it."""
    return LocalProtocolError(
        f"{context.method} (id {context.related!r}) has ended or was cancelled: nobody waits for its answer"
    )
