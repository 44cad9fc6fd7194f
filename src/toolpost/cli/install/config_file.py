"""The configuration file of a host: reads it, makes minimal changes, and writes it safely.

Refuses an invalid file, verifies a change before writing, keeps a backup next to the file, and replaces the
file atomically. `hosts` defines the entries; `jsonc` edits JSON.
"""

import difflib
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Generator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Comment, InlineTable, Key, Null, Table

from toolpost.cli.errors import CommandError
from toolpost.cli.install import jsonc
from toolpost.cli.install.hosts import MANAGED_KEYS
from toolpost.cli.install.jsonc import ConfigSyntaxError
from toolpost.json_schema import get_member
from toolpost.types.base import JSON

DIFF_CONTEXT_LINES: Final = 2  # lines around a change to show
NEW_MODE: Final = 0o600  # permissions of a new file: entries may hold secrets
MAX_HEADER_WORDS: Final = 2  # of a new TOML table; deeper ones are inline
_BOM: Final = "\ufeff"
_STRING: Final = re.compile(r"""("[^"\\]*(?:\\.[^"\\]*)*"|'[^']*')(\s*[:=])?""")


class HostConfigFile:
    """The configuration file of a host. It may not exist yet."""

    def __init__(self, path: Path, form: Literal["json", "toml"]) -> None:
        self.path = path
        self._format = form
        self._real_path = Path(os.path.realpath(path))  # a link stays a link
        self._original = self._read()
        try:
            self.text = (self._original or b"").decode()
        except UnicodeDecodeError as error:
            text = f"{self.path} is not valid UTF-8 at byte {error.start}; the file was not changed"
            raise CommandError(text) from error
        self._parse()

    def get_entry(self, path: Sequence[str]) -> JSON:
        """Return the value at a path, or None."""
        return get_member(self._parse(), *path)

    def with_entry(self, path: Sequence[str], entry: Mapping[str, JSON]) -> str:
        """Return the text with this entry. Keeps members that a user added to an old entry."""
        present = self.get_entry(path)
        if not isinstance(present, Mapping):
            return self._edit({tuple(path): entry}, ())
        left, fields = cast("Mapping[str, Any]", present), dict(entry)
        if "command" in entry and isinstance(left.get("env"), Mapping):  # old variables stay
            fields["env"] = {**left["env"], **entry.get("env", {})}
        switched = ("command" in entry) != ("command" in left)
        gone = [(*path, key) for key in left if key in MANAGED_KEYS and key not in fields] if switched else []
        put = {(*path, key): value for key, value in fields.items() if key not in left or left[key] != value}
        return self._edit(put, gone)

    def without_entry(self, path: Sequence[str]) -> str:
        """Return the text without the entry at a path."""
        return self._edit({}, [tuple(path)])

    def diff(self, text: str) -> str:
        """Return the difference to a new text; values in unchanged lines are hidden: they may be secrets."""
        before, after, name = self.text.splitlines(), text.splitlines(), str(self.path)
        lines = [*difflib.unified_diff(before, after, name, name, lineterm="", n=DIFF_CONTEXT_LINES)]
        gone, come = ({line[1:].rstrip(" ,") for line in lines if line[0] == sign} for sign in "-+")
        stay = gone & come  # differ only in a comma
        hidden = {line for line in lines if line[0] == " " or line[1:].rstrip(" ,") in stay}
        return "\n".join(
            _STRING.sub(lambda found: found[0] if found[2] else '"…"', line) if line in hidden else line
            for line in lines
        )

    def write(self, text: str) -> Path | None:
        """Write a new text to the file, and return the backup of the old one."""
        try:
            self._real_path.parent.mkdir(parents=True, exist_ok=True)
            with _lock_folder(self._real_path.parent):
                if self._read() != self._original:
                    text = f"{self.path} changed in the meantime; nothing was written"
                    raise CommandError(text, hint="run the command again")
                copy = None if self._original is None else self._back_up(self._original)
                self._replace(text.encode())
        except OSError as error:
            raise CommandError(f"could not write {self.path}: {error.strerror or error}") from error
        return copy

    def _parse_text(self, text: str) -> Any:
        if not text.strip():
            return {}
        return jsonc.parse(text) if self._format == "json" else _parse_toml(text)

    def _parse(self) -> Any:
        try:
            return self._parse_text(self.text.removeprefix(_BOM))
        except ConfigSyntaxError as error:
            text = f"invalid {self._format.upper()} in {self.path}: {error}"
            raise CommandError(text, hint="fix the file; it was not changed") from error

    def _edit(self, put: Mapping[tuple[str, ...], JSON], gone: Sequence[tuple[str, ...]]) -> str:
        """Return the text after these changes. Verifies that nothing else changed."""
        bom, text = self.text[: self.text.startswith(_BOM)], self.text.removeprefix(_BOM)
        try:
            if self._format == "toml":
                text = edit_toml(text, put, gone)
            else:
                for path in gone:
                    text = jsonc.drop(text, path) if text.strip() else text
                for path, value in put.items():
                    text = jsonc.put(text, path, value)
            wanted = _apply_changes(self._parse(), put, gone)
            if _drop_empty(self._parse_text(text)) != _drop_empty(wanted):
                raise ConfigSyntaxError("unexpected layout")  # noqa: TRY301 - handled like a syntax error
        except ConfigSyntaxError as error:
            hint = "the file was not changed; use --print to show the entry, and add it yourself"
            raise CommandError(f"could not change {self.path} safely: {error}", hint=hint) from error
        return bom + text

    def _read(self) -> bytes | None:
        try:
            data = self._real_path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CommandError(f"could not read {self.path}: {error.strerror or error}") from error
        if not os.access(self._real_path, os.W_OK):
            hint = "change it with the program that generates it"
            raise CommandError(f"{self.path} is read-only", hint=hint)
        return data

    def _back_up(self, data: bytes) -> Path:
        """Write a backup of the file under an unused name."""
        number, mode = 1, self._real_path.stat().st_mode & 0o777
        copy = self._real_path.with_name(f"{self._real_path.name}.bak")
        while os.path.lexists(copy):
            number += 1
            copy = copy.with_suffix(f".bak{number}")
        handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return copy

    def _replace(self, data: bytes) -> None:
        """Replace the file atomically, with the same owner and permissions."""
        handle, name = tempfile.mkstemp(dir=self._real_path.parent, prefix=f".{self._real_path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            before = self._real_path.stat() if self._original is not None else None
            Path(name).chmod(before.st_mode & 0o777 if before else NEW_MODE)
            if before and hasattr(os, "chown"):
                with suppress(PermissionError):
                    os.chown(name, before.st_uid, before.st_gid)
            Path(name).replace(self._real_path)
        except BaseException:  # also an interrupt: leave no temporary file behind
            Path(name).unlink(missing_ok=True)
            raise


@contextmanager
def _lock_folder(folder: Path) -> Generator[None]:
    """Lock a folder against concurrent runs of `install`, if the system supports it."""
    if sys.platform == "win32":
        yield
        return
    import fcntl  # noqa: PLC0415 - Windows has none

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _apply_changes(value: Any, put: Mapping[tuple[str, ...], JSON], gone: Sequence[tuple[str, ...]]) -> Any:
    for *outer, key in gone:
        holder = get_member(value, *outer)
        if isinstance(holder, dict):
            cast("dict[str, Any]", holder).pop(key, None)
    for (*outer, key), new in put.items():
        holder = value
        for word in outer:
            holder = cast("dict[str, Any]", holder).setdefault(word, {})
            if not isinstance(holder, dict):
                raise ConfigSyntaxError(f"{word} is not a table")
        holder[key] = new
    return value


def _drop_empty(value: Any) -> Any:
    """Return a value without empty mappings: TOML has no table that contains only dropped tables."""
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value).items()
    return {key: tidy for key, inner in members if (tidy := _drop_empty(inner)) != {}}


