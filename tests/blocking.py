"""A pytest plugin: no test may block an event loop.

Wraps functions that wait, on every thread with a running event loop. Records such a call and then makes it,
because an exception would end up in the response of a handler; the test fails at its end. Does not detect
long calculations: that would need a clock, and fail on a slow machine.
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
    str(Path(os.__file__).parent),  # the standard library waits only for available data
    str(Path(__file__).with_name("support") / "waiting.py"),  # its `eventually` blocks the loop on purpose
)
"""Files whose calls may wait."""


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
"""The owner of a function, its name, and whether a call waits."""

READING: list[tuple[Any, str]] = [(builtins, "open"), (Path, "read_bytes"), (Path, "read_text")]
"""Functions that wait for a disk. Tests may use them; the sources must not."""

seen: list[str] = []
"""The calls that blocked a loop since the test began."""


def _watched(
    function: Callable[..., Any], answers: Callable[[str], bool], waits: Waits
) -> Callable[..., Any]:
    """Wrap a function to record calls that wait while a loop runs."""

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
