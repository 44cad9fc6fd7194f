"""Completion: what a user may want to type into one argument of a prompt or a template.

A completer hangs on one argument of one handle. Owns the bound of a hundred values; how well they fit is the
author's art.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from toolpost.server.problems import SignatureError
from toolpost.server.work import WorkerThreads
from toolpost.types.prompts import CompleteResult, Completion

__all__ = ["MAX_COMPLETION_VALUES", "Completable"]

MAX_COMPLETION_VALUES: Final = 100
"""Values in one answer, by the specification (COMP-2)."""

F = TypeVar("F", bound=Callable[..., Any])


class Completable:
    """Something whose arguments may be completed.

    Args:
        arguments: their names.
        changed: called when a completer was hung up, since what is declared may change with it.
    """

    def __init__(self, arguments: Iterable[str], changed: Callable[[], object]) -> None:
        self._arguments = tuple(arguments)
        self._on_registered = changed
        self._completers: dict[str, Callable[..., Any]] = {}

    def complete(self, argument: str) -> Callable[[F], F]:
        """Decorate a function that completes one argument.

        It takes what was typed so far and, if it has a second parameter, the arguments that are known; it
        returns the values, best first, or a `Completion`. It may be async.

        Raises:
            ValueError: there is no such argument.
            SignatureError: it wants a context, which there is none of.
        """
        if argument not in self._arguments:
            known = ", ".join(self._arguments) or "none"
            raise ValueError(f"there is no argument {argument!r} to complete; there are: {known}")

        def register(fn: F) -> F:
            for parameter in inspect.signature(fn).parameters.values():
                if "Context" in str(parameter.annotation):
                    raise SignatureError(
                        f"`{fn.__name__}` wants a context in `{parameter.name}`, and completion has none",
                        hint="it gets what was typed, and the arguments that are known",
                    )
            self._completers[argument] = fn
            self._on_registered()
            return fn

        return register

    @property
    def has_completers(self) -> bool:
        """Whether any argument can be completed."""
        return bool(self._completers)

    async def complete_argument(
        self, argument: str, value: str, known: Mapping[str, str], work: WorkerThreads
    ) -> CompleteResult:
        """How an argument might go on; nothing where nobody knows."""
        fn = self._completers.get(argument)
        if fn is None:
            return CompleteResult(completion=Completion(values=[]))
        given = (value, known)[: _count_completer_arguments(fn)]
        found = (
            fn(*given) if inspect.iscoroutinefunction(fn) else await work.run_in_thread(lambda: fn(*given))
        )
        if inspect.isawaitable(found):
            found = await found
        return CompleteResult(completion=_limit_completion(found))


def _count_completer_arguments(fn: Callable[..., Any]) -> int:
    """How many of (typed, known) a completer takes."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(fn).parameters.values()
    return min(2, sum(parameter.kind in positional for parameter in parameters))


def _limit_completion(found: Completion | Iterable[str]) -> Completion:
    if isinstance(found, Completion):
        values, total, more = found.values, found.total, found.has_more
    else:
        values, total, more = list(found), None, None
    if len(values) > MAX_COMPLETION_VALUES:
        return Completion(values=values[:MAX_COMPLETION_VALUES], total=total or len(values), has_more=True)
    return Completion(values=values, total=total, has_more=more)
