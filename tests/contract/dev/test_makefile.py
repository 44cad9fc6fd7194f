"""Targets of the Makefile, run with fake tools that print their arguments."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return a function that runs a target and returns its output."""
    for variable in ("ARGS", "CI", "MAKEFLAGS", "MAKELEVEL", "TOOLPOST_SPEC"):
        monkeypatch.delenv(variable, raising=False)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("coverage", "pytest", "python"):
        (tools / tool).write_text(f'#!/bin/sh\necho {tool} "$@"\n')
        (tools / tool).chmod(0o755)
    ready = tmp_path / "ready"
    ready.touch()

    def run(*words: str) -> str:
        # An environment of the test's own, which counts as made: `-o` keeps make from making it again.
        command = [
            "make",
            "-C",
            str(ROOT),
            "-o",
            str(ready),
            f"READY={ready}",
            f"RUNS={ready}",
            f"BIN={tools}",
            *words,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run


def test_a_specification_is_found_where_its_path_has_a_space(make, tmp_path, monkeypatch):
    place = tmp_path / "my spec"
    place.mkdir()
    monkeypatch.setenv("TOOLPOST_SPEC", str(place))
    assert "coverage: not judged" in make("test")
    (place / "REQUIREMENTS.md").touch()
    assert "coverage report --include=" in make("test")
    assert "judged on whole runs only" in make("test", "ARGS=-x")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("run", "python dev/showcase.py"),
        ("bench", "python -m bench"),
        ("docs", "python dev/website.py"),
        ("conformance", "python conformance/judge.py"),
        ("help", "make test"),
    ],
)
def test_a_make_target_works_or_explains_the_alternative(make, word, said):
    assert said in make(word)
