"""The soak test itself: a short run, and proof that it detects leaks and errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from soak_lane import MERCY, Faults
from soak_ledger import MEGABYTE, Ledger, Sample

SOAK = Path(__file__).parents[3] / "dev" / "soak.py"
LANE = ("stdio", "any")


def test_it_runs_and_prints_what_it_measured():
    environment = {**os.environ, "SOAK_SECONDS": "2", "SOAK_SEED": "8"}
    done = subprocess.run(
        [sys.executable, str(SOAK)], env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.stderr == ""
    assert "Unexpected errors: none" in done.stdout, done.stdout
    assert "| stdio, spared |" in done.stdout


def ledger(*memory: int, descriptors: int = 10) -> Ledger:
    """The samples of a process that held these megabytes, one for each fifth of the time."""
    seen = Ledger()
    seen.calls[LANE] += 1
    for part, size in enumerate(memory):
        more = descriptors if part == len(memory) - 1 else 10
        seen.samples["server"] += [Sample(0.0, size * MEGABYTE, more)] * 3
    return seen


@pytest.mark.parametrize(
    ("seen", "good"),
    [
        (ledger(10, 50, 50, 50, 50), True),
        (ledger(10, 50, 90, 90, 59), True),
        (ledger(10, 50, 50, 50, 61), False),
        (ledger(10, 50, 50, 50, 50, descriptors=40), False),
        (Ledger(), False),
    ],
)
def test_it_detects_growth_and_idle_runs(seen, good):
    assert seen.good is good
    assert good is ("Grown: nothing" in seen.report() and seen.calls.total() > 0)


def test_an_error_that_follows_from_nothing_is_reported():
    seen = ledger(10, 50, 50, 50, 50)
    seen.expect(LANE, "ChannelClosed")
    assert seen.good
    seen.blame("WrongAnswer", "'7' instead of '8'")
    assert not seen.good
    assert "WrongAnswer: '7' instead of '8'" in seen.report()


def test_a_fault_excuses_only_its_own_place_and_time():
    faults = Faults()
    assert not faults.excuse("here", 0.0)
    faults.note("here")
    [when] = faults.last.values()
    assert faults.excuse("here", when - 100)
    assert faults.excuse("here", when + MERCY / 2)
    assert not faults.excuse("here", when + MERCY + 1)
    assert not faults.excuse("there", when)
