"""Reads `mcp.json`: its servers by name, and the entry of each with its environment variables expanded.

Owns the forms in which programs write such a file, and the texts of its errors. Connecting to the server of
an entry is left to `toolpost.connect`.
"""

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolpost.errors import AuthError, ConnectFailed
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.types.base import JSON

# Where programs list the servers in an `mcp.json`; the last two are Zed and opencode.
_SERVER_KEYS: Final = ("mcpServers", "servers", "context_servers", "mcp")
_EXAMPLE: Final = 'example: {"mcpServers": {"name": {"command": "…", "args": ["…"]}}}'
OAUTH: Final = "oauth"  # the value of "auth" that stands for `OAuth()`; no token is that short
_AUTH_HINT: Final = 'write "oauth", in lower case, for a browser login, or a token'
_EXPANDED_KEYS: Final = ("url", "headers", "auth", "env")  # not "command": it may use such strings itself
_VARIABLE: Final = re.compile(
    r"(?:\$\{(?:env:)?|\{env:)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<otherwise>[^}]*))?\}"
)
# Names of other programs: Windsurf, Gemini CLI, opencode, Zed.
_OTHER_KEYS: Final = {"serverUrl": "url", "httpUrl": "url", "environment": "env", "path": "command"}
_OBJECT: Final = JSONReader(dict[str, JSON])


# --------------------------------------------------------------------- comments

_NON_SPACE: Final = re.compile(r"[^ \t\r\n]")
_TOKEN: Final = re.compile(
    r""""[^"\\]*(?:\\.[^"\\]*)*"? | //[^\r\n]* | /\*.*?\*/ | /\* | [,\[\]{}] | [^\s"/,\[\]{}]+ | / """,
    re.DOTALL | re.VERBOSE,
)
"""A string, a comment, a separator, or anything else: enough to find comments and commas."""


class ConfigSyntaxError(Exception):
    """A configuration file is invalid, or cannot be edited."""


class StrippedText(NamedTuple):
    """A text with spaces for comments and trailing commas, and the positions of those commas."""

    text: str
    commas: list[int]


def strip_comments(text: str) -> StrippedText:
    """Replace the comments and trailing commas of JSON by spaces, as editors allow them in their settings."""
    kept: list[str] = []
    commas: list[int] = []
    done = 0
    before, comma = "[", -1  # the previous token, and the position of a possible trailing comma
    for found in _TOKEN.finditer(text):
        piece, at = found[0], found.start()
        if piece == "/*":
            line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
            raise ConfigSyntaxError(f"line {line}, column {column}: a comment has no end")
        if piece.startswith(("//", "/*")):
            kept += text[done:at], _NON_SPACE.sub(" ", piece)
            done = found.end()
            continue
        if piece in "]}" and comma >= 0:
            commas.append(comma)
        comma = at if piece == "," and before not in {"[", "{", ","} else -1
        before = piece
    plain = list("".join([*kept, text[done:]]))
    for comma in commas:
        plain[comma] = " "
    return StrippedText("".join(plain), commas)


# --------------------------------------------------------------------- the file


def has_server_list(config: Mapping[str, object]) -> bool:
    """Return whether this is the content of a file, and not the entry of one server."""
    return any(key in config for key in _SERVER_KEYS)


def read_config(path: Path) -> dict[str, JSON]:
    """Read the content of a file. Raises `ConnectFailed` if there is none."""
    try:
        return _OBJECT(
            strip_comments(path.read_text("utf-8-sig", "surrogateescape")).text.encode(
                "utf-8", "surrogateescape"
            )
        )
    except FileNotFoundError as error:
        raise ConnectFailed(f"{path} does not exist", hint=f"check the path; {_EXAMPLE}") from error
    except OSError as error:
        raise ConnectFailed(f"{path} cannot be read: {error.strerror or error}") from error
    except (InvalidJSONValue, ConfigSyntaxError) as error:
        raise ConnectFailed(f"{path} is not a valid mcp.json: {error}") from error


def read_servers(path: PathLike[str] | str) -> dict[str, Any]:
    """Read the entries of all servers in a file, by name."""
    path = Path(path)
    config = read_config(path)
    with error_context(str(path)):
        return list_servers(config)


