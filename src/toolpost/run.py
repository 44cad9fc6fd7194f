"""How a server is put together with the ways to reach it: today stdin and stdout.

The one module that knows both servers and transports. Owns signals and the end of the process; what a request
means is not known here.
"""

import asyncio
import contextlib
import logging
import signal
from functools import partial
from typing import Final

from toolpost.protocol.framing import MAX_LINE, Oversize
from toolpost.server.handler import Handler
from toolpost.server.serve import Conversation
from toolpost.transports.stdio import own_stdio

__all__ = ["DRAIN", "run_stdio", "serve_stdio"]

logger: Final = logging.getLogger("toolpost.server")

DRAIN: Final = 5.0
"""Seconds that requests which are being served get to finish when the server is told to stop."""


async def serve_stdio(handler: Handler, *, max_line: int = MAX_LINE, drain: float = DRAIN) -> None:
    """Serve one client over our own stdin and stdout, until it closes them or we are told to stop.

    Args:
        handler: what serves.
        max_line: the longest message to read, in bytes. A longer request is refused.
        drain: seconds that running requests get to finish after SIGINT or SIGTERM.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    told = [number for number in (signal.SIGINT, signal.SIGTERM) if _listen(loop, number, stop)]
    async with handler.alive() as lifespan, own_stdio(max_line) as channel:
        conversation = Conversation(handler, channel, lifespan)
        channel.on_oversized(partial(_refuse, conversation))
        serving = asyncio.create_task(conversation.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                handler.end_listens()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(drain):
                        await conversation.drain()
                serving.cancel()
        finally:
            stopping.cancel()
            for number in told:
                loop.remove_signal_handler(number)
            await asyncio.gather(serving, stopping, return_exceptions=True)


def _listen(loop: asyncio.AbstractEventLoop, number: signal.Signals, stop: asyncio.Event) -> bool:
    """Whether a signal now sets the event; only the main thread of a Unix process can ask for that."""
    try:
        loop.add_signal_handler(number, stop.set)
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def _refuse(conversation: Conversation, line: Oversize) -> None:
    """Tell whoever waits for it that a line was dropped because of its length."""
    error = line.refusal()
    logger.warning("a message of the client was dropped: %s", error)
    conversation.chore(conversation.heed(conversation.connection.broken(error)))


def run_stdio(handler: Handler, *, max_line: int = MAX_LINE) -> None:
    """Serve over stdin and stdout until the client has gone; the process may end then."""
    asyncio.run(serve_stdio(handler, max_line=max_line))
