"""`toolpost init`: creates a small project: a working server, a test and a README.

The files are templates here. Overwrites no files.
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
"""Packages that the project may need. A module of that name would shadow them."""

_SERVER_TEMPLATE: Final = '''\
"""The MCP server $name and its tools."""

from dataclasses import dataclass

from toolpost import Server

server = Server("$name")


@dataclass
class Count:
    words: int
    letters: int


@server.tool
def count(text: str) -> Count:
    """Count the words and letters in a text."""
    return Count(len(text.split()), sum(char.isalpha() for char in text))


@server.resource("greeting://{name}")
def greeting(name: str) -> str:
    """Return a greeting."""
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
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "An MCP server"
requires-python = ">=3.11"
dependencies = ["toolpost[$extra]"]

[dependency-groups]
dev = ["pytest"]

[tool.setuptools]
py-modules = ["$module"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

_README_TEMPLATE: Final = """\
# $name

An [MCP](https://modelcontextprotocol.io) server, in `$module.py`.

```
$steps
```

A function with `@server.tool` is a tool. Its signature becomes the input schema, its return type the output
schema, and its docstring the description.
"""

_README_STEPS: Final = {
    "pip install 'toolpost[$extra]' pytest": "",
    "pytest": "run the tests",
    "toolpost list $module.py": "list its tools and resources",
    "toolpost call $module.py count --text 'Hello, world'": "call a tool",
    "toolpost run $module.py$serve": "serve it $where",
    "toolpost install $module.py --for claude-desktop": "add it to a host; also cursor, vscode, …",
}
"""Command → its purpose."""

FILE_TEMPLATES: Final = {
    "$module.py": _SERVER_TEMPLATE,
    "tests/test_$module.py": _TEST_TEMPLATE,
    "pyproject.toml": _PYPROJECT_TEMPLATE,
    "README.md": _README_TEMPLATE,
    ".gitignore": ".venv/\n__pycache__/\n.pytest_cache/\nbuild/\n*.egg-info/\n",
}
"""File name → content, both with placeholders."""


@click.command()
@click.argument("name")
@click.option("--http", is_flag=True, help="Serve over HTTP instead of stdio.")
@click.option("--json", is_flag=True, help=JSON_HELP)
def init_command(*, name: str, http: bool, json: bool) -> None:
    """Create a project in the folder NAME: a working server, a test and a README.

    The last part of NAME is the name of the project; `.` is the current folder. Overwrites no files.
    """
    output = CommandOutput(json=json)
    folder = Path(name)
    try:
        words = _build_template_values(folder.resolve().name, http=http)
        files = _fill_templates(FILE_TEMPLATES, words)
        _write_files(folder, files)
        steps = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    except OSError as error:
        raise CommandError(f"could not write to {folder}: {error.strerror or error}") from error
    if json:
        output.print_value({"name": words["name"], "folder": str(folder), "files": [*files]})
        return
    output.print_text(f"Created {folder}: {', '.join(files)}")
    output.print_text()
    module = words["module"]
    if find_spec("pytest") is None:
        steps.append("pip install pytest")
    for step in (*steps, "pytest", f"toolpost call {module}.py count --text 'Hello, world'"):
        output.print_text(f"  {step}")


def _build_template_values(name: str, *, http: bool) -> dict[str, str]:
    if not _PROJECT_NAME.fullmatch(name):
        hint = "start with a letter; then use letters, digits and single hyphens, for example my-server"
        raise usage_error(f"invalid project name {name!r}", hint)
    module = name.replace("-", "_").lower()
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _RESERVED_NAMES:
        text = f"invalid project name {name!r}: {module!r} is a Python module or keyword"
        raise usage_error(text, f"for example, use {name}-server")
    words = {
        "name": name,
        "module": module,
        "extra": "cli,http" if http else "cli",
        "run": 'http="127.0.0.1:8000"' if http else "",
        "serve": " --http 127.0.0.1:8000" if http else "",
        "where": "at http://127.0.0.1:8000/mcp" if http else "over stdio, as hosts do",
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
        hint = "nothing was written; choose another name"
        raise usage_error(f"{folder} already contains {', '.join(present)}", hint)
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("x", encoding="utf-8") as opened:
            opened.write(text)
