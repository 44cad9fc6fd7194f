"""The lifespan of an ASGI application that runs in this process.

Owns the task in which the application starts and ends what it needs all the time. Knows no request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from toolpost.errors import ConnectFailed

__all__ = ["AsgiApp", "AsgiLifespan", "AsgiMessage"]

LIFESPAN_CLOSE_TIMEOUT: Final = 2.0
"""Seconds that the application has to end: first by itself, then when it is cancelled."""

AsgiMessage: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[..., Awaitable[None]]

logger: Final = logging.getLogger("toolpost.http")


class AsgiLifespan:
    """The lifespan of an application, in a task of its own: what it opens, it may have to close there."""

    def __init__(self, app: AsgiApp) -> None:
        loop = asyncio.get_running_loop()
        self._state: dict[str, Any] = {}
        self._startup: asyncio.Future[str | None] = loop.create_future()
        self._stop = asyncio.Event()
        self._is_startup_sent = False
        self._task = loop.create_task(self._run(app))

    async def wait_for_startup(self) -> dict[str, Any]:
        """What the application wants to find in each request, once it has started.

        Raises:
            ConnectFailed: it says that it cannot start.
        """
        failure = await asyncio.shield(self._startup)
        if failure is not None:
            raise ConnectFailed(f"the application could not start: {failure or 'it does not say why'}")
        return self._state

    async def stop(self) -> None:
        """End it, in order if it can."""
        self._stop.set()
        await asyncio.wait({self._task}, timeout=LIFESPAN_CLOSE_TIMEOUT)
        if not self._task.done():
            logger.warning("the application did not end its lifespan, and is cancelled")
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=LIFESPAN_CLOSE_TIMEOUT)

    async def _run(self, app: AsgiApp) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - an application without a lifespan raises what it likes
            logger.debug("the application has no lifespan: %r", error)
        finally:
            self._report_startup(None)

    async def _receive(self) -> AsgiMessage:
        if not self._is_startup_sent:
            self._is_startup_sent = True
            return {"type": "lifespan.startup"}
        await self._stop.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: AsgiMessage) -> None:
        if message["type"] == "lifespan.startup.failed":
            self._report_startup(message.get("message", ""))
        elif message["type"] == "lifespan.shutdown.failed":
            logger.warning("the application could not shut down: %s", message.get("message", ""))
        else:
            self._report_startup(None)

    def _report_startup(self, failure: str | None) -> None:
        if not self._startup.done():
            self._startup.set_result(failure)
