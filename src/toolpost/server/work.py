"""How a function is run that was bound: on the loop if it is async, otherwise in a thread.

Also reads the files that it returns, which would block the loop as well. Knows nothing of what it is for.
"""

import asyncio
import sys
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast

from toolpost.server.context import Context
from toolpost.server.pending import is_pending
from toolpost.server.sync import SyncContext
from toolpost.threads import ThreadPool

if TYPE_CHECKING:
    from toolpost.server.bind import BoundFunction
    from toolpost.server.verbatim import RawSchemaFunction

__all__ = ["FILE_FREE_TYPES", "WorkerThreads"]

_SEQUENCE_TYPES: Final = (list, tuple)
FILE_FREE_TYPES: Final[frozenset[type[Any]]] = frozenset({NoneType, bool, int, float, str, bytes, dict})
"""What most functions return, in which there is no file to be read."""


class WorkerThreads(ThreadPool):
    """The threads of one server, and what runs in them."""

    async def run(self, bound: "BoundFunction | RawSchemaFunction", arguments: Any, context: Context) -> Any:
        """What a function returns that was bound: on the loop if it is async, otherwise in a thread."""
        extra: dict[str, Any] = {}
        if bound.ask_plan is not None:
            extra = await bound.ask_plan.collect_answers(
                bound.to_keywords(arguments), context, self._call_resolver
            )
        if bound.is_async:
            value = bound.call(arguments, context, **extra)
        else:
            loop = asyncio.get_running_loop()
            value = await self.run_in_thread(
                lambda: bound.call(arguments, SyncContext(context, loop), **extra)
            )
        if is_pending(value):  # a wrapper may hide that there is something to await, or that there is not
            value = await value
        return value if type(value) in FILE_FREE_TYPES else await self.load_files(value)

    async def load_files(self, value: Any) -> Any:
        """The value with the files in it read."""
        return await self.run_in_thread(lambda: _load_files(value)) if _has_file(value) else value

    def _call_resolver(
        self,
        fn: Callable[..., Any],
        is_async: bool,
        wants: str | None,
        context: Context,
        given: dict[str, Any],
    ) -> Any:
        """What a function gives that finds out a parameter, or what to await; `wants` names its context."""
        if is_async:
            return fn(**given, **({} if wants is None else {wants: context}))
        sync = {} if wants is None else {wants: SyncContext(context, asyncio.get_running_loop())}
        return self.run_in_thread(lambda: fn(**given, **sync))


def _has_file(value: Any) -> bool:
    """Whether a file has to be read before the value can be sent."""
    if "toolpost.server.media" not in sys.modules:
        return False  # nobody can have made one
    from toolpost.server.media import Media  # noqa: PLC0415 - 0.2 ms of a start

    if isinstance(value, _SEQUENCE_TYPES):
        return any(isinstance(item, Media) and item.path is not None for item in cast("list[Any]", value))
    return isinstance(value, Media) and value.path is not None


def _load_files(value: Any) -> Any:
    """The value with the files in it read."""
    from toolpost.server.media import Media  # noqa: PLC0415 - as above

    if isinstance(value, Media):
        return value.load()
    return [item.load() if isinstance(item, Media) else item for item in value]