# --------------------------------------------------------------------- TOML


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # invalid TOML, or a number with too many digits
        raise ConfigSyntaxError(str(error)) from error
    except RecursionError as error:
        raise ConfigSyntaxError("nested too deeply") from error


def edit_toml(text: str, put: Mapping[tuple[str, ...], JSON], gone: Sequence[tuple[str, ...]]) -> str:
    """Return a TOML document after these changes. Keeps everything else, including comments."""
    _parse_toml(text)
    windows = 0 < text.count("\n") == text.count("\r\n")
    text = text.replace("\r\n", "\n") if windows else text
    blank = len(text) - len(text.rstrip("\n"))
    try:
        document = tomlkit.parse(text if blank or not text else f"{text}\n")
        rest = "".join([_drop_key(document, path) for path in gone])
        for path, value in put.items():
            _put_value(document, path, value)
        changed = tomlkit.dumps(document) + rest
    except (TOMLKitError, RecursionError) as error:
        raise ConfigSyntaxError(f"could not edit it: {error}") from error
    while gone and changed.endswith("\n" * (blank + 1)):  # they separated a removed table
        changed = changed[:-1]
    return changed.replace("\n", "\r\n") if windows else changed


def _put_value(document: Any, path: Sequence[str], value: JSON) -> None:
    holder: Any = document
    for depth, word in enumerate(path[:-1]):
        if word not in holder:
            holder[word] = tomlkit.table(is_super_table=depth == 0)
        inner = holder[word]
        if not isinstance(inner, MutableMapping):
            raise ConfigSyntaxError(f"{word} is not a table")
        holder = cast("Any", inner)
    _set_key(holder, path[-1], value, inline=len(path) > MAX_HEADER_WORDS)


