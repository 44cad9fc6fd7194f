"""Composition root of stdio servers: serves one client over stdin and stdout.

Handles signals and the end of the process.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from toolpost.errors import ChannelClosed
from toolpost.protocol.line_framing import MAX_LINE, OversizedLine
from toolpost.server.handler import Handler
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.server.runtime.worker_threads import SlowCallbackMonitor
from toolpost.transports.stdio_server import EXIT_GRACE_PERIOD, StdioServerChannel, Watchdog

logger: Final = logging.getLogger("toolpost.server")

DRAIN_TIMEOUT: Final = 5.0  # seconds for running requests to finish when the server stops


async def serve_stdio(
    handler: Handler,
    *,
    max_line: int = MAX_LINE,
    drain: float = DRAIN_TIMEOUT,
    on_signal: Callable[..., object] | None = None,
) -> None:
    """Serve one client over stdin and stdout, until it closes them or SIGINT or SIGTERM stops the server.

    `on_signal` is called at once by these signals, even if the event loop is blocked.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    handled = [number for number in signals if _install_signal_handler(loop, number, stop, on_signal)]
    conversations: list[ServerConversation] = []

    async def finish() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain):
                for conversation in conversations:
                    await conversation.drain()

    async def serve() -> None:
        async with handler.hold_lifespan() as lifespan:
            conversation = ServerConversation(handler, _BorrowedChannel(channel, finish), lifespan)
            conversations.append(conversation)
            channel.on_oversized(partial(_reject_oversized_line, conversation))
            await conversation.run()

    # The channel opens first and closes last: prints of a lifespan must not get into the stream.
    async with StdioServerChannel(max_line) as channel, SlowCallbackMonitor():
        serving = asyncio.create_task(serve())
        ending = [asyncio.create_task(stop.wait()), asyncio.create_task(channel.wait_until_ended())]
        try:
            await asyncio.wait((serving, *ending), return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                await finish()
            elif conversations:  # it serves the requests that have arrived, and ends
                await asyncio.wait((serving, ending[0]), return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
            for task in ending:
                task.cancel()
            await asyncio.gather(serving, *ending, return_exceptions=True)
    if not serving.cancelled():
        serving.result()  # raises the error of a lifespan


class _BorrowedChannel:
    """A channel that the conversation does not close: the lifespan may still print when it ends.

    It ends when `finish` has: a script that pipes requests in closes stdin before they are answered.
    """

    def __init__(self, channel: StdioServerChannel, finish: Callable[[], Awaitable[None]]) -> None:
        self._channel, self._finish = channel, finish
        self.send = channel.send
        self.offer = channel.offer
        self.serve = channel.serve
        self.local = True
        self.network = channel.network

    async def receive(self) -> bytes:
        """Return the next message of the client."""
        try:
            return await self._channel.receive()
        except ChannelClosed:
            if self._channel.has_reader:
                await self._finish()
            raise

    async def close(self) -> None:
        """Leave it open."""


def _install_signal_handler(
    loop: asyncio.AbstractEventLoop,
    number: signal.Signals,
    stop: asyncio.Event,
    on_signal: Callable[..., object] | None,
) -> bool:
    """Let a signal set the event. Return False if that is impossible: in other threads, on Windows."""
    try:
        loop.add_signal_handler(number, stop.set)
        if on_signal is not None:
            signal.signal(number, on_signal)  # the loop is notified of the signal in any case
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def _reject_oversized_line(conversation: ServerConversation, line: OversizedLine) -> None:
    """Answer a message that was dropped because of its length."""
    error = line.make_error()
    logger.log(conversation.warnings.choose_level(), "dropped a message from the client: %s", error)
    conversation.run_in_background(conversation.process_event(conversation.connection.receive_invalid(error)))


def run_stdio(handler: Handler, *, max_line: int = MAX_LINE, grace: float = EXIT_GRACE_PERIOD) -> None:
    """Serve over stdin and stdout until the client disconnects; exit at most `grace` seconds later."""
    with Watchdog(grace) as watchdog:
        asyncio.run(serve_stdio(handler, max_line=max_line, on_signal=watchdog.request_exit))
