"""What is asked of the person at the terminal: arguments that are missing, and what a server wants to know.

Owns when there is somebody to ask, and what is answered where there is nobody. How a server's question looks
is told in `toolpost.prompting`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolpost.cli.output import escape_control_characters
from toolpost.cli.progress import ProgressDisplay
from toolpost.cli.schema_fields import SchemaField
from toolpost.cli.schema_options import ParsedArguments, SchemaCommand, find_missing, set_argument
from toolpost.threads import ThreadPool

if TYPE_CHECKING:
    from toolpost.types.client_requests import ElicitParams, ElicitResult

T = TypeVar("T")


class TerminalPrompter:
    """Who answers what is asked on the way to a result."""

    def __init__(self, meter: ProgressDisplay, *, interactive: bool) -> None:
        self._progress = meter
        self._interactive = interactive
        self._threads = ThreadPool(1)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """What comes of work that may wait for a person, while the conversation with the server goes on."""
        return await self._threads.run_in_thread(work)

    def close(self) -> None:
        """Let go of whoever still waits for a person."""
        self._threads.close()

    def read_arguments(self, form: SchemaCommand, words: Sequence[str], args: str | None) -> ParsedArguments:
        """What the words say, and what the person types because they do not say it."""
        ctx = form.parse_words(words)
        typed = form.collect_arguments(ctx, args)
        gone = find_missing(form.fields, typed.arguments)
        if gone and not self._interactive:
            names = ", ".join(f"--{each.name}" for each in gone)
            raise click.UsageError(f"{form.name} needs {names}", ctx)
        for each in gone:
            if each.description:
                click.echo(f"  {each.description}", err=True)
            set_argument(typed.arguments, each, _prompt_list(each) if each.many else _prompt_value(each))
        return typed

    def client_options(self) -> dict[str, Any]:
        """What to give to a client, so that questions come here."""
        from toolpost.types.initialize import ClientCapabilities, ElicitationCapability  # noqa: PLC0415 - as below

        both = ElicitationCapability(form={}, url={})
        return {
            "on_elicitation": self.elicit if self._interactive else self.decline,
            "capabilities": ClientCapabilities(elicitation=both),
        }

    def elicit(self, params: "ElicitParams") -> "ElicitResult":
        """What the person answers."""
        from toolpost.prompting import terminal  # noqa: PLC0415 - few are asked

        with self._progress.pause():
            return terminal(params)

    async def decline(self, params: "ElicitParams") -> "ElicitResult":
        """No, with a note of what was asked."""
        from toolpost.types.client_requests import ElicitResult  # noqa: PLC0415 - few are asked

        where = f" (at {params.url})" if params.url else ""
        self._progress.print_note(
            f"The server asks: {params.message}{where}\nDeclined: there is no terminal to ask on."
        )
        return ElicitResult(action="decline")

    def confirm_url_visits(self, elicitations: Sequence[dict[str, str]]) -> bool:
        """Whether the person has been at all the pages that a server wants visited first."""
        from toolpost.types.client_requests import ElicitParams  # noqa: PLC0415 - few are asked

        if not self._interactive or not elicitations:
            return False
        for each in elicitations:
            if self.elicit(ElicitParams(each["message"], mode="url", url=each["url"])).action != "accept":
                return False
        click.prompt("Press Enter when you are done there", default="", show_default=False, err=True)
        return True


def _prompt_value(field: SchemaField) -> Any:
    kind = "" if isinstance(field.kind, click.Choice) else f" ({_describe_type(field)})"
    return click.prompt(f"{escape_control_characters(field.name)}{kind}", type=field.kind, err=True)


def _describe_type(field: SchemaField) -> str:
    return "yes or no" if field.kind is click.BOOL else escape_control_characters(field.kind.name)


def _prompt_list(field: SchemaField) -> list[Any]:
    """The items of a list, until an empty line."""
    found: list[Any] = []

    def parse_item(word: str) -> Any:
        return None if word == "" else field.kind.convert(word, None, None)

    while True:
        name = escape_control_characters(field.name)
        label = f"{name}, {len(found) + 1}. ({_describe_type(field)}; nothing to end)"
        value = click.prompt(label, default="", show_default=False, value_proc=parse_item, err=True)
        if value is None or value == "":
            return found
        found.append(value)