def list_servers(config: Mapping[str, JSON]) -> dict[str, Any]:
    """Return the entries of all servers, by name. Raises `ConnectFailed` if there is none."""
    found: dict[str, Any] = {}
    for key in _SERVER_KEYS:
        listed: JSON = config.get(key) or {}
        if not isinstance(listed, Mapping):
            raise ConnectFailed(f"{key!r} must be an object of servers by name")
        found.update(cast("Mapping[str, Any]", listed))
    if not found:
        raise ConnectFailed("no servers are defined", hint=_EXAMPLE)
    return found


def choose_server(config: Mapping[str, JSON], server: str | None) -> tuple[str, Mapping[str, JSON]]:
    """Return the name and the entry of a server; it must be named unless there is only one."""
    found = list_servers(config)
    if server is None and len(found) == 1:
        (server,) = found
    if server not in found:
        problem = "several servers are defined" if server is None else f"unknown server {server!r}"
        raise ConnectFailed(problem, hint=f"pass server=, one of: {', '.join(found)}")
    entry = found[server]
    if not isinstance(entry, Mapping):
        raise ConnectFailed(f"server {server!r} must be an object", hint=_EXAMPLE)
    return server, cast("Mapping[str, JSON]", entry)


@contextmanager
def error_context(context: str) -> Generator[None]:
    """Name what an error is about; contexts nest."""
    try:
        yield
    except (AuthError, ConnectFailed) as error:
        error.peer = context if error.peer is None else f"{context}, {error.peer}"
        raise


# --------------------------------------------------------------------- one entry


def _normalize_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with the keys that most programs use."""
    plain = {_OTHER_KEYS.get(key, key): value for key, value in entry.items()}
    command = plain.get("command")
    if isinstance(command, Mapping):  # old versions of Zed: {"path": …, "args": …, "env": …}
        plain |= _normalize_entry(cast("Mapping[str, Any]", command))
    elif isinstance(command, list) and command:  # opencode
        plain["command"], *plain["args"] = cast("list[Any]", command)
    if plain.get("type") in {"local", "remote"}:  # opencode, Copilot CLI
        del plain["type"]
    return plain


def expand_variables(entry: Mapping[str, JSON]) -> dict[str, JSON]:
    """Normalize an entry and expand its environment variables. Errors show no value.

    They are written as `${NAME}`, `${NAME:-default}`, `${env:NAME}` or `{env:NAME}`.
    """
    entry = _normalize_entry(entry)
    filled: dict[str, Any] = dict(entry)
    for key in _EXPANDED_KEYS:
        value: Any = entry.get(key)
        if isinstance(value, str):
            filled[key] = _expand(value, f'"{key}"')
        elif isinstance(value, Mapping):
            filled[key] = {
                name: _expand(text, f'"{key}", {name!r}') if isinstance(text, str) else text
                for name, text in cast("Mapping[str, Any]", value).items()
            }
    _check_auth(filled)
    return filled


def _expand(text: str, where: str) -> str:
    def value_of(found: "re.Match[str]") -> str:
        name, otherwise = cast("tuple[str, str | None]", found.group("name", "otherwise"))
        value = os.environ.get(name) if otherwise is None else os.environ.get(name) or otherwise
        if value is None:
            raise ConnectFailed(
                f"{where} requires the environment variable {name}, which is not set",
                hint=f"set it, or write ${{{name}:-…}} with a default",
            )
        return value

    return _VARIABLE.sub(value_of, text)


def _check_auth(entry: Mapping[str, JSON]) -> None:
    """Check `auth` of an entry. Errors do not repeat its text, which may be a token."""
    for key in ("auth", "oauth"):
        if isinstance(entry.get(key), Mapping):  # some programs keep their settings there
            raise ConnectFailed(
                f'"{key}" must not be an object',
                hint='for a browser login write "auth": "oauth"; pass other settings, such as client_id, '
                "in the program: Client(…, auth=OAuth(…))",
            )
    auth = entry.get("auth")
    if auth is None:
        return
    if "url" not in entry:
        raise ConnectFailed('"auth" requires a "url"', hint='pass secrets to a command in "env"')
    if not isinstance(auth, str):
        raise ConnectFailed(
            f'"auth" must be a string, not {msgspec.json.encode(auth).decode()[:40]}', hint=_AUTH_HINT
        )
    if auth != OAUTH and auth.lower().startswith(OAUTH):
        raise ConnectFailed('"auth" is neither "oauth" nor a token', hint=_AUTH_HINT)
