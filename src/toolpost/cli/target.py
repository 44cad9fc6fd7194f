"""TARGET: which server a command is about, the options about the way there, and a client for it.

A target is a URL, a command, a Python file or a name in an `mcp.json`. A command gets a `TargetConnector`,
which applies the options, connects and runs the command's work with a client.
"""

import math
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
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

DEFAULT_TIMEOUT: Final = 60.0  # seconds to wait for an answer, unless `--timeout` says something else
CONNECT_TIMEOUT: Final = 30.0  # seconds for a server to start and to agree, likewise
CONFIG_PATHS: Final = ("mcp.json", ".mcp.json", ".vscode/mcp.json", ".cursor/mcp.json")
"""Where names are looked for, in this order, unless `--config` says where."""

_COMMAND_SEPARATOR: Final = "--"  # the word before a command at the end of the line
_URL_PREFIX: Final = re.compile(r"https?://", re.IGNORECASE)
_MODULE_PATTERN: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_HOST_PORT_PATTERN: Final = re.compile(r"[\w.-]+:\d+(?:/\S*)?")
_FILE_PATTERN: Final = re.compile(r"(?P<path>.+\.py)(?::(?P<object>[^:\\/]*))?")


@dataclass(frozen=True)
class TargetSpec:
    """A server as it was named on the command line.

    `words` are the URL, the command, or the name and the path of the `mcp.json`.
    """

    kind: Literal["url", "command", "file", "name"]
    words: tuple[str, ...]
    label: str


def parse_target(words: Sequence[str], config: str | None = None) -> TargetSpec:
    """Read a target: one word, or `--` and a command. Names are looked up in `config` or `CONFIG_PATHS`."""
    first, *rest = words
    if first == _COMMAND_SEPARATOR:
        if not rest:
            raise usage_error("there is no command after the --", "for example: -- npx some-server")
        return TargetSpec("command", tuple(rest), _label_command(rest))
    if _URL_PREFIX.match(first):
        return TargetSpec("url", (first,), display_url(first))
    found = _FILE_PATTERN.fullmatch(first)
    if found is not None and not Path(found["path"]).is_file():
        raise usage_error(f"there is no file {found['path']}")
    if found is not None or _MODULE_PATTERN.fullmatch(first):
        return TargetSpec("file", (sys.executable, "-m", "toolpost", "run", first), first)
    return _find_in_configs(first, config)


def _label_command(command: Sequence[str]) -> str:
    """What to call a command. Settings and addresses are left out: they may hold a password."""
    first, *rest = command
    plain = [word for word in rest if not word.startswith("-") and "=" not in word and "://" not in word]
    return " ".join(Path(word).name for word in (first, *plain[:1]))


def _find_in_configs(name: str, config: str | None) -> TargetSpec:
    files = [config] if config is not None else [each for each in CONFIG_PATHS if Path(each).is_file()]
    known: list[str] = []
    for file in files:
        with translate_errors():
            servers = mcp_json.read_servers(file)
        if name in servers:
            return TargetSpec("name", (name, str(file)), name)
        known += servers
    nothing = ": no mcp.json is here, and it is no URL and no Python file"
    where = f" in {', '.join(files)}" if files else nothing
    raise usage_error(f"there is no server {name!r}{where}", _suggest_target(name, known))


def _suggest_target(name: str, known: Sequence[str]) -> str:
    if _HOST_PORT_PATTERN.fullmatch(name):
        return f"a URL begins so: http://{name}"
    if name.endswith(".json"):
        return f"name one of the servers in it: --config {name} NAME"
    if known:
        close = get_close_matches(name, known, n=3)
        return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
    return "TARGET is http://…, server.py, a name from an mcp.json, or at the end of the line: -- command …"


def list_config_names(config: str | None = None) -> list[str]:
    """The names in the `mcp.json` that are looked at; none where one cannot be read."""
    names: list[str] = []
    for file in (config,) if config is not None else CONFIG_PATHS:
        try:
            names += mcp_json.read_servers(file)
        except MCPError:
            continue
    return names