def _set_key(holder: Any, key: str, value: JSON, *, inline: bool) -> None:
    """Set a key of a table; a mapping is merged into an existing table."""
    if isinstance(value, Mapping):
        members = cast("Mapping[str, JSON]", value)
        value = holder.get(key)
        if not isinstance(value, MutableMapping):
            nested = inline or isinstance(holder, InlineTable)
            value = tomlkit.inline_table() if nested else tomlkit.table()
        for inner, member in members.items():
            _set_key(value, inner, member, inline=True)
    if key in holder:
        if holder[key] is not value:
            holder[key] = value
        return
    # tomlkit assigns a comment above a header to the table before it. It must follow the new key.
    comments: list[Any] = []
    if isinstance(holder, Table):
        inner_tables = [table for _, table in _iterate_tables(holder)] if isinstance(value, Table) else []
        comments = _take_comments([holder, *inner_tables][-1])
    holder[key] = value
    for each in comments:
        indent = each.trivia.indent if isinstance(each, Comment) else None
        (value if isinstance(value, Table) else holder).add(each)
        if indent is not None:
            each.trivia.indent = indent  # `add` indents it again


def _drop_key(document: Any, path: tuple[str, ...]) -> str:
    """Drop a key. Returns the comments after it that no other table can hold."""
    holder = get_member(document, *path[:-1])
    if not isinstance(holder, MutableMapping):
        return ""
    comments = ""
    for place, table in list(_iterate_tables(document)):
        if place[: len(path)] == path:
            comments += "".join(each.as_string() for each in _take_comments(table))
        elif comments and not table.is_super_table():
            table.trivia.indent = comments.lstrip("\n") + table.trivia.indent
            comments = ""
    cast("Any", holder).pop(path[-1], None)
    return comments


def _take_comments(table: Table) -> list[Any]:
    """Take comments and blank lines off the end of a table."""
    body = table.value.body
    size = next((index + 1 for index in reversed(range(len(body))) if body[index][0] is not None), 0)
    taken = [item for _, item in body[size:] if not isinstance(item, Null)]  # left by a dropped key
    del body[size:]
    return taken


def _iterate_tables(container: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Table]]:
    """Iterate over the tables of a document with their paths, in order."""
    for key, item in container.value.body if isinstance(container, Table) else container.body:
        for table in item.body if isinstance(item, AoT) else [item]:
            if isinstance(table, Table):
                place = (*path, cast("Key", key).key)
                yield place, table
                yield from _iterate_tables(table, place)
