"""Starts coroutines eagerly: up to the first wait they run where they are called, and most never wait.

`start_task` makes a real task, because time-outs and task groups hold on to `asyncio.current_task()`.
`StartedCoroutine` continues a coroutine in the caller's own task. Also tells plain values from awaitables
(`is_pending`), and recognises the exception that ends a function which has asked the user (`Unanswered`).
"""

import asyncio
from asyncio import CancelledError
from asyncio.tasks import (
    _enter_task,  # pyright: ignore[reportPrivateUsage] - documented, for programs that run tasks themselves
    _leave_task,  # pyright: ignore[reportPrivateUsage] - as above
)
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

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


class _EagerCoroutine(Coroutine[Any, Any, T], Generic[T]):
    """The coroutine of a task whose work has run up to its first wait, or to its end."""

    __slots__ = ("_is_resumed", "_waits_for", "_work")

    def __init__(self) -> None:
        self._work: Coroutine[Any, Any, T] | None = None
        self._waits_for: Any = None
        self._is_resumed = False

    def wait(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        """Let the task wait for what its work waits for."""
        self._work = work
        self._waits_for = waits_for

    def send(self, value: Any, /) -> Any:
        """Run the next step of the work."""
        if self._work is None:
            raise StopIteration  # it has ended before
        if self._is_resumed:
            return self._work.send(value)
        self._is_resumed = True
        return self._waits_for

    def throw(self, *error: Any) -> Any:
        """Raise an error in the work, such as a cancellation."""
        if self._work is None:
            raise StopIteration
        if not self._is_resumed:
            # Cancelled before the task has waited: as a task does, cancel what the work waits for.
            self._is_resumed = True
            if self._waits_for is not None and self._waits_for.cancel():
                return self._waits_for
        return self._work.throw(error[-1] if isinstance(error[-1], BaseException) else error[0])

    def close(self) -> None:
        """End the work."""
        if self._work is not None:
            self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("only a task runs it")


def start_task(work: Coroutine[Any, Any, T]) -> "T | asyncio.Task[T]":
    """Run work up to its first wait; return its result, or the task that continues it."""
    loop, context, body = asyncio.get_running_loop(), copy_context(), _EagerCoroutine[T]()
    # Not by `create_task`: a loop may have a task factory of its own.
    task: asyncio.Task[T] = asyncio.Task(body, loop=loop, context=context)
    caller = asyncio.current_task(loop)
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        body.wait(work, context.run(work.send, None))
    except StopIteration as done:
        return done.value
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    return task


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
