"""The types that an editor shows: three type checkers agree with the cases, line by line.

A case is a file of `cases/`: it has an error in each line that says `# expect: error`, and in no other. Cases
are kept as text, so that the checks of this repository leave them alone.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
BIN = Path(sys.executable).parent
MARK = "# expect: error"
PINNED = "3.11"
CACHE = HERE.parents[2] / ".cache" / "mypy"
SMALL = f"a: int = 1  {MARK}\nb: int = ''\nc: int = ''  {MARK}\n"
"""A wrong case, which the checks must report."""

Found: TypeAlias = dict[tuple[str, int], str]
"""File and line → what is wrong there."""


def say(folder: Path, *command: str) -> str:
    """Return the output of a checker for the cases in a folder, with a generous timeout."""
    env = {**os.environ, "MYPYPATH": str(SOURCE)}
    ran = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode in {0, 1}, ran.stdout + ran.stderr
    return ran.stdout


def pyright(folder: Path) -> Found:
    config = {
        "include": ["."],
        "typeCheckingMode": "strict",
        "pythonVersion": PINNED,
        "extraPaths": [str(SOURCE)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    told: dict[str, Any] = json.loads(say(folder, "pyright", "--outputjson", "--pythonpath", sys.executable))
    assert told["summary"]["filesAnalyzed"]
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1): one["message"]
        for one in told["generalDiagnostics"]
    }


def mypy(folder: Path) -> Found:
    options = ["--strict", "--follow-imports=silent", f"--python-version={PINNED}", "--output=json"]
    lines = say(folder, "mypy", *options, f"--cache-dir={CACHE}", ".").splitlines()
    told: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    return {
        (Path(one["file"]).name, one["line"]): one["message"] for one in told if one["severity"] == "error"
    }


def pyrefly(folder: Path) -> Found:
    places = ["--search-path", str(SOURCE), "--python-interpreter-path", sys.executable]
    cases = [path.name for path in folder.glob("*.py")]
    options = ["--preset=default", f"--python-version={PINNED}", "--output-format=json"]
    told: dict[str, Any] = json.loads(say(folder, "pyrefly", "check", *options, *places, *cases))
    return {(Path(one["path"]).name, one["line"]): one["description"] for one in told["errors"]}


CHECKERS: list[Callable[[Path], Found]] = [pyright, mypy, pyrefly]


def differences(folder: Path, found: Found) -> list[str]:
    """Unexpected errors, and lines without their expected error."""
    odd: list[str] = []
    for case in sorted(folder.glob("*.py")):
        for number, line in enumerate(case.read_text(encoding="utf-8").splitlines(), 1):
            wrong = found.get((case.name, number))
            if (wrong is not None) is not (MARK in line):
                odd.append(f"{case.name}:{number}: {wrong or 'no error'}: {line.strip()}")
    return odd


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_finds_the_errors_that_are_meant_and_no_others(checker, tmp_path):
    for case in (HERE / "cases").glob("*.py.txt"):
        (tmp_path / case.stem).write_text(case.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "small.py").write_text(SMALL, encoding="utf-8")
    told = differences(tmp_path, checker(tmp_path))
    assert [line for line in told if not line.startswith("small.py:")] == []
    assert [line.split(":")[1] for line in told] == ["1", "2"]
