"""`toolpost run`: the server in a file, served."""

import subprocess
import sys
from pathlib import Path

import pytest

from running_server import PATIENCE
from toolpost import Handler
from toolpost.cli.errors import FAILED, UNREACHABLE, USAGE, CommandError
from toolpost.cli.run.loader import (
    ServerSource,
    format_user_traceback,
    is_internal_error,
)
from weather_files import NEIGHBOUR, WEATHER


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """A file with a server in it, and another one that it imports."""
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    path = tmp_path / "weather.py"
    path.write_text(WEATHER)
    return path


def test_a_thread_of_the_file_does_not_keep_the_process(tmp_path: Path):
    file = tmp_path / "threads.py"
    file.write_text(
        "import threading\nfrom toolpost import Server\nserver = Server('threads')\n"
        "threading.Thread(target=threading.Event().wait, name='endless').start()\n"
    )
    impatient = "from toolpost.cli import main, run; run.GRACE = 0.01; main.main()"
    done = subprocess.run(
        [sys.executable, "-c", impatient, "run", str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0
    assert "threads.py has stopped, but these threads are still running: endless" in done.stderr


# --------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "2"], "--workers requires --http"),
        (["--allowed-host", "a"], "--allowed-host requires --http"),
        (["--http", "0", "--reload", "--workers", "2"], "--reload and --workers cannot be combined"),
        (["--http", "0", "--workers", "0"], "0 is not in the range x>=1"),
        (["--http", "here"], "invalid address 'here'"),
        (["--http", "0", "--path", "x"], "path must start with '/', not 'x'"),
    ],
)
def test_words_that_make_no_sense_are_refused(tmp_path, capfd, loading, monkeypatch, words, told):
    from toolpost.cli.group import run_command_line as toolpost  # noqa: PLC0415 - what it does to this process is undone

    (tmp_path / "plain.py").write_text("from toolpost import Server\nserver = Server('plain')\n")
    monkeypatch.setattr(sys, "argv", ["toolpost", "run", "plain.py", *words])
    assert toolpost() == USAGE
    assert told in capfd.readouterr().err


def test_without_stdin_there_is_nothing_to_serve(weather, capfd, loading, monkeypatch):
    from toolpost.cli.group import run_command_line as toolpost  # noqa: PLC0415 - as above

    monkeypatch.setattr(sys, "argv", ["toolpost", "run", str(weather)])
    monkeypatch.setattr(sys, "__stdin__", None)
    assert toolpost() == UNREACHABLE
    assert "stdin or stdout is closed" in capfd.readouterr().err


def test_without_uvicorn_the_error_names_the_extra(tmp_path, capfd, loading, monkeypatch):
    from toolpost.cli.group import run_command_line as toolpost  # noqa: PLC0415 - as above

    (tmp_path / "plain.py").write_text("from toolpost import Server\nserver = Server('plain')\n")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr(
        sys, "argv", ["toolpost", "run", "plain.py", "--http", "0", "--workers", "2", "--stateless"]
    )
    assert toolpost() == FAILED
    said = capfd.readouterr().err
    assert said == "Error: serving over HTTP needs uvicorn\nHint: pip install 'toolpost[http]'\n"


def test_a_server_that_chooses_others_cannot_be_reloaded(tmp_path, capfd, loading, monkeypatch):
    from toolpost.cli.group import run_command_line as toolpost  # noqa: PLC0415 - as above

    path = tmp_path / "house.py"
    path.write_text("from toolpost import Server\nhouse = Server.factory(print, 'house')\n")
    monkeypatch.setattr(sys, "argv", ["toolpost", "run", str(path), "--reload", "--http", "127.0.0.1:0"])
    assert toolpost() == USAGE
    assert "--reload: house selects a server per client" in capfd.readouterr().err


# --------------------------------------------------------------------- finding


