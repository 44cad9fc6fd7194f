"""TARGET, the server that a command uses: its parser, its options, and a client for it.

A target is a URL, a command, a Python file or a name in an `mcp.json`. A command gets a `TargetConnector`,
which applies the options, connects and runs the command's work with a client.
"""

import math
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import click
from msgspec.structs import replace

from toolpost.cli.errors import translate_errors, usage_error
from toolpost.cli.output import JSON_HELP, CommandOutput
from toolpost.client import mcp_json
from toolpost.errors import MCPError
from toolpost.protocol.methods import DATES
from toolpost.transports.targets import Http, Stdio, display_url

if TYPE_CHECKING:
    from toolpost.client.client import Client

T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 60.0  # seconds to wait for a response, unless `--timeout` is given
CONNECT_TIMEOUT: Final = 30.0  # seconds to start a server and connect: as long as hosts usually wait
CONFIG_PATHS: Final = ("mcp.json", ".mcp.json", ".vscode/mcp.json", ".cursor/mcp.json")
"""The files to search for names, in this order, unless `--config` names one."""

_COMMAND_SEPARATOR: Final = "--"  # stands before a command at the end of the line
_URL_PREFIX: Final = re.compile(r"[A-Za-z]+://")  # `Http` rejects all schemes but http and https
_MODULE_PATTERN: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_HOST_PORT_PATTERN: Final = re.compile(r"[\w.-]+:\d+(?:/\S*)?")
FILE_PATTERN: Final = re.compile(r"(?P<path>.+\.py)(?::[^:\\/]*)?")  # weather.py, weather.py:server


@dataclass(frozen=True)
class TargetSpec:
    """A server as named on the command line.

    `words` are the URL, the command, or the name and the path of the `mcp.json`.
    """

    kind: Literal["url", "command", "file", "name"]
    words: tuple[str, ...]
    label: str


def parse_target(words: Sequence[str], config: str | None = None) -> TargetSpec:
    """Parse a target: one word, or `--` and a command. Names are looked up in `config` or `CONFIG_PATHS`."""
    first, *rest = words
    if first == _COMMAND_SEPARATOR:
        if not rest:
            raise usage_error("no command after --", "for example: -- npx some-server")
        # The label omits options, settings and URLs: they may contain a password.
        plain = [word for word in rest[1:] if word[:1] != "-" and "=" not in word and "://" not in word]
        label = " ".join(Path(word).name for word in (rest[0], *plain[:1]))
        return TargetSpec("command", tuple(rest), label)
    if _URL_PREFIX.match(first):
        return TargetSpec("url", (first,), display_url(first))
    found = FILE_PATTERN.fullmatch(first)
    if found is not None and not Path(found["path"]).is_file():
        raise usage_error(f"file not found: {found['path']}")
    if found is not None or _MODULE_PATTERN.fullmatch(first):
        return TargetSpec("file", (sys.executable, "-m", "toolpost", "run", first), first)
    return _find_in_configs(first, config)


def _find_in_configs(name: str, config: str | None) -> TargetSpec:
    files = _list_config_files(config)
    known: list[str] = []
    for file in files:
        with translate_errors():
            servers = mcp_json.read_servers(file)
        if name in servers:
            return TargetSpec("name", (name, file), name)
        known += servers
    nothing = ": not a URL, not a Python file, and no mcp.json in this folder"
    where = f" in {', '.join(files)}" if files else nothing
    raise usage_error(f"unknown server {name!r}{where}", _suggest_target(name, known))


def _suggest_target(name: str, known: Sequence[str]) -> str:
    if _HOST_PORT_PATTERN.fullmatch(name):
        return f"did you mean http://{name}?"
    if name.endswith(".json"):
        return f"name one of its servers: --config {name} NAME"
    if known:
        close = get_close_matches(name, known, n=3)
        return f"did you mean {close[0]!r}?" if close else f"available: {', '.join(known)}"
    return "TARGET is http://…, server.py, a name from an mcp.json, or -- COMMAND at the end of the line"


def _list_config_files(config: str | None) -> list[str]:
    return [config] if config is not None else [each for each in CONFIG_PATHS if Path(each).is_file()]


