"""`toolpost bench`: how many requests a server answers in a second, and how long each takes.

One client in this process makes the load, so a server that is faster than the client looks as fast as it.
"""

import asyncio
import json as _json
import math
import sys
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, quantiles
from typing import Any, Final, cast

import click

from toolpost.cli.errors import FAILED, INTERRUPTED, OK, usage_error
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.client.client import Client
from toolpost.errors import MCPError, RPCError
from toolpost.protocol.methods import TOOLS_LIST

QUANTILES: Final = {"p50": 50, "p90": 90, "p99": 99}
HISTOGRAM_ROWS: Final = 10  # rows of the histogram, the last of them for the slowest hundredth
BAR_WIDTH: Final = 40  # columns of its longest bar
MIN_SPREAD: Final = 1.05  # durations that differ by less than this factor are one row
ERROR_BACKOFF: Final = 0.01  # seconds to wait after an error: a dead server would fail a million times
_EIGHTH_BLOCKS: Final = " ▏▎▍▌▋▊▉"


def summarize_durations(seconds: Sequence[float]) -> dict[str, float]:
    """The mean, the quantiles and the maximum; zeros if there are none."""
    if not seconds:
        return dict.fromkeys(("mean", *QUANTILES, "max"), 0.0)
    cuts = quantiles(seconds if len(seconds) > 1 else [*seconds, *seconds], n=100, method="inclusive")
    parts = {name: cuts[part - 1] for name, part in QUANTILES.items()}
    return {"mean": fmean(seconds), **parts, "max": max(seconds)}


def count_bins(seconds: Sequence[float], rows: int = HISTOGRAM_ROWS) -> list[tuple[float, int]]:
    """How many there are up to each of some ends: even steps to the 99th percentile, then the rest."""
    if not seconds:
        return []
    lowest, highest = max(min(seconds), 1e-9), max(seconds)
    if highest < lowest * MIN_SPREAD:
        return [(highest, len(seconds))]
    near = max(summarize_durations(seconds)["p99"], lowest)
    step = (near / lowest) ** (1 / (rows - 1))
    ends = sorted({*(min(lowest * step**row, near) for row in range(1, rows - 1)), near, highest})
    counts = Counter(bisect_left(ends, each) for each in seconds)
    return [(end, counts[index]) for index, end in enumerate(ends)]


