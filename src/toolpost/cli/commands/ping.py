"""`toolpost ping`: whether a server answers, and how fast.

Asks once, or `--count` times.
"""

import time
from typing import TYPE_CHECKING

import click

from toolpost.cli.target import SecondsParam, TargetCommand, TargetConnector

if TYPE_CHECKING:
    from toolpost.client.client import Client


@click.command("ping", cls=TargetCommand)
@click.option("--count", type=click.IntRange(min=1), default=1, metavar="N", help="How often to ask.")
@click.option(
    "--interval", type=SecondsParam(), default=1.0, help="How long to wait in between: 1, or so many."
)
def command(reach: TargetConnector, count: int, interval: float) -> None:
    """Ask a server whether it answers, and tell how long that takes."""
    import asyncio  # noqa: PLC0415 - start-up time

    async def ping(client: "Client") -> None:
        took: list[float] = []
        for number in range(count):
            if number:
                await asyncio.sleep(interval)
            began = time.perf_counter()
            await client.ping()
            took.append(round((time.perf_counter() - began) * 1000, 3))
            reach.output.print_text(f"{reach.target.label} answers in {took[-1]:.1f} ms ({client.revision})")
        if reach.output.json:
            told = {"target": reach.target.label, "revision": client.revision, "milliseconds": took}
            reach.output.print_value(told)
        elif count > 1:
            mean = sum(took) / count
            reach.output.print_text(f"least {min(took):.1f} ms, mean {mean:.1f} ms, most {max(took):.1f} ms")

    reach.run(ping)
