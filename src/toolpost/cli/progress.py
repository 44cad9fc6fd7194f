"""What stderr shows while a request runs: a progress bar on a terminal, and log lines that do not disturb it.

Also the option `--log-level` and the style of each log level.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from toolpost.cli.output import CommandOutput, escape_control_characters, is_plain

if TYPE_CHECKING:
    from rich.progress import Progress

    from toolpost.types.base import Number
    from toolpost.types.notifications import LogParams, ProgressParams

F = TypeVar("F", bound=Callable[..., Any])

MAX_PROGRESS: Final = 1e300
"""Larger numbers are shown as this one: an integer on the wire may be too large to divide or format."""

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

    async def show_progress(self, params: "ProgressParams") -> None:
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
            self._bar = Progress(*columns, console=self._output.error_console, transient=True)
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(
            self._task, completed=_clamp_number(params.progress), total=total, description=text, refresh=True
        )

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


def format_progress(params: "ProgressParams") -> str:
    """Progress on one line, such as `1/3 half done`."""
    total = "" if params.total is None else f"/{_clamp_number(params.total):g}"
    return " ".join([f"{_clamp_number(params.progress):g}{total}", *(params.message or "").split()])


def _clamp_number(number: "Number") -> "Number":
    return max(-MAX_PROGRESS, min(number, MAX_PROGRESS))


def add_log_level_option(function: F) -> F:
    """Add the option `--log-level`, as the argument `log_level`."""
    text = "Ask for log messages of this level and graver ones."
    return click.option("--log-level", type=click.Choice(list(LOG_LEVEL_STYLES)), help=text)(function)


def format_log_line(line: "LogParams") -> str:
    """A line of a server's log."""
    import msgspec  # noqa: PLC0415 - help needs none of it

    data = line.data if isinstance(line.data, str) else msgspec.json.encode(line.data).decode()
    return f"{line.level}: {f'{line.logger}: ' if line.logger else ''}{data}"
