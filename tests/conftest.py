"""Shared fixtures for the specification, and the profiles of hypothesis.

`requirement_proof.py` counts the proven rules; `specification.py` finds the specification.
"""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase

import specification

pytest_plugins = [
    "toolpost.testing.plugin",
    "requirement_proof",
    "blocking",
    "leak_check",
    "recording",
    "coverage_scope",
]

# A shell in the background, or nohup, ignores these signals for us, and for all child processes.
for _number, _heed in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _heed)

_HYPOTHESIS = Path(__file__).resolve().parents[1] / ".cache" / "hypothesis"

# Steady: the same examples in every run, so that only a change can break a test.
# Thorough: new examples in every run; failed ones are stored and tried first in the next run.
set_hypothesis_home_dir(_HYPOTHESIS)
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=1000,
    database=DirectoryBasedExampleDatabase(_HYPOTHESIS / "examples"),
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session")
def spec() -> Path:
    """The folder of the specification. If it is mandatory, `requirement_proof.py` has ended the run."""
    if specification.absence():
        pytest.skip(reason="needs the specification; the end of the run says how to get it")
    return specification.folder()


@pytest.fixture(scope="session")
def schemas(spec: Path) -> Mapping[str, dict[str, Any]]:
    """The official JSON Schemas by revision, oldest first."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted((spec / "schema").glob("*.json"))}


@pytest.fixture(scope="session")
def examples(spec: Path) -> Mapping[str, Mapping[str, bytes]]:
    """The official example messages of the newest revision: name of the type → name → bytes."""
    newest = max((spec / "examples").iterdir())
    return {
        kind.name: {path.stem: path.read_bytes() for path in sorted(kind.glob("*.json"))}
        for kind in sorted(newest.iterdir())
    }
