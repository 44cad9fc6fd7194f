"""`toolpost prompt`: fills in a prompt of a server, and prints the messages.

Its arguments are options, as the parameters of a tool are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from toolpost.cli.content import OutputFolder, convert_result, show_blocks
from toolpost.cli.schema_options import NamedItemCommand
from toolpost.cli.target import TargetConnector
from toolpost.cli.terminal import open_prompter
from toolpost.client.client import Client
from toolpost.types.prompts import GetPromptResult, Prompt


class PromptCommand(NamedItemCommand):
    """`prompt`, as click sees it."""

    item_kind = "prompt"

    async def fetch(self, client: Client) -> Sequence[Prompt]:
        """The prompts."""
        return await client.list_prompts()

    def get_schema(self, item: Prompt) -> Mapping[str, Any]:
        """Its arguments: all of them are texts."""
        arguments = item.arguments or ()
        texts = {each.name: {"type": "string", "description": each.description} for each in arguments}
        return {"properties": texts, "required": [each.name for each in arguments if each.required]}


@click.command("prompt", cls=PromptCommand)
@click.pass_context
def command(
    ctx: click.Context, *, reach: TargetConnector, name: str | None, args: str | None, save: str | None
) -> None:
    """Fill in a prompt, and print the messages.

    What follows PROMPT are its arguments, one option for each: toolpost prompt TARGET PROMPT --help shows
    them. What is missing is asked for on a terminal.
    """
    shape = ctx.command
    assert isinstance(shape, PromptCommand), "it is this one"
    with open_prompter(reach) as prompter:

        async def work(client: Client) -> None:
            prompt, typed = await shape.read_item(client, reach, prompter, name, args)
            progress = prompter.progress.show_progress
            result = await client.get_prompt(prompt.name, typed.arguments, progress=progress)
            prompter.progress.close()
            _print_messages(reach, prompt.name, result, typed.options.get("save") or save)

        reach.run(work, **prompter.client_options())


def _print_messages(reach: TargetConnector, name: str, result: GetPromptResult, save: str | None) -> None:
    folder = OutputFolder(Path(save or "."), name)
    if reach.json:
        reach.output.print_value(convert_result(result.raw, folder if save else None))
        return
    for number, message in enumerate(result.messages):
        if number:
            reach.output.print_text()
        reach.output.print_text(f"{message.role}:", style="bold")
        show_blocks(reach.output, [message.content], folder)
