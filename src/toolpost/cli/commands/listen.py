"""`toolpost listen`: shows what changes on a server and what it logs, live.

Decides what to subscribe to and when to end. Does not read what has changed.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click

from toolpost.cli.output import CommandOutput
from toolpost.cli.target import SecondsParam, TargetCommand, TargetConnector
from toolpost.cli.terminal import LOG_LEVEL_STYLES, add_log_level_option, format_log_line
from toolpost.client.client import Client
from toolpost.errors import CapabilityNotDeclared
from toolpost.types.notifications import LogParams

_LIST_NAMES: Final = ("tools", "prompts", "resources")


class _ListenEvent(NamedTuple):
    """A change or a log line: members for JSON, and the line for people."""

    facts: dict[str, Any]
    text: str
    style: str | None = None


@click.command("listen", cls=TargetCommand)
@click.option("--tools", is_flag=True, help="Hear when the list of tools changes.")
@click.option("--prompts", is_flag=True, help="Hear when the list of prompts changes.")
@click.option("--resources", is_flag=True, help="Hear when the list of resources changes.")
@click.option("--uri", "uris", metavar="URI", multiple=True, help="Hear when this resource changes.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many.")
@click.option("--for", "seconds", type=SecondsParam(), help="End after this time.")
@add_log_level_option
def command(
    *,
    reach: TargetConnector,
    uris: tuple[str, ...],
    count: int | None,
    seconds: float | None,
    log_level: Any,
    **lists: bool,
) -> None:
    """Show what changes on a server, and its log, until Ctrl-C.

    By default it is every list that the server tells changes of. With --json there is an object on each line.
    """
    heard: asyncio.Queue[_ListenEvent | None] = asyncio.Queue()

    async def log(line: LogParams) -> None:
        facts = {"kind": "log", "level": line.level, "logger": line.logger, "data": line.data}
        heard.put_nowait(_ListenEvent(facts, format_log_line(line), LOG_LEVEL_STYLES.get(line.level)))

    async def listen(client: Client) -> None:
        if log_level is not None:
            await client.set_log_level(log_level)
        async with _listen_to_changes(client, heard, lists, uris) as what:
            reach.output.print_note(f"Listening to {reach.target.label}: {what}. Ctrl-C ends it.")
            left = count
            while left != 0 and (news := await heard.get()) is not None:
                now = datetime.now(UTC)
                facts = {"time": now.isoformat(timespec="milliseconds"), **news.facts}
                shown = {key: value for key, value in facts.items() if value is not None}
                reach.output.print_record(shown, f"{now.astimezone():%H:%M:%S} {news.text}", style=news.style)
                left = None if left is None else left - 1

    async def listen_in_time(client: Client) -> None:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await listen(client)
        except TimeoutError:
            if not limit.expired():  # one of the server's
                raise

    with _print_client_log(reach.output):
        reach.run(listen_in_time, on_log=log)


@contextlib.contextmanager
def _print_client_log(page: CommandOutput) -> Generator[None]:
    """Print what the client logs about its connection, each line once."""
    last: list[str] = []

    class ClientLogPrinter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if last != [text]:
                last[:] = [text]
                page.print_note(text, style="yellow")

    logger, notes = logging.getLogger("toolpost.client"), ClientLogPrinter()
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(notes)


@contextlib.asynccontextmanager
async def _listen_to_changes(
    client: Client, heard: asyncio.Queue[_ListenEvent | None], lists: dict[str, bool], uris: tuple[str, ...]
) -> AsyncGenerator[str]:
    """Subscribe, and queue changes meanwhile. Yields a description of the subscription."""
    changes = client.listen(**lists, uris=uris)
    try:
        await changes.__aenter__()
    except CapabilityNotDeclared:
        if any(lists.values()) or uris or client.capabilities.logging is None:
            raise
        yield "its log only, for it does not tell when a list changes"
        return

    async def queue_changes() -> None:
        try:
            async for change in changes:
                what = change.uri or f"the list of {change.kind}"
                maybe = ", maybe: the connection was lost for a while" if change.missed else ""
                facts = {"kind": change.kind, "uri": change.uri, "missed": change.missed or None}
                heard.put_nowait(_ListenEvent(facts, f"{what} has changed{maybe}"))
        finally:
            heard.put_nowait(None)

    task = asyncio.create_task(queue_changes())
    try:
        yield _describe_subscription(client, lists, uris)
    finally:
        await changes.aclose()
        await task


def _describe_subscription(client: Client, lists: dict[str, bool], uris: tuple[str, ...]) -> str:
    names = [name for name in _LIST_NAMES if lists[name]]
    if not names and not uris:
        offered = {name: getattr(client.capabilities, name) for name in _LIST_NAMES}
        names = [name for name, offer in offered.items() if offer is not None and offer.list_changed]
    log = [] if client.capabilities.logging is None else ["the log"]
    return ", ".join([*(f"the list of {name}" for name in names), *uris, *log])
