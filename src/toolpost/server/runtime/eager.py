"""Work that begins at once: up to its first wait it runs where it is called, though in a task of its own.

A task has to wait for its turn before it begins, and whoever waits for it has to wait for another one. Most
functions never wait: what they give is there at once. The task is a real one from the beginning, because time
limits and task groups hold on to what `asyncio.current_task()` gives. One to which nobody has held on serves
whatever else begins before its turn, when it ends.

PART begun: A coroutine that has run up to its first wait: whether it waits at all is known before a task is
made.

Owns how it goes on from there. Knows no task and no loop.

PART pending: Whether a value is there, has to be waited for, or has to be asked for first.

Functions, routes and middleware may be async or not, and wrappers hide which; one that leaves by `Unanswered`
has asked. Knows no function, only what comes out of it.
"""

import asyncio
import sys
from asyncio import CancelledError
from asyncio.tasks import (
    _enter_task,  # pyright: ignore[reportPrivateUsage] - documented, for those who run tasks of their own
    _leave_task,  # pyright: ignore[reportPrivateUsage] - as above
)
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import Context, copy_context
from functools import partial
from gc import get_referents
from inspect import isawaitable
from operator import is_
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast
from weakref import getweakrefcount

from toolpost.types.base import Raw
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # what type checkers bring; Python has it from 3.13 on

T = TypeVar("T")


