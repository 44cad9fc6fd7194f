"""Runs bound functions: on the loop if they are async, otherwise in a thread; reads files they return.

Also `SlowCallbackMonitor`: a thread that checks the loop periodically, and logs the function that blocks it.
"""

import asyncio
import contextlib
import logging
import os
import selectors
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, NoneType
from typing import TYPE_CHECKING, Any, Final, Self, cast

from toolpost.server.context import Context
from toolpost.server.runtime.eager_tasks import is_pending
from toolpost.server.sync_context import SyncContext
from toolpost.threads import ThreadPool

if TYPE_CHECKING:
    from toolpost.server.signature.function_schema import BoundFunction

FILE_FREE_TYPES: Final[frozenset[type[Any]]] = frozenset({NoneType, bool, int, float, str, bytes, dict})
"""The most common return types, which contain no files."""


class WorkerThreads(ThreadPool):
    """The threads of one server, and how functions run in them."""

    async def run(self, bound: "BoundFunction", arguments: Any, context: Context) -> Any:
        """Call a bound function and return its value: on the loop if it is async, otherwise in a thread."""
        extra: dict[str, Any] = {}
        if bound.ask_plan is not None:
            values = bound.to_keywords(arguments)
            extra = await bound.ask_plan.collect_answers(values, context, self.call)
        value = await self.call(
            lambda context: bound.call(arguments, context, **extra), context, bound.is_async
        )
        return value if type(value) in FILE_FREE_TYPES else await self.load_files(value)

    async def call(self, fn: Callable[[Any], Any], context: Context, is_async: bool) -> Any:
        """Call a function with its kind of context: on the loop if it is async, otherwise in a thread."""
        if is_async:
            value = fn(context)
        else:
            sync = SyncContext(context, asyncio.get_running_loop())
            value = await self.run_in_thread(lambda: fn(sync))
        # A wrapper may hide whether there is something to await.
        return await value if is_pending(value) else value

    async def load_files(self, value: Any) -> Any:
        """Return the value with its files read; there can be files only if their module is loaded."""
        media = sys.modules.get("toolpost.server.registry.media")
        if media is None:
            return value

        def load(item: Any) -> Any:
            return item.load() if isinstance(item, media.Media) else item

        is_sequence = isinstance(value, list | tuple)
        items = cast("list[Any]", value) if is_sequence else [value]
        if not any(isinstance(item, media.Media) and item.path is not None for item in items):
            return value
        loaded = await self.run_in_thread(lambda: [load(item) for item in items])
        return loaded if is_sequence else loaded[0]


SLOW_CALLBACK_THRESHOLD: Final = 1.0
"""Seconds that a loop may be busy before a warning: it serves nothing else meanwhile."""

_PACKAGE_DIR: Final = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - pathlib is slow to load
_EVENT_LOOP_FILES: Final = (asyncio.__path__[0], selectors.__file__)

logger: Final = logging.getLogger("toolpost.server")


class SlowCallbackMonitor:
    """Watches the loop of this thread, as an async context manager; `threshold` is in seconds."""

    def __init__(self, threshold: float = SLOW_CALLBACK_THRESHOLD) -> None:
        self._threshold = threshold
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolpost watchdog", daemon=True)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop_thread_id = threading.get_ident()
        self._stopped = asyncio.Event()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        await self._stopped.wait()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            try:
                while not self._stopping.wait(self._threshold):
                    sign = threading.Event()
                    self._loop.call_soon_threadsafe(sign.set)
                    if sign.wait(self._threshold) or not self._report_blocking_function():
                        continue
                    while not sign.wait(self._threshold) and not self._stopping.is_set():
                        pass  # one warning for each time is enough
            finally:
                self._loop.call_soon_threadsafe(self._stopped.set)

    def _report_blocking_function(self) -> bool:
        """Log the function that blocks the loop; return whether there is one."""
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the only way to look
        inner = frames.get(self._loop_thread_id)
        if inner is None or inner.f_code.co_filename.startswith(_EVENT_LOOP_FILES):
            return False  # the loop only waits: the machine was busy
        blocking = _find_blocking_function(inner)
        logger.warning(
            "%s (%s) has blocked the event loop for more than %g s, now at %s:%d; no other request can run. "
            "Declare it with `def`, so that it runs in a thread, or call blocking code with "
            "`asyncio.to_thread`.",
            blocking.co_qualname,
            f"{blocking.co_filename}:{blocking.co_firstlineno}",
            self._threshold,
            inner.f_code.co_filename,
            inner.f_lineno,
        )
        return True


def _find_blocking_function(inner: FrameType) -> CodeType:
    """Return the outermost function on the stack that is neither ours nor asyncio's."""
    frame: FrameType | None = inner
    blocking = inner.f_code
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE_DIR):
        if frame.f_code.co_filename.startswith(_EVENT_LOOP_FILES):
            break
        blocking, frame = frame.f_code, frame.f_back
    return blocking
