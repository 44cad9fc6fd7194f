"""`toolpost prompt`: fills in a prompt of a server, and prints the messages.

Its arguments are options, as the parameters of a tool are.
"""

from pathlib import Path

import click

from toolpost.cli.content import OutputFolder, convert_result, show_blocks
from toolpost.cli.schema_options import NamedItemCommand, read_item
from toolpost.cli.target import TargetConnector
from toolpost.cli.terminal import open_prompter
from toolpost.client.client import Client
from toolpost.types.prompts import GetPromptResult


@click.command("prompt", cls=NamedItemCommand, kind="prompt")
def command(*, reach: TargetConnector, name: str | None, args: str | None, save: str | None) -> None:
    """Fill in a prompt, and print the messages.

    What follows PROMPT are its arguments, one option for each: toolpost prompt TARGET PROMPT --help shows
    them. What is missing is asked for on a terminal.
    """
    with open_prompter(reach) as prompter:

        async def work(client: Client) -> None:
            prompt, typed = await read_item(client, reach, prompter, name, args)
            progress = prompter.progress.show_progress
            result = await client.get_prompt(prompt, typed.arguments, progress=progress)
            prompter.progress.close()
            _print_messages(reach, prompt, result, typed.options.get("save") or save)

        reach.run(work, **prompter.client_options())


def _print_messages(reach: TargetConnector, name: str, result: GetPromptResult, save: str | None) -> None:
    folder = OutputFolder(Path(save or "."), name)
    if reach.output.json:
        reach.output.print_value(convert_result(result.raw, folder if save else None))
        return
    for number, message in enumerate(result.messages):
        if number:
            reach.output.print_text()
        reach.output.print_text(f"{message.role}:", style="bold")
        show_blocks(reach.output, [message.content], folder)
