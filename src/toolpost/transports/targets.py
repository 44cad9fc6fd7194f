"""Descriptions of servers to connect to: `Http` for a URL, `Stdio` for a command to start.

Owns their checks and their shorter forms: a string, a list, an entry of an `mcp.json`. Sends and starts
nothing, and never shows what may be a secret: header values, queries, passwords, variables.
"""

import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO, TypeVar
from urllib.parse import SplitResult, urljoin

from msgspec import Struct, ValidationError, convert
from msgspec.structs import force_setattr

from toolpost.errors import ConnectFailed
from toolpost.protocol.line_framing import MAX_LINE
from toolpost.protocol.urls import (
    display_url,
    get_origin,
    has_credentials,
    has_forbidden_characters,
    split_http_url,
)

MAX_ANSWER: Final = 4 * 1024 * 1024
"""The largest answer or event in bytes that a client reads: a picture of 3 MiB in base64, as over stdio."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
# They say where a message ends: only the HTTP library sets them.
_FRAMING_HEADERS: Final = frozenset({"connection", "content-length", "transfer-encoding"})
Entry = TypeVar("Entry", bound=Struct)


class Http(Struct, frozen=True):
    """The address of an HTTP server, and how to connect to it.

    Attributes:
        url: the address of its MCP endpoint.
        headers: headers to send with each request, such as `{"Authorization": "Bearer …"}`.
        http: the HTTP library: None or "aiohttp", "httpx2", an aiohttp session or an httpx2 async client
            (which you have to close), an ASGI application, or a `Backend`.
        name: the name of the server in errors and logs; by default its URL without the query.
        sse: whether it supports only HTTP+SSE, the HTTP transport of the first revision.
        max_answer: the largest response to read, in bytes.
        auth: the credentials: a token, a function that returns one, `OAuth(…)` and the like.

    Raises:
        ConnectFailed: the URL is not the address of a server, or a header cannot be sent.

    Examples:
        >>> client = Client(Http("https://example.com/mcp", headers={"X-Team": "blue"}, name="shop"))
    """

    url: str
    headers: Mapping[str, str] | None = None
    http: object = None
    name: str | None = None
    sse: bool = False
    max_answer: int = MAX_ANSWER
    auth: object = None

    def __post_init__(self) -> None:
        _parse_url(self.url)
        force_setattr(self, "url", self.url.partition("#")[0])  # a fragment never leaves the client
        headers = {name.lower(): _check_header(name, value) for name, value in (self.headers or {}).items()}
        force_setattr(self, "headers", MappingProxyType(headers))
        if self.auth is not None and "authorization" in headers:
            raise ConnectFailed(
                "auth= and the Authorization header are mutually exclusive", hint="pass one of them"
            )

    def __repr__(self) -> str:
        # Header values are often secrets, and a repr ends up in logs.
        return f"Http({display_url(self.url)!r}, headers={dict.fromkeys(self.headers or {}, '…')!r})"

    @classmethod
    def from_target(cls, target: "Http | str | Mapping[str, Any]") -> "Http":
        """Return the description for a URL, an entry of an `mcp.json`, or a description."""
        if isinstance(target, Http):
            return target
        if isinstance(target, str):
            return cls(target)
        entry = _convert_entry(
            target,
            _HttpEntry,
            "invalid entry for an HTTP server",
            'it requires {"url": "…"}; "headers", "auth" and "type" are optional',
        )
        kind = entry.type or entry.transport or "http"
        plain = kind.lower().replace("-", "").replace("_", "")  # programs disagree on them
        if plain not in {"http", "streamablehttp", "sse"}:
            raise ConnectFailed(f"unknown transport type {kind!r}", hint='"type" must be "http" or "sse"')
        return cls(entry.url, entry.headers, sse=plain == "sse", auth=entry.auth)

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.name or display_url(self.url)


def resolve_url(base: str, reference: str) -> str:
    """Return the URL that a reference leads to; raise ConnectFailed if that is of another origin."""
    try:
        url = urljoin(base, reference)
    except ValueError as error:
        raise ConnectFailed("the URL cannot be parsed") from error
    if get_origin(_parse_url(url)) != get_origin(_parse_url(base)):
        raise ConnectFailed(f"{display_url(url)} has a different origin than {display_url(base)}")
    return url.partition("#")[0]


def _parse_url(url: str) -> SplitResult:
    """Split a URL that requests can be sent to. Errors do not repeat it: it may hold secrets."""
    if has_forbidden_characters(url):
        raise ConnectFailed(
            "the URL contains an invalid character, such as a space, a line break or a backslash",
            hint="remove it, or write it as %XX",
        )
    if has_credentials(url):
        raise ConnectFailed(
            "the URL must not contain a user name or password",
            hint='send them as headers={"Authorization": "Basic …"}',
        )
    parts = split_http_url(url)
    if parts is None:
        raise ConnectFailed(
            "the URL of a server must start with http:// or https:// and have a host",
            hint="example: https://example.com/mcp",
        )
    return parts


def _check_header(name: str, value: object) -> str:
    """Return the value of a header as it is sent. Errors name the header, but not its value."""
    if not _HEADER_NAME.fullmatch(name):
        raise ConnectFailed(f"invalid header name {name!r}", hint="use letters, digits and hyphens")
    if name.lower() in _FRAMING_HEADERS:
        raise ConnectFailed(f"the header {name!r} must not be set", hint="remove it")
    if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
        raise ConnectFailed(
            f"the header {name!r} has an invalid value",
            hint="use visible ASCII characters; a line break at the end is a common cause",
        )
    return value.strip(" \t")


class _HttpEntry(Struct):
    """An entry of an `mcp.json` with a URL. Unknown keys are ignored: other programs use them."""

    url: str
    type: str | None = None
    transport: str | None = None
    headers: dict[str, str] | None = None
    auth: str | None = None


def _convert_entry(entry: Mapping[str, Any], kind: type[Entry], problem: str, hint: str) -> Entry:
    try:
        return convert(entry, kind)
    except ValidationError as error:
        raise ConnectFailed(f"{problem}: {error}", hint=hint) from error


# --------------------------------------------------------------------- commands

Stderr = Literal["log", "discard", "inherit"] | Callable[[str], object] | Path | TextIO
"""Where a server's stderr goes: to the logger `toolpost.child` at level INFO, nowhere, to our own stderr,
line by line to a function, to the end of a file given by its path, or to an open text file."""

_POSIX_VARIABLES: Final = "COLORTERM HOME LANG LANGUAGE LOGNAME PATH SHELL TERM TMPDIR TZ USER"
_WINDOWS_VARIABLES: Final = """
    APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA NUMBER_OF_PROCESSORS OS PATH PATHEXT
    PROCESSOR_ARCHITECTURE PROGRAMDATA PROGRAMFILES SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE
    WINDIR
