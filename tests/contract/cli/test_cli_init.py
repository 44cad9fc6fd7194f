import json
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from command_group import command_group

FILES = [".gitignore", "README.md", "my_notes.py", "pyproject.toml", "tests/test_my_notes.py"]


def list_files(folder):
    """Return all files in a folder, as relative paths."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def start(*words, code=0, folder=None):
    """Return the output of a Python program that ends with these lines."""
    done = subprocess.run(
        [sys.executable, *(words if words[0] == "-c" else ["-m", *words])],
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
    assert list_files(folder) == FILES
    assert "2 passed" in start("pytest", "-p", "no:cacheprovider", folder=folder)
    out = start("toolpost", "call", "my_notes.py", "count", "--text", "Hello, world", "--json", folder=folder)
    assert json.loads(out)["structuredContent"] == {"words": 2, "letters": 10}
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == "my-notes"
    assert "toolpost call my_notes.py count" in (folder / "README.md").read_text()


def test_a_project_can_be_built(here):
    """Setuptools refuses a folder with two modules unless the project names one."""
    pytest.importorskip("setuptools", reason="no network: the build system is not downloaded")
    make("my-notes")
    project = here / "my-notes"
    settings = tomllib.loads((project / "pyproject.toml").read_text())
    assert settings["build-system"]["build-backend"] == "setuptools.build_meta"
    start("-c", "from setuptools import build_meta; build_meta.build_sdist('dist')", folder=project)
    [built] = (project / "dist").iterdir()
    with tarfile.open(built) as archive:
        assert "my_notes-0.1.0/my_notes.py" in {
            name.replace("my-notes-", "my_notes-") for name in archive.getnames()
        }


def test_nothing_is_overwritten(here):
    (here / "my-notes").mkdir()
    (here / "my-notes/README.md").write_text("mine")
    told = start("toolpost", "init", "my-notes", code=2)
    assert "my-notes already contains" in told
    assert [path.name for path in (here / "my-notes").iterdir()] == ["README.md"]
    assert (here / "my-notes/README.md").read_text() == "mine"


def make(*words):
    """Run `toolpost init` in this process."""
    command_group.main(["init", *words], standalone_mode=False)


@pytest.mark.parametrize("options", [[], ["--http"]])
def test_a_project_has_no_faults_to_find(here, options):
    make("my-notes", *options)
    for check in (["check", "--select", "I,F,E,UP,B,SIM,RUF,D4", "--ignore", "D401"], ["format", "--check"]):
        start("ruff", *check, "--isolated", "--no-cache", ".", folder=here / "my-notes")
    assert ('http="127.0.0.1:8000"' in Path("my-notes/my_notes.py").read_text()) is bool(options)
    assert "$" not in "".join((here / "my-notes" / file).read_text() for file in FILES)


def test_a_project_has_types(here):
    make("my-notes")
    settings = {"typeCheckingMode": "strict", "include": ["my-notes"], "extraPaths": [str(SOURCES)]}
    (here / "pyrightconfig.json").write_text(json.dumps(settings))
    start("pyright", "--pythonpath", sys.executable, folder=here)


SOURCES = Path(__file__).parents[3] / "src"


def test_a_project_is_made_in_this_folder(here, monkeypatch, capsys):
    (here / "my-notes").mkdir()
    monkeypatch.chdir(here / "my-notes")
    make(".", "--json")
    assert json.loads(capsys.readouterr().out)["name"] == "my-notes"
    assert list_files(Path()) == FILES


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my notes", "invalid project name"),
        ("1st", "invalid project name"),
        ("a--b", "invalid project name"),
        ("-", "invalid project name"),
        ("json", "'json' is a Python module or keyword"),
        ("class", "'class' is a Python module or keyword"),
        ("Toolpost", "'toolpost' is a Python module or keyword"),
    ],
)
def test_a_name_that_cannot_be_is_explained(here, name, told):
    with pytest.raises(Exception, match=told) as caught:
        make("--", name)
    assert caught.value.exit_code == 2  # pyright: ignore[reportAttributeAccessIssue] - as all of click's
    assert [*here.iterdir()] == []


def test_the_next_steps_can_be_pasted(here, capsys):
    make("my work/my-notes")
    assert "  cd 'my work/my-notes'\n" in capsys.readouterr().out


def test_a_name_that_is_too_long_is_reported(here):
    with pytest.raises(Exception, match=r"could not write to .*: File name too long"):
        make("a" * 300)


def test_a_file_in_the_way_is_reported(here):
    (here / "notes").write_text("a file")
    with pytest.raises(Exception, match=r"could not write to .*notes: File exists"):
        make("notes")
