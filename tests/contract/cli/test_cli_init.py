import json
import os
import subprocess
import sys
import tomllib

import pytest

FILES = [".gitignore", "README.md", "my_notes.py", "pyproject.toml", "test_my_notes.py"]


def start(*words, code=0, folder=None):
    """What a Python program writes, which ends like this."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_project_works_at_once(here):
    assert "cd my-notes" in start("toolpost", "init", "my-notes")
    folder = here / "my-notes"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert "2 passed" in start("pytest", "-p", "no:cacheprovider", folder=folder)
    out = start("toolpost", "call", "my_notes.py", "count", "--text", "Hello, world", "--json", folder=folder)
    assert json.loads(out)["structuredContent"] == {"words": 2, "letters": 10}
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == "my-notes"
    assert "toolpost call my_notes.py count" in (folder / "README.md").read_text()


def test_nothing_is_overwritten(here):
    (here / "my-notes").mkdir()
    (here / "my-notes/README.md").write_text("mine")
    told = start("toolpost", "init", "my-notes", code=2)
    assert "README.md is in my-notes already" in told
    assert [path.name for path in (here / "my-notes").iterdir()] == ["README.md"]
    assert (here / "my-notes/README.md").read_text() == "mine"
