"""Work that begins at once: up to its first wait it runs where it is called, though in a task of its own.

A task has to wait for its turn before it begins, and whoever waits for it has to wait for another one. Most
functions never wait: what they give is there at once, and their task ends in its turn. The task is a real
one from the beginning, because time limits and task groups hold on to what `asyncio.current_task()` gives.
"""

import asyncio
from asyncio.tasks import (
    _enter_task,  # pyright: ignore[reportPrivateUsage] - documented, for those who run tasks of their own
    _leave_task,  # pyright: ignore[reportPrivateUsage] - as above
)
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from toolpost.begun import Begun

__all__ = ["Going", "start"]

T = TypeVar("T")


class _Body(Coroutine[Any, Any, None]):
    """What a task runs whose work has begun before it: the rest, if there is any."""

    __slots__ = ("_begun", "rest")

    def __init__(self) -> None:
        self.rest: Coroutine[Any, Any, None] | None = None
        self._begun = False

    def send(self, value: Any, /) -> Any:
        """The turn of the task."""
        if self.rest is None:
            raise StopIteration
        self._begun = True
        return self.rest.send(value)

    def throw(self, *error: Any) -> Any:
        """The turn of the task, if it was cancelled."""
        if self.rest is None:
            raise StopIteration  # too late: the work has ended
        if not self._begun:
            self.send(None)  # up to where it waits, and is to hear of it
        return self.rest.throw(error[-1] if isinstance(error[-1], BaseException) else error[0])

    def close(self) -> None:
        """End the rest."""
        if self.rest is not None:
            self.rest.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("it is for a task to run")


class Going(Begun[T], Generic[T]):
    """Work that waits.

    Args:
        work: the work.
        waits_for: what it waits for.
        body: of its task.
        task: its task.
    """

    __slots__ = ("_body", "_task")

    def __init__(
        self, work: Coroutine[Any, Any, T], waits_for: Any, body: _Body, task: "asyncio.Task[None]"
    ) -> None:
        super().__init__(work, waits_for)
        self._body = body
        self._task = task

    def go_on(self, rest: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """The task of the work, in which the rest runs: that has to begin by awaiting this."""
        self._body.rest = rest
        return self._task


def start(work: Coroutine[Any, Any, T]) -> T | Going[T]:
    """What the work gives; if it waits, what has to go on. What it raises before is raised here.

    For a function that does not wait this takes 3 us, a task that is waited for 9.
    """
    loop, context, body = asyncio.get_running_loop(), copy_context(), _Body()
    # Not by `create_task`: a loop may have a factory of its own, which begins tasks in its own way.
    task: asyncio.Task[None] = asyncio.Task(body, loop=loop, context=context)
    caller = asyncio.current_task(loop)
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        waits_for = context.run(work.send, None)
    except StopIteration as done:
        return done.value
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    return Going(work, waits_for, body, task)
