"""`toolpost call`: calls a tool, with options made from its input schema.

Connects, finds the tool, parses its options, asks for what is missing, calls, and shows the result.
"""

from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from toolpost.cli.content import OutputFolder, convert_result, show_result
from toolpost.cli.errors import FAILED, OK, CommandError
from toolpost.cli.schema_options import NamedItemCommand, read_item
from toolpost.cli.target import TargetConnector
from toolpost.cli.terminal import (
    LOG_LEVEL_STYLES,
    TerminalPrompter,
    add_log_level_option,
    format_log_line,
    open_prompter,
)
from toolpost.client.client import Client
from toolpost.client.tools import ToolResult
from toolpost.errors import UrlElicitationRequired
from toolpost.types.notifications import LogParams

MAX_URL_ELICITATIONS: Final = 3  # how often a server may send the user to a page before it serves a call


@click.command("call", cls=NamedItemCommand, kind="tool")
@click.option(
    "--root",
    "roots",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Open this folder to the server.",
)
@add_log_level_option
def command(
    *,
    reach: TargetConnector,
    name: str | None,
    args: str | None,
    save: str | None,
    roots: tuple[str, ...],
    log_level: Any,
) -> int:
    """Call a tool.

    What follows TOOL are its parameters, one option for each: toolpost call TARGET TOOL --help shows them.
    The options below stand before TOOL. A list is said by repeating its option, the member of an object as
    --address.city, anything else as JSON. What is missing is asked for on a terminal.
    """
    with open_prompter(reach) as prompter:

        async def log(line: LogParams) -> None:
            prompter.progress.print_note(format_log_line(line), style=LOG_LEVEL_STYLES.get(line.level))

        async def work(client: Client) -> int:
            tool, typed = await read_item(client, reach, prompter, name, args)
            if log_level is not None:
                await client.set_log_level(log_level)
            result = await _call_tool(client, tool, typed.arguments, prompter)
            prompter.progress.close()
            _print_result(reach, tool, result, typed.options.get("save") or save)
            return FAILED if result.is_error else OK

        return reach.run(work, on_log=log, on_roots=roots or None, **prompter.client_options())


async def _call_tool(
    client: Client, name: str, arguments: dict[str, Any], prompter: TerminalPrompter
) -> ToolResult[Any]:
    """Call a tool, again after the user has visited the pages that the server wants visited first."""
    progress = prompter.progress.show_progress
    visits = 0
    while True:
        try:
            return await client.call_tool(name, arguments, progress=progress, raise_on_error=False)
        except UrlElicitationRequired as error:
            visits += 1
            visited = partial(prompter.confirm_url_visits, error.elicitations)
            if visits > MAX_URL_ELICITATIONS or not await prompter.threads.run_in_thread(visited):
                raise


def _print_result(reach: TargetConnector, name: str, result: ToolResult[Any], save: str | None) -> None:
    folder = OutputFolder(Path(save or "."), name)
    if reach.output.json:
        reach.output.print_value(convert_result(result.raw, folder if save else None))
    elif result.is_error:
        hint = "-v shows what the server writes to stderr" if reach.hidden_line_count else None
        raise CommandError(result.text or f"{name} failed, and did not say why", FAILED, hint=hint)
    else:
        show_result(reach.output, result, folder)
