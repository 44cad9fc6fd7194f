"""`toolpost init`: creates a small project: a working server, a test and a README.

The templates of the files are in the folder `project`. Overwrites no files.
"""

import keyword
import re
import shlex
import sys
from importlib import resources
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

_README_STEPS: Final = {
    "pip install 'toolpost[$extra]' pytest": "",
    "pytest": "run the tests",
    "toolpost list $module.py": "list its tools and resources",
    "toolpost call $module.py count --text 'Hello, world'": "call a tool",
    "toolpost run $module.py$serve": "serve it $where",
    "toolpost install $module.py --for claude-desktop": "add it to a host; also cursor, vscode, …",
}
"""Command → its purpose."""

_TEMPLATES: Final = {
    "$module.py": "server.py",
    "tests/test_$module.py": "test_server.py",
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
}
"""File → its template in the folder `project`, both with placeholders."""


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
        project = resources.files("toolpost.cli.commands") / "project"
        texts = {file: (project / f"{name}.template").read_text("utf-8") for file, name in _TEMPLATES.items()}
        files = _fill_templates(texts, words)
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
