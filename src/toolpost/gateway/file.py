"""Reads the file of a gateway and checks it, without starting anything; each problem names its line.

`settings` has the shapes, and `client.mcp_json` knows the forms in which programs write entries.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from toolpost.client import mcp_json
from toolpost.errors import AuthError, ConnectFailed, MCPError, suggest
from toolpost.gateway.policy import Rule
from toolpost.gateway.settings import (
    SECTION,
    GatewaySettings,
    LoginSettings,
    Settings,
    UpstreamAuth,
    UpstreamEntry,
    UpstreamSettings,
)
from toolpost.protocol.urls import is_loopback_host
from toolpost.transports.credentials import check_encrypted
from toolpost.transports.targets import Http, Stdio

S = TypeVar("S", bound=msgspec.Struct)


class Problem(msgspec.Struct, frozen=True):
    """What is wrong in a file, and where. A `fatal` one refuses the whole file."""

    path: str
    line: int | None
    message: str
    hint: str | None = None
    fatal: bool = True
    warning: bool = False

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}:{self.line}"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}: {self.message}{hint}"


class GatewayFile(msgspec.Struct):
    """The content of a file, and what is wrong in it."""

    path: Path
    settings: GatewaySettings = GatewaySettings()
    upstreams: dict[str, UpstreamEntry] = {}
    problems: list[Problem] = []

    @property
    def is_broken(self) -> bool:
        """Whether the file must not be used."""
        return any(problem.fatal for problem in self.problems)


# --------------------------------------------------------------------- reading


def read_gateway_file(path: Path) -> GatewayFile:
    """Read and check a file. Starts nothing, connects to nothing, and raises nothing."""
    found = GatewayFile(path)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not UTF-8"
        found.problems.append(Problem(str(path), None, f"cannot be read: {problem}"))
        return found
    try:
        plain = mcp_json.strip_comments(text).text
        document: Any = json.loads(plain, parse_constant=_refuse_constant)
    except (mcp_json.ConfigSyntaxError, ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        message = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        found.problems.append(Problem(str(path), line, f"the file is not valid JSON: {message}"))
        return found
    _FileReader(found, plain).read(document)
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def expand(section: Mapping[str, Any]) -> dict[str, Any]:
    """Expand the environment variables in the texts of a section. Raises ConnectFailed."""
    expanded = cast("Mapping[str, Any]", mcp_json.expand_variables({"env": dict(section)})["env"])
    return {**expanded}


_KNOWN_WORDS: Final = sorted(
    {
        field
        for kind in (*Settings.__subclasses__(), Rule)
        for field in kind.__struct_fields__
    }
)  # fmt: skip
_PLACE: Final = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<place>.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


class _FileReader:
    """Reads a document, and collects its problems with their lines."""

    def __init__(self, found: GatewayFile, text: str) -> None:
        self._found = found
        self._lines = _Lines(text)

    def _report(self, path: list[Any], message: str, hint: str | None = None, **kind: bool) -> None:
        line = self._lines.find(path)
        self._found.problems.append(Problem(str(self._found.path), line, message, hint, **kind))

    def read(self, document: Any) -> None:
        found = self._found
        if not isinstance(document, dict):
            self._report([], "the file must be an object")
            return
        config = cast("dict[str, Any]", document)
        try:
            entries = mcp_json.list_servers(config)
        except ConnectFailed as error:
            self._report([], error.message, error.hint)
            return
        found.settings = self._convert(GatewaySettings, config.get(SECTION, {}), [SECTION], "")
        self._check_top()
        for name, entry in entries.items():
            path = next(
                [key, name] for key in config if isinstance(config[key], dict) and name in config[key]
            )
            self._read_entry(name, entry, path)
        self._check_names()

    def _convert(self, kind: type[S], given: Any, path: list[Any], where: str) -> S:
        """Return settings; each member that is wrong is reported, and left at its default."""
        if not isinstance(given, dict):
            self._report(path, f'{where}"{SECTION}" must be an object')
            return kind()
        section = cast("dict[str, Any]", given)
        values: dict[str, Any] = {}
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for name, value in section.items():
            if name not in fields:
                self._report([*path, name], f"{where}unknown setting {name!r}{suggest(name, fields)}")
                continue
            try:
                values[name] = msgspec.convert(value, fields[name].type)
            except msgspec.ValidationError as error:
                match = _PLACE.fullmatch(str(error))
                assert match is not None, "the pattern matches any text"
                steps = [
                    key or (int(index) if index.isdigit() else index)
                    for key, index in _STEP.findall(match["place"] or "")
                ]
                text = match["text"]
                if (unknown := _UNKNOWN.fullmatch(text)) is not None:
                    text = f"unknown setting {unknown[1]!r}{suggest(unknown[1], _KNOWN_WORDS)}"
                    steps.append(unknown[1])
                shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
                self._report([*path, name, *steps], f'{where}"{name}{shown}": {text}')
        try:
            return kind(**values)
        except TypeError:  # a required member is missing or wrong
            return kind()

    # ----------------------------------------------------------------- the top

    def _check_top(self) -> None:
        settings, path = self._found.settings, [SECTION, "policy"]
        for index, rule in enumerate(settings.policy):
            for wrong in rule.list_mistakes():
                self._report([*path, index], f"rule {index + 1}: {wrong}")
        for index, rule in enumerate(settings.policy[:-1]):
            if rule.is_catch_all:
                unused = (
                    f"rule {index + 2} and later ones decide nothing: rule {index + 1} matches everything"
                )
                self._report([*path, index + 1], unused, fatal=False, warning=True)
                break
        kinds = [
            kind
            for kind in ("resources", "prompts")
            if not any(rule.may_match(kind) for rule in settings.policy)
        ]
        if settings.policy and kinds:
            text = f"no rule allows {' or '.join(kinds)}, so they are hidden"
            self._report(path, text, 'add {"resources": "*"} or {"prompts": "*"}', fatal=False, warning=True)
        rates = settings.rate if isinstance(settings.rate, list) else [settings.rate]
        if any(rate.calls < 1 or not rate.seconds > 0 for rate in rates):
            self._report([SECTION, "rate"], '"rate": "calls" must be at least 1, and "seconds" more than 0')

    # ----------------------------------------------------------------- entries

    def _read_entry(self, name: str, entry: Any, path: list[Any]) -> None:
        where = f"server {name!r}: "
        if not isinstance(entry, dict):
            self._report(path, f"{where}the entry must be an object")
            return
        members = cast("dict[str, Any]", entry)
        if members.get("disabled") is True or members.get("enabled") is False:
            return
        section = members.get(SECTION, {})
        settings = self._convert(UpstreamSettings, section, [*path, SECTION], where)
        plain = {key: value for key, value in members.items() if key != SECTION}
        upstream = UpstreamEntry(name, plain, settings)
        self._found.upstreams[name] = upstream
        for problem, hint in check_target(upstream):
            self._report(path, f"{where}{problem}", hint, fatal=False)
        self._check_credentials(upstream, [*path, SECTION, "auth"], where)

    def _check_credentials(self, upstream: UpstreamEntry, path: list[Any], where: str) -> None:
        auth, url = upstream.settings.auth, _get_url(upstream.entry)
        if auth is None:
            return
        if url is None:
            self._report(path, f'{where}"auth" requires a "url"', 'pass secrets to a command in "env"')
            return
        if "auth" in upstream.entry or "authorization" in map(str.lower, upstream.entry.get("headers") or {}):
            self._report(path, f'{where}there are two kinds of credentials: keep "auth" or the other one')
        try:
            check_encrypted(url)
        except AuthError as error:
            self._report(path, f"{where}{error.message}", error.hint)
        if isinstance(auth, UpstreamAuth):
            self._check_auth(auth, path, where)

    def _check_auth(self, auth: UpstreamAuth, path: list[Any], where: str) -> None:
        if len(auth.chosen) != 1:
            kinds = ", ".join(UpstreamAuth.__struct_fields__)
            self._report(path, f'{where}"auth" must be "oauth" or have exactly one of: {kinds}')
        if (auth.exchange or auth.passthrough) and self._found.settings.auth is None:
            text = f"{where}the token of the caller is needed, but the gateway accepts none"
            self._report(path, text, 'set "auth": {"issuer": …} in "toolpost" at the top of the file')
        for kind, section in auth.chosen:
            back = section.redirect_uri if isinstance(section, LoginSettings) else None
            if back and not is_loopback_host(urlsplit(back).hostname):
                hint = "example: http://127.0.0.1:8765/callback"
                self._report(
                    [*path, kind, "redirect_uri"], f'{where}"redirect_uri" must lead to this machine', hint
                )
            try:
                expand(msgspec.to_builtins(section))
            except ConnectFailed as error:
                message = error.message.replace('"env", ', "")
                self._report([*path, kind], f"{where}{message}", error.hint, fatal=False)

    def _check_names(self) -> None:
        """Report servers without a prefix of their own name that share one."""
        prefixes: dict[str, str] = {}
        for name, upstream in self._found.upstreams.items():
            prefix = name if upstream.settings.name is None else upstream.settings.name
            if prefix and prefixes.setdefault(prefix, name) != name:
                text = f'server {name!r}: "name" is {prefix!r}, as that of server {prefixes[prefix]!r}'
                self._report(["mcpServers", name, SECTION, "name"], text)


def _get_url(entry: Mapping[str, Any]) -> str | None:
    """Return the URL of an entry, whatever the program that wrote it calls it."""
    found: Any = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if key in entry), None)
    return found if isinstance(found, str) else None


def describe_target(upstream: UpstreamEntry) -> tuple[str, str]:
    """Return the kind of a target, and its name for people, without secrets."""
    try:
        entry = mcp_json.expand_variables(upstream.entry)
        return (
            ("http", Http.from_target(entry).label)
            if "url" in entry
            else ("stdio", Stdio.from_target(entry).label)
        )
    except MCPError:
        return "unknown", ""


def check_target(upstream: UpstreamEntry) -> Iterator[tuple[str, str | None]]:
    """Yield why the server of an entry cannot be reached, as far as that is known without trying."""
    try:
        entry = mcp_json.expand_variables(upstream.entry)
        if "url" in entry:
            Http.from_target(entry)
        elif "command" not in entry:
            yield 'the entry has neither "command" nor "url"', None
        else:
            stdio = Stdio.from_target(entry)
            if shutil.which(stdio.command, path=stdio.environment().get("PATH")) is None:
                yield f"the command {stdio.command!r} was not found", "install it, or write its full path"
            if stdio.cwd is not None and not Path(stdio.cwd).is_dir():
                yield f"the folder {str(stdio.cwd)!r} (cwd) does not exist", None
    except MCPError as error:
        yield error.message, error.hint


# --------------------------------------------------------------------- lines


class _Lines:
    """Finds the lines of members in a JSON text without comments."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._decoder = json.JSONDecoder()

    def find(self, path: list[Any]) -> int:
        """Return the line of a member; of the last one on the path that exists."""
        found = at = self._skip(0)
        for step in path:
            for key, key_at, value_at in self._members(at):
                if key == step:
                    found, at = key_at, value_at
                    break
            else:
                break
        return self._text.count("\n", 0, found) + 1

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None, "the pattern matches an empty text"
        return found.end()

    def _members(self, at: int) -> Iterator[tuple[Any, int, int]]:
        """Yield key or index, position and position of the value, for each member of an object or array."""
        kind = self._text[at : at + 1]
        if kind not in {"{", "["}:
            return
        index, at = 0, self._skip(at + 1)
        while self._text[at] not in "}]":
            key, start = index, at
            if kind == "{":
                key, end = self._decoder.raw_decode(self._text, at)
                at = self._skip(self._skip(end) + 1)
            yield key, start, at
            _, end = self._decoder.raw_decode(self._text, at)
            at = self._skip(end)
            index, at = index + 1, self._skip(at + 1) if self._text[at] == "," else at
