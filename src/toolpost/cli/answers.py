"""What is asked of the person at the terminal: arguments that are missing, and what a server wants to know.

Owns when there is somebody to ask, and what is answered where there is nobody. How a server's question looks
is told in `toolpost.prompting`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolpost.cli.fields import Field
from toolpost.cli.meter import Meter
from toolpost.cli.options import Form, Typed, missing, put
from toolpost.cli.page import harmless
from toolpost.threads import Threads

if TYPE_CHECKING:
    from toolpost.types.asks import ElicitParams, ElicitResult

__all__ = ["Answers"]

T = TypeVar("T")


class Answers:
    """Who answers what is asked on the way to a result.

    Args:
        meter: gives way to questions.
        interactive: whether there is a person to ask.
    """

    def __init__(self, meter: Meter, *, interactive: bool) -> None:
        self._meter = meter
        self._interactive = interactive
        self._threads = Threads(1)

    async def later(self, work: Callable[[], T]) -> T:
        """What comes of work that may wait for a person, while the conversation with the server goes on."""
        return await self._threads.in_thread(work)

    def close(self) -> None:
        """Let go of whoever still waits for a person."""
        self._threads.close()

    # ----------------------------------------------------------------- arguments

    def read(self, form: Form, words: Sequence[str], args: str | None) -> Typed:
        """What the words say, and what the person types because they do not say it.

        Args:
            form: what is wanted.
            words: what stands after its name.
            args: what `--args` before the name says.

        Raises:
            click.UsageError: the words make no sense, or something is missing and there is nobody to ask.
            click.Abort: the person would rather not say.
        """
        ctx = form.context(words)
        typed = form.typed(ctx, args)
        gone = missing(form.fields, typed.arguments)
        if gone and not self._interactive:
            names = ", ".join(f"--{each.name}" for each in gone)
            raise click.UsageError(f"{form.name} needs {names}", ctx)
        for each in gone:
            if each.description:
                click.echo(f"  {each.description}", err=True)
            put(typed.arguments, each, _many(each) if each.many else _one(each))
        return typed

    # ----------------------------------------------------------------- what a server asks

    def client_options(self) -> dict[str, Any]:
        """What to give to a client, so that questions come here."""
        from toolpost.types.lifecycle import ClientCapabilities, ElicitationCapability  # noqa: PLC0415 - as below

        both = ElicitationCapability(form={}, url={})
        return {
            "on_elicitation": self.ask if self._interactive else self.decline,
            "capabilities": ClientCapabilities(elicitation=both),
        }

    def ask(self, params: "ElicitParams") -> "ElicitResult":
        """What the person answers."""
        from toolpost.prompting import terminal  # noqa: PLC0415 - few are asked

        with self._meter.aside():
            return terminal(params)

    async def decline(self, params: "ElicitParams") -> "ElicitResult":
        """No, with a note of what was asked."""
        from toolpost.types.asks import ElicitResult  # noqa: PLC0415 - few are asked

        where = f" (at {params.url})" if params.url else ""
        self._meter.note(
            f"The server asks: {params.message}{where}\nDeclined: there is no terminal to ask on."
        )
        return ElicitResult(action="decline")

    def visited(self, elicitations: Sequence[dict[str, str]]) -> bool:
        """Whether the person has been at all the pages that a server wants visited first."""
        from toolpost.types.asks import ElicitParams  # noqa: PLC0415 - few are asked

        if not self._interactive or not elicitations:
            return False
        for each in elicitations:
            if self.ask(ElicitParams(each["message"], mode="url", url=each["url"])).action != "accept":
                return False
        click.prompt("Press Enter when you are done there", default="", show_default=False, err=True)
        return True


def _one(field: Field) -> Any:
    kind = "" if isinstance(field.kind, click.Choice) else f" ({_word(field)})"
    return click.prompt(f"{harmless(field.name)}{kind}", type=field.kind, err=True)


def _word(field: Field) -> str:
    return "yes or no" if field.kind is click.BOOL else harmless(field.kind.name)


def _many(field: Field) -> list[Any]:
    """The items of a list, until an empty line."""
    found: list[Any] = []

    def item(word: str) -> Any:
        return None if word == "" else field.kind.convert(word, None, None)

    while True:
        label = f"{harmless(field.name)}, {len(found) + 1}. ({_word(field)}; nothing to end)"
        value = click.prompt(label, default="", show_default=False, value_proc=item, err=True)
        if value is None or value == "":
            return found
        found.append(value)
