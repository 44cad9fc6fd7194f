"""Opens a connection, opens it again when it is lost, and closes it, for callers in any task.

Owns the connecting task, the retry timer, the current dispatcher, and the dispatchers that are still closing.
A connection that is lost again and again is tried a few times in the background, and then only on demand.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import Context
from copy import copy
from functools import partial
from typing import Final

from toolpost.channel import is_unattended, mark_unattended
from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.negotiate import Connector, OpenedConnection
from toolpost.client.connection.status import ConnectionState, Transition
from toolpost.errors import AuthError, ChannelClosed, ConnectFailed, RequestFailed, SessionLost

MIN_BACKOFF: Final = 0.5  # seconds before the first retry: a server that restarts quickly is back by then
MAX_BACKOFF: Final = 30.0  # maximum delay in seconds; a connection that lasts longer is a success

BACKOFF_JITTER: Final = 0.5  # random part of a delay: clients of one server must not all come back at once


class Backoff:
    """Growing, randomised pauses between attempts; `tries` counts failures in a row."""

    def __init__(self) -> None:
        self._stood: float | None = None
        self.reset()

    def reset(self) -> None:
        """Start over after a success."""
        self._next = MIN_BACKOFF
        self.tries = 0

    def mark_working(self, now: float) -> None:
        """Record that a try has worked so far; it counts as a success once that has lasted."""
        self._stood = now

    def next_delay(self, now: float) -> float:
        """Return the seconds to wait: the current delay, and up to half of it more."""
        if self._stood is not None and now - self._stood >= MAX_BACKOFF:
            self.reset()
        self._stood = None
        self.tries += 1
        pause, self._next = self._next, min(self._next * 2, MAX_BACKOFF)
        return pause * (1 + random.uniform(0, BACKOFF_JITTER))  # noqa: S311 - it hides nothing


MAX_AUTO_RECONNECTS: Final = 5  # attempts in a row to reopen a lost connection in the background
MAX_RECONNECT_RETRY_AFTER: Final = 3600.0  # seconds by which `Retry-After` can defer a reconnect, at most


class Reconnector:
    """The state machine of a client's connection: closed, connecting, ready, backoff."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[OpenedConnection]],
        connection_state: ConnectionState,
        connector: Connector,
    ) -> None:
        self._connect = connect
        self._connector = connector
        self._connection_state = connection_state
        self._backoff = Backoff()
        self._connect_task: asyncio.Task[OpenedConnection] | None = None
        self._reconnect_timer: asyncio.TimerHandle | None = None
        self._backoff_until = 0.0
        self._is_unattended = False
        self.cause: Exception | None = None  # why the connection was lost, until it is back
        self._waiter_count = 0
        self.current: Dispatcher | None = None  # the connection, also after its end
        self._closing: dict[Dispatcher, asyncio.Task[None]] = {}
        self.is_closed = True  # whether no connection is wanted: none was opened yet, or it was closed by us
        self.last_connection: OpenedConnection | None = None  # the connection that was opened last

    # ----------------------------------------------------------------- the connection

    @property
    def dispatcher(self) -> Dispatcher:
        """The connection. Raises `ChannelClosed` if there is none, with a hint how to open one."""
        dispatcher = self._current_dispatcher()
        if dispatcher is None:
            hint = "use `async with client:`, or `await client.connect()`"
            raise ChannelClosed("the client is not connected", sent=False, hint=hint)
        try:
            dispatcher.check_open()
        except ChannelClosed as error:
            error.hint = error.hint or "call `connect()` to reopen it"
            raise
        return dispatcher

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        dispatcher = self._current_dispatcher()
        return dispatcher is not None and dispatcher.end_reason is None

    @property
    def can_reconnect(self) -> bool:
        """Whether there is a connection, or another one can be opened."""
        return self.is_connected or (self._connector.can_reopen and not self.is_closed)

    async def ensure_connected(self) -> Dispatcher:
        """Return the connection; one that was lost is opened again first."""
        while not self.is_connected:
            if self.is_closed or not self._connector.can_reopen:
                return self.dispatcher
            alone = is_unattended()
            if (self._connect_task is None and self._reconnect_timer is None) or self._is_blocked_on_login(
                alone=alone
            ):
                self._check_backoff()
                self._start_connecting(alone=alone)
            await self._connection_state.wait_for_change()
        return self.dispatcher

    async def open(self) -> None:
        """Connect, unless connected. Several tasks may wait for the same attempt."""
        if self.is_connected:
            return
        connecting = self._start_connecting()
        self._waiter_count += 1
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and task is not None and not task.cancelling():
                raise ChannelClosed("the client was closed while it connected", sent=False) from None
            raise
        finally:
            self._waiter_count -= 1
            if not self._waiter_count and self.is_closed:
                await _cancel_and_wait(connecting)  # no caller is left

    async def close(self) -> None:
        """Close the connection, or stop the attempt to open one. Closing twice is fine."""
        self.is_closed = True
        self._cancel_timer()
        if self._connect_task is not None:
            await _cancel_and_wait(self._connect_task)
        dispatcher = self._current_dispatcher()
        if dispatcher is not None:
            await dispatcher.close()
            if self.current is dispatcher:
                self.current = None
        for old, closing in list(self._closing.items()):
            if not old.loop.is_closed():
                await old.close()
                await asyncio.wait([closing])
        self._closing.clear()
        self._backoff.reset()
        if self._connect_task is None and not self.is_connected:  # else it was connected again meanwhile
            self._connection_state.enter(Transition("closed"))

    # ----------------------------------------------------------------- opening

    def _start_connecting(self, *, alone: bool = False) -> "asyncio.Task[OpenedConnection]":
        """Return the connecting task, started now if there is none; `alone` if no caller waits for it."""
        self._cancel_timer()
        if self._connect_task is not None and self._is_blocked_on_login(alone=alone):
            self._connect_task.cancel()
            self._connect_task = None
        if self._connect_task is None:
            self._is_unattended = alone
            self._connection_state.enter(Transition("connecting"))
            with mark_unattended(alone):
                self._connect_task = asyncio.get_running_loop().create_task(self._run_connect())
            # Not a `finally` in the task: it may be cancelled before its first step.
            self._connect_task.add_done_callback(self._on_connect_done)
        return self._connect_task

    def _is_blocked_on_login(self, *, alone: bool) -> bool:
        """Whether an unattended attempt may need a login, and now a user is there to log in."""
        return (
            self._connector.may_need_login
            and self._connect_task is not None
            and self._is_unattended
            and not alone
        )

    async def _run_connect(self) -> OpenedConnection:
        dispatcher = self._current_dispatcher()
        lost = dispatcher is not None and isinstance(dispatcher.end_reason, SessionLost)
        if dispatcher is not None and not lost:
            await dispatcher.close()
        opened = await self._connect()
        self.current, self.last_connection, self.is_closed = opened.dispatcher, opened, False
        opened.dispatcher.has_response, self.cause = False, None
        self._connection_state.enter(Transition("ready"))
        opened.dispatcher.on_end = self._on_dispatcher_ended
        if opened.dispatcher.end_reason is not None:
            self._on_dispatcher_ended(opened.dispatcher)
        if dispatcher is not None and lost:
            self._close_in_background(dispatcher)
        return opened

    def _on_connect_done(self, connecting: "asyncio.Task[OpenedConnection]") -> None:
        if self._connect_task is connecting:
            self._connect_task = None
        error = None if connecting.cancelled() else connecting.exception()
        if self.is_closed:
            self._connection_state.enter(
                Transition("closed", error if isinstance(error, Exception) else None)
            )
        elif isinstance(error, Exception):
            self._schedule_reconnect(error)

    # ----------------------------------------------------------------- backoff

    def _on_dispatcher_ended(self, dispatcher: Dispatcher) -> None:
        """Reconnect if a connection has ended that we did not close."""
        if dispatcher is not self.current or self.is_closed or dispatcher.end_reason is None:
            return
        if dispatcher.has_response:
            self._backoff.reset()
        self._schedule_reconnect(dispatcher.end_reason)

    def _schedule_reconnect(self, cause: Exception) -> None:
        """Enter backoff, and try again in the background if that makes sense."""
        self.cause = cause
        if not self._connector.can_reopen:
            self._connection_state.enter(Transition("closed", cause))
            return
        loop = asyncio.get_running_loop()
        pause = self._backoff.next_delay(loop.time())
        if isinstance(cause, SessionLost) and self._backoff.tries == 1:
            pause = 0.0  # the server is available, and has only forgotten us
        if isinstance(cause.__cause__, RequestFailed) and cause.__cause__.retry_after is not None:
            pause = max(pause, min(cause.__cause__.retry_after, MAX_RECONNECT_RETRY_AFTER))
        self._connection_state.enter(Transition("backoff", cause, pause, self._backoff.tries))
        if self._backoff.tries <= MAX_AUTO_RECONNECTS and not isinstance(cause, AuthError):
            self._reconnect_timer = loop.call_later(
                pause, partial(self._start_connecting, alone=True), context=Context()
            )
        elif not self._is_unattended or not isinstance(cause, AuthError):  # else a user may log in now
            self._backoff_until = loop.time() + pause

    def _check_backoff(self) -> None:
        """Raise the error of the last attempt if it was too recent for another one."""
        left = self._backoff_until - asyncio.get_running_loop().time()
        if isinstance(self.cause, AuthError) and (left > 0 or is_unattended()):
            raise copy(self.cause)
        if left <= 0:
            return
        raise ConnectFailed(
            f"the connection failed {self._backoff.tries} times in a row; last error: {self.cause}",
            hint=f"next attempt in {left:.0f} s; call `connect()` to retry now",
        ) from self.cause

    def _cancel_timer(self) -> None:
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
            self._reconnect_timer = None

    # ----------------------------------------------------------------- the end

    def _close_in_background(self, dispatcher: Dispatcher) -> None:
        """Close a lost session later: its requests get their own outcome, and its callbacks may go on.

        One of these callbacks may have caused the reconnect, so it must be neither cancelled nor awaited.
        """

        async def end() -> None:
            await dispatcher.wait_calls_done()
            await dispatcher.close()

        task = asyncio.get_running_loop().create_task(end(), context=Context())
        self._closing[dispatcher] = task
        task.add_done_callback(lambda _: self._closing.pop(dispatcher, None))

    def _current_dispatcher(self) -> Dispatcher | None:
        """Return the dispatcher, unless its loop was closed."""
        if self.current is not None and self.current.loop.is_closed():
            self.current, self._reconnect_timer, self.is_closed = None, None, True
        return self.current


async def _cancel_and_wait(connecting: "asyncio.Task[OpenedConnection]") -> None:
    """Cancel a task and wait for its end; its error belongs to the tasks that wait for it."""
    if not connecting.done():
        if not connecting.cancelling():  # a second time would interrupt its cleanup
            connecting.cancel()
        await asyncio.wait([connecting])
    if not connecting.cancelled():
        connecting.exception()