@dataclass
class TargetConnector:
    """A target, and what the options say about the way there."""

    target: TargetSpec
    output: CommandOutput
    revision: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    timeout: float | None = DEFAULT_TIMEOUT
    verbose: bool = False
    hidden_line_count: int = 0

    @property
    def is_interactive(self) -> bool:
        """Whether there is a person to ask."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison] - it may be closed

    def resolve_target(self) -> Http | Stdio:
        """Where the server is, or how it is started, with all that the options say."""
        with translate_errors():
            if self.target.kind in {"command", "file"}:
                command, *args = self.target.words
                return self._prepare_stdio(Stdio(command, args, name=self.target.label))
            if self.target.kind == "url":
                return self._build_http({"url": self.target.words[0]})
            name, file = self.target.words
            with mcp_json.error_context(f"{file}, server {name!r}"):
                entry = mcp_json.choose_server({"servers": mcp_json.read_servers(file)}, name)[1]
                entry = mcp_json.expand_variables(entry)
                if "url" in entry:
                    return self._build_http(entry)
                return self._prepare_stdio(Stdio.from_target(entry))

    def create_client(self, **options: Any) -> "Client":
        """A client of the server, not yet opened. Takes the options of `Client`."""
        from toolpost.client.client import Client  # noqa: PLC0415 - start-up time

        settings: dict[str, Any] = {
            "revision": self.revision,
            "timeout": self.timeout,
            "max_timeout": None,  # a person who has seen enough presses Ctrl-C
            "connect_timeout": CONNECT_TIMEOUT if self.timeout == DEFAULT_TIMEOUT else self.timeout,
            "name": "toolpost-cli",
        }
        place = self.resolve_target()
        http = isinstance(place, Http) and place.auth is None and "authorization" not in (place.headers or {})
        if http and self.is_interactive:
            settings["auth"] = "oauth"  # a person can log in, if the server wants that
        with translate_errors():
            return Client(place, **(settings | options))

    def run(self, work: "Callable[[Client], Awaitable[T]]", **options: Any) -> T:
        """Connect, and return the result of some work with the server."""
        import asyncio  # noqa: PLC0415 - start-up time

        client = self.create_client(**options)

        async def connect_and_work() -> T:
            async with client:
                return await work(client)

        with translate_errors(self.target.label):
            return asyncio.run(connect_and_work())

    def _prepare_stdio(self, stdio: Stdio) -> Stdio:
        if self.headers:
            raise usage_error("--header is for a server with a URL", "a command gets --env NAME=VALUE")
        return replace(stdio, env={**(stdio.env or {}), **self.env}, stderr=self._show_stderr_line)

    def _show_stderr_line(self, line: str) -> None:
        if self.verbose:
            self.output.print_note(f"{self.target.label} | {line}", style="dim")
        else:
            self.hidden_line_count += 1

    def _build_http(self, entry: Mapping[str, Any]) -> Http:
        if self.env:
            hint = "one with a URL gets --header NAME:VALUE"
            raise usage_error("--env is for a server that is started", hint)
        given = cast("dict[str, str]", entry.get("headers") or {})
        headers = {key.lower(): value for key, value in given.items()} | self.headers
        return Http.from_target({**entry, "headers": headers})


# --------------------------------------------------------------------- options of the command line

_TARGET_HELP: Final = (
    "TARGET is a URL, a Python file (weather.py, weather.py:server), a name from an mcp.json, or a command: "
    "leave it out then, and end the line with -- and the command."
)
_COMMAND_PLACEHOLDER: Final = "\0"  # the TARGET if there is a command instead; no argument can be this


class TargetCommand(click.Command):
    """A command with a TARGET and the options about it, in front of its own.

    The command's function gets them as a `TargetConnector`, `reach`. TARGET may be a command at the end of
    the line, after two hyphens.
    """

    def __init__(self, *args: Any, params: list[click.Parameter], **settings: Any) -> None:
        self._target_params = _create_target_params()
        super().__init__(*args, params=[*self._target_params, *params], **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the command off the line first: nothing in it is meant for us."""
        if _COMMAND_SEPARATOR in args:
            cut = args.index(_COMMAND_SEPARATOR)
            ctx.meta[_COMMAND_SEPARATOR] = args[cut + 1 :]
            args = [_COMMAND_PLACEHOLDER, *args[:cut]]
        return super().parse_args(ctx, self.take_own_args(ctx, args))

    def take_own_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words that are for the command itself; a subclass may keep the rest."""
        del ctx
        return args

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with a `TargetConnector` instead of TARGET and its options."""
        reach = build_connector(ctx)
        for param in self._target_params:
            del ctx.params[param.name or ""]
        ctx.params["reach"] = reach
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what TARGET may be, and then what the command itself has to say."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_TARGET_HELP)
        super().format_epilog(ctx, formatter)