class StartedCoroutine(Generic[T]):
    """The rest of a coroutine, to be awaited.

    Args:
        work: the coroutine.
        waits_for: what it waits for.
    """

    __slots__ = ("_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        """What the coroutine gives in the end."""
        waits_for = self._waits_for
        while True:
            try:
                sent: Any = yield waits_for
            except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine
                resume: Callable[[], Any] = partial(self._work.throw, error)
            else:
                resume = partial(self._work.send, sent)
            try:
                waits_for = resume()
            except StopIteration as done:
                return done.value


class CompletedAwaitable(Generic[T]):
    """What has come of something already, for those who would await it: a value, or an error."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: T, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    def __await__(self) -> Generator[Any, Any, T]:
        """The value."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or it would hold itself, by the frame that it comes through
        return self._value
        yield  # makes it a generator, which is what Python wants


def start_coroutine(work: Coroutine[Any, Any, T]) -> T | StartedCoroutine[T]:
    """What a coroutine gives; if it waits, the rest of it."""
    try:
        return StartedCoroutine(work, work.send(None))
    except StopIteration as done:
        return done.value


# --------------------------------------------------------------------- eager

_Task: Final = asyncio.Task
_CAN_REUSE_TASKS: Final = hasattr(sys, "getrefcount") and hasattr(_Task, "_must_cancel")
"""Whether Python has reference counts, and shows all of a task that `_fingerprint_task` reads."""


class _EagerCoroutine(Coroutine[Any, Any, None]):
    """What a task runs whose work has begun before it: the rest, if there is any."""

    __slots__ = ("_is_started", "context", "loop", "rest", "task", "traces")

    spare: "ClassVar[_EagerCoroutine | None]" = None
    """Of the last task whose work did not wait, until its turn comes. There is one at most.

    With many requests in one read most of them are served by it, which takes 3 us less for each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self.loop = loop
        self.context = context
        self.rest: Coroutine[Any, Any, None] | None = None
        self._is_started = False
        # Not by `create_task`: a loop may have a factory of its own, which begins tasks in its own way.
        self.task: Any = _Task(self, loop=loop, context=context)
        self.traces = _fingerprint_task(self.task) if _CAN_REUSE_TASKS else ()

    def send(self, value: Any, /) -> Any:
        """The turn of the task."""
        if self.rest is None:
            self._end()
            raise StopIteration
        self._is_started = True
        return self.rest.send(value)

    def throw(self, *error: Any) -> Any:
        """The turn of the task, if it was cancelled."""
        if self.rest is None:
            self._end()
            raise StopIteration  # too late: the work has ended
        if not self._is_started:
            self.send(None)  # up to where it waits, and is to hear of it
        return self.rest.throw(error[-1] if isinstance(error[-1], BaseException) else error[0])

    def _end(self) -> None:
        """The turn of the task has come, and nothing is left to do in it."""
        self.task = None
        if _EagerCoroutine.spare is self:
            _EagerCoroutine.spare = None

    def close(self) -> None:
        """End the rest."""
        if self.rest is not None:
            self.rest.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("it is for a task to run")


def _can_reuse(body: _EagerCoroutine, loop: asyncio.AbstractEventLoop, context: Context) -> bool:
    """Whether a task may serve other work, because nobody could tell that it has served some before."""
    return (
        body.loop is loop
        and _fingerprint_task(body.task) == body.traces
        and body.context == context
        # What is equal need not be the same: two requests may each have a dictionary of their own.
        and (not context or all(map(is_, body.context.values(), context.values())))
    )


def _fingerprint_task(task: Any) -> tuple[Any, ...]:
    """All that shows what was done to a task, and whether anybody holds on to it."""
    return (
        sys.getrefcount(task),
        getweakrefcount(task),
        # There is no other way to see it: who cancels its task and takes that back may leave it as it is.
        task._must_cancel,  # noqa: SLF001 - as above
        task.get_name(),
        len(get_referents(task)),  # among them what is to be called when it is done, and attributes of others
    )


class StartedTask(StartedCoroutine[T], Generic[T]):
    """Work that waits.

    Args:
        work: the work.
        waits_for: what it waits for.
        body: of its task.
        task: its task.
    """

    __slots__ = ("_body", "_task")

    def __init__(
        self, work: Coroutine[Any, Any, T], waits_for: Any, body: _EagerCoroutine, task: "asyncio.Task[None]"
    ) -> None:
        super().__init__(work, waits_for)
        self._body = body
        self._task = task

    def resume_with(self, rest: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """The task of the work, in which the rest runs: that has to begin by awaiting this."""
        self._body.rest = rest
        return self._task


def start_eagerly(work: Coroutine[Any, Any, T]) -> T | StartedTask[T]:
    """What the work gives; if it waits, what has to go on. What it raises before is raised here."""
    return start_eagerly_in(asyncio.get_running_loop(), work)


def start_eagerly_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T | StartedTask[T]:
    """The same for one who knows which loop is running: to ask takes a system call before Python 3.12."""
    context, body = copy_context(), _EagerCoroutine.spare
    if body is None or not _can_reuse(body, loop, context):
        body = _EagerCoroutine(loop, context)
    _EagerCoroutine.spare = None  # what begins in the work needs another one
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
        return StartedTask(work, given, body, task)
    _EagerCoroutine.spare = body if _CAN_REUSE_TASKS and body.task is not None else None
    return given


# --------------------------------------------------------------------- pending

_PLAIN_TYPES: Final[frozenset[type[Any]]] = frozenset(
    {NoneType, bool, int, float, str, bytes, dict, list, tuple, Raw, CallToolResult}
)


def is_pending(value: object) -> "TypeIs[Awaitable[Any]]":
    """Whether a value has to be awaited: as `isawaitable` says, in 0.1 us instead of 0.6 for most."""
    kind = type(value)
    return kind is CoroutineType or (kind not in _PLAIN_TYPES and isawaitable(value))


class Unanswered(BaseException):
    """A question has no answer yet. The function ends here, and runs again with the answer.

    No `Exception`, so that a function that catches those does not catch this one.
    """


def is_unanswered(error: BaseException) -> bool:
    """Whether a function ends because of a question, alone or beside others of its kind and what they ended.

    An error of its own counts more, as it would in a session.
    """
    leaves = list(_iter_leaves(error))
    asked = any(isinstance(leaf, Unanswered) for leaf in leaves)
    return asked and all(isinstance(leaf, Unanswered | CancelledError) for leaf in leaves)


def _iter_leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _iter_leaves(each)
    else:
        yield error
