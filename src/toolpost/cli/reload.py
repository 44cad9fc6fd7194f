"""A server whose code is loaded anew when its files change, while its clients stay.

Owns the thread that looks at the files and loads the code: a loop is never kept from serving by it. How one
server follows another is told in `toolpost.server.generations`, how code is loaded in `found`.
"""

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from toolpost.cli.exits import Quit
from toolpost.cli.found import Source
from toolpost.cli.fresh import Fresh
from toolpost.cli.trace import own_lines
from toolpost.cli.watch import Watch
from toolpost.server.generations import Generations
from toolpost.server.handler import Handler

__all__ = ["Reload"]

INTERVAL: Final = 0.25
"""Seconds between two looks at the files: soon enough for a person, and a few system calls."""

SETTLE: Final = 0.05
"""Seconds in which nothing more may change before the code is loaded: an editor may still be writing."""

PATIENCE: Final = 1.0
"""Seconds that the thread gets to end: the code that it loads may take its time."""


class Reload:
    """Loads the code of a server anew whenever it changes.

    Args:
        source: where it is; its code is loaded fresh.
        first: the server as it is now.
        tell: is told what happens, in words.

    Attributes:
        server: serves with the code of now.

    Raises:
        TypeError: this kind of server cannot be replaced.
    """

    def __init__(self, source: Source, first: Handler, tell: Callable[[str], object]) -> None:
        self._source = source
        self._tell = tell
        self._failure = ""
        self._broken = False
        self._over = threading.Event()
        self._watch = Watch()
        self._changed: set[str] = set()
        self._modules = 0
        self._attend()
        self.server = Generations(first, lifespan=self._watching)

    @asynccontextmanager
    async def _watching(self, _: Handler) -> AsyncGenerator[None]:
        """Look at the files while somebody is served."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._over.clear()

        def run() -> None:
            try:
                self._run(loop)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=run, name="toolpost-reload", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await ended.wait()

    # ----------------------------------------------------------------- in the thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._over.wait(INTERVAL):
            if self._modules != len(sys.modules):  # a function may have imported one more
                self._attend()
            self._changed |= self._watch.changed()
            while self._changed and not self._over.wait(SETTLE) and (more := self._watch.changed()):
                self._changed |= more
            path = self._source.path
            if self._changed and path is not None and path.exists():  # an editor may have moved it away
                changed, self._changed = self._changed, set()
                self._load(loop, changed)

    def _attend(self) -> None:
        """Watch the files, and their folders if they cannot be loaded: what is missing may come."""
        self._modules = len(sys.modules)
        files = self._source.files()
        folders = {str(Path(file).parent) for file in files} if self._broken else set[str]()
        self._watch.follow(files | folders, Fresh.looks)

    def _load(self, loop: asyncio.AbstractEventLoop, changed: set[str]) -> None:
        """Load the code, and let it serve; what goes wrong is told, and all stays as it was."""
        try:
            server = self._source.load_again()
        except Quit as error:
            self._broken = True
            self._attend()
            self._fail(error.message, error.hint)
            return
        self._broken = False
        self._attend()
        if not self._over.is_set():
            self._replace(loop, server, changed)

    def _replace(self, loop: asyncio.AbstractEventLoop, server: Handler, changed: set[str]) -> None:
        if server is self.server.server:
            self._fail(f"{self._source.label} has changed, but its server is made elsewhere.")
            return
        replacing = asyncio.run_coroutine_threadsafe(self.server.replace(server), loop)
        while not concurrent.futures.wait([replacing], INTERVAL).done:
            self._changed |= self._watch.changed()
            if self._changed or self._over.is_set():  # a lifespan that is never entered may be mended by now
                replacing.cancel()
        if replacing.cancelled():
            return
        error = replacing.exception()
        if error is None:
            self._failure = ""
            names = sorted({Path(file).name for file in changed if file.endswith(".py")})
            self._say(f"{self._source.label} is served anew{': changed ' if names else ''}{', '.join(names)}")
        else:
            self._fail(f"{self._source.label} has changed, but cannot be served:\n{own_lines(error)}")

    def _fail(self, text: str, hint: str | None = None) -> None:
        """Tell what is wrong, but the same only once: folders change for many reasons."""
        if text != self._failure:
            self._failure = text
            self._say("\n".join([text, *([hint] if hint else []), "The code of before serves on."]))

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody may be listening
            self._tell(text)
