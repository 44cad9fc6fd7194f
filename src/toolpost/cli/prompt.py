"""`toolpost prompt`: a prompt of a server, filled in.

Owns how a conversation is printed. Its arguments are options, as the parameters of a tool are.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolpost.cli.named import NamedCommand, Names, one_of, rest_of, takes_args_and_save
from toolpost.cli.target import Reach, takes_target

if TYPE_CHECKING:
    from toolpost.client.client import Client
    from toolpost.types.prompts import GetPromptResult, Prompt

__all__ = ["command"]


class PromptCommand(NamedCommand):
    """`prompt`, as click sees it."""

    async def fetch(self, client: "Client") -> Sequence["Prompt"]:
        """The prompts."""
        return await client.list_prompts()

    def schema(self, item: "Prompt") -> Mapping[str, Any]:
        """Its arguments: all of them are texts."""
        arguments = item.arguments or ()
        texts = {each.name: {"type": "string", "description": each.description} for each in arguments}
        return {"properties": texts, "required": [each.name for each in arguments if each.required]}


@click.command("prompt", cls=PromptCommand)
@takes_target
@click.argument("name", metavar="PROMPT", required=False, type=Names())
@takes_args_and_save
@click.pass_context
def command(
    ctx: click.Context, *, reach: Reach, name: str | None, args: str | None, save: str | None
) -> None:
    """Fill in a prompt, and print the messages.

    What follows PROMPT are its arguments, one option for each: toolpost prompt TARGET PROMPT --help shows
    them. What is missing is asked for on a terminal.
    """
    from toolpost.cli.answers import Answers  # noqa: PLC0415 - with what it needs, for prompts only
    from toolpost.cli.meter import Meter  # noqa: PLC0415 - as above

    shape, rest = ctx.command, rest_of(ctx)
    assert isinstance(shape, PromptCommand), "it is this one"
    meter = Meter(reach.page, lines=reach.verbose)
    answers = Answers(meter, interactive=reach.interactive)

    async def work(client: "Client") -> None:
        prompt: Prompt = one_of(await shape.fetch(client), name, "prompt", reach)
        form = shape.form(prompt, reach.target)
        typed = await answers.later(lambda: answers.read(form, rest, args))
        reach.page.json = reach.json or bool(typed.own.get("json"))
        result = await client.get_prompt(prompt.name, typed.arguments, progress=meter.progress)
        meter.close()
        _show(reach, prompt.name, result, typed.own.get("save") or save)

    with closing(meter), closing(answers):
        reach.run(work, **answers.client_options())


def _show(reach: Reach, name: str, result: "GetPromptResult", save: str | None) -> None:
    from toolpost.cli.folder import Folder  # noqa: PLC0415 - with what it needs, for results only
    from toolpost.cli.show import as_json, show_blocks  # noqa: PLC0415 - as above

    folder = Folder(Path(save or "."), name)
    if reach.json:
        reach.page.data(as_json(result.raw, folder if save else None))
        return
    for number, message in enumerate(result.messages):
        if number:
            reach.page.say()
        reach.page.say(f"{message.role}:", style="bold")
        show_blocks(reach.page, [message.content], folder)
