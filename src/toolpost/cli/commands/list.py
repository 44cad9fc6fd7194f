"""`toolpost list`: what a server offers, as tables or as JSON.

The lists and their columns are one table here.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from toolpost.cli.output import CommandOutput, first_line
from toolpost.cli.schema_options import extract_fields
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.types.prompts import Prompt
from toolpost.types.resources import Resource, ResourceTemplate
from toolpost.types.tools import Tool

if TYPE_CHECKING:
    from toolpost.client.client import Client

MAX_INSTRUCTION_LINES: Final = 3  # instructions are for a model, and some are long
MAX_PARAMETERS: Final = 12  # how many parameters of a tool are named: the widest row makes the table as wide


class _ListTable(NamedTuple):
    """One of the lists: its name in JSON and for people, the capability, the first columns, the rows."""

    member: str
    title: str
    capability: str
    columns: tuple[str, ...]
    row: Callable[[Any], Sequence[object]]


def _format_tool_row(tool: Tool) -> Sequence[object]:
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
@click.option("--tools", is_flag=True, help="Only the tools.")
@click.option("--resources", is_flag=True, help="Only the resources.")
@click.option("--templates", is_flag=True, help="Only the resource templates.")
@click.option("--prompts", is_flag=True, help="Only the prompts.")
def command(reach: TargetConnector, **only: bool) -> None:
    """List what a server has: tools, resources, resource templates, prompts."""
    wanted = [name for name in _LIST_TABLES if only[name]]

    async def read(client: "Client") -> None:
        found: dict[str, list[Any]] = {}
        for name in wanted or _LIST_TABLES:
            if getattr(client.capabilities, _LIST_TABLES[name].capability) is not None:
                method = f"list_{'resource_' if name == 'templates' else ''}{name}"
                found[name] = await getattr(client, method)()
        if reach.output.json:
            lists = {_LIST_TABLES[name].member: items for name, items in found.items()}
            reach.output.print_value(_describe_server(client) | lists)
        else:
            if not wanted:
                _print_header(reach.output, client)
            for name in wanted or found:
                _print_list(reach.output, _LIST_TABLES[name], found.get(name), alone=len(wanted) == 1)

    reach.run(read)


def _describe_server(client: "Client") -> dict[str, Any]:
    names = ("revision", "era", "capabilities", "instructions")
    about = {"server": client.server_info} | {name: getattr(client, name) for name in names}
    return {key: value for key, value in about.items() if value is not None}


def _print_header(page: CommandOutput, client: "Client") -> None:
    info = client.server_info
    name = "A server without a name" if info is None else f"{info.title or info.name} {info.version}"
    page.print_text(f"{name}, speaking {client.revision}", style="bold")
    lines = (client.instructions or "").strip().splitlines()
    for line in lines[:MAX_INSTRUCTION_LINES]:
        page.print_text(line)
    if len(lines) > MAX_INSTRUCTION_LINES:
        more = len(lines) - MAX_INSTRUCTION_LINES
        page.print_text(f"… ({more} more lines; --json has all of it)", style="dim")


def _print_list(page: CommandOutput, kind: _ListTable, items: list[Any] | None, *, alone: bool) -> None:
    if items:
        if not alone:
            page.print_text()
        page.print_table(None if alone else kind.title, (*kind.columns, "description"), map(kind.row, items))
    else:
        page.print_text(f"{kind.title}: {'none' if items is not None else 'not offered by this server'}")
