"""Interaction with a user at a terminal: prompts, progress bars, log lines of a server.

Plain output is in `output`; `commands.requests` shows the results of calls.
"""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from toolpost.cli.output import CommandOutput, create_console, escape_control_characters, is_plain
from toolpost.cli.schema_options import (
    ParsedArguments,
    SchemaCommand,
    SchemaField,
    find_missing,
    set_argument,
)
from toolpost.cli.target import TargetConnector
from toolpost.prompting import terminal
from toolpost.threads import ThreadPool
from toolpost.types.base import Number
from toolpost.types.client_requests import ElicitParams, ElicitResult
from toolpost.types.initialize import ClientCapabilities, ElicitationCapability
from toolpost.types.notifications import LogParams, ProgressParams

if TYPE_CHECKING:
    from rich.progress import Progress

MAX_PROGRESS: Final = 1e300  # larger numbers are clamped: dividing or formatting them fails
LOG_LEVEL_STYLES: Final = {
    "debug": "dim",
    "info": "cyan",
    "notice": "green",
    "warning": "yellow",
    "error": "red",
    "critical": "bold red",
    "alert": "bold red",
    "emergency": "bold red",
}
"""Level → style, in order of severity."""

add_log_level_option: Final = click.option(
    "--log-level", type=click.Choice(list(LOG_LEVEL_STYLES)), help="Minimum level of log messages."
)


class ProgressDisplay:
    """The progress of one request."""

    def __init__(self, output: CommandOutput, *, lines: bool = False) -> None:
        self._output = output
        self._lines = lines
        self._bar: Progress | None = None
        self._task: Any = None

    async def show_progress(self, params: ProgressParams) -> None:
        """Show a progress notification. A callback for `progress=`."""
        text = escape_control_characters(format_progress(params))
        if is_plain(sys.stderr):
            if self._lines:
                self._output.print_note(f"progress: {text}")
            return
        total = None if params.total is None else _clamp_number(params.total)
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - slow

            columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._bar = Progress(*columns, console=create_console(sys.stderr), transient=True)
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        done = _clamp_number(params.progress)
        self._bar.update(self._task, completed=done, total=total, description=text, refresh=True)

    def print_note(self, text: str, *, style: str | None = None) -> None:
        """Print a line on stderr, above the bar."""
        if self._bar is None:
            self._output.print_note(text, style=style)
            return
        from rich.text import Text  # noqa: PLC0415 - the bar has loaded rich

        self._bar.console.print(Text(escape_control_characters(text), style=style or ""))

    @contextmanager
    def pause(self) -> Generator[None]:
        """Hide the bar during a prompt."""
        if self._bar is not None:
            self._bar.stop()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.start()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def format_progress(params: ProgressParams) -> str:
    """Format progress on one line, such as `1/3 half done`."""
    total = "" if params.total is None else f"/{_clamp_number(params.total):g}"
    return " ".join([f"{_clamp_number(params.progress):g}{total}", *(params.message or "").split()])


def _clamp_number(number: Number) -> Number:
    return max(-MAX_PROGRESS, min(number, MAX_PROGRESS))


def format_log_line(line: LogParams) -> str:
    """Format a log message of a server."""
    data = line.data if isinstance(line.data, str) else msgspec.json.encode(line.data).decode()
    return f"{line.level}: {f'{line.logger}: ' if line.logger else ''}{data}"


class TerminalPrompter:
    """Prompts the user at the terminal, if there is one, and shows progress."""

    def __init__(self, target: TargetConnector) -> None:
        self.progress = ProgressDisplay(target.output, lines=target.verbose)
        self.target = target
        self.threads = ThreadPool(1)  # for prompts, which must not block the event loop

    def close(self) -> None:
        """End the thread, and remove the progress bar."""
        self.threads.close()
        self.progress.close()

    def read_arguments(self, form: SchemaCommand, words: Sequence[str], args: str | None) -> ParsedArguments:
        """Parse the words after the name, and prompt for missing required arguments."""
        ctx = form.parse_words(words)
        arguments, options = form.collect_arguments(ctx, args)
        missing = find_missing(form.fields, arguments)
        if missing and not self.target.is_interactive:
            names = ", ".join(f"--{each.name}" for each in missing)
            raise click.UsageError(f"{form.name} requires {names}", ctx)
        for each in missing:
            if each.description:
                click.echo(f"  {each.description}", err=True)
            set_argument(arguments, each, _prompt_argument(each))
        return arguments, options

    def client_options(self) -> dict[str, Any]:
        """Return client options that handle elicitations here."""
        both = ElicitationCapability(form={}, url={})
        return {
            "on_elicitation": self.elicit if self.target.is_interactive else self.decline,
            "capabilities": ClientCapabilities(elicitation=both),
        }

    def elicit(self, params: ElicitParams) -> ElicitResult:
        """Ask the user."""
        with self.progress.pause():
            return terminal(params)

    async def decline(self, params: ElicitParams) -> ElicitResult:
        """Decline, and note the question."""
        where = f" (at {params.url})" if params.url else ""
        question = f"The server asks: {params.message}{where}"
        self.progress.print_note(f"{question}\nDeclined: there is no terminal.")
        return ElicitResult(action="decline")

    def confirm_url_visits(self, elicitations: Sequence[dict[str, str]]) -> bool:
        """Send the user to required pages. Returns whether the user accepted all of them."""
        if not self.target.is_interactive or not elicitations:
            return False
        for each in elicitations:
            if self.elicit(ElicitParams(each["message"], mode="url", url=each["url"])).action != "accept":
                return False
        click.prompt("Press Enter when you are done", default="", show_default=False, err=True)
        return True


def _prompt_argument(field: SchemaField) -> Any:
    """Prompt for the value of a field. The items of a list end with an empty line."""
    name = escape_control_characters(field.name)
    kind = "yes or no" if field.kind is click.BOOL else escape_control_characters(field.kind.name)
    if not field.many:
        label = name if isinstance(field.kind, click.Choice) else f"{name} ({kind})"
        return click.prompt(label, type=field.kind, err=True)
    found: list[Any] = []

    def parse_item(word: str) -> Any:
        return None if word == "" else field.kind.convert(word, None, None)

    while True:
        label = f"{name}, {len(found) + 1}. ({kind}; empty to finish)"
        value = click.prompt(label, default="", show_default=False, value_proc=parse_item, err=True)
        if value is None or value == "":
            return found
        found.append(value)
