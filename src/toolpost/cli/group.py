"""`toolpost` itself, as click sees it: the group of all commands, each loaded when it is named.

Owns `--version`, `--help` and what becomes of whatever a command raises. Which module has a command is a
table in `main`.
"""

import sys
from importlib import import_module
from typing import Any, Final

import click

from toolpost.cli import errors
from toolpost.cli.main import COMMANDS
from toolpost.version import __version__

COMMAND_SUMMARIES: Final = {
    "run": "Serve the server in a file, over stdio or HTTP.",
    "list": "List tools, resources, templates and prompts.",
    "call": "Call a tool.",
    "read": "Read a resource.",
    "prompt": "Fill in a prompt, and print the messages.",
    "complete": "Ask how an argument might go on.",
    "ping": "Ask a server whether it answers, and tell how long that takes.",
    "listen": "Show what changes on a server, and its log, until Ctrl-C.",
    "doctor": "Examine a server, and say what to do about what is wrong.",
    "tap": "Show every message between a host and a server.",
    "install": "Write a server into the configuration of a host.",
    "init": "Make a project of a server, a test and a README.",
    "bench": "Load a server, and measure throughput and latency.",
}
"""What help says of each command, so that it need not load them: that is slow, and one may be broken."""


class LazyCommandGroup(click.Group):
    """The commands of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's promise
        """Their names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """One of them; None if there is none of that name."""
        module = COMMANDS.get(cmd_name)
        return None if module is None else import_module(f"toolpost.cli.{module}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """List them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMAND_SUMMARIES.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """What the command returns."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would say that something failed
            raise click.exceptions.Exit(errors.CLOSED_PIPE) from None


@click.group(cls=LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="toolpost", message="%(prog)s %(version)s")
def toolpost() -> None:
    """Run, call and examine servers of the Model Context Protocol.

    TARGET is a URL, a Python file (weather.py, weather.py:server), a name from an mcp.json, or, at the end of
    the line, a command after two hyphens (-- npx some-server).
    """


def run_command_line() -> int:
    """Do what the command line says; the exit code. A command that returns an integer ends with it."""
    words = sys.argv[1:]
    try:
        code = toolpost.main(words, prog_name="toolpost", standalone_mode=False)
    except click.ClickException as error:
        own = words[: words.index("--")] if "--" in words else words
        errors.show_error(error, as_json="--json" in own)
        return error.exit_code
    except OSError as error:  # a full disk, most of the time
        said = ": ".join(filter(None, (error.filename, error.strerror))) or repr(error)
        errors.show_error(errors.CommandError(said, errors.FAILED), as_json="--json" in words)
        return errors.FAILED
    except click.Abort:
        return errors.INTERRUPTED
    return code if isinstance(code, int) else errors.OK
