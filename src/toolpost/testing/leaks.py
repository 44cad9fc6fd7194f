"""Finds what is left running: tasks, threads, child processes, and descriptors of files and sockets.

What there is afterwards is compared with what there was before; only where there is more is anything waited
for. Not seen: grandchildren whose parent has ended, threads that `threading` did not start, and, where there
is no /proc, processes and descriptors. Knows nothing of pytest.
"""

import asyncio
import asyncio.runners
import functools
import gc
import os
import threading
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

GC_DELAY: Final = 0.05  # seconds after which to collect garbage: most resources end sooner
LEAK_TIMEOUT: Final = 5.0  # seconds to wait for resources to end
POLL_INTERVAL: Final = 0.001  # seconds between two snapshots
_LOOP_THREAD_PREFIX: Final = "asyncio_"  # the names of threads that belong to a loop, and end with it
_FOREIGN_THREAD_CLASS: Final = "_DummyThread"  # threads whose end `threading` does not notice


def list_descriptors() -> dict[str, int]:
    """The open descriptors of this process, and the number of what each is open on."""
    found: dict[str, int] = {}
    with suppress(FileNotFoundError):  # there is no /proc
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - runs twice per test, has to be fast
            with suppress(OSError):  # the one that listed the folder
                found[name] = os.fstat(int(name)).st_ino
    return found


def list_children() -> set[str]:
    """The numbers of the child processes of this process, zombies included."""
    found: set[str] = set()
    with suppress(AttributeError, ChildProcessError, FileNotFoundError):  # cannot tell, has none, as above
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # much faster if there are none
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - as above
            with (
                suppress(FileNotFoundError, ProcessLookupError),  # a thread that has just ended
                Path(f"/proc/self/task/{thread}/children").open("rb", buffering=0) as file,
            ):
                found.update(file.read().decode().split())
    return found


class HeldResources:
    """What this process holds now; tasks are those of `loops`, except the current one."""

    def __init__(self, loops: Iterable[asyncio.AbstractEventLoop] = ()) -> None:
        current = asyncio.current_task() if _is_loop_running() else None
        self.tasks = {task for loop in loops for task in asyncio.all_tasks(loop) if task is not current}
        self.threads = {one for one in threading.enumerate() if type(one).__name__ != _FOREIGN_THREAD_CLASS}
        self.children = list_children()
        self.descriptors = set(list_descriptors().items())

    def __sub__(self, other: "HeldResources") -> dict[str, set[Any]]:
        return {kind: held - vars(other)[kind] for kind, held in vars(self).items()}


class LeakPoller:
    """Compares snapshots with the first one, until nothing is left or the time is over."""

    def __init__(self, before: HeldResources, look: Callable[[], HeldResources], timeout: float) -> None:
        self._before = before
        self._take_snapshot = look
        self._timeout = timeout
        self._began = time.monotonic()
        self._has_collected = False
        self.leaks: dict[str, set[Any]] = {}
        """What is held in addition to the first snapshot."""

    def poll(self) -> bool:
        """Take a snapshot; return whether to take another."""
        self.leaks = self._take_snapshot() - self._before
        waited = time.monotonic() - self._began
        if not any(self.leaks.values()) or waited > self._timeout:
            return False
        if waited > GC_DELAY and not self._has_collected:
            self.leaks.clear()  # what is held here is no garbage
            gc.collect()
            self._has_collected = True
        return True


def _describe_process(number: str) -> str:
    folder = Path("/proc", number)
    words = (folder / "cmdline").read_text(errors="replace").split("\0")[:-1]
    words = words or (folder / "stat").read_text().split()[1:3]  # of a zombie its name and a Z
    return " ".join([number, *words])


def _describe_descriptor(held: tuple[str, int]) -> str:
    return f"{held[0]}, {os.readlink(f'/proc/self/fd/{held[0]}')}"  # noqa: PTH115 - `socket:[1]` is no path


DESCRIPTIONS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "tasks": ("task", repr),
    "threads": ("thread", repr),
    "children": ("process", _describe_process),
    "descriptors": ("descriptor", _describe_descriptor),
}
"""By kind of resource: its name, and how to describe one."""


def describe_leaks(left: dict[str, set[Any]]) -> list[str]:
    """Describe the leaks, one line for each."""
    lines: list[str] = []
    for kind, held in left.items():
        word, name = DESCRIPTIONS[kind]
        for one in held:
            with suppress(OSError):  # it has ended in the meantime
                lines.append(f"{word} {name(one)}")
    return sorted(lines)


# --------------------------------------------------------------------- loops that end

# A runner cancels tasks before it closes its loop; who has no runner only closes it.
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
    """Fails if what is done inside leaves something running: `with` and `async with`.

    What ends by itself is waited for. Where a loop runs, use `async with`: it sees the tasks of that loop.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     sleeper = asyncio.create_task(asyncio.sleep(60), name="sleeper")
        ...     await asyncio.sleep(0)
        >>> with no_leaks():
        ...     asyncio.run(main())
        Traceback (most recent call last):
        AssertionError: left behind:
        task <Task pending name='sleeper' coro=<sleep() running at ...

    Args:
        timeout: seconds in which what was told to end may do so.

    Raises:
        AssertionError: something is left; the text says what. Nothing is raised if the inside failed itself.
        RuntimeError: a loop runs, and this was not `async with`.
    """

    def __init__(self, timeout: float = LEAK_TIMEOUT) -> None:
        self._timeout = timeout
        self._cancelled_tasks: list[str] = []
        self._task_recorder = record_cancelled_tasks(self._cancelled_tasks)
        self._before = HeldResources.__new__(HeldResources)

    def __enter__(self) -> Self:
        if _is_loop_running():
            raise RuntimeError(
                "a loop is running, which has to go on meanwhile: use `async with no_leaks():`"
            )
        self._task_recorder.__enter__()
        self._before = HeldResources()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        looks = LeakPoller(self._before, HeldResources, 0 if error else self._timeout)
        while looks.poll():
            time.sleep(POLL_INTERVAL)
        self._report(looks, error)

    async def __aenter__(self) -> Self:
        self._task_recorder.__enter__()
        self._before = _snapshot_running_loop()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        looks = LeakPoller(self._before, _snapshot_running_loop, 0 if error else self._timeout)
        while looks.poll():  # noqa: ASYNC110 - nobody tells when a process or a descriptor has ended
            await asyncio.sleep(POLL_INTERVAL)
        self._report(looks, error)

    def _report(self, looks: LeakPoller, error: BaseException | None) -> None:
        self._task_recorder.__exit__(None, None, None)
        lines = [f"task {task}" for task in self._cancelled_tasks] + describe_leaks(looks.leaks)
        if lines and error is None:
            raise AssertionError("left behind:\n" + "\n".join(lines))


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _snapshot_running_loop() -> HeldResources:
    held = HeldResources([asyncio.get_running_loop()])
    held.threads = {thread for thread in held.threads if not thread.name.startswith(_LOOP_THREAD_PREFIX)}
    return held
