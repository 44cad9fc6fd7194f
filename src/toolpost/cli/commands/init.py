"""`toolpost init`: makes a small project of a server that works at once, with a test and a README.

The files are templates here. Writes only what was not there before.
"""

import keyword
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final

import click

from toolpost.cli.errors import CommandError, usage_error
from toolpost.cli.output import JSON_HELP, CommandOutput

_PROJECT_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*")
_RESERVED_NAMES: Final = frozenset({"conftest", "mcp", "msgspec", "pytest", "toolpost"})
"""Names of packages that the project needs or may need: a module of that name would stand in their way."""

_SERVER_TEMPLATE: Final = '''\
"""The server $name, and its tools."""

from dataclasses import dataclass

from toolpost import Server

server = Server("$name")


@dataclass
class Count:
    words: int
    letters: int


@server.tool
def count(text: str) -> Count:
    """Count the words and letters of a text."""
    return Count(len(text.split()), sum(char.isalpha() for char in text))


@server.resource("greeting://{name}")
def greeting(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    server.run($run)
'''

_TEST_TEMPLATE: Final = """\
from toolpost import SyncClient

from $module import server


def test_count():
    with SyncClient(server) as client:
        result = client.call_tool("count", {"text": "Hello, world!"})
    assert result.data == {"words": 2, "letters": 10}


def test_greeting():
    with SyncClient(server) as client:
        result = client.read_resource("greeting://Ann")
    assert result.contents[0].text == "Hello, Ann!"
"""

_PYPROJECT_TEMPLATE: Final = """\
[project]
name = "$name"
version = "0.1.0"
description = "A server for the Model Context Protocol"
requires-python = ">=3.11"
dependencies = ["toolpost[$extra]"]

[dependency-groups]
dev = ["pytest"]
"""

_README_TEMPLATE: Final = """\
# $name

A server for the [Model Context Protocol](https://modelcontextprotocol.io), in `$module.py`.

```
$steps
```

A function under `@server.tool` is a tool: its signature is the input schema, its return type the output
schema, its docstring the description.
"""

_README_STEPS: Final = {
    "pip install 'toolpost[$extra]' pytest": "",
    "pytest": "run its tests",
    "toolpost list $module.py": "see what it offers",
    "toolpost call $module.py count --text 'Hello, world'": "call a tool",
    "toolpost run $module.py$serve": "serve it $where",
    "toolpost install $module.py --for claude-desktop": "have a host start it, or cursor, vscode, …",
}
"""What to do with a project, and what for."""

FILE_TEMPLATES: Final = {
    "$module.py": _SERVER_TEMPLATE,
    "test_$module.py": _TEST_TEMPLATE,
    "pyproject.toml": _PYPROJECT_TEMPLATE,
    "README.md": _README_TEMPLATE,
    ".gitignore": ".venv/\n__pycache__/\n.pytest_cache/\n",
}
"""The name and the text of each file, with places for the names."""


@click.command()
@click.argument("name")
@click.option("--http", is_flag=True, help="Serve over HTTP instead of stdin and stdout.")
@click.option("--json", is_flag=True, help=JSON_HELP)
def command(*, name: str, http: bool, json: bool) -> None:
    """Make a project in the folder NAME: a server, a test and a README that work at once.

    The last part of NAME is what the project is called; `.` is this folder. Nothing is overwritten.
    """
    page = CommandOutput(json=json)
    folder = Path(name)
    try:
        words = _build_template_values(folder.resolve().name, http=http)
        files = _fill_templates(FILE_TEMPLATES, words)
        _write_files(folder, files)
        steps = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    except OSError as error:
        raise CommandError(f"{folder} cannot be written: {error.strerror or error}") from error
    if json:
        page.print_value({"name": words["name"], "folder": str(folder), "files": [*files]})
        return
    page.print_text(f"Made {folder}: {', '.join(files)}")
    page.print_text()
    module = words["module"]
    if find_spec("pytest") is None:
        steps.append("pip install pytest")
    for step in (*steps, "pytest", f"toolpost call {module}.py count --text 'Hello, world'"):
        page.print_text(f"  {step}")


def _build_template_values(name: str, *, http: bool) -> dict[str, str]:
    if not _PROJECT_NAME.fullmatch(name):
        raise usage_error(
            f"{name!r} cannot be the name of a project",
            "it begins with a letter and goes on with letters, digits and single hyphens, as my-server",
        )
    module = name.replace("-", "_").lower()
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _RESERVED_NAMES:
        raise usage_error(
            f"{name!r} cannot be the name of a project: Python has a module or a word {module!r} already",
            f"{name}-server would do",
        )
    words = {
        "name": name,
        "module": module,
        "extra": "cli,http" if http else "cli",
        "run": 'http="127.0.0.1:8000"' if http else "",
        "serve": " --http 127.0.0.1:8000" if http else "",
        "where": "at http://127.0.0.1:8000/mcp" if http else "on stdin and stdout, as hosts do",
    }
    steps = _fill_templates(_README_STEPS, words)
    width = max(map(len, steps))
    lines = [f"{step:<{width}}  # {why}" if why else step for step, why in steps.items()]
    return words | {"steps": "\n".join(lines)}


def _fill_templates(texts: dict[str, str], words: dict[str, str]) -> dict[str, str]:
    return {Template(key).substitute(words): Template(text).substitute(words) for key, text in texts.items()}


def _write_files(folder: Path, files: dict[str, str]) -> None:
    present = [file for file in files if (folder / file).exists()]
    if present:
        raise usage_error(
            f"{', '.join(present)} {'is' if len(present) == 1 else 'are'} in {folder} already",
            "choose another name; nothing was written",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        with (folder / file).open("x", encoding="utf-8") as opened:
            opened.write(text)
