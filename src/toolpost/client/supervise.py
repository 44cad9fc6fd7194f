"""Opens a conversation, opens it anew when it is lost, and ends it, whoever asks for it and from any task.

Owns the task that connects, the timer for the next try, the one link that results, and those that end behind
it. A connection that is lost again and again is tried a few times by itself and then only for somebody who
needs it. Knows nothing of what is said over a link.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from copy import copy
from functools import partial
from typing import Final

from toolpost.channel import is_unattended, unattended
from toolpost.client.backoff import Backoff
from toolpost.client.life import Life, Transition
from toolpost.client.link import Link
from toolpost.client.negotiate import Opened
from toolpost.errors import AuthError, ChannelClosed, ConnectFailed, RequestFailed, SessionLost

__all__ = ["MAX_TRIES", "Supervisor"]

MAX_TRIES: Final = 5
"""How often in a row a lost connection is opened anew without anybody asking: some fifteen seconds."""

MAX_WISH: Final = 3600.0
"""Seconds that a server is left alone at most, whatever it says."""

_HINT: Final = "use `async with client:`, or `await client.connect()`"
_AGAIN: Final = "`connect()` opens it again"


class Supervisor:
    """The life of a client: closed, connecting, ready, backoff, and so on.

    Args:
        dial: opens a conversation.
        life: is told of every transition.
        again: whether a conversation that was lost can be opened anew.
        asks: whether a person may have to log in for that.
    """

    def __init__(
        self, dial: Callable[[], Awaitable[Opened]], life: Life, *, again: bool, asks: bool = False
    ) -> None:
        self._dial = dial
        self._asks = asks
        self._life = life
        self._again = again
        self._backoff = Backoff()
        self._opening: asyncio.Task[Opened] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rests_until = 0.0
        self._alone = False
        self._cause: Exception | None = None
        self._waiting = 0
        self._link: Link | None = None
        self._parting: dict[Link, asyncio.Task[None]] = {}
        self.left = True
        """Whether nobody wants a conversation: none was opened yet, or it was closed by our hand."""
        self.opened: Opened | None = None
        """The conversation that was opened last."""

    # ----------------------------------------------------------------- the conversation

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
        return self.going is not None

    @property
    def going(self) -> Link | None:
        """The conversation, if there is one that goes on."""
        link = self._link
        if link is not None and link.ended is None and not link.loop.is_closed():
            return link
        self._held()  # keeps none that cannot go on
        return None

    def here(self) -> Link | None:
        """The same, if it goes on in the event loop that runs now.

        One look less than in `going`, and no property: a call of those takes twice as long.
        """
        link = self._link
        if link is not None and link.ended is None and link.loop is asyncio.get_running_loop():
            return link
        return None

    @property
    def cause(self) -> Exception | None:
        """Why there is no conversation, if one was lost and has not come back."""
        return self._cause

    @property
    def revivable(self) -> bool:
        """Whether there is a conversation, or another one may be had."""
        return self.ready or (self._again and not self.left)

    async def hold(self) -> Link:
        """The conversation; one that was lost is opened anew first.

        Raises:
            ChannelClosed: there is none, or it cannot be opened anew.
            ConnectFailed: that has failed too often just now.
            AuthError: the server does not want us any more.
        """
        while not self.ready:
            if self.left or not self._again:
                return self.link
            alone = is_unattended()
            if (self._opening is None and self._timer is None) or self._waits_for(alone=alone):
                self._check_rested()
                self._begin(alone=alone)
            await self._life.change()
        return self.link

    async def open(self) -> None:
        """Connect, unless that was done. Several tasks may wait for the same connection.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no revision that both speak.
            ChannelClosed: somebody closed the client in the meantime.
        """
        if self.ready:
            return
        opening = self._begin()
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
            if not self._waiting and self.left:
                await _stop(opening)  # nobody wants it any more

    async def close(self) -> None:
        """End the conversation, or the attempt to open one. Closing twice is fine."""
        self.left = True
        self._unset()
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
        self._backoff.reset()
        if self._opening is None and not self.ready:  # else somebody has connected again meanwhile
            self._life.enter(Transition("closed"))

    # ----------------------------------------------------------------- opening

    def _begin(self, *, alone: bool = False) -> "asyncio.Task[Opened]":
        """The attempt to connect, which is made now if there is none; `alone` if nobody asked for it."""
        self._unset()
        if self._opening is not None and self._waits_for(alone=alone):
            self._opening.cancel()
            self._opening = None
        if self._opening is None:
            self._alone = alone
            self._life.enter(Transition("connecting"))
            with unattended(alone):
                self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._tried)  # it may be cancelled before its first step
        return self._opening

    def _waits_for(self, *, alone: bool) -> bool:
        """Whether the attempt may wait for a login that it asks nobody for, and now somebody is there."""
        return self._asks and self._opening is not None and self._alone and not alone

    async def _open(self) -> Opened:
        link = self._held()
        lost = link is not None and isinstance(link.ended, SessionLost)
        if link is not None and not lost:
            await link.close()
        opened = await self._dial()
        self._link, self.opened, self.left = opened.link, opened, False
        opened.link.useful, self._cause = False, None
        self._life.enter(Transition("ready"))
        opened.link.on_end = self._ended
        if opened.link.ended is not None:
            self._ended(opened.link)
        if link is not None and lost:
            self._part(link)
        return opened

    def _tried(self, opening: "asyncio.Task[Opened]") -> None:
        if self._opening is opening:
            self._opening = None
        error = None if opening.cancelled() else opening.exception()
        if self.left:
            self._life.enter(Transition("closed", error if isinstance(error, Exception) else None))
        elif isinstance(error, Exception):
            self._lost(error)

    # ----------------------------------------------------------------- losing and trying again

    def _ended(self, link: Link) -> None:
        """A conversation is over; if nobody has left it, it was lost."""
        if link is not self._link or self.left or link.ended is None:
            return
        if link.useful:
            self._backoff.reset()
        self._lost(link.ended)

    def _lost(self, cause: Exception) -> None:
        """There is no conversation. Try again, if that makes sense without anybody asking for it."""
        self._cause = cause
        if not self._again:
            self._life.enter(Transition("closed", cause))
            return
        loop = asyncio.get_running_loop()
        pause = self._backoff.pause(loop.time())
        if isinstance(cause, SessionLost) and self._backoff.tries == 1:
            pause = 0.0  # the server is there, and has only forgotten us
        if isinstance(cause.__cause__, RequestFailed) and cause.__cause__.retry_after is not None:
            pause = max(pause, min(cause.__cause__.retry_after, MAX_WISH))
        self._life.enter(Transition("backoff", cause, pause, self._backoff.tries))
        if self._backoff.tries <= MAX_TRIES and not isinstance(cause, AuthError):
            self._timer = loop.call_later(pause, partial(self._begin, alone=True), context=Context())
        elif not self._alone or not isinstance(cause, AuthError):  # else somebody may want to log in
            self._rests_until = loop.time() + pause

    def _check_rested(self) -> None:
        """Return if it may be tried again.

        Raises:
            ConnectFailed: the last try was a moment ago, and one of many.
            AuthError: the last try was a moment ago, and the server did not want us.
        """
        left = self._rests_until - asyncio.get_running_loop().time()
        if isinstance(self._cause, AuthError) and (left > 0 or is_unattended()):
            raise copy(self._cause)
        if left <= 0:
            return
        raise ConnectFailed(
            f"the connection was lost or refused {self._backoff.tries} times in a row, the last time because "
            f"{self._cause}",
            hint=f"it is tried again in {left:.0f} s; `connect()` tries it now",
        ) from self._cause

    def _unset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ----------------------------------------------------------------- the end

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

    def _held(self) -> Link | None:
        """The link, unless its loop has ended, and with it all that could be done with it."""
        if self._link is not None and self._link.stranded:
            self._link, self._timer, self.left = None, None, True
        return self._link


async def _stop(opening: "asyncio.Task[Opened]") -> None:
    """End a task, if it has not ended; its error belongs to whoever waits for it."""
    if not opening.done():
        if not opening.cancelling():  # the second time would end it in the middle of its cleaning up
            opening.cancel()
        await asyncio.wait([opening])
    if not opening.cancelled():
        opening.exception()
