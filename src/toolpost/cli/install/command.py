"""`toolpost install`: writes a server into the configuration of a host, or removes it.

Shows the change and asks first, and does not install a server that does not answer. `hosts` knows what each
host wants to read, `config_file` changes the file.
"""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from toolpost.cli.errors import FAILED, UNAUTHORIZED, CommandError, translate_errors, usage_error
from toolpost.cli.install.config_file import HostConfigFile, edit_toml
from toolpost.cli.install.hosts import HOSTS, HostDefinition, Scope
from toolpost.cli.output import JSON_HELP, CommandOutput
from toolpost.cli.target import parse_env
from toolpost.transports.targets import Http, Stdio
from toolpost.types.base import JSON

_URL_PATTERN: Final = re.compile(r"https?://.", re.IGNORECASE)
_FILE_PATTERN: Final = re.compile(r"(?P<path>.+\.py)(?P<object>:[^:\\/]*)?")
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")  # what every host accepts as the name of a server
_GENERIC_NAMES: Final = frozenset({"__init__", "__main__", "app", "main", "mcp_server", "server"})
"""Names of files that say nothing: the folder says more."""

_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}

CONNECT_TIMEOUT: Final = 30.0  # seconds that a server may take to start, as long as hosts usually wait


@dataclass(frozen=True)
class InstallRequest:
    """What to write, and where."""

    host: HostDefinition
    path: Path
    name: str
    entry: Mapping[str, JSON]
    target: Stdio | Http | None  # None where it is to be taken out

    @property
    def key_path(self) -> tuple[str, str]:
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
    callback=parse_env,
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
@click.option("--json", is_flag=True, help=JSON_HELP)
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
    page = CommandOutput(json=json)
    if only_print and remove:
        raise usage_error("--print shows what --remove would take out", "leave out one of them")
    if server is not None and url is None and _URL_PATTERN.match(server):
        server, url = None, server
    wish = _build_request(HOSTS[host], scope, server=server, url=url, name=name, env=env, remove=remove)
    if only_print:
        _print_entry(page, wish)
        return
    file = HostConfigFile(wish.path, wish.host.form)
    text = file.without_entry(wish.key_path) if remove else file.with_entry(wish.key_path, wish.entry)
    if text == file.text or (remove and file.get_entry(wish.key_path) is None):
        what = "is not there" if remove else "is there already, just like that"
        _print_report(page, wish, "unchanged", f"{wish.name} {what}: {wish.path}")
        return
    if wish.target is not None and not no_check:
        _check_server(page, wish.target)
    diff = file.diff(text)
    for line in diff.splitlines():
        page.print_text(line, style="bold" if line.startswith(("---", "+++")) else _DIFF_STYLES.get(line[:1]))
    if not yes:
        _confirm(page, wish, diff)
    copy = file.write(text)
    _print_report(page, wish, "removed" if remove else "written", f"Written: {wish.path}", copy)


def _build_request(
    host: HostDefinition,
    scope: Scope,
    *,
    server: str | None,
    url: str | None,
    name: str | None,
    env: Mapping[str, str],
    remove: bool,
) -> InstallRequest:
    path = host.find_config_path(scope, os.environ)
    if path is None:
        raise usage_error(f"{host.title} has no configuration for one project", "leave out --scope")
    if server is None and url is None and not (remove and name):
        raise usage_error("there is no server to install", "name the Python file that it is in")
    if url is not None and host.remote is None:
        hint = "add it in its settings, under Connectors, or install a Python file, which it starts itself"
        raise usage_error(f"{host.title} reads no URLs from its file", hint)
    if url is not None and not _URL_PATTERN.match(url):
        raise usage_error(f"{url!r} is not the URL of a server", "such as http://127.0.0.1:8000/mcp")
    if url is not None and env:
        raise usage_error("--env is for a server that is started", "leave it out, or leave out --http")
    name = _choose_name(name, server)
    if remove:
        return InstallRequest(host, path, name, {}, None)
    words = [sys.executable, "-m", "toolpost", "run", *([_make_absolute(server)] if server else [])]
    for word in (*words, *env, *env.values()):
        if word != word.encode(errors="replace").decode():
            raise usage_error(f"{word!r} cannot be written down: it is not UTF-8", "call it otherwise")
    return InstallRequest(host, path, name, host.build_entry(words, url, env), _build_target(words, url, env))


