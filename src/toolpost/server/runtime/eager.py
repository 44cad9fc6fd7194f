"""Starts coroutines eagerly: up to the first wait they run where they are called, most never wait.

`start_coroutine` does so without a task. `start_eagerly` makes a real one, because time-outs and task groups
hold on to `asyncio.current_task()`. Also tells plain values from awaitables (`is_pending`), and recognises
the exception by which a function ends that has asked the user (`Unanswered`).
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
    """A coroutine that waits for the first time; await it for its result."""

    __slots__ = ("_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        """Return what the coroutine returns."""
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
    """An awaitable that is done: a value, or an error."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: T, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    def __await__(self) -> Generator[Any, Any, T]:
        """Return the value, or raise the error."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or it would refer to itself, by its traceback
        return self._value
        yield  # makes it a generator


def start_coroutine(work: Coroutine[Any, Any, T]) -> T | StartedCoroutine[T]:
    """Return what a coroutine returns, or the rest of it if it waits."""
    try:
        return StartedCoroutine(work, work.send(None))
    except StopIteration as done:
        return done.value


# --------------------------------------------------------------------- in a task

_Task: Final = asyncio.Task
_CAN_REUSE_TASKS: Final = hasattr(sys, "getrefcount") and hasattr(_Task, "_must_cancel")


class _EagerCoroutine(Coroutine[Any, Any, None]):
    """The coroutine of a task whose work was started before it: the rest, if there is any."""

    __slots__ = ("_is_started", "context", "loop", "rest", "task", "traces")

    spare: "ClassVar[_EagerCoroutine | None]" = None
    """That of the last task whose work did not wait: it serves the next work, until its turn comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self.loop = loop
        self.context = context
        self.rest: Coroutine[Any, Any, None] | None = None
        self._is_started = False
        # Not by `create_task`: a loop may have a task factory of its own.
        self.task: Any = _Task(self, loop=loop, context=context)
        self.traces = _fingerprint_task(self.task) if _CAN_REUSE_TASKS else ()

    def send(self, value: Any, /) -> Any:
        """Run the task."""
        if self.rest is None:
            self._end()
            raise StopIteration
        self._is_started = True
        return self.rest.send(value)

    def throw(self, *error: Any) -> Any:
        """Run the task, after it was cancelled."""
        if self.rest is None:
            self._end()
            raise StopIteration  # too late: the work has ended
        if not self._is_started:
            self.send(None)  # up to where it waits
        return self.rest.throw(error[-1] if isinstance(error[-1], BaseException) else error[0])

    def _end(self) -> None:
        """Note that the task is run, and nothing is left to do in it."""
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
    """Return whether a task may serve other work: nothing refers to it, and its context is the same."""
    return (
        body.loop is loop
        and _fingerprint_task(body.task) == body.traces
        and body.context == context
        # Equal values need not be identical: two requests may each have a dictionary of their own.
        and (not context or all(map(is_, body.context.values(), context.values())))
    )


def _fingerprint_task(task: Any) -> tuple[Any, ...]:
    """Return all that shows what was done to a task, and whether it is referenced."""
    return (
        sys.getrefcount(task),
        getweakrefcount(task),
        task._must_cancel,  # noqa: SLF001 - `uncancel` may leave it set, and nothing else shows it
        task.get_name(),
        len(get_referents(task)),  # among them its callbacks and foreign attributes
    )


class StartedTask(StartedCoroutine[T], Generic[T]):
    """Work that waits, in a task."""

    __slots__ = ("_body", "_task")

    def __init__(
        self, work: Coroutine[Any, Any, T], waits_for: Any, body: _EagerCoroutine, task: "asyncio.Task[None]"
    ) -> None:
        super().__init__(work, waits_for)
        self._body = body
        self._task = task

    def resume_with(self, rest: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Return the task of the work, which runs `rest`: that has to begin by awaiting this."""
        self._body.rest = rest
        return self._task


def start_eagerly(work: Coroutine[Any, Any, T]) -> T | StartedTask[T]:
    """Return what the work returns, or a `StartedTask` if it waits. Raises what it raises before."""
    return start_eagerly_in(asyncio.get_running_loop(), work)


def start_eagerly_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T | StartedTask[T]:
    """Do the same, given the running loop: to look it up takes a system call before Python 3.12."""
    context, body = copy_context(), _EagerCoroutine.spare
    if body is None or not _can_reuse(body, loop, context):
        body = _EagerCoroutine(loop, context)
    _EagerCoroutine.spare = None  # work that is started inside needs another one
    task = body.task  # kept: the work may run the loop, and so the task
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


# --------------------------------------------------------------------- values, awaitables, questions

_PLAIN_TYPES: Final[frozenset[type[Any]]] = frozenset(
    {NoneType, bool, int, float, str, bytes, dict, list, tuple, Raw, CallToolResult}
)


def is_pending(value: object) -> "TypeIs[Awaitable[Any]]":
    """Return what `isawaitable` returns, faster for most values."""
    kind = type(value)
    return kind is CoroutineType or (kind not in _PLAIN_TYPES and isawaitable(value))


class Unanswered(BaseException):
    """Raised by a question that has no answer yet: the function ends, and runs again with the answer.

    Not an `Exception`, so that a function that catches those does not catch it.
    """


def is_unanswered(error: BaseException) -> bool:
    """Return whether an error, or all of its group, comes from questions; any other error counts more."""
    leaves = list(_iter_leaves(error))
    asked = any(isinstance(leaf, Unanswered) for leaf in leaves)
    return asked and all(isinstance(leaf, Unanswered | CancelledError) for leaf in leaves)


def _iter_leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _iter_leaves(each)
    else:
        yield error
