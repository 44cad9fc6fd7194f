"""A pytest plugin: coverage is counted in the tests of what is judged by it, and rests in all others.

Those are about other things, and would take a third longer; what they reach by the way proves nothing of it.
"""

from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

JUDGED = tuple(Path(__file__).resolve().parent / "unit" / name for name in ("protocol", "types"))
"""Where the tests are of what has to be covered."""

_resting: list[Coverage] = []
"""The one of this process, while it rests: nobody else knows it then."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Begin to count, or rest, as the next test wants it."""
    if any(item.path.is_relative_to(place) for place in JUDGED):
        while _resting:
            _resting.pop().start()
    elif (coverage := Coverage.current()) is not None:
        coverage.stop()
        _resting.append(coverage)
    return (yield)
