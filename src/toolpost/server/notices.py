"""A function that hears what clients say: how it is called with a context and the parameters of a notice.

Refuses a function that cannot take them when it is registered. Which notices there are, and who sends them,
is not known here.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

from toolpost.server.context import Context
from toolpost.server.scope import unwrap_layers
from toolpost.server.sync import SyncContext
from toolpost.server.work import WorkerThreads

__all__ = ["RESERVED_NOTIFICATIONS", "NotificationReceiver"]

RESERVED_NOTIFICATIONS: Final = frozenset({"notifications/cancelled", "notifications/progress"})
"""What the protocol acts upon itself: a function learns of it by `ctx.cancelled`, or by the answer."""


class NotificationReceiver:
    """A function that hears a notice.

    Args:
        fn: takes a context and, if it likes, the parameters. One that is not async gets a `SyncContext`, in a
            thread.
        work: the threads.

    Raises:
        TypeError: it takes neither one argument nor two.
    """

    def __init__(self, fn: Callable[..., Any], work: WorkerThreads) -> None:
        self._fn = fn
        self._work = work
        self._argument_count = _count_receiver_arguments(fn)
        self._is_async = any(map(inspect.iscoroutinefunction, unwrap_layers(fn)))

    async def __call__(self, context: Context, params: Any) -> None:
        """Call the function."""
        if self._is_async:
            await self._fn(*(context, params)[: self._argument_count])
            return
        given = (SyncContext(context, asyncio.get_running_loop()), params)[: self._argument_count]
        await self._work.run_in_thread(lambda: self._fn(*given))


def _count_receiver_arguments(fn: Callable[..., Any]) -> int:
    """How many of (context, params) a function takes."""
    signature = inspect.signature(fn)
    for given in ((None, None), (None,)):
        try:
            signature.bind(*given)
        except TypeError:
            continue
        return len(given)
    raise TypeError(
        f"`{getattr(fn, '__name__', fn)}{signature}` cannot hear a notice: "
        "it has to take a context, and may take the parameters after it"
    )
