"""Every option of every command is explained on a page of `docs`."""

import re
from pathlib import Path

import click
import pytest

from toolpost.cli.group import toolpost
from toolpost.cli.main import COMMANDS

DOCS = Path(__file__).resolve().parents[3] / "docs"
GUIDES = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_on_a_page(name):
    command = toolpost.get_command(click.Context(toolpost), name)
    assert command is not None
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    missing = [
        each.opts[-1]
        for each in options
        if not any(re.search(rf"(?<![\w-]){opt}(?![\w-])", GUIDES) for opt in each.opts)
    ]
    assert not missing, f"toolpost {name}: these options are on no page: {', '.join(missing)}"
