"""Behaviour of all commands: help, errors, exit codes, Ctrl-C, closed pipes, completion."""

import subprocess
import sys

import pytest

from command_line import PATIENCE, toolpost
from toolpost.cli import errors
from toolpost.cli.main import COMMANDS


def test_help_lists_every_command():
    said = toolpost("--help")
    assert said.code == errors.OK
    shown = said.out.partition("Commands:")[2].split("\n")
    assert [line.split()[0] for line in shown if line.strip()] == list(COMMANDS)


def test_help_loads_no_command():
    code = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from toolpost.cli.main import COMMANDS, main\n"
        "try: main()\n"
        "finally: print([each for each, _ in COMMANDS.values() if f'toolpost.cli.{each}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_extra_the_error_names_it(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from toolpost.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "list"], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "The command line requires click and rich: pip install 'toolpost[cli]'\n"


def test_help_loads_neither_asyncio_nor_rich():
    code = (
        "import sys; sys.argv[1:] = ['ping', '--help']\n"
        "from toolpost.cli.main import main\n"
        "try: main()\n"
        "finally: print(sorted({'asyncio', 'rich', 'toolpost.client.client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]"
