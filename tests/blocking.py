"""A pytest plugin: no test may block an event loop.

Functions that wait are watched, on every thread whose event loop is running. Such a call is noted and then
made, because an exception would end up in the answer of some handler; the test fails at its end. What only
costs time, like a long calculation, is not noticed: that would need a clock, and fail on a slow machine.
"""

import asyncio
import builtins
import concurrent.futures
import functools
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import toolpost

SOURCES = str(Path(toolpost.__file__).parent)
MEANT = (
    str(Path(os.__file__).parent),  # the standard library, which waits for what is there already
    str(Path(__file__).with_name("support") / "waiting.py"),  # whose `eventually` is to hold up the loop
)
"""Who may wait."""


Waits = Callable[..., bool]


def _always(*_: Any, **__: Any) -> bool:
    return True


def _can_wait(self: socket.socket, *_: Any) -> bool:
    return self.gettimeout() != 0


WAITING: list[tuple[Any, str, Waits]] = [
    (time, "sleep", _always),
    (socket, "getaddrinfo", _always),
    (socket.socket, "accept", _can_wait),
    (socket.socket, "connect", _can_wait),
    (socket.socket, "recv", _can_wait),
    (socket.socket, "sendall", _can_wait),
    (subprocess.Popen, "communicate", _always),
    (subprocess.Popen, "wait", lambda self, *_, **__: self.poll() is None),
    (threading.Thread, "join", lambda self, *_, **__: self.is_alive()),
    (concurrent.futures.Future, "result", lambda self, *_, **__: not self.done()),
    (queue.Queue, "get", lambda self, block=True, *_, **__: block and self.empty()),
    (os, "waitpid", lambda _, options: not options & os.WNOHANG),
]
"""Where a function lives, its name, and whether a call of it waits."""

READING: list[tuple[Any, str]] = [(builtins, "open"), (Path, "read_bytes"), (Path, "read_text")]
"""What waits for a disk. Tests may; the sources may not."""

seen: list[str] = []
"""What blocked a loop since the test began."""


def _watched(
    function: Callable[..., Any], answers: Callable[[str], bool], waits: Waits
) -> Callable[..., Any]:
    """The function, and a note when one who answers for it waits in it while a loop runs."""

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        place = caller.f_code.co_filename
        if asyncio._get_running_loop() is not None and answers(place) and waits(*args, **kwargs):
            seen.append(f"{function.__qualname__} at {place}:{caller.f_lineno}")
        return function(*args, **kwargs)

    return watched


@pytest.fixture(autouse=True, scope="session")
def _watch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, waits in WAITING:
            function = getattr(owner, name)
            patch.setattr(owner, name, _watched(function, lambda place: not place.startswith(MEANT), waits))
        for owner, name in READING:
            function = getattr(owner, name)
            patch.setattr(owner, name, _watched(function, lambda place: place.startswith(SOURCES), _always))
        yield


@pytest.fixture(autouse=True)
def _unblocked(_watch: None) -> Iterator[None]:
    seen.clear()
    yield
    assert not seen, f"the event loop was blocked by {'; '.join(seen)}"
