"""One event stream over several connections: its position, and when to reconnect.

Owns the last event id, the delay that the server asks for, and the number of attempts; also the bounded queue
that streams fill. Knows nothing of requests or sessions.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from toolpost.errors import RemoteProtocolError, RequestFailed
from toolpost.protocol import headers
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.protocol.sse import EventStreamDecoder
from toolpost.transports.http_sender import EVENTS, HttpSender, open_event_stream
from toolpost.transports.memory import MessageQueue, SendLimiter

DEFAULT_RETRY_DELAY: Final = 1.0  # seconds before a reconnect if the server names no delay
MAX_BACKOFF: Final = 30.0  # seconds to which the delay grows while the server cannot be reached
MAX_RETRY_DELAY: Final = 3600.0  # the longest delay, whatever the server names: longer than any caller waits
MIN_RETRY_DELAY: Final = 0.5  # the shortest delay, whatever the server names
RETRY_JITTER: Final = 0.2  # the random part, so that not all clients of a server reconnect at once
MAX_RECONNECTS: Final = 4  # failed attempts after which a stream is given up: about 15 seconds by default
MAX_DOUBLINGS: Final = 6  # how often the delay is doubled, for a stream that is never given up
STREAM_END_TIMEOUT: Final = 2.0  # seconds for the end after the answer; later, its connection is not reused
_TRANSIENT_STATUSES: Final = frozenset({408, 409, 425, 429})  # refusals that only mean: try again later
MAX_EVENT_ID: Final = 4096  # the longest event id to send back: half of what servers accept for all headers
MAX_QUEUED_MESSAGES: Final = 1024  # messages that may wait before streams are not read any further

logger: Final = logging.getLogger("toolpost.http")


class BoundedMessageQueue(MessageQueue):
    """A message queue that lets streams wait while it is full."""

    def __init__(self, peer: str | None = None) -> None:
        super().__init__(peer)
        self._tell_message: Callable[[JSONRPCMessage], object] | None = None
        self._limiter = SendLimiter(lambda: len(self.arrived) < MAX_QUEUED_MESSAGES)

    def set_listener(self, tell: Callable[[bytes | JSONRPCMessage], object]) -> None:
        """Pass each message to `tell` as it comes."""
        self.on_message = self._tell_message = tell

    def put_decoded(self, data: bytes, message: JSONRPCMessage | None) -> None:
        """Add one message; a listener gets its decoded form, if there is one."""
        if message is not None and self._tell_message is not None and not self.arrived:
            self._tell_message(message)
        else:
            self.put(data)

    async def put_when_room(self, data: bytes, message: JSONRPCMessage | None = None) -> None:
        """Add one message as soon as there is room."""
        waiting = self._limiter.queue
        if waiting or len(self.arrived) >= MAX_QUEUED_MESSAGES:
            self.on_room = self._limiter.admit_next
            await self._limiter.wait()
        self.put_decoded(data, message)
        if waiting:
            self._limiter.admit_next()
        elif self.on_room is not None:
            self.on_room = None


class ResumableStream:
    """Follows one event stream, and passes the data of each message to `take`.

    `take` sets `is_complete` when the stream has brought what it was for. `last_event_id` is empty if no id
    can be sent back. `limit` is the largest event in bytes.
    """

    def __init__(self, take: Callable[[bytes], Awaitable[None]], limit: int) -> None:
        self.is_complete = False
        self.has_opened = False
        self.last_event_id = ""
        self._take = take
        self._limit = limit
        self._retry: float | None = None
        self._tries = 0

    @property
    def is_lost(self) -> bool:
        """Whether too many attempts to reconnect have failed."""
        return self._tries >= MAX_RECONNECTS

    async def reopen(self, sender: HttpSender, fields: Mapping[str, str]) -> None:
        """Open the stream or resume it, and hand out its messages until it ends (HTTPL-11).

        A RequestFailed with a status means that the server offers no such stream.
        """
        again = {headers.LAST_EVENT: self.last_event_id} if self.last_event_id else {}
        async with sender.send("GET", {**fields, "accept": EVENTS, **again}) as response:
            await self.follow(await open_event_stream(response))

    async def keep_open(self, sender: HttpSender, fields: Mapping[str, str]) -> RequestFailed:
        """Keep the stream open; return the refusal of a server that does not offer it."""
        while True:
            try:
                await self.reopen(sender, fields)
            except RequestFailed as error:
                logger.debug("no stream: %s", error)
                if is_final(error):
                    return error
            await self.wait_before_reconnect()

    async def follow(self, chunks: AsyncIterator[bytes]) -> None:
        """Hand out the messages of one connection until it ends; raise RequestFailed if it was cut off."""
        self.has_opened = True
        decoder = EventStreamDecoder(self._limit)
        try:
            async with asyncio.timeout(None) as patience:
                async for chunk in chunks:
                    self._tries = 0
                    for event in decoder.feed(chunk):
                        # A priming event has no data; other event types are not MCP messages.
                        if event.data and event.event == "message":
                            await self._take(event.data)
                    self._store_position(decoder)
                    if self.is_complete and patience.when() is None:
                        patience.reschedule(asyncio.get_running_loop().time() + STREAM_END_TIMEOUT)
                decoder.feed(b"")  # the last chunk may have been too much for it
        except RemoteProtocolError as error:
            self.last_event_id = ""  # it would only be sent again
            logger.warning("an event was dropped: %s", error.message)
            raise RequestFailed(error.message) from error
        except TimeoutError:
            logger.debug("the server leaves a stream open that has brought its answer")
        except RequestFailed:
            if not self.is_complete:
                raise

    async def wait_before_reconnect(self) -> None:
        """Wait as long as the server asks for (HTTPL-6), and longer after failed attempts."""
        wait = DEFAULT_RETRY_DELAY if self._retry is None else max(self._retry, MIN_RETRY_DELAY)
        if self._tries:
            wait = max(wait, min(MAX_BACKOFF, wait * 2**self._tries))
        self._tries = min(self._tries + 1, MAX_DOUBLINGS)
        await asyncio.sleep(wait * (1 + random.uniform(0, RETRY_JITTER)))  # noqa: S311 - no secret

    def _store_position(self, decoder: EventStreamDecoder) -> None:
        name = decoder.last_event_id
        if name and len(name) <= MAX_EVENT_ID and name.isascii() and name.isprintable():
            self.last_event_id = name
        if decoder.retry is not None:
            self._retry = min(decoder.retry / 1000, MAX_RETRY_DELAY)


def is_final(refusal: RequestFailed) -> bool:
    """Return whether a server that refuses a stream will refuse it again."""
    return refusal.status is not None and refusal.status < 500 and refusal.status not in _TRANSIENT_STATUSES
