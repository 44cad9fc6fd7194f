"""Requests to a client that wait for its response, and their futures.

Such a request ends with its response, its timeout, the request that it belongs to, or the connection. A
client that has not answered gets a cancellation.
"""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from toolpost.errors import ChannelClosed, RequestTimeout
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import SESSION_ERA, prepare_params
from toolpost.protocol.events import ErrorReceived, InboundRequest, OutboundRequest, ResponseReceived
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.server.context_request import ClientConnection
from toolpost.server.requests_to_client import make_abandoned_error
from toolpost.types.base import JSON, RequestId, Result, WireStruct


class PendingClientRequests:
    """The requests to one client."""

    def __init__(self, sender: ClientConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._sender = sender
        self._futures: dict[RequestId, asyncio.Future[Result]] = {}
        self._loop = loop

    async def send_request(
        self,
        context: Context,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
    ) -> Result:
        """Send a request on the stream of the client's own request, and return the result."""
        if context.cancelled:
            raise make_abandoned_error(context)
        sender = self._sender
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the context belongs to another event loop; in a thread, use a SyncContext")
        build = partial(build_client_request, sender.connection, context.incoming, method, params)
        telemetry = context.server.telemetry
        if telemetry is None:
            return await self._run(build(), context, timeout)
        name = method.name if isinstance(method, Row) else method
        facts = sender.connection.revision, sender.network
        return await telemetry.send_request(
            name, params, None, facts, build=build, run=lambda built: self._run(built, context, timeout)
        )

    async def _run(self, outgoing: OutboundRequest, context: Context, timeout: float | None) -> Result:
        sender = self._sender
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._futures[outgoing.id] = future
        # A function in a thread does not stop with its request, so its wait has to end.
        serving = None if context.incoming is None else sender.get_request_task(context.incoming)

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
                future.exception()  # mark it as retrieved
            if outgoing.id in sender.connection.outgoing:
                sender.run_in_background(self._cancel_request(outgoing, context))

    async def _send(self, outgoing: OutboundRequest, context: Context) -> None:
        try:
            await self._sender.send_client_request(outgoing.data, context.related)
        except Exception:  # it was not sent: there is nothing to cancel
            self._sender.connection.cancel(outgoing.id)
            raise

    async def _cancel_request(self, outgoing: OutboundRequest, context: Context) -> None:
        """Send a cancellation, unless the client has answered."""
        notification = self._sender.connection.cancel(outgoing.id, "no longer needed")
        if notification is not None:
            await self._sender.send(notification, context.related, outlives=True)

    def resolve(self, event: ResponseReceived | ErrorReceived) -> None:
        """Resolve the future of a request with its response."""
        future = self._futures.get(event.request.id)
        if future is None or future.done():
            return
        if isinstance(event, ResponseReceived):
            future.set_result(event.result)
        else:
            future.set_exception(event.error)

    def fail_lost(self, lost: Iterable[OutboundRequest]) -> None:
        """Fail the requests that a client has not answered."""
        for outgoing in lost:
            future = self._futures.get(outgoing.id)
            if future is not None and not future.done():
                future.set_exception(ChannelClosed("the client disconnected"))


def build_client_request(
    connection: Connection,
    incoming: InboundRequest | None,
    method: str | Row,
    params: WireStruct | Mapping[str, JSON] | None,
    meta: Mapping[str, JSON] | None = None,
) -> OutboundRequest:
    """Build a request to the client. Raises LocalProtocolError if it may not be sent."""
    if meta:
        params = prepare_params(params, dict(meta), connection.revision)
    if incoming is None or isinstance(method, Row):
        return connection.request(method, params)
    assert isinstance(params, WireStruct)
    return SESSION_ERA.make_client_request(connection, incoming, method, params)
