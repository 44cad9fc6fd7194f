"""A pytest plugin: coverage is counted in the tests of what is judged by it, and rests in all others.

Those are about other things, and would take a third longer; what they reach by the way proves nothing of it.
"""

from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

JUDGED = tuple(Path(__file__).resolve().parent / name for name in ("protocol", "types"))
"""Where the tests are of what has to be covered."""

_resting = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Begin to count, or rest, as the next test wants it."""
    global _resting  # noqa: PLW0603 - of this process, as coverage is
    counts = any(item.path.is_relative_to(place) for place in JUDGED)
    coverage = Coverage.current()
    if coverage is not None and counts is _resting:
        (coverage.start if counts else coverage.stop)()
        _resting = not counts
    return (yield)
