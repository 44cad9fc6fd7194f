"""A context that many hold open together: entered by the first who needs it, left by the last.

Owns who counts as first and last. What is entered, and why, is not known here.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

__all__ = ["Life"]


class Life:
    """A context that is entered once, however many hold it open.

    Args:
        enter: makes the context anew, each time that there is a first.
    """

    def __init__(self, enter: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._enter = enter
        self._users = 0
        self._entered: tuple[AbstractAsyncContextManager[Any], Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[Any]:
        """What the context gave to the first."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a lock belongs to the loop that it was waited for in
            self._loop, self._lock = loop, asyncio.Lock()
        async with self._lock:
            if self._entered is None:
                context = self._enter()
                self._entered = (context, await context.__aenter__())
            self._users += 1
            value = self._entered[1]
        try:
            yield value
        finally:
            async with self._lock:
                self._users -= 1
                if self._users == 0:
                    (context, _), self._entered = self._entered, None
                    await context.__aexit__(None, None, None)
