"""TARGET: which server a command is about, read from the words of the command line.

Owns what a target may be, and the argument and the options that all commands with a target have. The way to
the server is told in `reach`.
"""

import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import click

from toolpost.cli.exits import USAGE, Quit, explained
from toolpost.cli.page import Page, takes_json
from toolpost.cli.reach import TIMEOUT, Reach

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = [
    "CONFIGS",
    "TIMEOUT",
    "Reach",
    "Revision",
    "Seconds",
    "Target",
    "TargetCommand",
    "TargetName",
    "config_names",
    "reach_in",
    "read_env",
    "read_target",
    "takes_target",
]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

CONFIGS: Final = ("mcp.json", ".mcp.json", ".vscode/mcp.json", ".cursor/mcp.json")
"""Where names are looked for, in this order, unless `--config` says where."""

_COMMAND: Final = "--"
"""What a command follows on the line; in its place stands this word where a target is expected."""

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_HOST: Final = re.compile(r"[\w.-]+:\d+(?:/\S*)?")
_FILE: Final = re.compile(r"(?P<path>.+\.py)(?::(?P<object>[^:\\/]*))?")


@dataclass(frozen=True)
class Target:
    """A server that somebody named.

    Args:
        kind: how it was named: by URL, by the command that starts it, by the file or module that it is in, or
            by its name in an `mcp.json`.
        words: the URL; the words of the command, which for a file are those that start it as hosts do; the
            name and the path of the `mcp.json`.
        label: what to call it.
    """

    kind: Literal["url", "command", "file", "name"]
    words: tuple[str, ...]
    label: str


# --------------------------------------------------------------------- from words to a target


def read_target(words: Sequence[str], config: str | None = None) -> Target:
    """The server that somebody means.

    Args:
        words: one word, or `--` and the words of a command.
        config: the `mcp.json` to look for a name in; by default one of `CONFIGS`.

    Raises:
        Quit: there is no such server.
    """
    first, *rest = words
    if first == _COMMAND:
        if not rest:
            raise Quit("there is no command after the --", USAGE, hint="for example: -- npx some-server")
        return Target("command", tuple(rest), _label(rest))
    if _URL.match(first):
        from toolpost.transports.address import shown  # noqa: PLC0415 - for URLs only

        return Target("url", (first,), shown(first))
    found = _FILE.fullmatch(first)
    if found is not None and not Path(found["path"]).is_file():
        raise Quit(f"there is no file {found['path']}", USAGE)
    if found is not None or _MODULE.fullmatch(first):
        return Target("file", (sys.executable, "-m", "toolpost", "run", first), first)
    return _named(first, config)


def _label(command: Sequence[str]) -> str:
    """What to call a command. Settings and addresses are left out: they may hold a password."""
    first, *rest = command
    plain = [word for word in rest if not word.startswith("-") and "=" not in word and "://" not in word]
    return " ".join(Path(word).name for word in (first, *plain[:1]))


def _named(name: str, config: str | None) -> Target:
    from toolpost.client.config import read_servers  # noqa: PLC0415 - for names only

    files = [config] if config is not None else [each for each in CONFIGS if Path(each).is_file()]
    known: list[str] = []
    for file in files:
        with explained():
            servers = read_servers(file)
        if name in servers:
            return Target("name", (name, str(file)), name)
        known += servers
    raise Quit(f"there is no server {name!r}{_where(files)}", USAGE, hint=_instead(name, known))


def _where(files: Sequence[str]) -> str:
    return (
        f" in {', '.join(files)}" if files else ": no mcp.json is here, and it is no URL and no Python file"
    )


def _instead(name: str, known: Sequence[str]) -> str:
    """What might have been meant."""
    if _HOST.fullmatch(name):
        return f"a URL begins so: http://{name}"
    if name.endswith(".json"):
        return f"name one of the servers in it: --config {name} NAME"
    if known:
        from difflib import get_close_matches  # noqa: PLC0415 - for mistakes only

        close = get_close_matches(name, known, n=3)
        return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
    return "TARGET is http://…, server.py, a name from an mcp.json, or at the end of the line: -- command …"


def config_names(config: str | None = None) -> list[str]:
    """The names in the `mcp.json` that are looked at; none where one cannot be read."""
    from toolpost.client.config import read_servers  # noqa: PLC0415 - as above
    from toolpost.errors import MCPError  # noqa: PLC0415 - as above

    names: list[str] = []
    for file in (config,) if config is not None else CONFIGS:
        try:
            names += read_servers(file)
        except MCPError:
            continue
    return names


# --------------------------------------------------------------------- options


