"""A pytest plugin: after each test no task, thread, process, descriptor or temporary file remains.

What is there after a test is compared with what was there before it; only where there is more is anything
waited for. A test that failed is not judged. The same is done for each module, and so for the fixtures that
its tests share. A loop that is closed tells which tasks it still had: `asyncio.run` cancels them silently.

Not seen: grandchildren whose parent has ended, threads that `threading` did not start, tasks of a loop that
outlives the test unless it is `lasting`, and, where there is no /proc, processes and descriptors.
"""

import asyncio
import asyncio.runners
import functools
import gc
import os
import tempfile
import threading
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

SOON = 0.05
"""Seconds in which what was told to end usually has; only then does it pay to look for garbage."""

PATIENCE = 10.0
"""Seconds after which nothing is expected to end by itself any more."""

PAUSE = 0.001
"""Seconds between two looks."""

cut_off: list[str] = []
"""The tasks that were not done when their loop was closed. A test that is about this clears the list."""

_runners: list[asyncio.Runner] = []


def descriptors() -> dict[str, int]:
    """The open descriptors of this process, and the number of what each is open on."""
    found: dict[str, int] = {}
    with suppress(FileNotFoundError):  # there is no /proc
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - runs twice per test, has to be fast
            with suppress(OSError):  # the one that listed the folder
                found[name] = os.fstat(int(name)).st_ino
    return found


def children() -> set[str]:
    """The numbers of the child processes of this process, zombies included."""
    found: set[str] = set()
    with suppress(AttributeError, ChildProcessError, FileNotFoundError):  # cannot tell, has none, as above
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # much faster if there are none
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - as above
            with (
                suppress(FileNotFoundError, ProcessLookupError),  # a thread that has just ended
                open(f"/proc/self/task/{thread}/children", "rb", buffering=0) as file,  # noqa: PTH123 - as above
            ):
                found.update(file.read().decode().split())
    return found


class Holdings:
    """What this process holds."""

    def __init__(self) -> None:
        self.tasks = {task for runner in _runners for task in asyncio.all_tasks(runner.get_loop())}
        self.threads = {one for one in threading.enumerate() if not isinstance(one, threading._DummyThread)}
        self.children = children()
        self.descriptors = set(descriptors().items())
        self.files = set(os.listdir(tempfile.gettempdir()))  # noqa: PTH208 - as above

    def __sub__(self, other: "Holdings") -> dict[str, set[Any]]:
        return {kind: held - vars(other)[kind] for kind, held in vars(self).items()}

    def add(self, more: dict[str, set[Any]]) -> None:
        """Expect these as well."""
        for kind, held in more.items():
            vars(self)[kind] |= held

    @contextmanager
    def on_purpose(self) -> Generator[None]:
        """Expect as well whatever begins meanwhile."""
        before = Holdings()
        yield
        self.add(Holdings() - before)

    def left(self) -> dict[str, set[Any]]:
        """What there is more than this, once everything that ends by itself has ended."""
        began = time.monotonic()
        collected = False
        while any((more := Holdings() - self).values()):
            waited = time.monotonic() - began
            if waited > PATIENCE:
                break
            more.clear()  # what is held here is no garbage
            if waited > SOON and not collected:
                gc.collect()
                collected = True
            _pause()
        return more


def _pause() -> None:
    for runner in _runners:
        runner.run(asyncio.sleep(0))
    time.sleep(PAUSE)


@contextmanager
def lasting(runner: asyncio.Runner) -> Generator[asyncio.Runner]:
    """Have an eye on a loop that outlives tests. It is run when something has to end by itself."""
    _runners.append(runner)
    try:
        yield runner
    finally:
        _runners.remove(runner)


def _process(number: str) -> str:
    folder = Path("/proc", number)
    words = (folder / "cmdline").read_text(errors="replace").split("\0")[:-1]
    words = words or (folder / "stat").read_text().split()[1:3]  # of a zombie its name and a Z
    return " ".join([number, *words])


def _descriptor(held: tuple[str, int]) -> str:
    return f"{held[0]}, {os.readlink(f'/proc/self/fd/{held[0]}')}"  # noqa: PTH115 - `socket:[1]` is no path


WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "tasks": ("task", repr),
    "threads": ("thread", repr),
    "children": ("process", _process),
    "descriptors": ("descriptor", _descriptor),
    "files": ("temporary file", str),
}
"""What a kind of holding is called, and what tells one from another."""


def told(left: dict[str, set[Any]]) -> list[str]:
    """What is left, in words, one line for each."""
    lines: list[str] = []
    for kind, held in left.items():
        word, name = WORDS[kind]
        for one in held:
            with suppress(OSError):  # it has ended in the meantime
                lines.append(f"{word} {name(one)}")
    return sorted(lines)


def _judged(request: pytest.FixtureRequest, *outer: Holdings) -> Generator[Holdings]:
    """What may be there in the end; fails if there is more.

    Args:
        request: of the fixture.
        outer: who need not tell the same once more.
    """
    held = Holdings()
    failures = request.session.testsfailed
    yield held
    lines = [f"task {task}" for task in cut_off]
    cut_off.clear()
    if request.session.testsfailed > failures:
        return  # whatever it held when it failed
    left = held.left()
    lines += told(left)
    for one in outer:
        one.add(left)
    if lines:
        pytest.fail("left behind:\n" + "\n".join(lines), pytrace=False)


def _telling(function: Callable[[BaseEventLoop], None]) -> Callable[[BaseEventLoop], None]:
    """What ends a loop, and a note of the tasks that this cuts off."""

    @functools.wraps(function)
    def telling(loop: BaseEventLoop) -> None:
        if not loop.is_closed():
            cut_off.extend(map(repr, asyncio.all_tasks(loop)))
        function(loop)

    return telling


@pytest.fixture(scope="session")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Loops tell what they cut off, and temporary files lie where nobody else puts any."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        # A runner cancels tasks before it closes its loop; who has no runner only closes it.
        for owner, name in ((asyncio.runners, "_cancel_all_tasks"), (BaseEventLoop, "close")):
            patch.setattr(owner, name, _telling(getattr(owner, name)))
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)  # for the programs that we start
        yield


@pytest.fixture(autouse=True, scope="module")
def _held_by_module(request: pytest.FixtureRequest) -> Generator[Holdings]:
    request.getfixturevalue("_prepared")  # an argument would be looked up again for each test
    yield from _judged(request)


@pytest.fixture(autouse=True)
def held(request: pytest.FixtureRequest, _held_by_module: Holdings) -> Generator[Holdings]:
    """What may be there after the test: what was there before, and what is held `on_purpose`."""
    yield from _judged(request, _held_by_module)