def build_connector(ctx: click.Context) -> TargetConnector:
    """The target and its options, as they stand in the context of a command."""
    given = ctx.params
    words = [given["target"]]
    if words == [_COMMAND_PLACEHOLDER]:
        words = [_COMMAND_SEPARATOR, *cast("list[str]", ctx.meta[_COMMAND_SEPARATOR])]
    return TargetConnector(
        parse_target(words, given["config"]),
        CommandOutput(json=given["json"]),
        revision=given["revision"],
        headers=given["headers"],
        env=given["env"],
        timeout=given["timeout"] or None,
        verbose=given["verbose"],
    )


def _create_target_params() -> list[click.Parameter]:
    """The argument and the options of all commands with a target, in the order in which help shows them."""
    return [
        click.Argument(["target"], type=click.UNPROCESSED, shell_complete=_complete_target),
        click.Option(
            ["--revision"],
            metavar="DATE",
            callback=_parse_revision,
            shell_complete=_complete_revision,
            help="Protocol revision to speak; found out by default.",
        ),
        click.Option(
            ["--header", "headers"],
            multiple=True,
            metavar="NAME:VALUE",
            callback=_parse_headers,
            help="Send this header with each HTTP request.",
        ),
        click.Option(
            ["--env"],
            multiple=True,
            metavar="NAME[=VALUE]",
            callback=parse_env,
            help="Give a server that is started this variable; without a value, ours.",
        ),
        click.Option(
            ["--config"],
            type=click.Path(exists=True, dir_okay=False),
            is_eager=True,
            help="The mcp.json in which TARGET is a name.",
        ),
        click.Option(
            ["--timeout"],
            type=SecondsParam(),
            default=DEFAULT_TIMEOUT,
            help=f"How long to wait for the server: {DEFAULT_TIMEOUT:g}, or so many; 0 is for ever.",
        ),
        click.Option(
            ["-v", "--verbose"], is_flag=True, help="Show what a server that is started says on stderr."
        ),
        click.Option(["--json"], is_flag=True, help=JSON_HELP),
    ]


def _complete_target(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The names of an `mcp.json` that begin so, Python files, and the folders that may hold some."""
    folder = Path(incomplete + "_").parent
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [str(each) for each in inside if each.suffix == ".py"]
    folders = [f"{each}{os.sep}" for each in inside if each.is_dir() and each.name[0] not in "._"]
    words = (*list_config_names(ctx.params.get("config")), *files, *folders)
    return [word for word in words if word.startswith(incomplete)]


def _complete_revision(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [date for date in DATES if date.startswith(incomplete)]


def _parse_revision(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """The whole date of a revision, of which the beginning may be given."""
    found = [date for date in DATES if value is not None and date.startswith(value)]
    if value is not None and len(found) != 1:
        raise click.BadParameter(f"{value!r} is none of {', '.join(DATES)}")
    return found[0] if found else None


class SecondsParam(click.ParamType[float]):
    """A time in seconds, finite and not below zero."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < math.inf:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


def _parse_headers(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition(":") for value in values]
    for name, colon, _ in pairs:
        if not colon or not name.strip():
            raise click.BadParameter("a header is NAME:VALUE, such as 'X-Team: blue'")
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def parse_env(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """What `--env` says, given several times; a name without a value hands on ours."""
    env: dict[str, str] = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not name:
            raise click.BadParameter(f"{each!r} has no name; write NAME=VALUE")
        if not equals and name not in os.environ:
            raise click.BadParameter(f"{name} is not set here; give it a value: {name}=VALUE")
        env[name] = value if equals else os.environ[name]
    return env
