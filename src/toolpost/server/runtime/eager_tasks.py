"""Starts coroutines eagerly: up to the first wait they run where they are called, and most never wait.

`start_task` makes a real task, because timeouts and task groups need `asyncio.current_task()`. Also
detects awaitables, and the exception that suspends a call for user input.
"""

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # pyright: ignore[reportPrivateUsage] - documented names
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from contextvars import copy_context
from inspect import isawaitable
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from toolpost.types.base import Raw
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # what type checkers bring; Python has it from 3.13 on

T = TypeVar("T")


class StartedCoroutine(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine whose work has run up to its first wait; await it, or give it to a task.

    Without work, it ends at once: the work has ended before.
    """

    __slots__ = ("_is_resumed", "_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, T] | None = None, waits_for: Any = None) -> None:
        self._is_resumed = False
        self._work, self._waits_for = work, waits_for

    def set_work(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        """Set the work, and the future that it waits for."""
        self._work, self._waits_for = work, waits_for

    def __next__(self) -> Any:
        if self._work is None:
            raise StopIteration
        if self._is_resumed:
            return self._work.send(None)
        self._is_resumed = True
        return self._waits_for

    def send(self, _value: Any, /) -> Any:
        """Run the next step of the work. Event loops send nothing but None."""
        return next(self)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the work, such as a cancellation."""
        if self._work is None:
            raise StopIteration
        if not self._is_resumed:
            # Cancelled before the task has waited: as a task does, cancel the future that the work waits for.
            self._is_resumed = True
            if self._waits_for is not None and self._waits_for.cancel():
                return self._waits_for
        return self._work.throw(error[-1] if isinstance(error[-1], BaseException) else error[0])

    def close(self) -> None:
        """End the work."""
        if self._work is not None:
            self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return cast("Generator[Any, Any, T]", self)


def start_task(work: Coroutine[Any, Any, T]) -> "T | asyncio.Task[T]":
    """Run work up to its first wait; return its result, or the task that continues it."""
    loop, context = asyncio.get_running_loop(), copy_context()
    body: StartedCoroutine[T] = StartedCoroutine()  # not `StartedCoroutine[T]()`, which takes far longer
    # Not by `create_task`: a loop may have a task factory of its own. With a name, none has to be made up.
    task: asyncio.Task[T] = asyncio.Task(body, loop=loop, name="toolpost request", context=context)
    caller = asyncio.current_task(loop)
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        body.set_work(work, context.run(work.send, None))
    except StopIteration as done:
        return done.value
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    return task


_PLAIN_TYPES: Final[frozenset[type[Any]]] = frozenset(
    {NoneType, bool, int, float, str, bytes, dict, list, tuple, Raw, CallToolResult}
)


def is_pending(value: object) -> "TypeIs[Awaitable[Any]]":
    """Return whether a value is awaitable; faster than `isawaitable` for most values."""
    kind = type(value)
    return kind is CoroutineType or (kind not in _PLAIN_TYPES and isawaitable(value))


class Unanswered(BaseException):
    """A question has no answer yet: the function ends, and runs again with the answer.

    Not an `Exception`: functions that catch those must not catch it.
    """


def is_unanswered(error: BaseException) -> bool:
    """Return whether an error, or each one of a group, is an open question or its cancellation."""
    leaves = list(_iter_leaves(error))
    asked = any(isinstance(leaf, Unanswered) for leaf in leaves)
    return asked and all(isinstance(leaf, Unanswered | asyncio.CancelledError) for leaf in leaves)


def _iter_leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _iter_leaves(each)
    else:
        yield error
