"""Reloads the code of a server when its files change, while its clients stay connected.

A thread watches the files and loads the code, so that the event loop is never blocked.
`toolpost.server.reloading` replaces the server.
"""

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

from toolpost.cli.errors import CommandError
from toolpost.cli.run.loader import FileWatcher, ServerSource, UncachedLoader, format_user_traceback
from toolpost.server.handler import Handler
from toolpost.server.reloading import ReloadableServer

POLL_INTERVAL: Final = 0.25  # seconds between two checks of the files
SETTLE_TIME: Final = 0.05  # seconds without a change before reloading: an editor may still write
THREAD_STOP_TIMEOUT: Final = 1.0  # seconds for the thread to end: it may be loading code


class Reloader:
    """Reloads the code of `server`; raises `TypeError` for a kind of server that cannot be replaced."""

    def __init__(self, source: ServerSource, first: Handler, notify: Callable[[str], object]) -> None:
        self._source = source
        self._notify = notify
        self._last_failure = ""
        self._is_broken = False
        self._stop_event = threading.Event()
        self._watch = FileWatcher()
        self._changed_files: set[str] = set()
        self._module_count = 0
        self._update_watch()
        self.server = ReloadableServer(first, lifespan=self._watch_files)

    @contextlib.asynccontextmanager
    async def _watch_files(self, _: Handler) -> AsyncGenerator[None]:
        """Watch the files while the server runs."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._stop_event.clear()

        def run() -> None:
            try:
                self._poll(loop)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=run, name="toolpost-reload", daemon=True).start()
        try:
            yield
        finally:
            self._stop_event.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(THREAD_STOP_TIMEOUT):
                    await ended.wait()

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop_event.wait(POLL_INTERVAL):
            if self._module_count != len(sys.modules):  # a function may have imported another module
                self._update_watch()
            self._changed_files |= self._watch.poll_changes()
            while self._changed_files and not self._stop_event.wait(SETTLE_TIME):
                if not (more := self._watch.poll_changes()):
                    break
                self._changed_files |= more
            path = self._source.path
            if self._changed_files and path is not None and path.exists():  # an editor may have moved it away
                changed, self._changed_files = self._changed_files, set()
                self._reload(loop, changed)

    def _update_watch(self) -> None:
        """Watch the files; after a failure also their folders, where a missing file may appear."""
        self._module_count = len(sys.modules)
        files = self._source.files()
        folders = {str(Path(file).parent) for file in files} if self._is_broken else set[str]()
        self._watch.follow(files | folders, UncachedLoader.file_states)

    def _reload(self, loop: asyncio.AbstractEventLoop, changed: set[str]) -> None:
        """Reload the code and replace the server. After a failure, report it and keep the old server."""
        try:
            server = self._source.reload()
        except CommandError as error:
            self._is_broken = True
            self._update_watch()
            self._report_failure("\n".join(filter(None, (error.message, error.hint))))
            return
        self._is_broken = False
        self._update_watch()
        if not self._stop_event.is_set():
            self._replace(loop, server, changed)

    def _replace(self, loop: asyncio.AbstractEventLoop, server: Handler, changed: set[str]) -> None:
        if server is self.server.server:
            self._report_failure(
                f"{self._source.label} changed, but its server is created in another module."
            )
            return
        replacing = asyncio.run_coroutine_threadsafe(self.server.replace(server), loop)
        while not concurrent.futures.wait([replacing], POLL_INTERVAL).done:
            self._changed_files |= self._watch.poll_changes()
            if self._changed_files or self._stop_event.is_set():
                replacing.cancel()  # the new code may fix a lifespan that hangs
        if replacing.cancelled():
            return
        error = replacing.exception()
        if error is None:
            self._last_failure = ""
            names = ", ".join(sorted({Path(file).name for file in changed if file.endswith(".py")}))
            self._report(f"Reloaded {self._source.label}{': changed ' if names else ''}{names}")
        else:
            text = f"{self._source.label} changed, but could not be served:\n"
            self._report_failure(text + format_user_traceback(error))

    def _report_failure(self, text: str) -> None:
        """Report a failure, but not twice in a row: folders change for many reasons."""
        if text != self._last_failure:
            self._last_failure = text
            self._report(f"{text}\nStill running the previous version.")

    def _report(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed
            self._notify(text)
