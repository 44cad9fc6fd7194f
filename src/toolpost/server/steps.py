"""The steps of one call: functions that run once, however often the call does.

Owns those that are under way. One that has begun is finished, also when a question beside it ends the run, or
when the client has gone: half a payment helps nobody. Where values are remembered is told in `journal`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import msgspec

from toolpost.errors import LocalProtocolError
from toolpost.server.journal import ReplayJournal
from toolpost.types.base import Raw

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

__all__ = ["Steps", "decode_step_value", "finish_steps"]

STEP_SHUTDOWN_TIMEOUT: Final = 5.0
"""Seconds that steps get to end when their server does."""

_RUNNING_STEPS: ContextVar["Steps | None"] = ContextVar("_RUNNING_STEPS", default=None)
"""Whose step is running here."""


class Steps:
    """The steps of one call.

    Args:
        server: who serves it; it waits for them when it ends.
    """

    __slots__ = ("_running", "_server")

    def __init__(self, server: "Handler") -> None:
        self._server = server
        self._running: dict[str, asyncio.Task[Raw | BaseException]] = {}

    def check_not_in_step(self, what: str) -> None:
        """Return unless this is called by a step of the same call.

        Raises:
            LocalProtocolError: it is.
        """
        if _RUNNING_STEPS.get() is self:
            raise LocalProtocolError(
                f"a step cannot {what}: it runs once, and what it {what}s would not be remembered",
                hint="let the function do it, before the step or after",
            )

    async def run(
        self, journal: ReplayJournal, name: str, fn: Callable[..., Any], call: Callable[[], Any]
    ) -> Any:
        """What a function gives, or gave when it ran before; `call` calls it.

        Raises:
            LocalProtocolError: it gives nothing that JSON can hold, or something else than it says; or
                another one of this name is running.
        """
        key, written = self.begin_step(journal, name)
        if written is None:
            # Whoever asks beside it may end the function; what has begun is done, and remembered.
            work = self._run_step(journal, key, name, call, is_async=iscoroutinefunction(fn))
            task = asyncio.get_running_loop().create_task(work)
            self._server.running_steps.add(task)
            self._running[name] = task
            task.add_done_callback(self._server.running_steps.discard)
            task.add_done_callback(lambda _: self._running.pop(name))
            done = await asyncio.shield(task)
            if isinstance(done, BaseException):
                raise done
            written = done
        return decode_step_value(name, written, fn)

    def call(self, call: Callable[[], Any], wait: Callable[[Awaitable[Any]], Any]) -> Any:
        """What a step gives that runs in the thread of the call; `wait` is for what has to be awaited."""
        before = _RUNNING_STEPS.set(self)
        try:
            value = call()
            return wait(value) if isawaitable(value) else value
        finally:
            _RUNNING_STEPS.reset(before)

    def begin_step(self, journal: ReplayJournal, name: str) -> tuple[str, Raw | None]:
        """The key of a step, and what it gave if it ran before.

        Raises:
            LocalProtocolError: another one of this name is running, or the caller is a step itself.
        """
        self.check_not_in_step("run another")
        if name in self._running:
            raise LocalProtocolError(
                f"two steps {name!r} run at once, and nobody could tell later which gave what",
                hint="give each a name of its own",
            )
        return journal.look_up_step(name)

    async def _run_step(
        self, journal: ReplayJournal, key: str, name: str, call: Callable[[], Any], *, is_async: bool
    ) -> Raw | BaseException:
        """What a step gives, or raises: as a value, for some exceptions would end the loop with the task."""
        _RUNNING_STEPS.set(self)
        try:
            value: Any = call() if is_async else await self._server.worker_threads.run_in_thread(call)
            return journal.record_step(key, name, await value if isawaitable(value) else value)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the step
            return error

    async def settle(self) -> None:
        """Return when none is under way."""
        while self._running:
            await asyncio.wait(self._running.values())


async def finish_steps(steps: set["asyncio.Task[Any]"]) -> None:
    """Let the steps of a server that ends come to an end as well, for a while."""
    loop = asyncio.get_running_loop()
    ours = {task for task in steps if task.get_loop() is loop}
    if ours:
        _, late = await asyncio.wait(ours, timeout=STEP_SHUTDOWN_TIMEOUT)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


def decode_step_value(name: str, written: Raw, fn: Callable[..., Any]) -> Any:
    """What a step gave: as the type that its function says it returns, be it remembered or not."""
    try:
        kind = get_type_hints(fn).get("return", Any)
    except (TypeError, NameError):  # nobody says, or nobody knows
        kind = Any
    try:
        return msgspec.json.decode(written, type=kind)
    except (TypeError, msgspec.ValidationError) as error:
        raise LocalProtocolError(f"the step {name!r} gives something else than it says: {error}") from error