@dataclass
class TargetConnector:
    """A target, and the options of the connection to it."""

    spec: TargetSpec
    output: CommandOutput
    revision: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    timeout: float | None = DEFAULT_TIMEOUT
    verbose: bool = False
    hidden_line_count: int = 0

    @property
    def is_interactive(self) -> bool:
        """Whether a user can answer prompts at a terminal."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison] - it may be closed

    def resolve_target(self) -> Http | Stdio:
        """Return the URL or the command of the server, with the options applied."""
        with translate_errors():
            if self.spec.kind in {"command", "file"}:
                command, *args = self.spec.words
                return self._prepare_stdio(Stdio(command, args, name=self.spec.label))
            if self.spec.kind == "url":
                return self._build_http({"url": self.spec.words[0]})
            name, file = self.spec.words
            with mcp_json.error_context(f"{file}, server {name!r}"):
                entry = mcp_json.choose_server({"servers": mcp_json.read_servers(file)}, name)[1]
                entry = mcp_json.expand_variables(entry)
                if "url" in entry:
                    return self._build_http(entry)
                return self._prepare_stdio(Stdio.from_target(entry))

    def create_client(self, **options: Any) -> "Client":
        """Create an unconnected client of the server. Takes the options of `Client`."""
        from toolpost.client.client import Client  # noqa: PLC0415 - start-up time

        settings: dict[str, Any] = {
            "revision": self.revision,
            "timeout": self.timeout,
            "max_timeout": None,  # a user can press Ctrl-C
            "connect_timeout": CONNECT_TIMEOUT if self.timeout == DEFAULT_TIMEOUT else self.timeout,
            "name": "toolpost-cli",
        }
        place = self.resolve_target()
        http = isinstance(place, Http) and place.auth is None and "authorization" not in (place.headers or {})
        if http and self.is_interactive:
            settings["auth"] = "oauth"  # the user can log in, if the server requires it
        with translate_errors():
            return Client(place, **(settings | options))

    def run(self, work: "Callable[[Client], Awaitable[T]]", **options: Any) -> T:
        """Connect, and return the result of `work` with the client."""
        import asyncio  # noqa: PLC0415 - start-up time

        client = self.create_client(**options)

        async def connect_and_work() -> T:
            async with client:
                return await work(client)

        with translate_errors(self.spec.label):
            return asyncio.run(connect_and_work())

    def _prepare_stdio(self, stdio: Stdio) -> Stdio:
        if self.headers:
            raise usage_error("--header requires a server with a URL", "use --env NAME=VALUE for a command")
        return replace(stdio, env={**(stdio.env or {}), **self.env}, stderr=self._show_stderr_line)

    def _show_stderr_line(self, line: str) -> None:
        if self.verbose:
            self.output.print_note(f"{self.spec.label} | {line}", style="dim")
        else:
            self.hidden_line_count += 1

    def _build_http(self, entry: Mapping[str, Any]) -> Http:
        if self.env:
            hint = "use --header NAME:VALUE for a URL"
            raise usage_error("--env requires a server that toolpost starts", hint)
        given = cast("dict[str, str]", entry.get("headers") or {})
        headers = {key.lower(): value for key, value in given.items()} | self.headers
        return Http.from_target({**entry, "headers": headers})


# --------------------------------------------------------------------- options of the command line

_TARGET_HELP: Final = (
    "TARGET is a URL, a Python file (weather.py, weather.py:server), or a name from an mcp.json. To start a "
    "command, omit TARGET and end the line with -- and the command."
)
_COMMAND_PLACEHOLDER: Final = "\0"  # stands for a command in place of TARGET; no argument can be this


class TargetCommand(click.Command):
    """A command with a TARGET and its options before the command's own parameters.

    The command's function gets them as a `TargetConnector`, `target`. TARGET may be a command at the end of
    the line, after two hyphens.
    """

    def __init__(self, *args: Any, params: list[click.Parameter], **settings: Any) -> None:
        self._target_params = _create_target_params()
        super().__init__(*args, params=[*self._target_params, *params], **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove the command after `--` first: its options are not ours."""
        if _COMMAND_SEPARATOR in args:
            cut = args.index(_COMMAND_SEPARATOR)
            ctx.meta[_COMMAND_SEPARATOR] = args[cut + 1 :]
            args = [_COMMAND_PLACEHOLDER, *args[:cut]]
        return super().parse_args(ctx, self.take_own_args(ctx, args))

    def take_own_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the words for the command itself; a subclass may keep the rest."""
        del ctx
        return args

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with a `TargetConnector` instead of TARGET and its options."""
        target = build_connector(ctx)
        for param in self._target_params:
            del ctx.params[param.name or ""]
        ctx.params["target"] = target
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Explain TARGET, before the epilog of the command itself."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_TARGET_HELP)
        super().format_epilog(ctx, formatter)


