"""The page docs/first-steps.md: its server, its commands and their output."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "first-steps.md").read_text(encoding="utf-8")
SERVER = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
SAID = re.findall(r"^```console\n\$ toolpost ([^\n]*)\n([^$`].*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("words", "printed"), SAID, ids=lambda value: value.split()[0])
def test_a_command_prints_the_output_of_the_page(words, printed, tmp_path):
    (tmp_path / "weather.py").write_text(SERVER, encoding="utf-8")
    command = [sys.executable, "-m", "toolpost", *shlex.split(words)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.returncode) == (printed, 0), ran.stderr


def test_there_are_such_commands():
    assert [words.split()[0] for words, _ in SAID] == ["list", "call"]
