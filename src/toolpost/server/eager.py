"""Work that begins at once: up to its first wait it runs where it is called, though in a task of its own.

A task has to wait for its turn before it begins, and whoever waits for it has to wait for another one. Most
functions never wait: what they give is there at once. The task is a real one from the beginning, because time
limits and task groups hold on to what `asyncio.current_task()` gives. One to which nobody has held on serves
whatever else begins before its turn, when it ends.
"""

import asyncio
import sys
from asyncio.tasks import (
    _enter_task,  # pyright: ignore[reportPrivateUsage] - documented, for those who run tasks of their own
    _leave_task,  # pyright: ignore[reportPrivateUsage] - as above
)
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from gc import get_referents
from operator import is_
from typing import Any, ClassVar, Final, Generic, TypeVar
from weakref import getweakrefcount

from toolpost.begun import Begun

__all__ = ["Going", "start", "start_in"]

T = TypeVar("T")

_Task: Final = asyncio.Task
_TRACED: Final = hasattr(sys, "getrefcount") and hasattr(_Task, "_must_cancel")
"""Whether Python counts who holds on to an object, and shows all of a task that `_traces` looks at."""


class _Body(Coroutine[Any, Any, None]):
    """What a task runs whose work has begun before it: the rest, if there is any."""

    __slots__ = ("_begun", "context", "loop", "rest", "task", "traces")

    spare: "ClassVar[_Body | None]" = None
    """Of the last task whose work did not wait, until its turn comes. There is one at most.

    With many requests in one read most of them are served by it, which takes 3 us less for each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self.loop = loop
        self.context = context
        self.rest: Coroutine[Any, Any, None] | None = None
        self._begun = False
        # Not by `create_task`: a loop may have a factory of its own, which begins tasks in its own way.
        self.task: Any = _Task(self, loop=loop, context=context)
        self.traces = _traces(self.task) if _TRACED else ()

    def send(self, value: Any, /) -> Any:
        """The turn of the task."""
        if self.rest is None:
            self._end()
            raise StopIteration
        self._begun = True
        return self.rest.send(value)

    def throw(self, *error: Any) -> Any:
        """The turn of the task, if it was cancelled."""
        if self.rest is None:
            self._end()
            raise StopIteration  # too late: the work has ended
        if not self._begun:
            self.send(None)  # up to where it waits, and is to hear of it
        return self.rest.throw(error[-1] if isinstance(error[-1], BaseException) else error[0])

    def _end(self) -> None:
        """The turn of the task has come, and nothing is left to do in it."""
        self.task = None
        if _Body.spare is self:
            _Body.spare = None

    def close(self) -> None:
        """End the rest."""
        if self.rest is not None:
            self.rest.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("it is for a task to run")


def _serves(body: _Body, loop: asyncio.AbstractEventLoop, context: Context) -> bool:
    """Whether a task may serve other work, because nobody could tell that it has served some before."""
    return (
        body.loop is loop
        and _traces(body.task) == body.traces
        and body.context == context
        # What is equal need not be the same: two requests may each have a dictionary of their own.
        and (not context or all(map(is_, body.context.values(), context.values())))
    )


def _traces(task: Any) -> tuple[Any, ...]:
    """All that shows what was done to a task, and whether anybody holds on to it."""
    return (
        sys.getrefcount(task),
        getweakrefcount(task),
        # There is no other way to see it: who cancels its task and takes that back may leave it as it is.
        task._must_cancel,  # noqa: SLF001 - as above
        task.get_name(),
        len(get_referents(task)),  # among them what is to be called when it is done, and attributes of others
    )


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
    """What the work gives; if it waits, what has to go on. What it raises before is raised here."""
    return start_in(asyncio.get_running_loop(), work)


def start_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T | Going[T]:
    """The same for one who knows which loop is running: to ask takes a system call before Python 3.12."""
    context, body = copy_context(), _Body.spare
    if body is None or not _serves(body, loop, context):
        body = _Body(loop, context)
    _Body.spare = None  # what begins in the work needs another one
    task = body.task  # whoever runs the loop in the work lets its turn come
    caller, given, waits = asyncio.current_task(loop), None, True
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        given = body.context.run(work.send, None)
    except StopIteration as done:
        given, waits = done.value, False
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    if waits:
        body.task = None
        return Going(work, given, body, task)
    _Body.spare = body if _TRACED and body.task is not None else None
    return given
