"""A pytest plugin: after each test no task, thread, process, descriptor or temporary file remains.

Uses `toolpost.testing.leaks`. Skips failed tests. Also checks each module, and so the fixtures that its tests
share. A closed loop reports its remaining tasks: `asyncio.run` cancels them silently. Does not see tasks of a
loop that outlives the test unless it is `lasting`.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from toolpost.testing import leaks
from toolpost.testing.leaks import describe_leaks

PATIENCE = 60.0
"""Seconds to wait for resources to end; a busy machine may need many of them."""

cut_off: list[str] = []
"""Tasks that were not done when their loop was closed. Tests of this check clear the list."""

_runners: list[asyncio.Runner] = []

leaks.DESCRIPTIONS["files"] = ("temporary file", str)


class Holdings(leaks.HeldResources):
    """A snapshot of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = {task for runner in _runners for task in asyncio.all_tasks(runner.get_loop())}
        self.files = set(os.listdir(tempfile.gettempdir()))  # noqa: PTH208 - runs twice per test, must be fast

    @contextmanager
    def on_purpose(self) -> Generator[None]:
        """Also expect resources that are created inside."""
        before = Holdings()
        yield
        self.add(Holdings() - before)

    def add(self, more: dict[str, set[Any]]) -> None:
        """Also expect these."""
        for kind, held in more.items():
            vars(self)[kind] |= held

    def left(self) -> dict[str, set[Any]]:
        """Return additional resources, after waiting for those that are about to end."""
        polling = leaks.poll_leaks(self, Holdings, PATIENCE)
        while True:
            try:
                next(polling)
            except StopIteration as done:
                return done.value
            for runner in _runners:
                runner.run(asyncio.sleep(leaks.POLL_INTERVAL))
            if not _runners:
                time.sleep(leaks.POLL_INTERVAL)


@contextmanager
def lasting(runner: asyncio.Runner) -> Generator[asyncio.Runner]:
    """Watch a loop that outlives tests. It runs while the check waits for resources to end."""
    _runners.append(runner)
    try:
        yield runner
    finally:
        _runners.remove(runner)


def _judged(request: pytest.FixtureRequest, *outer: Holdings) -> Generator[Holdings]:
    """Yield the expected resources; fail if there are more at the end.

    Args:
        request: the request of the fixture.
        outer: the outer check, which must not report the same leaks.
    """
    held = Holdings()
    failures = request.session.testsfailed
    yield held
    lines = [f"task {task}" for task in cut_off]
    cut_off.clear()
    if request.session.testsfailed > failures:
        return  # a failed test may leak
    left = held.left()
    lines += describe_leaks(left)
    for one in outer:
        one.add(left)
    if lines:
        pytest.fail("leaked resources:\n" + "\n".join(lines), pytrace=False)


@pytest.fixture(scope="session")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Record cancelled tasks of loops, and use a private folder for temporary files."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with leaks.record_cancelled_tasks(cut_off), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)  # for child processes
        yield


@pytest.fixture(autouse=True, scope="module")
def _held_by_module(request: pytest.FixtureRequest) -> Generator[Holdings]:
    request.getfixturevalue("_prepared")  # an argument would be looked up again for each test
    yield from _judged(request)


@pytest.fixture(autouse=True)
def held(request: pytest.FixtureRequest, _held_by_module: Holdings) -> Generator[Holdings]:
    """The resources allowed after the test: those before it, and those held `on_purpose`."""
    yield from _judged(request, _held_by_module)
