"""The click group of all commands, with `--version`, `--help` and the errors of commands.

The table of commands is in `main`.
"""

import sys
from importlib import import_module
from typing import Any

import click

from toolpost.cli import errors
from toolpost.cli.main import COMMANDS
from toolpost.version import __version__


class _CommandGroup(click.Group):
    """The commands of the table, loaded on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        return getattr(import_module(f"toolpost.cli.{COMMANDS[cmd_name][0]}"), f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would report a failure
            raise click.exceptions.Exit(errors.CLOSED_PIPE) from None


@click.group(cls=_CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="toolpost", message="%(prog)s %(version)s")
def toolpost() -> None:
    """Run, call and diagnose MCP servers.

    TARGET is a URL, a Python file (weather.py, weather.py:server), a name from an mcp.json, or a command
    after two hyphens at the end of the line (-- npx some-server).
    """


def run_command_line() -> int:
    """Run the command in `sys.argv` and return the exit code. A command may return its own."""
    words = sys.argv[1:]
    try:
        code = toolpost.main(words, prog_name="toolpost", standalone_mode=False)
    except click.ClickException as error:
        own = words[: words.index("--")] if "--" in words else words
        errors.show_error(error, as_json="--json" in own)
        return error.exit_code
    except OSError as error:  # usually a full disk
        message = ": ".join(filter(None, (error.filename, error.strerror))) or repr(error)
        errors.show_error(errors.CommandError(message, errors.FAILED), as_json="--json" in words)
        return errors.FAILED
    except click.Abort:
        return errors.INTERRUPTED
    return code if isinstance(code, int) else errors.OK
