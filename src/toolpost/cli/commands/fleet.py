"""`toolpost fleet`: lists the workers that share a store on Redis or Valkey."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import click

from toolpost.cli.errors import UNREACHABLE, CommandError, translate_errors, usage_error
from toolpost.cli.output import JSON_HELP, CommandOutput


@click.command("fleet")
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def fleet_command(*, url: str, as_json: bool) -> None:
    """List the workers on a store, of all servers or of those with the prefix in the URL.

    Shows where each one runs, since when, with which version, and how many messages wait for it.
    """
    output = CommandOutput(json=as_json)
    with translate_errors():
        from toolpost.stores.redis_worker import list_workers  # noqa: PLC0415 - optional
    try:
        workers: list[dict[str, Any]] = asyncio.run(list_workers(url))
    except ValueError as error:
        raise usage_error(str(error)) from None
    except Exception as error:
        raise CommandError(f"the store cannot be reached: {error}", UNREACHABLE) from error
    for worker in workers:
        worker["since"] = datetime.fromtimestamp(worker["since"], UTC).isoformat(" ", "seconds")
    if workers or as_json:
        output.print_value(sorted(workers, key=lambda worker: worker["since"]))
    else:
        output.print_note("No worker is connected.")
