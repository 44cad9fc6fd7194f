"""Opens a conversation and ends it, whoever asks for it and from whichever task.

Owns the task that connects, the one link that results, and those that end behind it. Knows nothing of what is
said over them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

from toolpost.client.link import Link
from toolpost.client.negotiate import Opened
from toolpost.errors import ChannelClosed, SessionLost

__all__ = ["Supervisor"]

_HINT: Final = "use `async with client:`, or `await client.connect()`"
_AGAIN: Final = "`connect()` opens it again"


class Supervisor:
    """The life of a client: closed, connecting, ready, closed, and so on.

    Args:
        dial: opens a conversation.
    """

    def __init__(self, dial: Callable[[], Awaitable[Opened]]) -> None:
        self._dial = dial
        self._opening: asyncio.Task[Opened] | None = None
        self._waiting = 0
        self._link: Link | None = None
        self._parting: dict[Link, asyncio.Task[None]] = {}
        self.left = True
        """Whether nobody wants a conversation: none was opened yet, or it was closed by our hand."""
        self.opened: Opened | None = None
        """The conversation that was opened last."""

    @property
    def link(self) -> Link:
        """The conversation.

        Raises:
            ChannelClosed: there is none, or it is over; the hint says how to open one.
        """
        link = self._held()
        if link is None:
            raise ChannelClosed("the client is not connected", sent=False, hint=_HINT)
        try:
            link.check_open()
        except ChannelClosed as error:
            error.hint = error.hint or _AGAIN
            raise
        return link

    @property
    def ready(self) -> bool:
        """Whether there is a conversation."""
        link = self._held()
        return link is not None and link.ended is None

    async def open(self) -> None:
        """Connect, unless that was done. Several tasks may wait for the same connection.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no revision that both speak.
            ChannelClosed: somebody closed the client in the meantime.
        """
        if self.ready:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._tried)  # it may be cancelled before its first step
        opening = self._opening
        self._waiting += 1
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                raise ChannelClosed("the client was closed while it connected", sent=False) from None
            raise
        finally:
            self._waiting -= 1
            if not self._waiting:
                await _stop(opening)  # nobody wants it any more

    async def reopen(self) -> None:
        """Connect again, unless that was done, for somebody who lost the connection.

        Raises:
            ConnectFailed: the server cannot be reached.
            ChannelClosed: the client was closed, and nobody wants a connection.
        """
        if self.left:
            raise ChannelClosed("the client was closed", sent=False, hint=_AGAIN)
        await self.open()

    async def _open(self) -> Opened:
        link = self._held()
        lost = link is not None and isinstance(link.ended, SessionLost)
        if link is not None and not lost:
            await link.close()
        opened = await self._dial()
        self._link, self.opened, self.left = opened.link, opened, False
        if link is not None and lost:
            self._part(link)
        return opened

    def _part(self, link: Link) -> None:
        """Let a lost session end by itself: requests in it hear their own fate, and callbacks may go on.

        It may be one of these callbacks that connects; it must not be cancelled for that, nor waited for.
        """

        async def end() -> None:
            await link.settle()
            await link.close()

        task = asyncio.get_running_loop().create_task(end(), context=Context())
        self._parting[link] = task
        task.add_done_callback(lambda _: self._parting.pop(link, None))

    def _tried(self, opening: "asyncio.Task[Opened]") -> None:
        if self._opening is opening:
            self._opening = None

    def _held(self) -> Link | None:
        """The link, unless its loop has ended, and with it all that could be done with it."""
        if self._link is not None and self._link.stranded:
            self._link = None
        return self._link

    async def close(self) -> None:
        """End the conversation, or the attempt to open one. Closing twice is fine."""
        self.left = True
        if self._opening is not None:
            await _stop(self._opening)
        link = self._held()
        if link is not None:
            await link.close()
            if self._link is link:
                self._link = None
        for old, parting in list(self._parting.items()):
            if not old.stranded:
                await old.close()
                await asyncio.wait([parting])
        self._parting.clear()


async def _stop(opening: "asyncio.Task[Opened]") -> None:
    """End a task, if it has not ended; its error belongs to whoever waits for it."""
    if not opening.done():
        opening.cancel()
        await asyncio.wait([opening])
    if not opening.cancelled():
        opening.exception()
