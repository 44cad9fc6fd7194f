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
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["PATIENCE", "Holdings", "no_leftovers", "telling", "told"]

SOON: Final = 0.05
"""Seconds in which what was told to end usually has; only then does it pay to look for garbage."""

PATIENCE: Final = 5.0
"""Seconds after which nothing is expected to end by itself any more."""

PAUSE: Final = 0.001
"""Seconds between two looks."""

_BORROWED: Final = "asyncio_"
"""How threads are called that belong to a loop, and end with it."""

_FOREIGN: Final = "_DummyThread"
"""What stands for a thread that `threading` did not start, and never sees end."""


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
                Path(f"/proc/self/task/{thread}/children").open("rb", buffering=0) as file,
            ):
                found.update(file.read().decode().split())
    return found


class Holdings:
    """What this process holds at a moment.

    Args:
        loops: whose tasks count; that of the caller does not.
    """

    def __init__(self, loops: Iterable[asyncio.AbstractEventLoop] = ()) -> None:
        current = asyncio.current_task() if _loop_runs() else None
        self.tasks = {task for loop in loops for task in asyncio.all_tasks(loop) if task is not current}
        self.threads = {one for one in threading.enumerate() if type(one).__name__ != _FOREIGN}
        self.children = children()
        self.descriptors = set(descriptors().items())

    def __sub__(self, other: "Holdings") -> dict[str, set[Any]]:
        return {kind: held - vars(other)[kind] for kind, held in vars(self).items()}

    def add(self, more: dict[str, set[Any]]) -> None:
        """Count these as well."""
        for kind, held in more.items():
            vars(self)[kind] |= held


class Looks:
    """Looks again and again, until what ends by itself has ended.

    Args:
        before: what there was before.
        look: what there is.
        patience: seconds to wait.
    """

    def __init__(self, before: Holdings, look: Callable[[], Holdings], patience: float) -> None:
        self._before = before
        self._look = look
        self._patience = patience
        self._began = time.monotonic()
        self._collected = False
        self.left: dict[str, set[Any]] = {}
        """What there is more than before."""

    def again(self) -> bool:
        """Look; whether it makes sense to look once more."""
        self.left = self._look() - self._before
        if not any(self.left.values()):
            return False
        waited = time.monotonic() - self._began
        if waited > self._patience:
            return False
        if waited > SOON and not self._collected:
            self.left.clear()  # what is held here is no garbage
            gc.collect()
            self._collected = True
        return True


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


# --------------------------------------------------------------------- loops that end

# A runner cancels tasks before it closes its loop; who has no runner only closes it.
_ENDS: Final = ((asyncio.runners, "_cancel_all_tasks"), (BaseEventLoop, "close"))


@contextmanager
def telling(cut_off: list[str]) -> Generator[None]:
    """Have loops tell which tasks they still had when they ended: `asyncio.run` cancels them silently."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in _ENDS if hasattr(owner, name)]
    for owner, name, function in kept:
        setattr(owner, name, _telling(function, cut_off))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def _telling(
    function: Callable[[BaseEventLoop], None], cut_off: list[str]
) -> Callable[[BaseEventLoop], None]:
    @functools.wraps(function)
    def ending(loop: BaseEventLoop) -> None:
        if not loop.is_closed():
            cut_off.extend(map(repr, asyncio.all_tasks(loop)))
        function(loop)

    return ending


# --------------------------------------------------------------------- the check


class no_leftovers:  # noqa: N801 - it is used like a function, as `contextlib.suppress` is
    """Fails if what is done inside leaves something running: `with` and `async with`.

    What ends by itself is waited for. Where a loop runs, use `async with`: it sees the tasks of that loop.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     sleeper = asyncio.create_task(asyncio.sleep(60), name="sleeper")
        ...     await asyncio.sleep(0)
        >>> with no_leftovers():
        ...     asyncio.run(main())
        Traceback (most recent call last):
        AssertionError: left behind:
        task <Task pending name='sleeper' coro=<sleep() running at ...

    Args:
        patience: seconds in which what was told to end may do so.

    Raises:
        AssertionError: something is left; the text says what. Nothing is raised if the inside failed itself.
        RuntimeError: a loop runs, and this was not `async with`.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._cut_off: list[str] = []
        self._telling = telling(self._cut_off)
        self._before = Holdings.__new__(Holdings)

    def __enter__(self) -> Self:
        if _loop_runs():
            raise RuntimeError(
                "a loop is running, which has to go on meanwhile: use `async with no_leftovers():`"
            )
        self._telling.__enter__()
        self._before = Holdings()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        looks = Looks(self._before, Holdings, 0 if error else self._patience)
        while looks.again():
            time.sleep(PAUSE)
        self._telling.__exit__(None, None, None)
        self._judge(looks, error)

    async def __aenter__(self) -> Self:
        self._telling.__enter__()
        self._before = _here()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        looks = Looks(self._before, _here, 0 if error else self._patience)
        while looks.again():  # noqa: ASYNC110 - nobody tells when a process or a descriptor has ended
            await asyncio.sleep(PAUSE)
        self._telling.__exit__(None, None, None)
        self._judge(looks, error)

    def _judge(self, looks: Looks, error: BaseException | None) -> None:
        lines = [f"task {task}" for task in self._cut_off] + told(looks.left)
        if lines and error is None:
            raise AssertionError("left behind:\n" + "\n".join(lines))


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _here() -> Holdings:
    """What is held where a loop runs."""
    held = Holdings([asyncio.get_running_loop()])
    held.threads = {thread for thread in held.threads if not thread.name.startswith(_BORROWED)}
    return held
