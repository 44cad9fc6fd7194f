"""The configuration file of a host: read, changed as little as can be, and written so that nothing is lost.

Owns the care: what is broken is refused, a change is checked before it is written, what was there is kept in
a copy beside it, and the new text takes its place in one step. What to write is told in `hosts`.
"""

import difflib
import os
import re
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, cast

from toolpost.cli.errors import CommandError
from toolpost.cli.install import jsonc, toml
from toolpost.cli.install.hosts import MANAGED_KEYS
from toolpost.cli.install.jsonc import ConfigSyntaxError
from toolpost.types.base import JSON

DIFF_CONTEXT_LINES: Final = 2
"""Lines around a change that are shown: enough to find it."""

NEW_MODE: Final = 0o600
"""Who may read a file that was not there before: entries may hold secrets."""

_EDITORS: Final = {"json": jsonc, "toml": toml}
_BOM: Final = "\ufeff"
_STRING: Final = re.compile(r"""("[^"\\]*(?:\\.[^"\\]*)*"|'[^']*')(\s*[:=])?""")


class HostConfigFile:
    """A file with a host's configuration, which need not be there yet.

    Raises:
        CommandError: it cannot be read, or is broken.
    """

    def __init__(self, path: Path, form: Literal["json", "toml"]) -> None:
        self.path = path
        self._format = form
        self._real_path = Path(os.path.realpath(path))  # a link stays a link
        self._original = self._read()
        self.text = self._decode()
        self._parse()

    def get_entry(self, path: Sequence[str]) -> JSON:
        """What stands at a path, or None."""
        value: Any = self._parse()
        for key in path:
            value = cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None
        return value

    def with_entry(self, path: Sequence[str], entry: Mapping[str, JSON]) -> str:
        """The text with this entry. What a user has added to an entry that is there stays in it.

        Raises:
            CommandError: the text is one that cannot be changed safely.
        """
        present = self.get_entry(path)
        if not isinstance(present, Mapping):
            return self._edit({tuple(path): entry}, ())
        left, fields = cast("Mapping[str, Any]", present), dict(entry)
        if "command" in entry and isinstance(left.get("env"), Mapping):  # what was set once stays set
            fields["env"] = {**left["env"], **entry.get("env", {})}
        switched = ("command" in entry) != ("command" in left)
        gone = [(*path, key) for key in left if key in MANAGED_KEYS and key not in fields] if switched else []
        put = {(*path, key): value for key, value in fields.items() if key not in left or left[key] != value}
        return self._edit(put, gone)

    def without_entry(self, path: Sequence[str]) -> str:
        """The text without what stands at a path.

        Raises:
            CommandError: as above.
        """
        return self._edit({}, [tuple(path)])

    def diff(self, text: str) -> str:
        """What would change if this was the text, or nothing.

        Of lines that stay no values are shown: they are there to find the place, and may hold secrets.
        """
        before, after, name = self.text.splitlines(), text.splitlines(), str(self.path)
        lines = [*difflib.unified_diff(before, after, name, name, lineterm="", n=DIFF_CONTEXT_LINES)]
        gone, come = ({line[1:].rstrip(" ,") for line in lines if line[0] == sign} for sign in "-+")
        stay = gone & come  # but for a comma
        return "\n".join(
            _STRING.sub(_mask_value, line) if line[0] == " " or line[1:].rstrip(" ,") in stay else line
            for line in lines
        )

    def write(self, text: str) -> Path | None:
        """Makes this the text of the file, and returns the copy of what was there.

        Raises:
            CommandError: somebody else has changed it meanwhile, or the disk says no.
        """
        try:
            self._real_path.parent.mkdir(parents=True, exist_ok=True)
            with _lock_folder(self._real_path.parent):
                if self._read() != self._original:
                    raise CommandError(
                        f"{self.path} has changed meanwhile; nothing was written", hint="do it once more"
                    )
                copy = None if self._original is None else self._back_up(self._original)
                self._replace(text.encode())
        except OSError as error:
            raise CommandError(f"{self.path} cannot be written: {error.strerror or error}") from error
        return copy

    # ----------------------------------------------------------------- the text

    def _decode(self) -> str:
        try:
            return (self._original or b"").decode()
        except UnicodeDecodeError as error:
            raise CommandError(
                f"{self.path} is not UTF-8, at byte {error.start}; it is left as it is"
            ) from error

    def _parse(self) -> Any:
        text = self.text.removeprefix(_BOM)
        try:
            return _EDITORS[self._format].parse(text) if text.strip() else {}
        except ConfigSyntaxError as error:
            raise CommandError(
                f"{self.path} is not {self._format.upper()}: {error}",
                hint="correct it there; it is left as it is",
            ) from error

    def _edit(self, put: Mapping[tuple[str, ...], JSON], gone: Sequence[tuple[str, ...]]) -> str:
        """The text after these changes, which are the only ones."""
        form = _EDITORS[self._format]
        bom, text = self.text[: self.text.startswith(_BOM)], self.text.removeprefix(_BOM)
        try:
            for path in gone:
                text = form.drop(text, path) if text.strip() else text
            for path, value in put.items():
                text = form.put(text, path, value)
            changed: JSON = form.parse(text) if text.strip() else {}
            _check_equal(changed, _apply_changes(self._parse(), put, gone))
        except ConfigSyntaxError as error:
            raise CommandError(
                f"{self.path} cannot be changed safely: {error}",
                hint="it is left as it is; --print shows the entry, to be put there by hand",
            ) from error
        return bom + text

    # ----------------------------------------------------------------- the disk

    def _read(self) -> bytes | None:
        try:
            data = self._real_path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CommandError(f"{self.path} cannot be read: {error.strerror or error}") from error
        if not os.access(self._real_path, os.W_OK):
            raise CommandError(
                f"{self.path} is read-only", hint="whatever has made it is the place for a change"
            )
        return data

    def _back_up(self, data: bytes) -> Path:
        """A copy of what is there, under a name that is free."""
        number, mode = 1, self._real_path.stat().st_mode & 0o777
        while True:
            copy = self._real_path.with_name(f"{self._real_path.name}.bak{number if number > 1 else ''}")
            try:
                handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            except FileExistsError:
                number += 1
                continue
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            return copy

    def _replace(self, data: bytes) -> None:
        """Puts a new file in the place of the old, with the same owner and permissions."""
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
        except BaseException:  # also an interrupt: half a file must not stay behind
            Path(name).unlink(missing_ok=True)
            raise


