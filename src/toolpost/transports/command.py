"""How to start a server: the command, its environment, and what happens to its stderr.

Owns the description and what may be said instead of it: a list, a string, an entry of an `mcp.json`. Starts
nothing, and knows nothing of event loops.
"""

import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from msgspec import Struct, ValidationError, convert
from msgspec.structs import force_setattr

from toolpost.errors import ConnectFailed
from toolpost.protocol.framing import MAX_LINE

__all__ = ["SAFE_VARIABLES", "Stderr", "Stdio"]

Stderr = Literal["log", "discard", "inherit"] | Callable[[str], object] | Path | TextIO
"""Where a server's stderr goes: to the logger `toolpost.child` at level INFO, nowhere, to our own stderr,
line by line to a function, to the end of a file given by its path, or to an open text file."""

_POSIX_VARIABLES: Final = """
    COLORTERM HOME LANG LANGUAGE LOGNAME PATH SHELL TERM TMPDIR TZ USER
"""
_WINDOWS_VARIABLES: Final = """
    APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA NUMBER_OF_PROCESSORS OS PATH PATHEXT
    PROCESSOR_ARCHITECTURE PROGRAMDATA PROGRAMFILES SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE
    WINDIR
"""

SAFE_VARIABLES: Final = frozenset((_POSIX_VARIABLES if os.name == "posix" else _WINDOWS_VARIABLES).split())
"""The variables that every server gets, besides `LC_*`. None of them tends to hold a secret."""


MAX_LABEL_LENGTH: Final = 60
"""How much of a command stands in an error."""


class Stdio(Struct, frozen=True):
    """How to start a server as a child process.

    The server does not get our environment, which may be full of secrets: only `SAFE_VARIABLES` and `LC_*`,
    then what `inherit_env` names, then `env`.

    Attributes:
        command: the program, found along the PATH that the server gets.
        args: its arguments.
        env: variables to set.
        cwd: the folder to start it in.
        inherit_env: names of further variables of ours to hand on; True hands on all of them.
        stderr: where its stderr goes; by default to the logger `toolpost.child`, at level INFO. The last
            lines are kept for errors, unless it is "inherit".
        name: what to call it in errors and logs; by default the command.
        stdin_wait: seconds to leave by itself, when its stdin was closed, before it gets SIGTERM.
        term_wait: seconds to leave after SIGTERM before it gets SIGKILL.
        max_line: the longest message to read from it, in bytes. A longer one is dropped, and the request
            that it answers fails. While it arrives, so much memory is taken.

    Examples:
        >>> client = Client(Stdio("python", ["server.py"], env={"LANG": "C.UTF-8"}, name="shop"))
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    inherit_env: bool | Collection[str] = False
    stderr: Stderr = "log"
    name: str | None = None
    stdin_wait: float = 2.0
    term_wait: float = 2.0
    max_line: int = MAX_LINE

    def __post_init__(self) -> None:
        if isinstance(self.args, str):
            raise TypeError(f"args is a list of strings: write [{self.args!r}], not {self.args!r}")
        # Paths are welcome, and whoever keeps the list may change it.
        force_setattr(self, "command", os.fspath(self.command))
        force_setattr(self, "args", tuple(os.fspath(word) for word in self.args))
        if isinstance(self.stderr, str) and self.stderr not in {"log", "discard", "inherit"}:
            raise TypeError(f"stderr is a file as Path({self.stderr!r}), not as a string")
        if not self.command:
            raise ConnectFailed("there is no command to start", hint="name a program")

    def __repr__(self) -> str:
        # The values in `env` are often secrets, and a repr ends up in logs.
        env = None if self.env is None else dict.fromkeys(self.env, "…")
        return f"Stdio({self.command!r}, {[*self.args]!r}, env={env!r}, cwd={self.cwd!r})"

    @classmethod
    def from_target(cls, target: "Stdio | str | Sequence[str] | Mapping[str, Any]") -> "Stdio":
        """The description that somebody gave in a shorter way.

        Args:
            target: a list with the command and its arguments, a string that is split like a shell would
                (but nothing is expanded), an entry of an `mcp.json`, or a description already.

        Raises:
            ConnectFailed: it describes no command.
        """
        if isinstance(target, Stdio):
            return target
        if isinstance(target, Mapping):
            return _parse_stdio_entry(target)
        words = _split_command(target) if isinstance(target, str) else target
        if not words:
            raise ConnectFailed("there is no command to start", hint="name a program")
        command, *args = words
        return cls(command, args)

    @property
    def label(self) -> str:
        """What to call it: its name, or the command with its first argument that is no option.

        Arguments with settings or addresses are left out: they may hold a password.
        """
        if self.name:
            return self.name
        plain = [
            word for word in self.args if not word.startswith("-") and "=" not in word and "://" not in word
        ]
        return " ".join([Path(self.command).name, *plain[:1]])[:MAX_LABEL_LENGTH]

    def environment(self) -> dict[str, str]:
        """The variables that the server gets."""
        if self.inherit_env is True:
            return {**os.environ, **(self.env or {})}
        named = frozenset(self.inherit_env or ())
        ours = {
            name: value
            for name, value in os.environ.items()
            if name in named or _is_safe_variable(name, value)
        }
        return {**ours, **(self.env or {})}


def _is_safe_variable(name: str, value: str) -> bool:
    # A value that starts with parentheses is a function to some shells.
    return (name in SAFE_VARIABLES or name.startswith("LC_")) and not value.startswith("()")


class _StdioEntry(Struct):
    """What an entry of an `mcp.json` says about a command. Keys that only other programs know are ignored."""

    command: str
    type: Literal["stdio"] = "stdio"
    args: list[str] = []
    env: dict[str, str] | None = None
    cwd: str | None = None


def _parse_stdio_entry(entry: Mapping[str, Any]) -> Stdio:
    try:
        read = convert(entry, _StdioEntry)
    except ValidationError as error:
        raise ConnectFailed(
            f"this entry describes no command: {error}",
            hint='it needs {"command": "…"}, and may have "args", "env" and "cwd"',
        ) from error
    return Stdio(read.command, read.args, read.env, read.cwd)


def _split_command(text: str) -> list[str]:
    try:
        if os.name == "posix":
            return shlex.split(text)
        # Backslashes are part of paths there; the quotes stay around the words and are taken off.
        return [word.strip('"') for word in shlex.split_jws(text, posix=False)]  # pragma: no cover - Windows
    except ValueError as error:
        raise ConnectFailed(
            f"the command cannot be split into words: {error}", hint="give a list of strings instead"
        ) from error
