"""`toolpost install`: write a server into the configuration of a host, or take it out again.

Owns the conversation: what will change is shown before it is asked for, and a server that does not work is
not installed. What a host wants to read is told in `hosts`, how its file is changed in `hostfile`.
"""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from toolpost.cli.exits import FAILED, REFUSED, USAGE, Quit, explained
from toolpost.cli.hostfile import HostFile
from toolpost.cli.hosts import HOSTS, Host, Scope
from toolpost.cli.page import Page, takes_json
from toolpost.cli.target import read_env
from toolpost.types.base import JSON

if TYPE_CHECKING:
    from toolpost.transports.address import Http
    from toolpost.transports.command import Stdio

__all__ = ["command"]

_URL: Final = re.compile(r"https?://.", re.IGNORECASE)
_FILE: Final = re.compile(r"(?P<path>.+\.py)(?P<object>:[^:\\/]*)?")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
"""What every host accepts as the name of a server."""

_VAGUE: Final = frozenset({"__init__", "__main__", "app", "main", "mcp_server", "server"})
"""Names of files that say nothing: the folder says more."""

_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}

PATIENCE: Final = 30.0
"""Seconds that a server may take to start, as long as hosts usually wait."""


@dataclass(frozen=True)
class Wish:
    """What somebody wants to have written, and where."""

    host: Host
    path: Path
    name: str
    entry: Mapping[str, JSON]
    target: "Stdio | Http | None"
    """The server itself; None where it is to be taken out."""

    @property
    def place(self) -> tuple[str, str]:
        """Where in the file the entry stands."""
        return self.host.key, self.name


@click.command()
@click.argument("server", required=False, metavar="[SERVER.PY[:OBJECT]]")
@click.option(
    "--for", "host", required=True, type=click.Choice(list(HOSTS)), metavar="HOST", help=", ".join(HOSTS)
)
@click.option("--name", help="What the host calls it; by default named after the file.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    callback=read_env,
    help="Give the server this variable; without a value, ours. Hosts hand on few of their own.",
)
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    show_default=True,
    help="For all your projects, or for the one in this folder.",
)
@click.option("--http", "url", metavar="URL", help="Have the host connect to this URL, not start it.")
@click.option("--print", "only_print", is_flag=True, help="Print the entry and write nothing.")
@click.option("--remove", is_flag=True, help="Take it out again.")
@click.option("-y", "--yes", is_flag=True, help="Write without asking.")
@click.option("--no-check", is_flag=True, help="Do not try first whether the server starts and answers.")
@takes_json
def command(
    *,
    server: str | None,
    host: str,
    name: str | None,
    env: dict[str, str],
    scope: Scope,
    url: str | None,
    only_print: bool,
    remove: bool,
    yes: bool,
    no_check: bool,
    json: bool,
) -> None:
    """Write a server into the configuration of a host, so that it is started from there.

    The change is shown first, and what was there is kept in a copy beside it. All else in the file stays as
    it is. Doing it twice changes nothing.

    \b
    toolpost install weather.py --for claude-desktop
    toolpost install weather.py --for vscode --scope project --env API_KEY
    toolpost install --http https://example.com/mcp --name weather --for cursor
    toolpost install weather.py --for claude-desktop --remove
    """  # noqa: D301 - click wants this character where lines are to stay
    page = Page(json=json)
    if only_print and remove:
        raise Quit("--print shows what --remove would take out", USAGE, hint="leave out one of them")
    if server is not None and url is None and _URL.match(server):
        server, url = None, server
    wish = _wish(HOSTS[host], scope, server=server, url=url, name=name, env=env, remove=remove)
    if only_print:
        _print(page, wish)
        return
    file = HostFile(wish.path, wish.host.form)
    text = file.without(wish.place) if remove else file.with_entry(wish.place, wish.entry)
    if text == file.text or (remove and file.entry(wish.place) is None):
        what = "is not there" if remove else "is there already, just like that"
        _report(page, wish, "unchanged", f"{wish.name} {what}: {wish.path}")
        return
    if wish.target is not None and not no_check:
        _check(page, wish.target)
    _show(page, file.diff(text))
    if not yes:
        _confirm(page, wish, file.diff(text))
    copy = file.write(text)
    _report(page, wish, "removed" if remove else "written", f"Written: {wish.path}", copy)


# --------------------------------------------------------------------- from words to a wish


def _wish(
    host: Host,
    scope: Scope,
    *,
    server: str | None,
    url: str | None,
    name: str | None,
    env: Mapping[str, str],
    remove: bool,
) -> Wish:
    path = host.place(scope, os.environ)
    if path is None:
        raise Quit(f"{host.title} has no configuration for one project", USAGE, hint="leave out --scope")
    if server is None and url is None and not (remove and name):
        raise Quit("there is no server to install", USAGE, hint="name the Python file that it is in")
    if url is not None and host.remote is None:
        raise Quit(
            f"{host.title} reads no URLs from its file",
            USAGE,
            hint="add it in its settings, under Connectors, or install a Python file, which it starts itself",
        )
    if url is not None and not _URL.match(url):
        raise Quit(f"{url!r} is not the URL of a server", USAGE, hint="such as http://127.0.0.1:8000/mcp")
    if url is not None and env:
        raise Quit("--env is for a server that is started", USAGE, hint="leave it out, or leave out --http")
    name = _name(name, server)
    if remove:
        return Wish(host, path, name, {}, None)
    words = [sys.executable, "-m", "toolpost", "run", *([_absolute(server)] if server else [])]
    for word in (*words, *env, *env.values()):
        if not _is_text(word):
            raise Quit(f"{word!r} cannot be written down: it is not UTF-8", USAGE, hint="call it otherwise")
    return Wish(host, path, name, host.entry(words, url, env), _target(words, url, env))


