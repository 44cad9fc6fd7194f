"""The lifespan of an ASGI application that runs in this process.

Owns the task in which the application starts and ends what it needs all the time. Knows no request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from toolpost.errors import ConnectFailed

__all__ = ["App", "Lifespan", "Message"]

CLOSE_PATIENCE: Final = 2.0
"""Seconds that the application has to end: first by itself, then when it is cancelled."""

Message: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[..., Awaitable[None]]

logger: Final = logging.getLogger("toolpost.http")


class Lifespan:
    """The lifespan of an application, in a task of its own: what it opens, it may have to close there."""

    def __init__(self, app: App) -> None:
        loop = asyncio.get_running_loop()
        self._state: dict[str, Any] = {}
        self._up: asyncio.Future[str | None] = loop.create_future()
        self._stop = asyncio.Event()
        self._asked = False
        self._task = loop.create_task(self._run(app))

    async def started(self) -> dict[str, Any]:
        """What the application wants to find in each request, once it has started.

        Raises:
            ConnectFailed: it says that it cannot start.
        """
        failure = await asyncio.shield(self._up)
        if failure is not None:
            raise ConnectFailed(f"the application could not start: {failure or 'it does not say why'}")
        return self._state

    async def stop(self) -> None:
        """End it, in order if it can."""
        self._stop.set()
        await asyncio.wait({self._task}, timeout=CLOSE_PATIENCE)
        if not self._task.done():
            logger.warning("the application did not end its lifespan, and is cancelled")
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_PATIENCE)

    async def _run(self, app: App) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - an application without a lifespan raises what it likes
            logger.debug("the application has no lifespan: %r", error)
        finally:
            self._tell(None)

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "lifespan.startup"}
        await self._stop.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "lifespan.startup.failed":
            self._tell(message.get("message", ""))
        elif message["type"] == "lifespan.shutdown.failed":
            logger.warning("the application could not shut down: %s", message.get("message", ""))
        else:
            self._tell(None)

    def _tell(self, failure: str | None) -> None:
        if not self._up.done():
            self._up.set_result(failure)
