"""What is seen on stderr while a request runs: a bar for its progress, and lines that do not disturb it.

Owns the bar, which is there on a terminal only, and gives way to questions. What is in progress is not known.

PART levels: The levels of a server's log: how each looks, and the option that asks for one.

Owns the words of the command line for them. What a server logs is its own business.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from toolpost.cli.output import CommandOutput, escape_control_characters, is_plain
from toolpost.cli.tap.inspector import clamp_number, format_progress

if TYPE_CHECKING:
    from rich.progress import Progress

    from toolpost.types.notifications import LogParams, ProgressParams


class ProgressDisplay:
    """The progress of one request."""

    def __init__(self, page: CommandOutput, *, lines: bool = False) -> None:
        self._output = page
        self._lines = lines
        self._bar: Progress | None = None
        self._task: Any = None

    async def show_progress(self, told: "ProgressParams") -> None:
        """Show how far it has come. A callback for `progress=`."""
        text = escape_control_characters(format_progress(told))
        if is_plain(sys.stderr):
            if self._lines:
                self._output.print_note(f"progress: {text}")
            return
        total = None if told.total is None else clamp_number(told.total)
        if self._bar is None:
            self._bar = self._create_bar()
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(
            self._task, completed=clamp_number(told.progress), total=total, description=text, refresh=True
        )

    def _create_bar(self) -> "Progress":
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - slow

        columns = (
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        return Progress(*columns, console=self._output.error_console, transient=True)

    def print_note(self, text: str, *, style: str | None = None) -> None:
        """Print a line on stderr, above the bar."""
        if self._bar is None:
            self._output.print_note(text, style=style)
            return
        from rich.text import Text  # noqa: PLC0415 - there is a bar already

        self._bar.console.print(Text(escape_control_characters(text), style=style or ""))

    @contextmanager
    def pause(self) -> Generator[None]:
        """The bar gives way while somebody is asked."""
        bar = self._bar
        if bar is not None:
            bar.stop()
        try:
            yield
        finally:
            if bar is not None:
                bar.start()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


# --------------------------------------------------------------------- levels

F = TypeVar("F", bound=Callable[..., Any])

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
"""Level → style, from the least grave on."""


def add_log_level_option(function: F) -> F:
    """Gives a command the option `--log-level`, as its argument `log_level`."""
    text = "Ask for log messages of this level and graver ones."
    return click.option("--log-level", type=click.Choice(list(LOG_LEVEL_STYLES)), help=text)(function)


def format_log_line(line: "LogParams") -> str:
    """A line of a server's log."""
    import msgspec  # noqa: PLC0415 - whoever hears a log has loaded it

    data = line.data if isinstance(line.data, str) else msgspec.json.encode(line.data).decode()
    return f"{line.level}: {f'{line.logger}: ' if line.logger else ''}{data}"
