"""A task in reserve: work runs up to its first wait without a task made for it, and goes on in the spare one.

Most functions never wait, and a task for each takes longer than they do. Work sees the spare task as its own
from the beginning, since time limits and task groups hold on to what `asyncio.current_task()` gives; once it
waits, the task is its own for good, and the next work gets another. Knows nothing of what is done.
"""

import asyncio
from asyncio.tasks import (
    _enter_task,  # pyright: ignore[reportPrivateUsage] - documented, for those who run tasks of their own
    _leave_task,  # pyright: ignore[reportPrivateUsage] - as above
)
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, Final, Generic, TypeVar

from toolpost.begun import Begun

__all__ = ["AT_WORK", "IN_RESERVE", "Going", "Spare"]

IN_RESERVE: Final = "toolpost: in reserve"
AT_WORK: Final = "toolpost: at work"
"""The names of such tasks."""

T = TypeVar("T")


class _Reserve:
    """A task that waits until there is something to do for it.

    Args:
        loop: that it runs in.
    """

    __slots__ = ("_called", "_rest", "loop", "task", "waits")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waits = False  # until it does, it could be cancelled without anybody hearing of it
        self._called: asyncio.Future[None] = loop.create_future()
        self._rest: Coroutine[Any, Any, None] | None = None
        self.task = loop.create_task(self._wait(), name=IN_RESERVE)

    def call(self, rest: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """The task, which does this from here on."""
        self._rest = rest
        self.task.set_name(AT_WORK)
        if not self._called.done():
            self._called.set_result(None)
        return self.task

    async def _wait(self) -> None:
        self.waits = True
        try:
            await self._called
        except asyncio.CancelledError:
            if self._rest is None:
                raise
            # The work was cancelled before the task knew of it: it is to hear of that where it waits.
            self.task.uncancel()
            self.task.cancel()
        assert self._rest is not None, "whoever wakes it says what to do"
        await self._rest


class Going(Generic[T]):
    """Work that waits, or has not begun.

    Args:
        work: the work.
        rest: what is left of it, if it has begun.
        reserve: what it has seen as its task then.
    """

    __slots__ = ("_reserve", "_rest", "_work")

    def __init__(
        self, work: Coroutine[Any, Any, T], rest: Begun[T] | None = None, reserve: _Reserve | None = None
    ) -> None:
        self._work = work
        self._rest = rest
        self._reserve = reserve

    def __await__(self) -> Generator[Any, Any, T]:
        """What the work gives in the end."""
        return (self._work if self._rest is None else self._rest).__await__()

    def go_on(self, waiting: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """The task of the work: `waiting` runs in it, which awaits this."""
        if self._reserve is None:
            return asyncio.get_running_loop().create_task(waiting)
        return self._reserve.call(waiting)

    def close(self) -> None:
        """End the work, if it has not ended."""
        self._work.close()


class Spare:
    """The task in reserve of one server, in each loop that it serves in."""

    __slots__ = ("_reserves", "_users")

    def __init__(self) -> None:
        self._users: dict[asyncio.AbstractEventLoop, int] = {}
        self._reserves: dict[asyncio.AbstractEventLoop, _Reserve] = {}

    def hold(self) -> None:
        """Have a task in reserve in this loop, until all who hold it let it go."""
        loop = asyncio.get_running_loop()
        self._users[loop] = self._users.get(loop, 0) + 1
        self._prepare(loop)

    def let_go(self) -> None:
        """Hold it no longer."""
        loop = asyncio.get_running_loop()
        self._users[loop] -= 1
        if not self._users[loop]:
            del self._users[loop]
            reserve = self._reserves.pop(loop, None)
            if reserve is not None:
                reserve.task.cancel()

    def _prepare(self, loop: asyncio.AbstractEventLoop) -> _Reserve:
        reserve = self._reserves.get(loop)
        if reserve is None:
            reserve = self._reserves[loop] = _Reserve(loop)
        return reserve

    def _put_back(self, reserve: _Reserve) -> None:
        """Keep a task that was not needed, unless the work has cancelled it, or there is another by now."""
        if reserve.task.cancelling():
            return
        if reserve.loop in self._reserves or reserve.loop not in self._users:
            reserve.task.cancel()
        else:
            self._reserves[reserve.loop] = reserve

    def start(self, work: Coroutine[Any, Any, T]) -> T | Going[T]:
        """What the work gives; if it waits, what has to go on. What it raises before is raised here.

        For a function that does not wait this takes 1.5 us, a task 9.
        """
        loop = asyncio.get_running_loop()
        reserve = self._prepare(loop) if loop in self._users else None
        if reserve is None or not reserve.waits:
            return Going(work)
        del self._reserves[loop]  # work may start other work
        task, caller, context = reserve.task, asyncio.current_task(loop), copy_context()
        if caller is not None:
            _leave_task(loop, caller)
        _enter_task(loop, task)
        try:
            waits_for = context.run(work.send, None)
        except StopIteration as done:
            self._put_back(reserve)
            return done.value
        except BaseException:
            self._put_back(reserve)
            raise
        finally:
            _leave_task(loop, task)
            if caller is not None:
                _enter_task(loop, caller)
        return Going(work, Begun(work, waits_for, context), reserve)
