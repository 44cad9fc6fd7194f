"""Threads for callbacks that are not async, so that none of them ever blocks the loop.

Each client has its own: a callback that is stuck takes nothing from other clients, nor from the loop.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from toolpost.threads import ThreadPool

__all__ = ["CallbackThreads"]


class CallbackThreads(ThreadPool):
    """The threads of one client."""

    async def run(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        """What a callback returns: on the loop if it is async, otherwise in a thread."""
        if inspect.iscoroutinefunction(callback):
            return await callback(*arguments)
        value = await self.run_in_thread(partial(callback, *arguments))
        return await value if inspect.isawaitable(value) else value
