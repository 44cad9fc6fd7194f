"""The code on the pages is the code in `examples/`, and runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import toolpost

ROOT = Path(__file__).resolve().parents[3]
CALLED = """\
revision: 2026-07-28
tool: greet - Greet a person by name.
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


SOURCES = ROOT / "src" / "toolpost"
FOLDERS = sorted(path.parent.relative_to(SOURCES.parent).as_posix() for path in SOURCES.rglob("__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_list_of_modules_is_complete(folder):
    """The modules of a folder follow its line, separated by commas, some with a note in parentheses."""
    text = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
    drawing = re.search(rf"^{folder.removeprefix('toolpost/')}/  .*\n((?:    .*\n)+)", text, re.MULTILINE)
    assert drawing, f"docs/modules.md: add {folder}/ to the list"
    drawn = {name.strip() for name in re.sub(r"\([^)]*\)", "", drawing[1]).split(",")}
    modules = {path.stem for path in (SOURCES.parent / folder).glob("[!_]*.py")}
    missing, stale = sorted(modules - drawn), sorted(drawn - modules)
    assert (missing, stale) == ([], []), f"docs/modules.md, {folder}/: add {missing}, remove {stale}"


def test_the_table_of_conformance_is_that_of_the_last_run():
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    passed: dict[tuple[str, str], int] = {}
    for side, revision, count in re.findall(
        r"^(server|client)-(?:requirements-)?(\d{4}-\d\d-\d\d) +(\d+) +0 +0$", page, re.MULTILINE
    ):
        passed[side, revision] = passed.get((side, revision), 0) + int(count)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for side in ("server", "client"):
        row = " | ".join(
            f"{count} of {count}" for (whose, _), count in sorted(passed.items()) if whose == side
        )
        assert f"| {side} | {row} |" in readme
    told = re.search(r"^\d+ passed, \d+ failed$", page, re.MULTILINE)
    assert told is not None
    assert told[0] in readme


def test_the_number_of_public_names_is_right():
    names = set(toolpost.__all__) - {"__version__"}
    assert f"The {len(names)} names in `toolpost.__all__`" in (ROOT / "README.md").read_text(encoding="utf-8")
