"""The code on the pages is the code in `examples/`, and runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CALLED = """\
revision: 2026-07-28
tool: greet - Greet somebody.
result: {'text': 'Bonjour, Ann!', 'language': 'fr'}
"""
EXAMPLE = re.compile(r"`(examples/\w+\.py)`[^\n]*\n\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    ("page", "examples"),
    [
        ("README.md", ["examples/hello.py", "examples/call.py", "examples/web.py"]),
        ("docs/transports.md", ["examples/transport.py"]),
    ],
)
def test_a_page_shows_the_examples_as_they_are(page, examples):
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = EXAMPLE.findall(text)
    assert [path for path, _ in shown] == examples
    assert text.count("```python") == len(examples), "some code on the page is not run by any test"
    for path, code in shown:
        assert code == (ROOT / path).read_text(encoding="utf-8"), f"{page} and {path} differ"


@pytest.mark.parametrize(
    ("example", "told"),
    [
        ("call.py", CALLED),
        ("transport.py", "1 + 2 = 3\n"),
    ],
)
def test_an_example_runs(example, told, tmp_path):
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / example)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr, ran.returncode) == (told, "", 0)


PACKAGES = sorted(path.parent.name for path in (ROOT / "src" / "toolpost").glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_drawing_of_the_rings_has_every_module(package):
    """A line has the names of modules, two blanks, and what they are."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = re.search(rf"[├└]─ {package}/ .*\n((?:[│ ]    .*\n)+)", text)
    assert drawing, f"docs/architecture.md: draw {package}/ in the rings"
    drawn = {name for line in drawing[1].splitlines() for name in line[5:].split("  ")[0].split()}
    modules = {path.stem for path in (ROOT / "src" / "toolpost" / package).glob("[!_]*.py")}
    missing, stale = sorted(modules - drawn), sorted(drawn - modules)
    assert (missing, stale) == ([], []), f"docs/architecture.md, the rings: add {missing}, remove {stale}"
