"""A coroutine that has run up to its first wait: whether it waits at all is known before a task is made.

Owns how it goes on from there. Knows no task and no loop.
"""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = ["CompletedAwaitable", "StartedCoroutine", "start_coroutine"]

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
