"""The configuration of the linters: they reject trees that break one of our rules."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INWARD = "Imports point inward BROKEN"
ALONE = "The lowest modules do not import each other BROKEN"
PUBLIC = "No module imports the package itself, which loads every layer BROKEN"


def run(*command: str, at: Path = ROOT, **options):
    return subprocess.run(
        [sys.executable, *command], cwd=at, capture_output=True, text=True, check=False, **options
    )


def contracts(root: Path):
    """Return the report of import-linter about a tree."""
    shutil.copy(ROOT / "pyproject.toml", root)
    program = (
        "import sys; sys.path.insert(0, 'src'); from importlinter import cli; cli.lint_imports_command()"
    )
    return run("-c", program, "--no-cache", at=root)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A copy of the sources, in which a test can break a rule."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    copy = tmp_path / "src" / "toolpost"
    shutil.copytree(ROOT / "src" / "toolpost", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.parametrize(
    ("module", "code", "broken"),
    [
        ("protocol/odd.py", "from toolpost.channel import Channel", INWARD),
        ("protocol/odd.py", "import toolpost.server.server", INWARD),
        ("protocol/odd.py", "def f():\n    from toolpost.run import run_stdio", INWARD),
        ("transports/odd.py", "from toolpost.client.client import Client", INWARD),
        ("odd.py", "", INWARD),
        ("odd/__init__.py", "", INWARD),
        ("types/odd.py", "from toolpost.errors import MCPError", ALONE),
        ("protocol/odd.py", "from toolpost import Client", PUBLIC),
        ("server/odd.py", "import toolpost", PUBLIC),
    ],
)
def test_an_import_that_points_outward(source, module, code, broken):
    (source / module).parent.mkdir(exist_ok=True)
    (source / module).write_text(f"{code}\n")
    said = contracts(source.parents[1])
    assert broken in said.stdout, said.stdout + said.stderr
    assert said.returncode == 1


@pytest.mark.parametrize(
    "line", ["from pytest import mark, skip", "import pytest as p", "from pytest import xfail as x"]
)
def test_pytest_is_called_by_its_name(line):
    """The house rule about reasons looks for `pytest.skip` and its like."""
    said = run(
        "-m", "ruff", "check", "--no-cache", "--stdin-filename=tests/test_x.py", "-", input=f"{line}\n"
    )
    assert "PT013" in said.stdout