FOUND = """
from toolpost import Handler, Server

server = also = Server("only")


class Hand(Handler):
    pass


class Folder:
    inner = Server("inner")


def make() -> "Server":
    return Server("made")
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("found_here.py", "only"),
        ("found_here.py:also", "only"),
        ("found_here.py:make", "made"),
        ("found_here.py:Hand", "Hand"),
        ("found_here.py:Folder.inner", "inner"),
        ("found_here", "only"),
        ("found_here:make", "made"),
        ("found_package.inside:server", "only"),
        ("found_package:server", "only"),
        ("found_package/inside.py", "only"),
        ("./found-there.py", "only"),
        ("calendar.py", "only"),
    ],
)
def test_a_server_is_found(loading, tmp_path, text, name):
    package = tmp_path / "found_package"
    package.mkdir()
    for path in (
        tmp_path / "found_here.py",
        tmp_path / "found-there.py",
        tmp_path / "calendar.py",
        package / "inside.py",
        package / "__init__.py",
    ):
        path.write_text(FOUND)
    calendar = sys.modules.get("calendar")
    server = ServerSource(text).load()
    assert isinstance(server, Handler)
    assert server.info.name == name
    assert sys.modules.get("calendar") is calendar


@pytest.mark.parametrize(
    ("text", "code", "told", "hint"),
    [
        ("nothing.py", USAGE, "file not found: nothing.py", "the current folder is"),
        ("hollow", USAGE, "hollow is a folder", "name a Python file"),
        (".", USAGE, ". is a folder", "name one of its files: "),
        ("", USAGE, ". is a folder", "name one of its files: "),
        ("long" * 1000, USAGE, "long: File name too long", None),
        ("long" * 1000 + ".py", USAGE, "long.py: File name too long", None),
        ("text.txt", USAGE, "text.txt is not a Python file", None),
        ("no such thing", USAGE, "'no such thing' is neither a Python file nor a module", "use weather.py"),
        ("nowhere.module", USAGE, "no module named nowhere", "use weather.py"),
        ("sys:path", USAGE, "sys is not a Python source module", "use weather.py"),
        ("two.py", USAGE, "two.py has several servers: one, two", "write two.py:one or two.py:two"),
        ("two.py:ones", USAGE, "two.py has no attribute ones; did you mean one?", "write two.py:one or"),
        ("two.py:one.tool.x", USAGE, "two.py has no attribute one.tool.x", "write two.py:one or"),
        ("two.py:greet", USAGE, "greet: it is of type RegisteredTool", "write two.py:one"),
        ("two.py:number", USAGE, "two.py has no server named number: it is of type int", "write two.py:one"),
        ("none.py", USAGE, "it defines Class (a class), late (a function)", "write none.py:late"),
        ("none.py:Class", USAGE, "Class, but its result is of type Class", "write none.py:late"),
        ("none.py:late", USAGE, "none.py has an async function late", "write none.py:late"),
        ("none.py:wanting", USAGE, "without arguments: missing a required argument: 'a'", "write none.py"),
        ("none.py:maker", USAGE, "has a function maker, but its result is of type dict", "write none.py"),
        ("bare.py", USAGE, "bare.py has no server", "write `server = Server(…)` at the top level"),
        ("many.py", USAGE, "n9 (of type int), …", "write `server = Server(…)` at the top level"),
        ("leaves.py", UNREACHABLE, "leaves.py called sys.exit('bye') while it was loading", None),
        ("serves.py", USAGE, "serves.py calls run() while it is loading", "put `server.run()` under"),
        ("lacks.py", UNREACHABLE, "No module named 'nowhere'", "nowhere is not next to the file"),
        ("relative.py", UNREACHABLE, "attempted relative import", None),
        ("folder/part.py", UNREACHABLE, "attempted relative import", "use folder.part"),
    ],
)  # fmt: skip
def test_a_module_without_a_server_lists_its_objects(loading, tmp_path, text, code, told, hint):
    files = {
        "folder/part.py": "from . import other\n",
        "folder/__init__.py": "",
        "text.txt": "",
        "two.py": "from toolpost import Server\none, two, number = Server('1'), Server('2'), 3\n"
        "@one.tool\ndef greet(): ...\n",
        "none.py": "import os\nfrom toolpost import Server\nfrom pathlib import Path\nclass Class: ...\n"
        "async def late() -> Server: ...\ndef wanting(a): ...\nmaker = dict\n",
        "bare.py": "import os\n",
        "many.py": "".join(f"n{number} = {number}\n" for number in range(12)),
        "leaves.py": "raise SystemExit('bye')\n",
        "serves.py": "from toolpost import Server\nserver = Server('a')\nserver.run()\n",
        "lacks.py": "import nowhere.inside\n",
        "relative.py": "from . import other\n",
    }
    (tmp_path / "folder").mkdir()
    (tmp_path / "hollow").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(CommandError) as caught:
        ServerSource(text).load()
    assert caught.value.exit_code == code
    assert told in caught.value.message
    assert (caught.value.hint is None) == (hint is None)
    assert (hint or "") in (caught.value.hint or "")


# --------------------------------------------------------------------- lines


def test_an_exception_is_shown_without_lines_of_ours(loading, tmp_path):
    (tmp_path / "inner.py").write_text("def fail():\n    raise KeyError('deep')\n")
    (tmp_path / "outer.py").write_text(
        "import inner\n\ntry:\n    inner.fail()\nexcept KeyError as error:\n"
        "    raise ExceptionGroup('both', [ValueError('one')]) from error\n"
    )
    with pytest.raises(CommandError) as caught:
        ServerSource("outer.py").load()
    said = caught.value.message
    assert "importlib" not in said
    assert "found.py" not in said
    assert said.count("outer.py") == 3
    assert said.count("inner.py") == 1
    assert "ValueError: one" in said
    cause = caught.value.__cause__
    assert cause is not None
    assert not is_internal_error(cause)


def test_reasons_that_are_ours_alone_are_left_out():
    def ours(error: Exception, *, by: Exception | None = None, context: bool = False) -> Exception:
        error.__cause__ = by if not context else None
        error.__context__ = by
        return error

    plain = ours(ValueError("no line"))
    assert format_user_traceback(plain) == "ValueError: no line"
    assert format_user_traceback(ours(KeyError("a"), by=plain)) == "KeyError: 'a'"
    assert format_user_traceback(ours(KeyError("a"), by=plain, context=True)) == "KeyError: 'a'"
    assert is_internal_error(plain)
