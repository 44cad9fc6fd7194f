"""The output of a command: lines, tables and values, for a terminal, for a pipe, or as JSON.

Chooses colours and boxes, and escapes control characters in strings from a server.
"""

import json as _json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import msgspec

from toolpost.json_schema import as_object

if TYPE_CHECKING:
    from rich.console import Console

_UNESCAPED: Final = frozenset("\n\t\u200c\u200d")  # line ends, tabs, and the joiners of letters and emoji


def escape_control_characters(text: str) -> str:
    """Escape control characters and invisible characters."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in _UNESCAPED or (char.isspace() and char > "\x85")
        else _json.dumps(char)[1:-1]  # keeps JSON valid
        for char in text.replace("\r\n", "\n")
    )


def first_line(text: str | None) -> str:
    """Return the first line of a description."""
    return (text or "").strip().partition("\n")[0]


def find_unused_path(path: Path) -> Path:
    """Return the path, or the first unused one beside it: a-1.txt, a-2.txt."""
    names = (path.with_stem(f"{path.stem}-{number}") if number else path for number in count())
    return next(name for name in names if not os.path.lexists(name))


def is_plain(stream: IO[Any]) -> bool:
    """Return whether to omit colours and boxes: the stream is not a terminal, or `NO_COLOR` is set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return True
    try:
        return not stream.isatty()
    except ValueError:  # it was closed
        return True


JSON_HELP: Final = "Print the output as JSON."


class CommandOutput:
    """Prints text for people or, with `json`, one document for programs."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json

    @property
    def is_terminal(self) -> bool:
        """Whether stdout is a terminal, which interprets control characters."""
        return sys.stdout.isatty()

    def print_text(self, text: str = "", *, style: str | None = None) -> None:
        """Print text for a person, on stdout. `style` is one of rich's, such as "bold red"."""
        if not self.json:
            _write_line(sys.stdout, text, style)

    def print_note(self, text: str = "", *, style: str | None = None) -> None:
        """Print a note on stderr, also with `json`."""
        _write_line(sys.stderr, text, style)

    def print_raw(self, text: str) -> None:
        """Print a string from the server on stdout. Escapes control characters only on a terminal."""
        _write_and_flush(sys.stdout, escape_control_characters(text) if self.is_terminal else text)

    def print_table(
        self, title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Print a table, on stdout: aligned columns, in a box on a terminal. None is an empty cell."""
        if self.json:
            return
        title = None if title is None else escape_control_characters(title)
        heads, *cells = [
            ["" if cell is None else escape_control_characters(str(cell)) for cell in row]
            for row in (columns, *rows)
        ]
        if is_plain(sys.stdout):
            _write_and_flush(sys.stdout, _format_aligned_table(title, heads, cells))
            return
        from rich.box import ROUNDED  # noqa: PLC0415 - only needed for boxes
        from rich.table import Table  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above

        table = Table(box=ROUNDED, title=title, title_justify="left", title_style="bold", border_style="dim")
        for number, head in enumerate(heads):
            table.add_column(head, style="cyan" if number == 0 else "", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        create_console(sys.stdout).print(table)

    def print_value(self, value: Any) -> None:
        """Print a value as JSON for programs, else as a table, a list or pairs."""
        plain = to_json_value(value)
        if self.json:
            self.print_raw(_encode_json(plain, indent=2))
            return
        if _is_tabular(plain):
            self._print_items(None, plain)
            return
        members = as_object(plain)
        tables = {key: member for key, member in members.items() if _is_tabular(member)}
        if tables:  # tables follow the other members
            plain = {key: member for key, member in members.items() if key not in tables}
        if plain or not tables:
            self.print_raw("".join(f"{line}\n" for line in _format_lines(plain)))
        for number, (key, items) in enumerate(tables.items()):
            if number or plain:
                self.print_text()
            self._print_items(key, items)

    def _print_items(self, title: str | None, items: list[dict[str, Any]]) -> None:
        columns = list(dict.fromkeys(key for item in items for key in item))
        rows = [[_format_cell(each[key]) if key in each else None for key in columns] for each in items]
        self.print_table(title, columns, rows)

    def print_record(self, value: Any, text: str, *, style: str | None = None) -> None:
        """Print one record of a stream: a line of JSON for programs, else the text."""
        if self.json:
            self.print_raw(_encode_json(to_json_value(value)))
        else:
            self.print_text(text, style=style)


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON's types; protocol types look as on the wire."""
    from toolpost.types.base import enc_hook  # noqa: PLC0415 - start-up time

    return msgspec.to_builtins(value, enc_hook=enc_hook)


def create_console(stream: IO[str]) -> "Console":
    """Create rich's console for boxes and bars on a stream."""
    from rich.console import Console  # noqa: PLC0415 - start-up time

    return Console(file=stream, highlight=False, markup=False, emoji=False, no_color=is_plain(stream))


def _write_line(stream: IO[str], text: str, style: str | None = None) -> None:
    shown = escape_control_characters(text)
    if style is None or is_plain(stream):
        _write_and_flush(stream, shown + "\n")
        return
    from rich.style import Style  # noqa: PLC0415 - as above

    _write_and_flush(stream, Style.parse(style).render(shown) + "\n")


def _write_and_flush(stream: IO[str], text: str) -> None:
    stream.write(text)
    stream.flush()  # a program may be waiting for the line


def _format_aligned_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table = [[column.upper() for column in columns], *rows]
    table = [[" ".join(cell.split()) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    return "\n".join([*([title] if title else []), *lines]) + "\n"


def _is_tabular(value: Any) -> bool:
    """Return whether a value is a list of flat objects, which a table can show."""
    if not isinstance(value, list) or not value:
        return False
    return all(
        as_object(item) and not any(isinstance(member, dict | list) for member in as_object(item).values())
        for item in cast("list[Any]", value)
    )


def _format_cell(value: Any) -> str:
    return value if isinstance(value, str) else _encode_json(value).rstrip("\n")


def _encode_json(value: Any, indent: int | None = None) -> str:
    data = msgspec.json.encode(value)
    return (data if indent is None else msgspec.json.format(data, indent=indent)).decode() + "\n"


def _format_lines(value: Any, indent: str = "") -> Iterable[str]:
    """Format a value as lines: one pair per line, nested values indented."""
    match value:
        case dict() if value:
            pairs = cast("dict[str, Any]", value)
            width = max(len(key) for key in pairs)
            for key, member in pairs.items():
                if isinstance(member, dict | list) and member:
                    yield f"{indent}{key}"
                    yield from _format_lines(member, indent + "  ")
                else:
                    first, *more = _format_cell(member).split("\n")
                    yield f"{indent}{key.ljust(width)}  {first}".rstrip()
                    yield from (f"{indent}{' ' * width}  {line}".rstrip() for line in more)
        case list() if value:
            for member in cast("list[Any]", value):
                inner = list(_format_lines(member, "  "))
                dash = "- " if isinstance(member, dict | list) or indent else ""
                yield f"{indent}{dash}{inner[0].removeprefix('  ')}"
                yield from (f"{indent}{line if dash else line[2:]}" for line in inner[1:])
        case _:
            yield from (f"{indent}{line}" for line in _format_cell(value).split("\n"))
