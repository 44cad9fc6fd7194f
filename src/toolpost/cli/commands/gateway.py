"""`toolpost gateway`: serves all servers of an `mcp.json` as one, over stdio or HTTP, or checks the file.

`toolpost.gateway` does the work; the file is watched while it serves.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolpost.cli.errors import FAILED, OK, USAGE, CommandError, translate_errors
from toolpost.cli.output import JSON_HELP, CommandOutput

if TYPE_CHECKING:
    from toolpost.gateway.file import GatewayFile, Problem


@click.command("gateway")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--http", metavar="HOST:PORT", help="Serve over HTTP at this address; port 0 picks a free port."
)
@click.option("--check", is_flag=True, help="Check the file, start nothing, and exit.")
@click.option("--audit", metavar="FILE", type=click.Path(path_type=Path), help="Record every call in a file.")
@click.option("--path", metavar="PATH", help="Path of the HTTP endpoint (default: /mcp).")
@click.option("--public-url", metavar="URL", help="URL of the gateway as clients see it.")
@click.option("--allowed-host", metavar="HOST", multiple=True, help="Accept this host name too; * for all.")
@click.option("--allowed-origin", metavar="URL", multiple=True, help="Accept this origin; * for all.")
@click.option("--cors", is_flag=True, help="Send CORS headers.")
@click.option(
    "--health", metavar="PATH", default="/health", help="Path for health checks (default: /health)."
)
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def gateway_command(
    config: Path, http: str | None, check: bool, audit: Path | None, as_json: bool, **options: Any
) -> int:
    """Serve all servers of an mcp.json as one.

    The gateway uses stdio, as hosts expect, unless you pass --http. Settings stand under "toolpost" in the
    file, which other programs ignore. When the file changes, only the servers whose entries changed are
    started again.
    """
    output = CommandOutput(json=as_json)
    if check:
        return _check(config, output)
    from toolpost.gateway.reload import BrokenFileError, FileGateway  # noqa: PLC0415 - slow to import

    try:
        gateway = FileGateway(config, output.print_note, audit=audit)
    except BrokenFileError as error:
        hint = f"toolpost gateway {config} --check reports all problems" if len(error.problems) > 1 else None
        raise CommandError(str(error.problems[0]), USAGE, hint=hint) from None
    except ValueError as error:
        raise CommandError(f"{config}: {error}", USAGE) from None
    options |= {name: options.pop(name.removesuffix("s")) for name in ("allowed_hosts", "allowed_origins")}
    web = {name: value for name, value in options.items() if value} if http is not None else {}
    try:
        with translate_errors():
            gateway.server.run(http=http, **web)
    except (ValueError, TypeError, OSError) as error:
        raise CommandError(str(getattr(error, "strerror", None) or error), USAGE) from error
    return OK


def _check(path: Path, output: CommandOutput) -> int:
    """Report what is wrong in a file. Returns the exit code."""
    from toolpost.gateway.file import read_gateway_file  # noqa: PLC0415 - slow to import

    found = read_gateway_file(path)
    wrong = [problem for problem in found.problems if not problem.warning]
    if output.json:
        output.print_value(
            {"servers": _describe(found), "problems": [_to_json(each) for each in found.problems]}
        )
        return FAILED if wrong else OK
    if found.upstreams:
        columns = ("server", "prefix", "kind", "target", "start")
        output.print_table(None, columns, (tuple(each.values()) for each in _describe(found)))
    for problem in found.problems:
        output.print_text(f"{'warning' if problem.warning else 'error'}: {problem}")
    if not found.problems:
        output.print_text(f"{path}: no problems found")
    return FAILED if wrong else OK


def _describe(found: "GatewayFile") -> list[dict[str, str]]:
    from toolpost.gateway.file import describe_target  # noqa: PLC0415 - as above

    described: list[dict[str, str]] = []
    for name, upstream in found.upstreams.items():
        settings = upstream.settings
        kind, label = describe_target(upstream)
        prefix = name if settings.name is None else settings.name
        start = settings.start or found.settings.start
        described.append({"server": name, "prefix": prefix, "kind": kind, "target": label, "start": start})
    return described


def _to_json(problem: "Problem") -> dict[str, Any]:
    return {
        "line": problem.line,
        "message": problem.message,
        "hint": problem.hint,
        "level": "warning" if problem.warning else "error",
    }