def draw_bar(part: float, width: int, *, blocks: bool) -> str:
    """A bar of this part of the width: of blocks, to an eighth of a character, or of ASCII."""
    if not blocks:
        return "#" * max(round(part * width), int(part > 0))
    eighths = max(round(part * width * 8), int(part > 0))
    return ("█" * (eighths // 8) + _EIGHTH_BLOCKS[eighths % 8]).rstrip()


def format_duration(seconds: float) -> str:
    """A duration with three digits that matter."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            value = seconds / size
            return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {unit}"
    return f"{seconds * 1e6:.0f} us"


@dataclass
class LoadGenerator:
    """The same request again and again, and what came of it."""

    seconds: float
    workers: int
    rate: float | None
    durations: "array[float]" = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])
    started_at: float = 0.0
    elapsed: float = 0.0
    _scheduled_count: int = 0

    async def run(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask until the time is over."""
        self.started_at = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.workers):
                    group.create_task(self._run_worker(ask))
        finally:
            self.elapsed = time.perf_counter() - self.started_at

    async def _run_worker(self, ask: Callable[[], Awaitable[object]]) -> None:
        end = self.started_at + self.seconds
        while True:
            due = self._schedule_next()
            if (wait := min(due, end) - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            if max(due, time.perf_counter()) >= end:
                return
            try:
                await ask()
            except MCPError as error:
                kind = f"{error.kind} ({error.code})" if isinstance(error, RPCError) else type(error).__name__
                self.errors[kind] += 1
                self.examples.setdefault(kind, error.message)
                await asyncio.sleep(ERROR_BACKOFF)
            else:
                self.durations.append(time.perf_counter() - due)

    def _schedule_next(self) -> float:
        """When the next request is due. What is sent later than that has waited, and the wait is counted."""
        if self.rate is None:
            return time.perf_counter()
        due = self.started_at + self._scheduled_count / self.rate
        self._scheduled_count += 1
        return due


def _parse_arguments(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> dict[str, Any] | None:
    try:
        found: Any = None if value is None else _json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"that is no JSON: {error}") from None
    if found is not None and not isinstance(found, dict):
        raise click.BadParameter('the arguments are a JSON object, such as \'{"city": "Oslo"}\'')
    return cast("dict[str, Any] | None", found)


@click.command(cls=TargetCommand)
@click.argument("tool", required=False)
@click.option(
    "--args", "arguments", metavar="JSON", callback=_parse_arguments, help="What to call the tool with."
)
@click.option("--list", "lists", is_flag=True, help="Ask for the list of tools, instead of a ping.")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to go on.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="How many requests are under way at the same time.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Begin N requests per second instead of as many as possible; a wait for its turn counts.",
)
def command(
    *,
    reach: TargetConnector,
    tool: str | None,
    arguments: dict[str, Any] | None,
    lists: bool,
    seconds: float,
    concurrency: int,
    rate: float | None,
) -> int:
    """Ask a server the same thing again and again: to call TOOL, or else for a ping.

    \b
    toolpost bench weather.py
    toolpost bench weather.py forecast --args '{"city": "Oslo"}' --for 10
    toolpost bench http://127.0.0.1:8000/mcp --list --concurrency 32

    One that nobody counts goes first; if it fails, so does the command. Errors later are counted, and the
    exit code is 1 if there were any.
    """  # noqa: D301 - click wants this character where lines are to stay
    if tool is None and arguments is not None:
        raise usage_error("--args is for a tool", "name the tool after the target")
    if tool is not None and lists:
        raise usage_error("--list is instead of a tool", "leave out one of them")
    what = f"calls of {tool}" if tool else TOOLS_LIST if lists else "ping"
    load = LoadGenerator(seconds, concurrency, rate)
    told: dict[str, Any] = {"target": reach.target.label, "what": what}

    async def work(client: Client) -> None:
        ask: Callable[[], Awaitable[object]] = client.list_tools if lists else client.ping
        if tool is not None:
            ask = partial(client.call_tool, tool, arguments)
        await ask()
        told["revision"] = client.revision
        pace = f"{rate:g} per second" if rate else f"{concurrency} at a time"
        label = f"{reach.target.label} ({client.revision})"
        reach.output.print_note(f"{seconds:g} s of {what} at {label}, {pace}", style="dim")
        await load.run(ask)

    interrupted = False
    try:
        reach.run(work, cache=False, retries=0)
    except KeyboardInterrupt:  # what there is until then is told
        interrupted = True
    if load.elapsed:
        told |= _build_report(load)
        reach.output.print_value(told) if reach.output.json else _print_report(reach, load)
    if interrupted:
        return INTERRUPTED
    return FAILED if load.errors else OK


def _build_report(load: LoadGenerator) -> dict[str, Any]:
    latency = summarize_durations(load.durations)
    return {
        "seconds": round(load.elapsed, 3),
        "concurrency": load.workers,
        "rate": load.rate,
        "answered": len(load.durations),
        "failed": load.errors.total(),
        "per_second": round(len(load.durations) / load.elapsed, 1),
        "milliseconds": {name: round(value * 1000, 3) for name, value in latency.items()},
        "errors": [
            {"kind": kind, "count": count, "example": load.examples[kind]}
            for kind, count in load.errors.most_common()
        ],
        "histogram": [
            {"up_to_ms": round(end * 1000, 3), "count": count} for end, count in count_bins(load.durations)
        ],
    }


def _print_report(reach: TargetConnector, load: LoadGenerator) -> None:
    say, answered = reach.output.print_text, len(load.durations)
    say(f"answered    {answered:,} in {load.elapsed:.1f} s")
    say(f"throughput  {answered / load.elapsed:,.0f} per second", style="bold")
    if answered:
        latency = summarize_durations(load.durations)
        del latency["mean"]
        shown = ", ".join(f"{name} {format_duration(value)}" for name, value in latency.items())
        say(f"latency     {shown}", style="bold")
    label = "errors"
    for kind, count in load.errors.most_common():
        say(f"{label:<12}{count:,} {kind}: {load.examples[kind]}", style="red")
        label = ""
    bins = count_bins(load.durations)
    if bins:
        say()
    highest = max((count for _, count in bins), default=0)
    blocks = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    for end, count in bins:
        bar = draw_bar(count / highest, BAR_WIDTH, blocks=blocks)
        say(f"{format_duration(end):>10}  {bar:<{BAR_WIDTH}}  {count:>9,}")