"""

SAFE_VARIABLES: Final = frozenset((_POSIX_VARIABLES if os.name == "posix" else _WINDOWS_VARIABLES).split())
"""The variables that every server gets, besides `LC_*`. None of them tends to hold a secret."""

MAX_LABEL_LENGTH: Final = 60  # how many characters of a command an error shows


class Stdio(Struct, frozen=True):
    """How to start a server as a child process.

    The server does not inherit your environment, which may contain secrets. It gets `SAFE_VARIABLES` and
    `LC_*`, the variables that `inherit_env` names, and `env`.

    Attributes:
        command: the program; it is looked up on the PATH that the server gets.
        args: its arguments.
        env: variables to set.
        cwd: the folder to start it in.
        inherit_env: names of further environment variables to pass on; True passes on all of them.
        stderr: where its stderr goes; by default to the logger `toolpost.child`, at level INFO. The last
            lines are kept for errors, unless it is "inherit".
        name: its name in errors and logs; by default the command.
        stdin_wait: seconds to wait after closing its stdin, before SIGTERM.
        term_wait: seconds to wait after SIGTERM, before SIGKILL.
        max_line: the longest message to read from it, in bytes. A longer message is dropped, and the request
            that it answers fails.

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
            raise TypeError(f"args must be a list of strings: write [{self.args!r}], not {self.args!r}")
        # Paths are welcome, and the caller may change the list later.
        force_setattr(self, "command", os.fspath(self.command))
        force_setattr(self, "args", tuple(os.fspath(word) for word in self.args))
        if isinstance(self.stderr, str) and self.stderr not in {"log", "discard", "inherit"}:
            raise TypeError(f"stderr must be a Path, such as Path({self.stderr!r}), not a string")
        if not self.command:
            raise ConnectFailed("the command is empty", hint="pass a program")

    def __repr__(self) -> str:
        # The values in `env` are often secrets, and a repr ends up in logs.
        env = None if self.env is None else dict.fromkeys(self.env, "…")
        return f"Stdio({self.command!r}, {[*self.args]!r}, env={env!r}, cwd={self.cwd!r})"

    @classmethod
    def from_target(cls, target: "Stdio | str | Sequence[str] | Mapping[str, Any]") -> "Stdio":
        """Return the description for a shorter form: a list of words, an entry of an `mcp.json`, a string.

        A string is split as a shell would do, but nothing is expanded.
        """
        if isinstance(target, Stdio):
            return target
        if isinstance(target, Mapping):
            hint = 'it requires {"command": "…"}; "args", "env" and "cwd" are optional'
            entry = _convert_entry(target, _StdioEntry, "invalid entry for a command", hint)
            return cls(entry.command, entry.args, entry.env, entry.cwd)
        command, *args = (_split_command(target) if isinstance(target, str) else target) or [""]
        return cls(command, args)

    @property
    def label(self) -> str:
        """Its name for people: `name`, or the command with its first argument that is not an option.

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
        handed_on = dict[str, str]()
        for name, value in os.environ.items():
            is_safe = name in SAFE_VARIABLES or name.startswith("LC_")
            # A value that starts with parentheses is a function to some shells.
            if name in named or (is_safe and not value.startswith("()")):
                handed_on[name] = value
        return {**handed_on, **(self.env or {})}


class _StdioEntry(Struct):
    """An entry of an `mcp.json` with a command. Unknown keys are ignored: other programs use them."""

    command: str
    type: Literal["stdio"] = "stdio"
    args: list[str] = []
    env: dict[str, str] | None = None
    cwd: str | None = None


def _split_command(text: str) -> list[str]:
    try:
        if os.name == "posix":
            return shlex.split(text)
        # Backslashes are part of paths there; the split leaves quotes around the words.
        return [word.strip('"') for word in shlex.split(text, posix=False)]  # pragma: no cover - Windows
    except ValueError as error:
        raise ConnectFailed(
            f"the command cannot be split into words: {error}", hint="pass a list of strings instead"
        ) from error
