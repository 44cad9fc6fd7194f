"""`toolpost complete`: completions of an argument of a prompt, or of a variable of a resource template.

Prints what the server proposes.
"""

from typing import Literal

import click

from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.types.prompts import PromptReference, ResourceReference


def _parse_context(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise click.BadParameter("what is known already is NAME=VALUE")
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
    help="An argument that is known already.",
)
def command(
    *,
    reach: TargetConnector,
    kind: Literal["prompt", "resource"],
    ref: str,
    argument: str,
    value: str,
    context: dict[str, str],
) -> None:
    """Ask how an argument might go on.

    REF is the name of a prompt, or a resource template; VALUE is what has been typed so far.
    """
    reference = PromptReference(ref) if kind == "prompt" else ResourceReference(ref)
    found = reach.run(lambda client: client.complete(reference, argument, value, context=context))
    if reach.output.json:
        reach.output.print_value(found)
        return
    for each in found.values:
        reach.output.print_text(each)
    if not found.values:
        note = f"The server suggests nothing for {argument}; it need not know such an argument."
        reach.output.print_note(note)
    if found.has_more:
        total = "" if found.total is None else f" of {found.total}"
        reach.output.print_note(f"These are {len(found.values)}{total}; there are more.")
