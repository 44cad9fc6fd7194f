"""`toolpost call`: calls a tool, with options made from its input schema.

Owns the order of things: connect, find the tool, read the words, ask for what is missing, call, show. How
each is done is told elsewhere.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from toolpost.cli.exits import FAILED, OK, Quit
from toolpost.cli.levels import STYLES, log_text, takes_log_level
from toolpost.cli.named import NamedCommand, Names, one_of, rest_of, takes_args_and_save
from toolpost.cli.target import Reach, takes_target

if TYPE_CHECKING:
    from toolpost.cli.answers import Answers
    from toolpost.cli.meter import Meter
    from toolpost.client.client import Client
    from toolpost.client.results import ToolResult
    from toolpost.types.notices import LogParams
    from toolpost.types.tools import Tool

__all__ = ["command"]

MAX_VISITS: Final = 3
"""How often a server may send the user to a page before it serves a call."""


class CallCommand(NamedCommand):
    """`call`, as click sees it."""

    async def fetch(self, client: "Client") -> Sequence["Tool"]:
        """The tools."""
        return await client.list_tools()

    def schema(self, item: "Tool") -> Mapping[str, Any]:
        """Its input schema."""
        return item.input_schema


@click.command("call", cls=CallCommand)
@takes_target
@click.argument("name", metavar="TOOL", required=False, type=Names())
@takes_args_and_save
@click.option(
    "--root",
    "roots",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Open this folder to the server.",
)
@takes_log_level
@click.pass_context
def command(
    ctx: click.Context,
    *,
    reach: Reach,
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
    from toolpost.cli.answers import Answers  # noqa: PLC0415 - with what it needs, for calls only
    from toolpost.cli.meter import Meter  # noqa: PLC0415 - as above

    shape, rest = ctx.command, rest_of(ctx)
    assert isinstance(shape, CallCommand), "it is this one"
    meter = Meter(reach.page, lines=reach.verbose)
    answers = Answers(meter, interactive=reach.interactive)

    async def log(line: "LogParams") -> None:
        meter.note(log_text(line), style=STYLES.get(line.level))

    async def work(client: "Client") -> int:
        tool: Tool = one_of(await shape.fetch(client), name, "tool", reach)
        form = shape.form(tool, reach.target)
        typed = await answers.later(lambda: answers.read(form, rest, args))
        reach.page.json = reach.json or bool(typed.own.get("json"))
        if log_level is not None:
            await client.set_log_level(log_level)
        result = await _made(client, tool.name, typed.arguments, meter, answers)
        meter.close()
        _show(reach, tool.name, result, typed.own.get("save") or save)
        return FAILED if result.is_error else OK

    with closing(meter), closing(answers):
        return reach.run(work, on_log=log, on_roots=roots or None, **answers.client_options())


async def _made(
    client: "Client", name: str, arguments: dict[str, Any], meter: "Meter", answers: "Answers"
) -> "ToolResult[Any]":
    """What comes of the call, after the user has visited what has to be visited first."""
    from toolpost.errors import UrlElicitationRequired  # noqa: PLC0415 - as above

    visits = 0
    while True:
        try:
            return await client.call_tool(name, arguments, progress=meter.progress, raise_on_error=False)
        except UrlElicitationRequired as error:
            visits += 1
            visited = partial(answers.visited, error.elicitations)
            if visits > MAX_VISITS or not await answers.later(visited):
                raise


def _show(reach: Reach, name: str, result: "ToolResult[Any]", save: str | None) -> None:
    from toolpost.cli.folder import Folder  # noqa: PLC0415 - with what it needs, for results only
    from toolpost.cli.show import as_json, show_result  # noqa: PLC0415 - as above

    folder = Folder(Path(save or "."), name)
    if reach.json:
        reach.page.data(as_json(result.raw, folder if save else None))
    elif result.is_error:
        hint = "-v shows what the server writes to stderr" if reach.unseen else None
        raise Quit(result.text or f"{name} failed, and did not say why", FAILED, hint=hint)
    else:
        show_result(reach.page, result, folder)
