"""The output in docs/cli.md is that of the commands."""

import re
import shlex
from pathlib import Path

import pytest

import exit_codes
from command_line import toolpost

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SHOWN = [
    (command, output)
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for command, output in re.findall(r"^\$ toolpost (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    if output
]


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_the_page_shows_the_actual_output(command, output):
    said = toolpost(*shlex.split(command), cwd=ROOT, COLUMNS="80")
    assert (said.code, said.out) == (exit_codes.OK, output)


def test_the_page_has_something_to_show():
    assert len(SHOWN) >= 3


def test_every_command_and_every_exit_code_is_on_the_page():
    sections = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    commands = [line.split()[0] for line in toolpost("--help").out.partition("Commands:\n")[2].splitlines()]
    assert commands
    assert {*commands} <= {*sections}
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes
