"""The commands that query a server: `list`, `ping` and `complete`. They start fast.

`list` prints tables or JSON; the lists and their columns are one table here.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from toolpost.cli.output import CommandOutput, first_line
from toolpost.cli.target import SecondsParam, TargetCommand, TargetConnector
from toolpost.types.prompts import Prompt, PromptReference, ResourceReference
from toolpost.types.resources import Resource, ResourceTemplate
from toolpost.types.tools import Tool

if TYPE_CHECKING:
    from toolpost.client.client import Client

_FACT_NAMES: Final = ("revision", "era", "capabilities", "instructions")  # of a client, for JSON
MAX_INSTRUCTION_LINES: Final = 3  # instructions are written for a model, and some are long
MAX_PARAMETERS: Final = 12  # parameters of a tool to show: the widest row sets the width of the table


class _ListTable(NamedTuple):
    """A list of a server: its names in JSON and in text, its capability, its first columns, its rows."""

    member: str
    title: str
    capability: str
    columns: tuple[str, ...]
    row: Callable[[Any], Sequence[object]]


def _format_tool_row(tool: Tool) -> Sequence[object]:
    from toolpost.cli.schema_options import extract_fields  # noqa: PLC0415 - start-up time

    fields = [each for each in extract_fields(tool.input_schema) if len(each.path) == 1]
    named = [each.name if each.required else f"[{each.name}]" for each in fields[:MAX_PARAMETERS]]
    more = ["…"] if len(fields) > MAX_PARAMETERS else []
    return tool.name, " ".join([*named, *more]), first_line(tool.description or tool.title)


def _format_resource_row(item: Resource | ResourceTemplate) -> Sequence[object]:
    uri = item.uri if isinstance(item, Resource) else item.uri_template
    return uri, item.mime_type, first_line(item.description or item.title or item.name)


def _format_prompt_row(prompt: Prompt) -> Sequence[object]:
    named = [each.name if each.required else f"[{each.name}]" for each in prompt.arguments or ()]
    return prompt.name, " ".join(named), first_line(prompt.description or prompt.title)


_LIST_TABLES: Final = {
    "tools": _ListTable("tools", "Tools", "tools", ("name", "parameters"), _format_tool_row),
    "resources": _ListTable("resources", "Resources", "resources", ("uri", "type"), _format_resource_row),
    "templates": _ListTable(
        "resourceTemplates", "Resource templates", "resources", ("uri template", "type"), _format_resource_row
    ),
    "prompts": _ListTable("prompts", "Prompts", "prompts", ("name", "arguments"), _format_prompt_row),
}
"""Option → its list. The last column of each is the description."""


@click.command("list", cls=TargetCommand)
@click.option("--tools", is_flag=True, help="List only tools.")
@click.option("--resources", is_flag=True, help="List only resources.")
@click.option("--templates", is_flag=True, help="List only resource templates.")
@click.option("--prompts", is_flag=True, help="List only prompts.")
def list_command(target: TargetConnector, **only: bool) -> None:
    """List the tools, resources, resource templates and prompts of a server."""
    wanted = [name for name in _LIST_TABLES if only[name]]

    async def read(client: "Client") -> None:
        found: dict[str, list[Any]] = {}
        for name in wanted or _LIST_TABLES:
            if getattr(client.capabilities, _LIST_TABLES[name].capability) is not None:
                method = f"list_{'resource_' if name == 'templates' else ''}{name}"
                found[name] = await getattr(client, method)()
        if target.output.json:
            about = {"server": client.server_info}
            about |= {name: getattr(client, name) for name in _FACT_NAMES}
            about |= {_LIST_TABLES[name].member: items for name, items in found.items()}
            target.output.print_value({key: value for key, value in about.items() if value is not None})
        else:
            if not wanted:
                _print_header(target.output, client)
            for kind, items in ((_LIST_TABLES[name], found.get(name)) for name in wanted or found):
                if not items:
                    missing = "none" if items is not None else "not supported by this server"
                    target.output.print_text(f"{kind.title}: {missing}")
                    continue
                if len(wanted) != 1:
                    target.output.print_text()
                title = None if len(wanted) == 1 else kind.title
                target.output.print_table(title, (*kind.columns, "description"), map(kind.row, items))

    target.run(read)


def _print_header(output: CommandOutput, client: "Client") -> None:
    info = client.server_info
    name = "Unnamed server" if info is None else f"{info.title or info.name} {info.version}"
    output.print_text(f"{name}, revision {client.revision}", style="bold")
    lines = (client.instructions or "").strip().splitlines()
    for line in lines[:MAX_INSTRUCTION_LINES]:
        output.print_text(line)
    if len(lines) > MAX_INSTRUCTION_LINES:
        more = len(lines) - MAX_INSTRUCTION_LINES
        output.print_text(f"… ({more} more lines; --json has all of it)", style="dim")


@click.command("ping", cls=TargetCommand)
@click.option("--count", type=click.IntRange(min=1), default=1, metavar="N", help="Number of pings.")
@click.option("--interval", type=SecondsParam(), default=1.0, help="Seconds between pings (default: 1).")
def ping_command(target: TargetConnector, count: int, interval: float) -> None:
    """Check whether a server responds, and how fast."""
    import asyncio  # noqa: PLC0415 - start-up time

    async def ping(client: "Client") -> None:
        took: list[float] = []
        for number in range(count):
            if number:
                await asyncio.sleep(interval)
            began = time.perf_counter()
            await client.ping()
            took.append(round((time.perf_counter() - began) * 1000, 3))
            target.output.print_text(f"{target.spec.label}: {took[-1]:.1f} ms ({client.revision})")
        if target.output.json:
            facts = {"target": target.spec.label, "revision": client.revision, "milliseconds": took}
            target.output.print_value(facts)
        elif count > 1:
            mean = sum(took) / count
            target.output.print_text(f"min/mean/max {min(took):.1f}/{mean:.1f}/{max(took):.1f} ms")

    target.run(ping)


def _parse_context(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise click.BadParameter("expected NAME=VALUE")
    return {name: value for name, _, value in pairs}


@click.command("complete", cls=TargetCommand)
@click.argument("kind", metavar="prompt|resource", type=click.Choice(["prompt", "resource"]))
@click.argument("ref", metavar="REF")
@click.argument("argument", metavar="ARGUMENT")
@click.argument("value", metavar="[VALUE]", default="")
@click.option(
    "--context",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_context,
    help="The value of another argument.",
)
def complete_command(
    *, target: TargetConnector, kind: str, ref: str, argument: str, value: str, context: dict[str, str]
) -> None:
    """Complete an argument of a prompt or a resource template.

    REF is the name of a prompt or the URI of a resource template. VALUE is the beginning of the argument.
    """
    reference = PromptReference(ref) if kind == "prompt" else ResourceReference(ref)
    found = target.run(lambda client: client.complete(reference, argument, value, context=context))
    if target.output.json:
        target.output.print_value(found)
        return
    for each in found.values:
        target.output.print_text(each)
    if not found.values:
        target.output.print_note(f"No completions for {argument}. Does the argument exist?")
    if found.has_more:
        total = "" if found.total is None else f" of {found.total}"
        target.output.print_note(f"Showing {len(found.values)}{total}; the server has more.")
