"""Starts coroutines eagerly: up to the first wait they run where they are called, and most never wait.

`start_task` makes a real task, because timeouts and task groups need `asyncio.current_task()`. Also
detects awaitables, and the exception that suspends a call for user input.
"""

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # pyright: ignore[reportPrivateUsage] - documented names
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from contextvars import copy_context
from inspect import isawaitable
from types import CoroutineType, NoneType, coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from toolpost.types.base import Raw
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # what type checkers bring; Python has it from 3.13 on

T = TypeVar("T")


@coroutine
def resume(
    work: Coroutine[Any, Any, Any], waits_for: Any, *, has_task: bool = True
) -> Generator[Any, Any, Any]:
    """Await the rest of work that has run up to its first wait, and the future that it waits for.

    The first step only starts this if there is no task around it yet.
    """
    while True:
        try:
            if not has_task:
                has_task = True
                yield
            yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - the work gets it
            # Cancelled before the task has waited: as a task does, cancel what the work waits for.
            if waits_for is None or not waits_for.cancel():
                try:
                    waits_for = work.throw(error)
                except StopIteration as done:
                    return done.value
        else:
            return (yield from work.__await__())


async def _finish(begun: list[Any]) -> Any:
    """Return the result of work that has begun; nothing if it has ended."""
    return await resume(*begun, has_task=False) if begun else None


def start_task(work: Coroutine[Any, Any, T]) -> "T | asyncio.Task[T]":
    """Run work up to its first wait; return its result, or the task that continues it."""
    loop, context = asyncio.get_running_loop(), copy_context()
    begun: list[Any] = []
    rest = _finish(begun)
    # Not by `create_task`: a loop may have a task factory of its own. With a name, none has to be made up.
    task: asyncio.Task[T] = asyncio.Task(rest, loop=loop, name="toolpost request", context=context)
    caller = asyncio.current_task(loop)
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        begun += work, context.run(work.send, None)
    except StopIteration as done:
        return done.value
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    rest.send(None)  # so that a cancellation reaches the work
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
