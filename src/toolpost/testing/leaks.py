"""Finds leaks: tasks, threads, child processes, and descriptors of files and sockets.

Compares snapshots before and after, and waits for new resources to end. Does not find grandchildren whose
parent has ended, threads that `threading` did not start, and, without /proc, processes and descriptors.
"""

import asyncio
import asyncio.runners
import functools
import gc
import os
import threading
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

GC_DELAY: Final = 0.05  # seconds after which to collect garbage: most resources end sooner
LEAK_TIMEOUT: Final = 5.0  # seconds to wait for resources to end
POLL_INTERVAL: Final = 0.001  # seconds between two snapshots
_LOOP_THREAD_PREFIX: Final = "asyncio_"  # names of threads that end with their loop
_FOREIGN_THREAD_CLASS: Final = "_DummyThread"  # threads whose end `threading` does not notice


def list_descriptors() -> dict[str, int]:
    """Return the open descriptors of this process with the inodes of their files."""
    found: dict[str, int] = {}
    with suppress(FileNotFoundError):  # no /proc
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - runs twice per test, has to be fast
            with suppress(OSError):  # the descriptor of the listing
                found[name] = os.fstat(int(name)).st_ino
    return found


def list_children() -> set[str]:
    """Return the ids of the child processes, zombies included."""
    found: set[str] = set()
    with suppress(AttributeError, ChildProcessError, FileNotFoundError):  # no waitid, no children, no /proc
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # much faster without children
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - as above
            with (
                suppress(FileNotFoundError, ProcessLookupError),  # a thread that has just ended
                Path(f"/proc/self/task/{thread}/children").open("rb", buffering=0) as file,
            ):
                found.update(file.read().decode().split())
    return found


class HeldResources:
    """A snapshot of this process; tasks are those of the running loop, except the current one."""

    def __init__(self) -> None:
        self.tasks = set[asyncio.Task[Any]]()
        self.threads = {one for one in threading.enumerate() if type(one).__name__ != _FOREIGN_THREAD_CLASS}
        self.children = list_children()
        self.descriptors = set(list_descriptors().items())
        if _is_loop_running():
            self.tasks = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
            self.threads = {one for one in self.threads if not one.name.startswith(_LOOP_THREAD_PREFIX)}

    def __sub__(self, other: "HeldResources") -> dict[str, set[Any]]:
        return {kind: held - vars(other)[kind] for kind, held in vars(self).items()}


def poll_leaks(
    before: HeldResources, take_snapshot: Callable[[], HeldResources], timeout: float
) -> Generator[None, None, dict[str, set[Any]]]:
    """Yield while resources that were not held before may still end; return those that are left."""
    began, has_collected = time.monotonic(), False
    while any((left := take_snapshot() - before).values()):
        waited = time.monotonic() - began
        if waited > timeout:
            break
        left.clear()  # references here would keep objects alive
        if waited > GC_DELAY and not has_collected:
            gc.collect()
            has_collected = True
        yield
    return left


def _describe_process(number: str) -> str:
    folder = Path("/proc", number)
    words = (folder / "cmdline").read_text(errors="replace").split("\0")[:-1]
    words = words or (folder / "stat").read_text().split()[1:3]  # of a zombie its name and a Z
    return " ".join([number, *words])


DESCRIPTIONS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "tasks": ("task", repr),
    "threads": ("thread", repr),
    "children": ("process", _describe_process),
    "descriptors": ("descriptor", lambda held: f"{held[0]}, {os.readlink(f'/proc/self/fd/{held[0]}')}"),  # noqa: PTH115 - `socket:[1]` is not a path
}
"""By kind of resource: its name, and how to describe one."""


def describe_leaks(left: dict[str, set[Any]]) -> list[str]:
    """Describe the leaks, one line for each."""
    lines: list[str] = []
    for kind, held in left.items():
        word, name = DESCRIPTIONS[kind]
        for one in held:
            with suppress(OSError):  # it ended in the meantime
                lines.append(f"{word} {name(one)}")
    return sorted(lines)


# --------------------------------------------------------------------- loops that end

# A runner cancels tasks before it closes its loop; other code only closes it.
_LOOP_ENDINGS: Final = ((asyncio.runners, "_cancel_all_tasks"), (BaseEventLoop, "close"))


@contextmanager
def record_cancelled_tasks(cut_off: list[str]) -> Generator[None]:
    """Record the tasks that loops still have when they end: `asyncio.run` cancels them silently."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in _LOOP_ENDINGS if hasattr(owner, name)]
    for owner, name, function in kept:
        setattr(owner, name, _wrap_loop_ending(function, cut_off))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def _wrap_loop_ending(
    function: Callable[[BaseEventLoop], None], cut_off: list[str]
) -> Callable[[BaseEventLoop], None]:
    @functools.wraps(function)
    def ending(loop: BaseEventLoop) -> None:
        if not loop.is_closed():
            cut_off.extend(map(repr, asyncio.all_tasks(loop)))
        function(loop)

    return ending


# --------------------------------------------------------------------- the check


class no_leaks:  # noqa: N801 - it is used like a function, as `contextlib.suppress` is
    """Fails if the code inside leaks resources. Supports `with` and `async with`.

    Waits for resources that are about to end. In a running loop, use `async with`, which finds its tasks.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     sleeper = asyncio.create_task(asyncio.sleep(60), name="sleeper")
        ...     await asyncio.sleep(0)
        >>> with no_leaks():
        ...     asyncio.run(main())
        Traceback (most recent call last):
        AssertionError: leaked resources:
        task <Task pending name='sleeper' coro=<sleep() running at ...

    Args:
        timeout: seconds for resources to end.

    Raises:
        AssertionError: resources leaked; the message lists them. Not raised if the code inside failed.
        RuntimeError: `with` was used in a running loop.
    """

    def __init__(self, timeout: float = LEAK_TIMEOUT) -> None:
        self._timeout = timeout

    def __enter__(self) -> Self:
        if _is_loop_running():
            raise RuntimeError("an event loop is running: use `async with no_leaks():`")
        return self._begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for _ in self._check(error):
            time.sleep(POLL_INTERVAL)

    async def __aenter__(self) -> Self:
        return self._begin()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for _ in self._check(error):
            await asyncio.sleep(POLL_INTERVAL)

    def _begin(self) -> Self:
        self._cancelled_tasks: list[str] = []
        self._task_recorder = record_cancelled_tasks(self._cancelled_tasks)
        self._task_recorder.__enter__()
        self._before = HeldResources()
        return self

    def _check(self, error: BaseException | None) -> Iterator[None]:
        """Yield while resources may still end; raise AssertionError if some are left."""
        left = yield from poll_leaks(self._before, HeldResources, 0 if error else self._timeout)
        self._task_recorder.__exit__(None, None, None)
        lines = [f"task {task}" for task in self._cancelled_tasks] + describe_leaks(left)
        if lines and error is None:
            raise AssertionError("leaked resources:\n" + "\n".join(lines))


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