def build_connector(ctx: click.Context) -> TargetConnector:
    """Build a connector from the target and the options in the context of a command."""
    given = ctx.params
    words = [given["target"]]
    if words == [_COMMAND_PLACEHOLDER]:
        words = [_COMMAND_SEPARATOR, *cast("list[str]", ctx.meta[_COMMAND_SEPARATOR])]
    target, output = parse_target(words, given["config"]), CommandOutput(json=given["json"])
    options = {name: given[name] for name in ("revision", "headers", "env", "verbose")}
    return TargetConnector(target, output, timeout=given["timeout"] or None, **options)


def _create_target_params() -> list[click.Parameter]:
    """Create the parameters of all commands with a target, in the order of `--help`."""
    return [
        click.Argument(["target"], type=click.UNPROCESSED, shell_complete=_complete_target),
        click.Option(
            ["--revision"],
            metavar="DATE",
            callback=_parse_revision,
            shell_complete=_complete_revision,
            help="Protocol revision to use (default: auto-detect).",
        ),
        click.Option(
            ["--header", "headers"],
            multiple=True,
            metavar="NAME:VALUE",
            callback=_parse_headers,
            help="Send this header with each HTTP request.",
        ),
        click.Option(["--env"], **ENV_OPTION),
        click.Option(
            ["--config"],
            type=click.Path(exists=True, dir_okay=False),
            is_eager=True,
            help="The mcp.json that defines TARGET.",
        ),
        click.Option(
            ["--timeout"],
            type=SecondsParam(),
            default=DEFAULT_TIMEOUT,
            help=f"Seconds to wait for the server (default: {DEFAULT_TIMEOUT:g}; 0 = no limit).",
        ),
        click.Option(["-v", "--verbose"], is_flag=True, help="Show the stderr of the server."),
        click.Option(["--json"], is_flag=True, help=JSON_HELP),
    ]


def _complete_target(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of an `mcp.json`, Python files, and folders that may contain some."""
    folder = Path(incomplete + "_").parent
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [str(each) for each in inside if each.suffix == ".py"]
    folders = [f"{each}{os.sep}" for each in inside if each.is_dir() and each.name[0] not in "._"]
    names: list[str] = []
    for file in _list_config_files(ctx.params.get("config")):
        with suppress(MCPError):  # an unreadable file has no names
            names += mcp_json.read_servers(file)
    return [word for word in (*names, *files, *folders) if word.startswith(incomplete)]


def _complete_revision(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [date for date in DATES if date.startswith(incomplete)]


def _parse_revision(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Return the date of a revision. A unique prefix is enough."""
    if value is None:
        return None
    found = [date for date in DATES if date.startswith(value)]
    if len(found) != 1:
        raise click.BadParameter(f"{value!r} is not one of {', '.join(DATES)}")
    return found[0]


class SecondsParam(click.ParamType[float]):
    """A finite time in seconds, zero or more."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < math.inf:
            self.fail(f"{value!r} is not a valid number of seconds", param, ctx)
        return seconds


def _parse_headers(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition(":") for value in values]
    for name, colon, _ in pairs:
        if not colon or not name.strip():
            raise click.BadParameter("expected NAME:VALUE, for example 'X-Team: blue'")
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _parse_env(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse the values of `--env`; a name without a value copies our variable."""
    env: dict[str, str] = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not name:
            raise click.BadParameter(f"expected NAME=VALUE, not {each!r}")
        if not equals and name not in os.environ:
            raise click.BadParameter(f"{name} is not set in your environment; use {name}=VALUE")
        env[name] = value if equals else os.environ[name]
    return env


ENV_OPTION: Final[dict[str, Any]] = {
    "multiple": True,
    "metavar": "NAME[=VALUE]",
    "callback": _parse_env,
    "help": "Set an environment variable for the server; NAME alone copies yours.",
}
"""The settings of `--env`."""