class TargetCommand(click.Command):
    """A command with a TARGET, which may be a command at the end of the line, after two hyphens."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the command off the line first: nothing in it is meant for us."""
        if _COMMAND in args:
            cut = args.index(_COMMAND)
            ctx.meta[_COMMAND] = args[cut + 1 :]
            args = [_COMMANDED, *args[:cut]]
        return super().parse_args(ctx, self.own(ctx, args))

    def own(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words that are for the command itself; for those who want to keep the rest."""
        del ctx
        return args

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what TARGET may be, and then what the command itself has to say."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_TARGETS)
        super().format_epilog(ctx, formatter)


_TARGETS: Final = (
    "TARGET is a URL, a Python file (weather.py, weather.py:server), a name from an mcp.json, or a command: "
    "leave it out then, and end the line with -- and the command."
)
_COMMANDED: Final = "\0"
"""Stands for TARGET if there is a command instead. No word of a command line can be this one."""


class TargetName(click.ParamType[str]):
    """The word that names a target, with what may be completed: Python files, names of an `mcp.json`."""

    name = "target"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """The names that begin so, and files if the shell finds any."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for completion only

        del param
        names = [name for name in config_names(ctx.params.get("config")) if name.startswith(incomplete)]
        return [CompletionItem(each) for each in (*names, *_paths(incomplete))]


def _paths(incomplete: str) -> list[str]:
    """The Python files that begin so, and the folders that may hold some."""
    folder = Path(incomplete + "_").parent
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [str(each) for each in inside if each.suffix == ".py"]
    folders = [f"{each}{os.sep}" for each in inside if each.is_dir() and each.name[0] not in "._"]
    return [path for path in (*files, *folders) if path.startswith(incomplete)]


class Seconds(click.ParamType[float]):
    """A time in seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, which is finite and not below zero."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < math.inf:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


class Revision(click.ParamType[str]):
    """A revision of the protocol, or the beginning of its date."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The whole date."""
        from toolpost.protocol.methods import DATES  # noqa: PLC0415 - for those who pin one

        found = [date for date in DATES if date.startswith(value)]
        if len(found) != 1:
            self.fail(f"{value!r} is none of {', '.join(DATES)}", param, ctx)
        return found[0]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """The dates that begin so."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for completion only

        from toolpost.protocol.methods import DATES  # noqa: PLC0415 - as above

        del ctx, param
        return [CompletionItem(date) for date in DATES if date.startswith(incomplete)]


def _headers(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition(":") for value in values]
    for name, colon, _ in pairs:
        if not colon or not name.strip():
            raise click.BadParameter("a header is NAME:VALUE, such as 'X-Team: blue'")
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def read_env(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
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


_OPTIONS: Final[tuple[Callable[[F], F], ...]] = (  # pyright: ignore[reportGeneralTypeIssues] - each takes any
    click.argument("target", type=TargetName()),
    click.option("--revision", type=Revision(), help="Protocol revision to speak; found out by default."),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME:VALUE",
        callback=_headers,
        help="Send this header with each HTTP request.",
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        callback=read_env,
        help="Give a server that is started this variable; without a value, ours.",
    ),
    click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        help="The mcp.json in which TARGET is a name.",
    ),
    click.option(
        "--timeout",
        type=Seconds(),
        default=TIMEOUT,
        help=f"How long to wait for the server: {TIMEOUT:g}, or so many; 0 is for ever.",
    ),
    click.option("-v", "--verbose", is_flag=True, help="Show what a server that is started says on stderr."),
    takes_json,
)
"""The argument and the options of all commands with a target, in the order in which help shows them."""


_TAKEN: Final = frozenset({"target", "config", "json", "revision", "headers", "env", "timeout", "verbose"})


def reach_in(ctx: click.Context) -> Reach:
    """The target and its options, as they stand in the context of a command.

    Raises:
        Quit: there is no such server.
    """
    given = ctx.params
    words = [given["target"]]
    if words == [_COMMANDED]:
        words = [_COMMAND, *cast("list[str]", ctx.meta[_COMMAND])]
    return Reach(
        read_target(words, given["config"]),
        Page(json=given["json"]),
        revision=given["revision"],
        headers=given["headers"],
        env=given["env"],
        timeout=given["timeout"] or None,
        verbose=given["verbose"],
    )


def takes_target(function: Callable[..., T]) -> Callable[..., T]:
    """Gives a command TARGET and its options; the function gets a `Reach` for all of them, as `reach`.

    It stands right below `@click.command(cls=TargetCommand)`, above the command's own options.
    """

    def with_reach(**given: Any) -> T:
        reach = reach_in(click.get_current_context())
        return function(reach=reach, **{key: value for key, value in given.items() if key not in _TAKEN})

    decorated: Any = update_wrapper(with_reach, function)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
