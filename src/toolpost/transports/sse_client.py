"""The channel to a server over HTTP+SSE, the HTTP transport of the first revision.

One stream carries all messages of the server. Its first event names the URL to post to; its end is the end of
the channel. Owns that stream, and knows nothing of sessions or revisions.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from toolpost.errors import (
    AuthError,
    ChannelClosed,
    ConnectFailed,
    RemoteProtocolError,
    RequestFailed,
    TransportError,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONRPCRequest
from toolpost.protocol.sse import EventStreamDecoder, ServerSentEvent
from toolpost.transports.event_stream import BoundedMessageQueue
from toolpost.transports.http_sender import EVENTS, JSON, HttpSender, check_accepted, open_event_stream
from toolpost.transports.targets import Http, resolve_url
from toolpost.types.base import RequestId

ENDPOINT_TIMEOUT: Final = 30.0  # seconds for the `endpoint` event, which should be the first one
MAX_ENDPOINT_LENGTH: Final = 4096  # the longest URL to post to: servers do not accept longer ones
CLOSE_TIMEOUT: Final = 2.0  # seconds for the stream to be closed
_CLOSED_REASON: Final = "the channel was closed"
_POST_HEADERS: Final = {"content-type": JSON}

logger: Final = logging.getLogger("toolpost.http")


class SseChannel:
    """The channel to a server over HTTP+SSE. `open_sse` makes it; it starts to read at once."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._sender = HttpSender(http)
        self._queue = BoundedMessageQueue(http.label)
        loop = asyncio.get_running_loop()
        self._endpoint: asyncio.Future[str] = loop.create_future()
        self._closing: asyncio.Future[None] | None = None
        self._on_lost: Callable[[RequestId, TransportError | AuthError], object] | None = None
        self._opening: asyncio.Timeout | None = None
        self._sender.on_login_pending(self._pause_timeout)
        self._post_tasks: set[asyncio.Task[None]] = set()
        self._reader = loop.create_task(self._read_stream())

    def on_request_lost(self, tell: Callable[[RequestId, TransportError | AuthError], object]) -> None:
        """Report each request that was not accepted to `tell`; by default `send` waits and raises."""
        self._on_lost = tell

    def on_login_pending(self, tell: Callable[[bool], object]) -> None:
        """Call `tell` when requests begin to wait for a login, and when none does any more."""
        self._sender.on_login_pending(tell)

    def _pause_timeout(self, waiting: bool) -> None:
        if self._opening is not None:
            self._opening.reschedule(
                None if waiting else asyncio.get_running_loop().time() + ENDPOINT_TIMEOUT
            )

    async def wait_for_endpoint(self) -> None:
        """Wait until the server has named the URL to post to (SSE-2); raise ConnectFailed if it does not."""
        try:
            async with asyncio.timeout(ENDPOINT_TIMEOUT) as scope:
                self._opening = scope
                try:
                    await asyncio.shield(self._endpoint)
                finally:
                    self._opening = None
        except TimeoutError:
            raise ConnectFailed(
                "the server does not say where to post",
                hint="it may not speak HTTP+SSE",
                peer=self._http.label,
            ) from None
        except TransportError as error:
            raise ConnectFailed(
                f"no HTTP+SSE: {error.message}", hint=error.hint, peer=self._http.label
            ) from error

    async def receive(self) -> bytes:
        """Return the next message of the server. Cancelling it loses no message."""
        return await self._queue.receive()

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - one stream
        """Post one message (SSE-3); its answer comes on the stream, or `on_request_lost` reports it."""
        if self._queue.reason is not None:
            raise ChannelClosed(self._queue.reason, sent=False, peer=self._http.label)
        request_id = None if self._on_lost is None else _get_request_id(data)
        if request_id is None:
            await self._post(data)
            return
        # A server may respond to the POST only after its answer has come on the stream.
        task = asyncio.get_running_loop().create_task(self._post_request(request_id, data))
        self._post_tasks.add(task)
        task.add_done_callback(self._post_tasks.discard)

    async def _post(self, data: bytes) -> None:
        endpoint = await asyncio.shield(self._endpoint)
        async with self._sender.send("POST", _POST_HEADERS, data, url=endpoint) as response:
            await check_accepted(response)

    async def _post_request(self, request_id: RequestId, data: bytes) -> None:
        assert self._on_lost is not None
        try:
            await self._post(data)
        except (TransportError, AuthError) as error:
            self._on_lost(request_id, error)
        except Exception as error:
            logger.exception("%s: a request failed", self._http.label)
            self._on_lost(request_id, RequestFailed(f"the request failed: {type(error).__name__}"))

    async def close(self) -> None:
        """Close the stream, which ends the session of the server. Closing twice is fine."""
        if self._closing is not None:
            await asyncio.wait({self._closing})
            return
        self._closing = asyncio.get_running_loop().create_future()
        self._queue.close(_CLOSED_REASON)
        self._fail_endpoint(ChannelClosed(_CLOSED_REASON, sent=False, peer=self._http.label))
        tasks = {self._reader, *self._post_tasks}
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)
        finally:
            try:
                await self._sender.close()
            finally:
                self._closing.set_result(None)

    # ----------------------------------------------------------------- the stream

    async def _read_stream(self) -> None:
        reason = "the server ended the stream"
        try:
            async with self._sender.send("GET", {"accept": EVENTS}) as response:
                decoder = EventStreamDecoder(self._http.max_answer)
                async for chunk in await open_event_stream(response):
                    for event in decoder.feed(chunk):
                        await self._take_event(event)
                decoder.feed(b"")  # the last chunk may have been too much for it
        except AuthError as error:
            self._fail_endpoint(error)
            return  # each `send` raises it; the end of the channel would say less
        except (TransportError, RemoteProtocolError) as error:
            reason = error.message
            if isinstance(error, TransportError):
                self._fail_endpoint(error)
        except Exception as error:
            logger.exception("%s: the stream failed", self._http.label)
            reason = f"the stream failed: {type(error).__name__}"
        self._fail_endpoint(ChannelClosed(reason, sent=False, peer=self._http.label))
        self._queue.end(reason)

    async def _take_event(self, event: ServerSentEvent) -> None:
        if event.event == "message":
            await self._queue.put_when_room(event.data)
        elif event.event == "endpoint" and not self._endpoint.done():
            url = event.data[: MAX_ENDPOINT_LENGTH + 1].decode("utf-8", "replace").strip()
            if len(url) > MAX_ENDPOINT_LENGTH:
                raise ConnectFailed("the server names a place to post to that is too long")
            try:
                self._endpoint.set_result(resolve_url(self._http.url, url))
            except ConnectFailed as error:
                raise ConnectFailed(f"the server names a place to post to, but {error.message}") from None

    def _fail_endpoint(self, error: TransportError | AuthError) -> None:
        if not self._endpoint.done():
            self._endpoint.set_exception(error)
            self._endpoint.exception()  # marks it as retrieved, if no task waits


async def open_sse(http: Http) -> SseChannel:
    """Open the channel to a server over HTTP+SSE; wait until the server has named the URL to post to."""
    channel = SseChannel(http)
    try:
        await channel.wait_for_endpoint()
    except BaseException:  # also a cancellation leaves nothing open
        await channel.close()
        raise
    return channel


def _get_request_id(data: bytes) -> RequestId | None:
    """Return the id of a request; None for other messages."""
    try:
        message = jsonrpc.decode(data)
    except RemoteProtocolError:
        return None
    return message.id if isinstance(message, JSONRPCRequest) else None
