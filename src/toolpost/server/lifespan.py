"""A context manager with a use count: entered for the first holder, left after the last.

What is entered, and why, is not known here.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any


class SharedLifespan:
    """A context that is entered once, however many hold it open; `enter` makes it each time."""

    def __init__(self, enter: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._enter = enter
        self._use_count = 0
        self._entered: tuple[AbstractAsyncContextManager[Any], Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def hold_open(self) -> AbstractAsyncContextManager[Any]:
        """Return a context manager that holds the context open, and gives its value."""
        return _LifespanHold(self)

    async def acquire(self) -> Any:
        """Return the value of the context; it stays open until `release`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a lock belongs to one loop
            self._loop, self._lock = loop, asyncio.Lock()
        async with self._lock:
            if self._entered is None:
                context = self._enter()
                self._entered = (context, await context.__aenter__())
            self._use_count += 1
            return self._entered[1]

    async def release(self) -> None:
        """Hold it no longer; leave the context after the last holder."""
        async with self._lock:
            self._use_count -= 1
            if self._use_count == 0:
                entered, self._entered = self._entered, None
                assert entered is not None, "it was held until now"
                await entered[0].__aexit__(None, None, None)


class _LifespanHold(AbstractAsyncContextManager[Any, None]):
    """One holder. Not a generator: each session has one for its lifetime."""

    __slots__ = ("_lifespan",)

    def __init__(self, life: SharedLifespan) -> None:
        self._lifespan = life

    async def __aenter__(self) -> Any:
        return await self._lifespan.acquire()

    async def __aexit__(self, *_: object) -> None:
        await self._lifespan.release()
