"""The levels of a server's log: how each looks, and the option that asks for one.

Owns the words of the command line for them. What a server logs is its own business.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from toolpost.types.notices import LogParams

__all__ = ["LOG_LEVEL_STYLES", "add_log_level_option", "format_log_line"]

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
