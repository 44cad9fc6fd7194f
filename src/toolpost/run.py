"""The stdio composition root: serves one client over our own stdin and stdout.

Owns signals and the end of the process. What a request means is not known here.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import Final

from toolpost.protocol.framing import MAX_LINE, OversizedLine
from toolpost.server.handler import Handler
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.server.runtime.worker_threads import SlowCallbackMonitor
from toolpost.transports.stdio_server import EXIT_GRACE_PERIOD, StdioServerChannel, Watchdog, open_stdio

logger: Final = logging.getLogger("toolpost.server")

DRAIN_TIMEOUT: Final = 5.0
"""Seconds for running requests to finish when the server stops."""


async def serve_stdio(
    handler: Handler,
    *,
    max_line: int = MAX_LINE,
    drain: float = DRAIN_TIMEOUT,
    told: Callable[..., object] | None = None,
) -> None:
    """Serve one client over our own stdin and stdout, until it closes them or a signal stops us.

    `told` is called by SIGINT and SIGTERM as well, at once, even if the loop is blocked.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    heard = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if _install_signal_handler(loop, number, stop, told)
    ]
    conversations: list[ServerConversation] = []

    async def serve() -> None:
        async with handler.hold_lifespan() as lifespan:
            conversation = ServerConversation(handler, _BorrowedChannel(channel), lifespan)
            conversations.append(conversation)
            channel.on_oversized(partial(_reject_oversized_line, conversation))
            await conversation.run()

    # The channel opens first and closes last: output of a lifespan must not get into the stream.
    async with open_stdio(max_line) as channel, SlowCallbackMonitor():
        serving = asyncio.create_task(serve())
        ending = [asyncio.create_task(stop.wait()), asyncio.create_task(channel.wait_until_ended())]
        try:
            await asyncio.wait((serving, *ending), return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                handler.end_subscriptions()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(drain):
                        for conversation in conversations:
                            await conversation.drain()
            elif conversations:
                await asyncio.wait((serving,))  # it serves what has arrived, and ends
            serving.cancel()
        finally:
            for number in heard:
                loop.remove_signal_handler(number)
            for task in ending:
                task.cancel()
            await asyncio.gather(serving, *ending, return_exceptions=True)
    if not serving.cancelled():
        serving.result()  # raises the error of a lifespan


class _BorrowedChannel:
    """A channel that the conversation does not close: the end of the lifespan may still print."""

    def __init__(self, channel: StdioServerChannel) -> None:
        self.receive = channel.receive
        self.send = channel.send
        self.offer = channel.offer
        self.serve = channel.serve
        self.local = True

    async def close(self) -> None:
        """Leave it open."""


def _install_signal_handler(
    loop: asyncio.AbstractEventLoop,
    number: signal.Signals,
    stop: asyncio.Event,
    told: Callable[..., object] | None,
) -> bool:
    """Let a signal set the event; return False where that is impossible: in other threads, on Windows."""
    try:
        loop.add_signal_handler(number, stop.set)
        if told is not None:
            signal.signal(number, told)  # the loop is notified of the signal in any case
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def _reject_oversized_line(conversation: ServerConversation, line: OversizedLine) -> None:
    """Answer a request that was dropped because of its length."""
    error = line.make_error()
    logger.warning("a message of the client was dropped: %s", error)
    conversation.run_in_background(conversation.process_event(conversation.connection.receive_invalid(error)))


def _check_no_loop_for_stdio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("a loop is running here: write `await server.serve_stdio()` instead of `server.run()`")


def run_stdio(handler: Handler, *, max_line: int = MAX_LINE, grace: float = EXIT_GRACE_PERIOD) -> None:
    """Serve over stdin and stdout until the client has gone; the process ends `grace` seconds later."""
    _check_no_loop_for_stdio()
    with Watchdog(grace) as watchdog:
        asyncio.run(serve_stdio(handler, max_line=max_line, told=watchdog.request_exit))