def _is_text(word: str) -> bool:
    """Whether all of it is characters, and no bytes that somebody could not read as such."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _target(words: list[str], url: str | None, env: Mapping[str, str]) -> "Stdio | Http":
    from toolpost.transports.address import Http  # noqa: PLC0415 - not needed for help
    from toolpost.transports.command import Stdio  # noqa: PLC0415 - as above

    with explained():
        if url is not None:
            return Http.of(url)
        # From nowhere in particular, as a host does.
        return Stdio(words[0], words[1:], env=env, cwd=Path.home().anchor, stderr="discard", name=words[-1])


def _absolute(server: str) -> str:
    """The server, named so that it is found from anywhere."""
    found = _FILE.fullmatch(server)
    if found is None:
        if ":" not in server or Path(server).exists():
            raise Quit(
                f"{server} is not a Python file", USAGE, hint="such as weather.py, or package.module:server"
            )
        return server
    path = Path(found["path"])
    if not path.is_file():
        raise Quit(f"there is no file {path}", USAGE)
    return f"{path.resolve()}{found['object'] or ''}"


def _name(name: str | None, server: str | None) -> str:
    if name is None:
        if server is None:
            raise Quit("a server with a URL needs a name", USAGE, hint="say --name NAME")
        found = _FILE.fullmatch(server)
        path = Path(found["path"]) if found else Path(server.partition(":")[0].rpartition(".")[2])
        stem = path.stem if path.stem not in _VAGUE or not found else path.resolve().parent.name
        name = "-".join(_NAME.findall(stem)) or "server"
    if not _NAME.fullmatch(name):
        raise Quit(
            f"{name!r} is not a name that every host accepts", USAGE, hint="use letters, digits, - and _"
        )
    return name


# --------------------------------------------------------------------- what is said


def _print(page: Page, wish: Wish) -> None:
    """The entry alone, in the language of the host's file."""
    page.note(f"For {wish.host.title}, in {wish.path}:")
    if wish.host.form == "toml" and not page.json:
        from toolpost.cli.tomltext import put  # noqa: PLC0415 - for those who print TOML

        page.raw(put("", wish.place, wish.entry))
        return
    Page(json=True).data({wish.host.key: {wish.name: wish.entry}})


def _check(page: Page, target: "Stdio | Http") -> None:
    """Return if the server answers as it would answer a host.

    Raises:
        Quit: it does not.
    """
    from toolpost.client.client import Client  # noqa: PLC0415 - not needed for help

    async def look() -> str:
        async with Client(target, name="toolpost-cli", connect_timeout=PATIENCE) as client:
            tools = len(await client.list_tools()) if client.capabilities.tools else 0
            about = client.server_info
            return f"{about.name if about else 'the server'} starts and answers; tools: {tools}"

    try:
        with explained():
            page.note(asyncio.run(look()), style="dim")
    except Quit as error:
        if error.exit_code == REFUSED:
            page.note("the server wants a login, which the host has to do", style="dim")
            return
        message = f"{error.message}\nNothing was written: the host would not get an answer either."
        hint = "--no-check writes it all the same" + (f"; {error.hint}" if error.hint else "")
        raise Quit(message, error.exit_code, hint=hint, details=error.details) from error


def _show(page: Page, diff: str) -> None:
    for line in diff.splitlines():
        page.say(line, style="bold" if line.startswith(("---", "+++")) else _STYLES.get(line[:1]))


def _confirm(page: Page, wish: Wish, diff: str) -> None:
    """Return if somebody agrees.

    Raises:
        Quit: nobody does.
    """
    if page.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        details = {"file": str(wish.path), "diff": diff}
        raise Quit(
            "nothing was written: there is nobody to ask", USAGE, hint="--yes writes it", details=details
        )
    if not click.confirm(f"Change {wish.path}?"):
        raise Quit("nothing was written", FAILED)


def _report(page: Page, wish: Wish, status: str, text: str, copy: Path | None = None) -> None:
    told: dict[str, Any] = {
        "status": status,
        "host": next(name for name, host in HOSTS.items() if host is wish.host),
        "file": str(wish.path),
        "name": wish.name,
        "entry": wish.entry or None,
        "backup": None if copy is None else str(copy),
    }
    if page.json:
        page.data(told)
        return
    page.say(text)
    if copy is not None:
        page.say(f"Before: {copy}")
    if status == "written":
        page.say(wish.host.after)
