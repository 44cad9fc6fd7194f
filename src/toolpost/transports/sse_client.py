"""The channel to a server over HTTP+SSE, the HTTP transport of the first revision.

One stream carries all messages of the server. Its first event names the URL to post to; its end is the end of
the channel. Owns that stream, and knows nothing of sessions or revisions.
"""

import asyncio
import logging
from typing import Final

from toolpost.errors import AuthError, ChannelClosed, ConnectFailed, RemoteProtocolError, TransportError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONRPCRequest
from toolpost.protocol.sse import EventStreamDecoder, ServerSentEvent
from toolpost.transports.http_client import HttpClientChannel
from toolpost.transports.http_sender import EVENTS, JSON, check_accepted, open_event_stream
from toolpost.transports.targets import Http, resolve_url
from toolpost.types.base import RequestId

ENDPOINT_TIMEOUT: Final = 30.0  # seconds for the `endpoint` event, which should be the first one
MAX_ENDPOINT_LENGTH: Final = 4096  # the longest URL to post to: servers do not accept longer ones
_POST_HEADERS: Final = {"content-type": JSON}

logger: Final = logging.getLogger("toolpost.http")


class SseChannel(HttpClientChannel):
    """The channel to a server over HTTP+SSE. `open_sse` makes it; it starts to read at once.

    Without `on_request_lost`, `send` waits until the server accepts a request, and raises if it does not.
    """

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._spawn(self._read_stream())

    async def wait_for_endpoint(self) -> None:
        """Wait until the server has named the URL to post to (SSE-2); raise ConnectFailed if it does not."""
        try:
            async with self._sender.limit_time(ENDPOINT_TIMEOUT):
                await asyncio.shield(self._endpoint)
        except TimeoutError:
            raise ConnectFailed(
                "the server sent no endpoint to post to",
                hint="it may not support HTTP+SSE",
                peer=self._http.label,
            ) from None
        except TransportError as error:
            raise ConnectFailed(
                f"HTTP+SSE failed: {error.message}", hint=error.hint, peer=self._http.label
            ) from error

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - one stream
        """Post one message (SSE-3); its answer comes on the stream, or `on_request_lost` reports it."""
        self._queue.check_open()
        message = None if self._on_lost is None else jsonrpc.decode(data)
        if isinstance(message, JSONRPCRequest):
            # A server may respond to the POST only after its answer has come on the stream.
            self._spawn(self._post_request(message.id, data))
        else:
            await self._post(data)

    async def _post(self, data: bytes) -> None:
        endpoint = await asyncio.shield(self._endpoint)
        async with self._sender.send("POST", _POST_HEADERS, data, url=endpoint) as response:
            await check_accepted(response)

    async def _post_request(self, request_id: RequestId, data: bytes) -> None:
        try:
            await self._post(data)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._report_lost(request_id, error)

    async def _shut_down(self) -> None:
        """Close the stream, which ends the session of the server."""
        self._fail_endpoint(ChannelClosed(self._closed_reason, sent=False, peer=self._http.label))
        await super()._shut_down()

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
                raise ConnectFailed("the server sent an endpoint that is too long")
            try:
                self._endpoint.set_result(resolve_url(self._http.url, url))
            except ConnectFailed as error:
                raise ConnectFailed(f"the server sent an invalid endpoint: {error.message}") from None

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
