"""`toolpost listen`: shows changes on a server and its log, live.

Chooses the subscriptions and decides when to stop. Does not read the changed resources.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import click

from toolpost.cli.output import CommandOutput
from toolpost.cli.target import SecondsParam, TargetCommand, TargetConnector
from toolpost.cli.terminal import LOG_LEVEL_STYLES, add_log_level_option, format_log_line
from toolpost.client.client import Client
from toolpost.errors import CapabilityNotDeclared
from toolpost.types.notifications import LogParams

_LIST_NAMES: Final = ("tools", "prompts", "resources")

_ListenEvent: TypeAlias = tuple[dict[str, Any], str, str | None]
"""A change or a log message: its members as JSON, its text, and the style of the text."""


@click.command("listen", cls=TargetCommand)
@click.option("--tools", is_flag=True, help="Watch the list of tools.")
@click.option("--prompts", is_flag=True, help="Watch the list of prompts.")
@click.option("--resources", is_flag=True, help="Watch the list of resources.")
@click.option("--uri", "uris", metavar="URI", multiple=True, help="Watch this resource.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@click.option("--for", "seconds", type=SecondsParam(), help="Stop after this time.")
@add_log_level_option
def listen_command(
    *, target: TargetConnector, count: int | None, seconds: float | None, log_level: Any, **topics: Any
) -> None:
    """Show changes and log messages of a server until Ctrl-C.

    By default, watches every list for which the server reports changes. --json prints one object per line.
    """
    events: asyncio.Queue[_ListenEvent | None] = asyncio.Queue()

    async def log(line: LogParams) -> None:
        facts = {"kind": "log", "level": line.level, "logger": line.logger, "data": line.data}
        events.put_nowait((facts, format_log_line(line), LOG_LEVEL_STYLES.get(line.level)))

    async def listen(client: Client) -> None:
        if log_level is not None:
            await client.set_log_level(log_level)
        async with _listen_to_changes(client, events, topics) as watched:
            target.output.print_note(f"Listening to {target.spec.label}: {watched}. Press Ctrl-C to stop.")
            left = count
            while left != 0 and (event := await events.get()) is not None:
                now = datetime.now(UTC)
                facts, text, style = event
                facts = {"time": now.isoformat(timespec="milliseconds"), **facts}
                shown = {key: value for key, value in facts.items() if value is not None}
                target.output.print_record(shown, f"{now.astimezone():%H:%M:%S} {text}", style=style)
                left = None if left is None else left - 1

    async def listen_in_time(client: Client) -> None:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await listen(client)
        except TimeoutError:
            if not limit.expired():  # a request timed out
                raise

    with _print_client_log(target.output):
        target.run(listen_in_time, on_log=log)


@contextlib.contextmanager
def _print_client_log(output: CommandOutput) -> Generator[None]:
    """Print the log of the client about its connection, without repetitions."""
    last: list[str] = []

    class ClientLogPrinter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if last != [text]:
                last[:] = [text]
                output.print_note(text, style="yellow")

    logger, notes = logging.getLogger("toolpost.client"), ClientLogPrinter()
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(notes)


@contextlib.asynccontextmanager
async def _listen_to_changes(
    client: Client, events: asyncio.Queue[_ListenEvent | None], topics: dict[str, Any]
) -> AsyncGenerator[str]:
    """Subscribe, and queue changes. Yields a description of the subscription."""
    changes = client.listen(**topics)
    try:
        await changes.__aenter__()
    except CapabilityNotDeclared:
        if any(topics.values()) or client.capabilities.logging is None:
            raise
        yield "log only (the server does not report changes of lists)"
        return

    async def queue_changes() -> None:
        try:
            async for change in changes:
                subject = change.uri or f"list of {change.kind}"
                verb = "may have changed: the connection was lost for a while" if change.missed else "changed"
                facts = {"kind": change.kind, "uri": change.uri, "missed": change.missed or None}
                events.put_nowait((facts, f"{subject} {verb}", None))
        finally:
            events.put_nowait(None)

    task = asyncio.create_task(queue_changes())
    try:
        yield _describe_subscription(client, topics)
    finally:
        await changes.aclose()
        await task


def _describe_subscription(client: Client, topics: dict[str, Any]) -> str:
    names = [name for name in _LIST_NAMES if topics[name]]
    if not any(topics.values()):
        offered = {name: getattr(client.capabilities, name) for name in _LIST_NAMES}
        names = [name for name, offer in offered.items() if offer is not None and offer.list_changed]
    log = [] if client.capabilities.logging is None else ["log"]
    return ", ".join([*(f"list of {name}" for name in names), *topics["uris"], *log])
