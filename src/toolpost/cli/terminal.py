"""What a person at a terminal meets: questions with their answers, progress bars, the log lines of a server.

Plain output is in `output`, results of calls in `content`.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

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

F = TypeVar("F", bound=Callable[..., Any])

MAX_PROGRESS: Final = 1e300  # larger numbers are shown as this one: some are too large to divide or format

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


class ProgressDisplay:
    """The progress of one request."""

    def __init__(self, page: CommandOutput, *, lines: bool = False) -> None:
        self._output = page
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
        from rich.text import Text  # noqa: PLC0415 - there is a bar already

        self._bar.console.print(Text(escape_control_characters(text), style=style or ""))

    @contextmanager
    def pause(self) -> Generator[None]:
        """Hide the bar during a prompt."""
        with ExitStack() as stack:
            if self._bar is not None:
                self._bar.stop()
                stack.callback(self._bar.start)
            yield

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def format_progress(params: ProgressParams) -> str:
    """Progress on one line, such as `1/3 half done`."""
    total = "" if params.total is None else f"/{_clamp_number(params.total):g}"
    return " ".join([f"{_clamp_number(params.progress):g}{total}", *(params.message or "").split()])


def _clamp_number(number: Number) -> Number:
    return max(-MAX_PROGRESS, min(number, MAX_PROGRESS))


def add_log_level_option(function: F) -> F:
    """Add the option `--log-level`, as the argument `log_level`."""
    text = "Ask for log messages of this level and graver ones."
    return click.option("--log-level", type=click.Choice(list(LOG_LEVEL_STYLES)), help=text)(function)


def format_log_line(line: LogParams) -> str:
    """A line of a server's log."""
    data = line.data if isinstance(line.data, str) else msgspec.json.encode(line.data).decode()
    return f"{line.level}: {f'{line.logger}: ' if line.logger else ''}{data}"


@contextmanager
def open_prompter(reach: TargetConnector) -> "Generator[TerminalPrompter]":
    """A prompter and its progress display, closed at the end."""
    prompter = TerminalPrompter(ProgressDisplay(reach.output, lines=reach.verbose), reach.is_interactive)
    try:
        yield prompter
    finally:
        prompter.threads.close()
        prompter.progress.close()


class TerminalPrompter:
    """Asks the person at the terminal, if there is one."""

    def __init__(self, progress: ProgressDisplay, interactive: bool) -> None:
        self.progress = progress
        self._interactive = interactive
        self.threads = ThreadPool(1)  # for what waits for a person, while the conversation goes on

    def read_arguments(self, form: SchemaCommand, words: Sequence[str], args: str | None) -> ParsedArguments:
        """Parse the words behind the name, and ask for required arguments that are missing."""
        ctx = form.parse_words(words)
        typed = form.collect_arguments(ctx, args)
        missing = find_missing(form.fields, typed.arguments)
        if missing and not self._interactive:
            names = ", ".join(f"--{each.name}" for each in missing)
            raise click.UsageError(f"{form.name} needs {names}", ctx)
        for each in missing:
            if each.description:
                click.echo(f"  {each.description}", err=True)
            set_argument(typed.arguments, each, _prompt_list(each) if each.many else _prompt_value(each))
        return typed

    def client_options(self) -> dict[str, Any]:
        """Options for a client that sends elicitations here."""
        both = ElicitationCapability(form={}, url={})
        return {
            "on_elicitation": self.elicit if self._interactive else self.decline,
            "capabilities": ClientCapabilities(elicitation=both),
        }

    def elicit(self, params: ElicitParams) -> ElicitResult:
        """Ask the person."""
        with self.progress.pause():
            return terminal(params)

    async def decline(self, params: ElicitParams) -> ElicitResult:
        """Decline, with a note of what was asked."""
        where = f" (at {params.url})" if params.url else ""
        asked = f"The server asks: {params.message}{where}"
        self.progress.print_note(f"{asked}\nDeclined: there is no terminal to ask on.")
        return ElicitResult(action="decline")

    def confirm_url_visits(self, elicitations: Sequence[dict[str, str]]) -> bool:
        """Send the person to pages that have to be visited first. Returns whether all were."""
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