@contextmanager
def _lock_folder(folder: Path) -> Generator[None]:
    """Let others who do the same wait meanwhile, where the system can."""
    if sys.platform == "win32":
        yield
        return
    from fcntl import LOCK_EX, flock  # noqa: PLC0415 - Windows has none

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # there are disks that know no locks
            flock(handle, LOCK_EX)
        yield
    finally:
        os.close(handle)


def _mask_value(found: "re.Match[str]") -> str:
    """A string, if it is a key; of others that there is one."""
    return found[0] if found[2] else '"…"'


def _apply_changes(value: Any, put: Mapping[tuple[str, ...], JSON], gone: Sequence[tuple[str, ...]]) -> Any:
    """A value after changes, made where they cannot go wrong."""
    for *outer, key in gone:
        holder = value
        for word in outer:
            holder = cast("dict[str, Any]", holder).get(word) if isinstance(holder, dict) else None
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


def _check_equal(changed: JSON, wanted: JSON) -> None:
    if _drop_empty(changed) != _drop_empty(wanted):
        raise ConfigSyntaxError("it is written in another way than expected")


def _drop_empty(value: Any) -> Any:
    """A value without what is empty: TOML has no table that holds nothing but tables that are gone."""
    if not isinstance(value, dict):
        return value
    tidy = {key: _drop_empty(inner) for key, inner in cast("dict[str, Any]", value).items()}
    return {key: inner for key, inner in tidy.items() if inner != {}}
