"""`toolpost install`: adds a server to the configuration of a host, or removes it.

Shows the change and asks for confirmation. Does not install a server that does not respond. `hosts` defines
the format of each host, `config_file` changes the file.
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
from toolpost.cli.target import CONNECT_TIMEOUT, ENV_OPTION, FILE_PATTERN
from toolpost.transports.targets import Http, Stdio
from toolpost.types.base import JSON

_URL_PATTERN: Final = re.compile(r"https?://.", re.IGNORECASE)
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")  # names of servers that every host accepts
_GENERIC_NAMES: Final = frozenset({"__init__", "__main__", "app", "main", "mcp_server", "server"})
"""File names that do not identify a server; its folder is used instead."""

_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class InstallRequest:
    """An entry, and its place in the file of a host."""

    host: HostDefinition
    path: Path
    name: str
    entry: Mapping[str, JSON]
    target: Stdio | Http | None  # None if the entry is removed


@click.command()
@click.argument("server", required=False, metavar="[SERVER.PY[:OBJECT]]")
@click.option(
    "--for", "host", required=True, type=click.Choice(list(HOSTS)), metavar="HOST", help=", ".join(HOSTS)
)
@click.option("--name", help="Name of the server in the host (default: the file name).")
@click.option("--env", **ENV_OPTION)
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    show_default=True,
    help="Install for all projects, or for the one in this folder.",
)
@click.option("--http", "url", metavar="URL", help="Connect to this URL instead of starting the server.")
@click.option("--print", "only_print", is_flag=True, help="Print the entry without writing it.")
@click.option("--remove", is_flag=True, help="Remove the server.")
@click.option("-y", "--yes", is_flag=True, help="Write without asking.")
@click.option("--no-check", is_flag=True, help="Do not start the server to test it first.")
@click.option("--json", is_flag=True, help=JSON_HELP)
def install_command(
    *, only_print: bool, remove: bool, yes: bool, no_check: bool, json: bool, **options: Any
) -> None:
    """Add a server to the configuration of a host.

    Shows the change first, and keeps a backup next to the file. The rest of the file stays unchanged.
    Running it twice changes nothing.

    \b
    toolpost install weather.py --for claude-desktop
    toolpost install weather.py --for vscode --scope project --env API_KEY
    toolpost install --http https://example.com/mcp --name weather --for cursor
    toolpost install weather.py --for claude-desktop --remove
    """  # noqa: D301 - click keeps the lines after this character
    output = CommandOutput(json=json)
    if only_print and remove:
        raise usage_error("--print and --remove cannot be combined", "omit one of them")
    request = _build_request(**options, remove=remove)
    path = request.host.key, request.name
    if only_print:
        output.print_note(f"For {request.host.title}, in {request.path}:")
        if request.host.form == "toml" and not json:
            output.print_raw(edit_toml("", {path: request.entry}, ()))
        else:
            CommandOutput(json=True).print_value({request.host.key: {request.name: request.entry}})
        return
    file = HostConfigFile(request.path, request.host.form)
    text = file.without_entry(path) if remove else file.with_entry(path, request.entry)
    if text == file.text or (remove and file.get_entry(path) is None):
        state = "is not installed" if remove else "is already installed"
        _print_report(output, request, "unchanged", f"{request.name} {state}: {request.path}")
        return
    if request.target is not None and not no_check:
        _check_server(output, request.target)
    diff = file.diff(text)
    for line in diff.splitlines():
        style = "bold" if line.startswith(("---", "+++")) else _DIFF_STYLES.get(line[:1])
        output.print_text(line, style=style)
    if not yes:
        _confirm(output, request, diff)
    copy = file.write(text)
    _print_report(output, request, "removed" if remove else "written", f"Written: {request.path}", copy)


def _build_request(
    *,
    host: str,
    scope: Scope,
    server: str | None,
    url: str | None,
    name: str | None,
    env: Mapping[str, str],
    remove: bool,
) -> InstallRequest:
    if server is not None and url is None and _URL_PATTERN.match(server):
        server, url = None, server
    definition = HOSTS[host]
    path = definition.find_config_path(scope, os.environ)
    if path is None:
        raise usage_error(f"{definition.title} has no project configuration", "omit --scope")
    if server is None and url is None and not (remove and name):
        raise usage_error("missing server", "name its Python file")
    if url is not None and definition.remote is None:
        hint = "add it under Settings, Connectors, or install a Python file"
        raise usage_error(f"{definition.title} does not support URLs in its configuration file", hint)
    if url is not None and not _URL_PATTERN.match(url):
        raise usage_error(f"invalid URL {url!r}", "use, for example, http://127.0.0.1:8000/mcp")
    if url is not None and env:
        raise usage_error("--env and --http cannot be combined", "omit one of them")
    name = _choose_name(name, server)
    if remove:
        return InstallRequest(definition, path, name, {}, None)
    words = [sys.executable, "-m", "toolpost", "run", *([_make_absolute(server)] if server else [])]
    for word in (*words, *env, *env.values()):
        if word != word.encode(errors="replace").decode():
            raise usage_error(f"{word!r} is not valid UTF-8", "rename it")
    # A host does not start it in its own folder either.
    target = Stdio(words[0], words[1:], env=env, cwd=Path.home().anchor, stderr="discard", name=words[-1])
    with translate_errors():
        reached = target if url is None else Http.from_target(url)
    return InstallRequest(definition, path, name, definition.build_entry(words, url, env), reached)


def _make_absolute(server: str) -> str:
    found = FILE_PATTERN.fullmatch(server)
    if found is None:
        if ":" not in server or Path(server).exists():
            hint = "use, for example, weather.py or package.module:server"
            raise usage_error(f"{server} is not a Python file", hint)
        return server
    path = Path(found["path"])
    if not path.is_file():
        raise usage_error(f"file not found: {path}")
    return f"{path.resolve()}{server.removeprefix(found['path'])}"


def _choose_name(name: str | None, server: str | None) -> str:
    if name is None:
        if server is None:
            raise usage_error("--http requires a name for the server", "use --name NAME")
        found = FILE_PATTERN.fullmatch(server)
        path = Path(found["path"]) if found else Path(server.partition(":")[0].rpartition(".")[2])
        stem = path.stem if path.stem not in _GENERIC_NAMES or not found else path.resolve().parent.name
        name = "-".join(_SERVER_NAME.findall(stem)) or "server"
    if not _SERVER_NAME.fullmatch(name):
        raise usage_error(f"invalid server name {name!r}", "use letters, digits, - and _")
    return name


def _check_server(output: CommandOutput, target: Stdio | Http) -> None:
    """Connect to the server as a host does. Raises `CommandError` if that fails."""
    from toolpost.client.client import Client  # noqa: PLC0415 - start-up time

    async def connect_and_describe() -> str:
        async with Client(target, name="toolpost-cli", connect_timeout=CONNECT_TIMEOUT) as client:
            tools = len(await client.list_tools()) if client.capabilities.tools else 0
            about = client.server_info
            return f"{about.name if about else 'the server'} responds; tools: {tools}"

    try:
        with translate_errors():
            output.print_note(asyncio.run(connect_and_describe()), style="dim")
    except CommandError as error:
        if error.exit_code == UNAUTHORIZED:
            output.print_note("the server requires a login; log in from the host", style="dim")
            return
        message = f"{error.message}\nNothing was written: the host could not connect either."
        hint = "use --no-check to install it anyway" + (f"; {error.hint}" if error.hint else "")
        raise CommandError(message, error.exit_code, hint=hint, **error.details) from error


def _confirm(output: CommandOutput, request: InstallRequest, diff: str) -> None:
    if output.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        text = "nothing was written: confirmation requires a terminal"
        raise usage_error(text, "use --yes to skip the confirmation", file=str(request.path), diff=diff)
    if not click.confirm(f"Change {request.path}?"):
        raise CommandError("nothing was written", FAILED)


def _print_report(
    output: CommandOutput, request: InstallRequest, status: str, text: str, copy: Path | None = None
) -> None:
    report: dict[str, Any] = {
        "status": status,
        "host": next(name for name, host in HOSTS.items() if host is request.host),
        "file": str(request.path),
        "name": request.name,
        "entry": request.entry or None,
        "backup": None if copy is None else str(copy),
    }
    if output.json:
        output.print_value(report)
        return
    output.print_text(text)
    if copy is not None:
        output.print_text(f"Backup: {copy}")
    if status == "written":
        output.print_text(request.host.after)
