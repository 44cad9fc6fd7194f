"""A pytest plugin: after each test no task, thread, process, descriptor or temporary file remains.

What is there is found by `toolpost.testing.leaks`. A test that failed is not judged. The same is done for
each module, and so for the fixtures that its tests share. A loop that is closed tells which tasks it still
had: `asyncio.run` cancels them silently. Not seen: tasks of a loop that outlives the test unless it is
`lasting`.
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

PATIENCE = 10.0
"""Seconds after which nothing is expected to end by itself any more."""

cut_off: list[str] = []
"""The tasks that were not done when their loop was closed. A test that is about this clears the list."""

_runners: list[asyncio.Runner] = []

leaks.DESCRIPTIONS["files"] = ("temporary file", str)


class Holdings(leaks.HeldResources):
    """What this process holds."""

    def __init__(self) -> None:
        super().__init__(())
        self.tasks = {task for runner in _runners for task in asyncio.all_tasks(runner.get_loop())}
        self.files = set(os.listdir(tempfile.gettempdir()))  # noqa: PTH208 - runs twice per test, has to be fast

    @contextmanager
    def on_purpose(self) -> Generator[None]:
        """Expect as well whatever begins meanwhile."""
        before = Holdings()
        yield
        self.add(Holdings() - before)

    def add(self, more: dict[str, set[Any]]) -> None:
        """Expect these as well."""
        for kind, held in more.items():
            vars(self)[kind] |= held

    def left(self) -> dict[str, set[Any]]:
        """What there is more than this, once everything that ends by itself has ended."""
        looks = leaks.LeakPoller(self, Holdings, PATIENCE)
        while looks.poll():
            looks.leaks.clear()  # what is held here does not end
            for runner in _runners:
                runner.run(asyncio.sleep(0))
            time.sleep(leaks.POLL_INTERVAL)
        return looks.leaks


@contextmanager
def lasting(runner: asyncio.Runner) -> Generator[asyncio.Runner]:
    """Have an eye on a loop that outlives tests. It is run when something has to end by itself."""
    _runners.append(runner)
    try:
        yield runner
    finally:
        _runners.remove(runner)


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
    lines += describe_leaks(left)
    for one in outer:
        one.add(left)
    if lines:
        pytest.fail("left behind:\n" + "\n".join(lines), pytrace=False)


@pytest.fixture(scope="session")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Loops tell what they cut off, and temporary files lie where nobody else puts any."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with leaks.record_cancelled_tasks(cut_off), pytest.MonkeyPatch.context() as patch:
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
