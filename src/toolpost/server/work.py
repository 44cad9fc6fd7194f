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
from toolpost.threads import Threads

if TYPE_CHECKING:
    from toolpost.server.bind import Bound
    from toolpost.server.verbatim import Verbatim

__all__ = ["FILELESS", "Work"]

_MANY: Final = (list, tuple)
FILELESS: Final[frozenset[type[Any]]] = frozenset({NoneType, bool, int, float, str, bytes, dict})
"""What most functions return, in which there is no file to be read."""


class Work(Threads):
    """The threads of one server, and what runs in them."""

    async def run(self, bound: "Bound | Verbatim", arguments: Any, context: Context) -> Any:
        """What a function returns that was bound: on the loop if it is async, otherwise in a thread."""
        extra: dict[str, Any] = {}
        if bound.asked is not None:
            extra = await bound.asked.answers(bound.values(arguments), context, self._find_out)
        if bound.is_async:
            value = bound.call(arguments, context, **extra)
        else:
            loop = asyncio.get_running_loop()
            value = await self.in_thread(lambda: bound.call(arguments, SyncContext(context, loop), **extra))
        if is_pending(value):  # a wrapper may hide that there is something to await, or that there is not
            value = await value
        return value if type(value) in FILELESS else await self.loaded(value)

    async def loaded(self, value: Any) -> Any:
        """The value with the files in it read."""
        return await self.in_thread(lambda: _loaded(value)) if _has_file(value) else value

    def _find_out(
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
        return self.in_thread(lambda: fn(**given, **sync))


def _has_file(value: Any) -> bool:
    """Whether a file has to be read before the value can be sent."""
    if "toolpost.server.media" not in sys.modules:
        return False  # nobody can have made one
    from toolpost.server.media import Media  # noqa: PLC0415 - 0.2 ms of a start

    if isinstance(value, _MANY):
        return any(isinstance(item, Media) and item.path is not None for item in cast("list[Any]", value))
    return isinstance(value, Media) and value.path is not None


def _loaded(value: Any) -> Any:
    """The value with the files in it read."""
    from toolpost.server.media import Media  # noqa: PLC0415 - as above

    if isinstance(value, Media):
        return value.loaded()
    return [item.loaded() if isinstance(item, Media) else item for item in value]
