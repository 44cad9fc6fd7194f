"""`toolpost bench`: measures the throughput and the latency of a server.

One client in this process generates the load, so its speed limits the measurement.
"""

import asyncio
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
from typing import Any, Final

import click

from toolpost.cli.errors import FAILED, INTERRUPTED, OK, usage_error
from toolpost.cli.schema_options import parse_arguments
from toolpost.cli.target import TargetCommand, TargetConnector
from toolpost.client.client import Client
from toolpost.errors import MCPError, RPCError
from toolpost.protocol.methods import TOOLS_LIST

QUANTILES: Final = {"p50": 50, "p90": 90, "p99": 99}
HISTOGRAM_ROWS: Final = 10  # the last row is for the slowest 1 %
BAR_WIDTH: Final = 40  # columns of the longest bar
MIN_SPREAD: Final = 1.05  # durations within this factor share one row
ERROR_BACKOFF: Final = 0.01  # seconds; a dead server would otherwise fail a million times


def summarize_durations(seconds: Sequence[float]) -> dict[str, float]:
    """Return the mean, the quantiles and the maximum; zeros for an empty list."""
    if not seconds:
        return dict.fromkeys(("mean", *QUANTILES, "max"), 0.0)
    cuts = quantiles(seconds if len(seconds) > 1 else [*seconds, *seconds], n=100, method="inclusive")
    parts = {name: cuts[part - 1] for name, part in QUANTILES.items()}
    return {"mean": fmean(seconds), **parts, "max": max(seconds)}


def count_bins(seconds: Sequence[float], rows: int = HISTOGRAM_ROWS) -> list[tuple[float, int]]:
    """Return upper bounds with counts: even steps up to the 99th percentile, then the rest."""
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
    """Draw a bar for a part of the width, in blocks or in ASCII."""
    return ("█" if blocks else "#") * max(round(part * width), int(part > 0))


def format_duration(seconds: float) -> str:
    """Format a duration with three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            value = seconds / size
            return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {unit}"
    return f"{seconds * 1e6:.0f} us"


@dataclass
class LoadGenerator:
    """Repeats one request, and collects durations and errors."""

    seconds: float
    concurrency: int
    rate: float | None
    durations: "array[float]" = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])
    started_at: float = 0.0
    elapsed: float = 0.0
    _scheduled_count: int = 0

    async def run(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Send requests until the time is up."""
        self.started_at = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.concurrency):
                    group.create_task(self._run_worker(ask))
        finally:
            self.elapsed = time.perf_counter() - self.started_at

    async def _run_worker(self, ask: Callable[[], Awaitable[object]]) -> None:
        end = self.started_at + self.seconds
        while True:
            due = time.perf_counter()
            if self.rate is not None:  # latency includes the time a late request has waited
                due = self.started_at + self._scheduled_count / self.rate
                self._scheduled_count += 1
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


@click.command(cls=TargetCommand)
@click.argument("tool", required=False)
@click.option("--args", metavar="JSON", help="Arguments of the tool.")
@click.option("--list", "lists", is_flag=True, help="Request the list of tools instead of a ping.")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to send requests.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    metavar="N",
    help="Number of concurrent requests.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Start N requests per second; time spent waiting counts as latency.",
)
def bench_command(
    *, target: TargetConnector, tool: str | None, args: str | None, lists: bool, **pace: Any
) -> int:
    """Load-test a server with one request: a call to TOOL, or a ping.

    \b
    toolpost bench weather.py
    toolpost bench weather.py forecast --args '{"city": "Oslo"}' --for 10
    toolpost bench http://127.0.0.1:8000/mcp --list --concurrency 32

    Sends one uncounted warm-up request; if it fails, the command fails. Later errors are counted, and
    the exit code is 1 if there were any.
    """  # noqa: D301 - click keeps the lines after this character
    if tool is None and args is not None:
        raise usage_error("--args requires a tool", "add the name of a tool after the target")
    if tool is not None and lists:
        raise usage_error("--list and TOOL cannot be combined", "omit one of them")
    request = f"calls of {tool}" if tool else TOOLS_LIST if lists else "ping"
    arguments = None if args is None else parse_arguments(args)
    load = LoadGenerator(**pace)
    report: dict[str, Any] = {"target": target.spec.label, "what": request}

    async def work(client: Client) -> None:
        ask: Callable[[], Awaitable[object]] = client.list_tools if lists else client.ping
        if tool is not None:
            ask = partial(client.call_tool, tool, arguments)
        await ask()
        report["revision"] = client.revision
        speed = f"{load.rate:g} per second" if load.rate else f"{load.concurrency} concurrent"
        label = f"{target.spec.label} ({client.revision})"
        target.output.print_note(f"{load.seconds:g} s of {request} on {label}, {speed}", style="dim")
        await load.run(ask)

    interrupted = False
    try:
        target.run(work, cache=False, retries=0)
    except KeyboardInterrupt:  # print the results so far
        interrupted = True
    if load.elapsed:
        report |= _build_report(load)
        target.output.print_value(report) if target.output.json else _print_report(target, load)
    if interrupted:
        return INTERRUPTED
    return FAILED if load.errors else OK


def _build_report(load: LoadGenerator) -> dict[str, Any]:
    latency = summarize_durations(load.durations)
    return {
        "seconds": round(load.elapsed, 3),
        "concurrency": load.concurrency,
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


def _print_report(target: TargetConnector, load: LoadGenerator) -> None:
    show, answered = target.output.print_text, len(load.durations)
    show(f"answered    {answered:,} in {load.elapsed:.1f} s")
    show(f"throughput  {answered / load.elapsed:,.0f} per second", style="bold")
    if answered:
        latency = summarize_durations(load.durations)
        del latency["mean"]
        shown = ", ".join(f"{name} {format_duration(value)}" for name, value in latency.items())
        show(f"latency     {shown}", style="bold")
    label = "errors"
    for kind, count in load.errors.most_common():
        show(f"{label:<12}{count:,} {kind}: {load.examples[kind]}", style="red")
        label = ""
    bins = count_bins(load.durations)
    if bins:
        show()
    highest = max((count for _, count in bins), default=0)
    blocks = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    for end, count in bins:
        bar = draw_bar(count / highest, BAR_WIDTH, blocks=blocks)
        show(f"{format_duration(end):>10}  {bar:<{BAR_WIDTH}}  {count:>9,}")
