"""A pytest plugin: measures coverage only in the tests of the packages with a coverage rule.

Other tests would take a third longer, and the lines that they reach by accident prove nothing.
"""

from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

JUDGED = tuple(Path(__file__).resolve().parent / "unit" / name for name in ("protocol", "types"))
"""The folders of the tests that are measured."""

_resting: list[Coverage] = []
"""The paused coverage object of this process."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Start or pause the measurement for the next test."""
    if any(item.path.is_relative_to(place) for place in JUDGED):
        while _resting:
            _resting.pop().start()
    elif (coverage := Coverage.current()) is not None:
        coverage.stop()
        _resting.append(coverage)
    return (yield)