def _build_target(words: list[str], url: str | None, env: Mapping[str, str]) -> Stdio | Http:
    with translate_errors():
        if url is not None:
            return Http.from_target(url)
        # From nowhere in particular, as a host does.
        return Stdio(words[0], words[1:], env=env, cwd=Path.home().anchor, stderr="discard", name=words[-1])


def _make_absolute(server: str) -> str:
    """The server, named so that it is found from anywhere."""
    found = _FILE_PATTERN.fullmatch(server)
    if found is None:
        if ":" not in server or Path(server).exists():
            hint = "such as weather.py, or package.module:server"
            raise usage_error(f"{server} is not a Python file", hint)
        return server
    path = Path(found["path"])
    if not path.is_file():
        raise usage_error(f"there is no file {path}")
    return f"{path.resolve()}{found['object'] or ''}"


def _choose_name(name: str | None, server: str | None) -> str:
    if name is None:
        if server is None:
            raise usage_error("a server with a URL needs a name", "say --name NAME")
        found = _FILE_PATTERN.fullmatch(server)
        path = Path(found["path"]) if found else Path(server.partition(":")[0].rpartition(".")[2])
        stem = path.stem if path.stem not in _GENERIC_NAMES or not found else path.resolve().parent.name
        name = "-".join(_SERVER_NAME.findall(stem)) or "server"
    if not _SERVER_NAME.fullmatch(name):
        raise usage_error(f"{name!r} is not a name that every host accepts", "use letters, digits, - and _")
    return name


def _print_entry(page: CommandOutput, wish: InstallRequest) -> None:
    """The entry alone, in the language of the host's file."""
    page.print_note(f"For {wish.host.title}, in {wish.path}:")
    if wish.host.form == "toml" and not page.json:
        page.print_raw(edit_toml("", {wish.key_path: wish.entry}, ()))
        return
    CommandOutput(json=True).print_value({wish.host.key: {wish.name: wish.entry}})


def _check_server(page: CommandOutput, target: Stdio | Http) -> None:
    """Raise a `CommandError` unless the server answers as it would answer a host."""
    from toolpost.client.client import Client  # noqa: PLC0415 - start-up time

    async def connect_and_describe() -> str:
        async with Client(target, name="toolpost-cli", connect_timeout=CONNECT_TIMEOUT) as client:
            tools = len(await client.list_tools()) if client.capabilities.tools else 0
            about = client.server_info
            return f"{about.name if about else 'the server'} starts and answers; tools: {tools}"

    try:
        with translate_errors():
            page.print_note(asyncio.run(connect_and_describe()), style="dim")
    except CommandError as error:
        if error.exit_code == UNAUTHORIZED:
            page.print_note("the server wants a login, which the host has to do", style="dim")
            return
        message = f"{error.message}\nNothing was written: the host would not get an answer either."
        hint = "--no-check writes it all the same" + (f"; {error.hint}" if error.hint else "")
        raise CommandError(message, error.exit_code, hint=hint, details=error.details) from error


def _confirm(page: CommandOutput, wish: InstallRequest, diff: str) -> None:
    """Raise a `CommandError` unless the user agrees."""
    if page.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        details = {"file": str(wish.path), "diff": diff}
        raise usage_error("nothing was written: there is nobody to ask", "--yes writes it", details=details)
    if not click.confirm(f"Change {wish.path}?"):
        raise CommandError("nothing was written", FAILED)


def _print_report(
    page: CommandOutput, wish: InstallRequest, status: str, text: str, copy: Path | None = None
) -> None:
    report: dict[str, Any] = {
        "status": status,
        "host": next(name for name, host in HOSTS.items() if host is wish.host),
        "file": str(wish.path),
        "name": wish.name,
        "entry": wish.entry or None,
        "backup": None if copy is None else str(copy),
    }
    if page.json:
        page.print_value(report)
        return
    page.print_text(text)
    if copy is not None:
        page.print_text(f"Before: {copy}")
    if status == "written":
        page.print_text(wish.host.after)
