"""Profiles a request: `python -m bench.profile [WAY] [--calls N] [--running]`.

By default, uses cProfile inside a process that calls the ASGI application, or serves stdio. Subtracts a short
run from a long one, so that the start and the first requests do not count. With `--running`, py-spy profiles
a server under load, including uvicorn.
"""

import argparse
import asyncio
import pstats
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.command import exit_code, python_path
from bench.contenders import CONTENDERS, script
from bench.figures import OURS
from bench.instructions import WAYS, serve_stdio, talk
from bench.loader import Loader
from bench.over_http import requests_for
from bench.process import ROOT, Failed, started
from bench.targets import ways, wire

SHOWN: Final = 40
SECONDS: Final = 5
WARM: Final = 200
"""Warm-up requests."""

ENOUGH: Final = 1000
"""Minimum of requests for meaningful times: with fewer, the start dominates."""

BENCH: Final = "the bench"
WAITS: Final = "waiting"
LEFT_OUT: Final = (BENCH, WAITS)
"""Labels for time outside requests."""

WAITING: Final = re.compile(r"'(?:poll|acquire)' of '|\bselect\.(?:select|poll)\b")
"""Names of waiting C functions in cProfile."""

WAITING_OUTSIDE: Final = re.compile(
    r"\bwait \(threading\.py|\bselect \(selectors\.py|_worker \(concurrent/futures/thread\.py"
)
"""Names of waiting functions in py-spy, which counts some of them as busy."""

ORDERS: Final = ("own", "cumulative", "calls")


# --------------------------------------------------------------------- inside, by cProfile


class Spent(NamedTuple):
    """Calls of a function, its own microseconds, and its cumulative microseconds."""

    calls: float = 0
    own: float = 0
    cumulative: float = 0

    def plus(self, other: "Spent", times: float = 1) -> "Spent":
        """Add another one, multiplied by a factor."""
        return Spent(*(one + times * two for one, two in zip(self, other, strict=True)))

    def over(self, requests: int) -> "Spent":
        """Return the share of each request; negative values are noise."""
        return Spent(*(max(one, 0) / requests for one in self))


Seen = Mapping[str, Spent]
"""Costs by function. Functions of the bench are one entry, and so are waiting functions."""


def inside(way: str, calls: int, order: str) -> None:
    """Print the results of cProfile, which overestimates small functions."""
    few, start = profiled(way, WARM)
    many, whole = profiled(way, few + calls)
    print(*table(WAYS[way], per_request(start, whole, many - few), many - few, order), sep="\n")


def profiled(way: str, calls: int) -> tuple[int, Seen]:
    """Return the number of requests, and the costs including the start.

    Raises:
        Failed: the process failed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        seen, log = Path(folder) / "profile", Path(folder) / "log"
        command = script("core_path", None, way, str(calls), str(seen))
        if way == "stdio":
            python, *serve = serve_stdio()
            command = [python, "-m", "cProfile", "-o", str(seen), *serve]
        with started(command, log=log, patience=0) as target:
            if way == "stdio":
                calls = talk(target, calls)
            code = target.process.wait()
        if code or not seen.exists():
            raise Failed(f"{way} ended with {code}: {target.complaint()}")
        return calls, spent(pstats.Stats(str(seen)))


def spent(stats: Any) -> Seen:
    """Return the costs of a profile by function. C functions called by the bench belong to the bench."""
    seen: defaultdict[str, Spent] = defaultdict(Spent)
    for (file, line, name), (_, calls, own, cumulative, callers) in stats.stats.items():
        whole = Spent(calls, own * 1e6, cumulative * 1e6)
        served = Spent()
        for (caller, *_), (times, _, inner, outer) in callers.items():
            if file == "~" and _is_bench(caller):
                served = served.plus(Spent(times, inner * 1e6, outer * 1e6))
        title = _title(file, line, name)
        seen[title] = seen[title].plus(whole).plus(served, -1)
        seen[BENCH] = seen[BENCH].plus(served)
    return seen


def _is_bench(file: str) -> bool:
    return Path(file).is_relative_to(ROOT / "bench")


def _title(file: str, line: int, name: str) -> str:
    if _is_bench(file):
        return BENCH
    if file == "~":
        return WAITS if WAITING.search(name) else re.sub(" at 0x[0-9a-f]+", "", name)
    return f"{re.sub(r'.*/(?:src|site-packages|python3[.][0-9]+)/', '', file)}:{line} {name}"


def per_request(start: Seen, whole: Seen, requests: int) -> Seen:
    """Return the costs per request, without functions that no request called."""
    gained = {name: of.plus(start.get(name, Spent()), -1) for name, of in whole.items()}
    return {name: of.over(requests) for name, of in gained.items() if of.calls > 0}


def table(title: str, seen: Seen, requests: int, order: str) -> Iterator[str]:
    """Yield the lines of the report."""
    functions = {name: of for name, of in seen.items() if name not in LEFT_OUT}
    calls, own = (sum(column) for column in list(zip(*functions.values(), strict=True))[:2])
    everything = sum(of.own for of in seen.values())
    timed = requests >= ENOUGH
    time = f"{own:.1f} µs per request" if timed else f"times from {ENOUGH} requests on"
    yield f"{title}: {calls:.1f} function calls per request, {time}"
    yield ""
    others = {name: seen.get(name, Spent()) for name in LEFT_OUT}
    apart = ", ".join(f"{name} ({of.calls:.1f} calls)" for name, of in others.items())
    yield f"Measured requests: {requests:,}. Excluded: the start, the first {WARM} requests, {apart}."
    yield "Counts hardly change between runs. cProfile overestimates the time of small functions."
    yield "Cumulative is the share of total time of a function, including its callees."
    yield ""
    yield f"{'calls':>8}{'own µs':>9}{'cumulative':>12}  function"
    column = order if timed else "calls"
    for name in sorted(functions, key=lambda name: getattr(functions[name], column), reverse=True)[:SHOWN]:
        of = functions[name]
        # More than 100 % is noise.
        times = f"{of.own:9.2f}{min(of.cumulative / everything, 1):12.1%}" if timed else f"{'–':>9}{'–':>12}"
        yield f"{of.calls:8.2f}{times}  {name}"


# --------------------------------------------------------------------- outside, by py-spy


def spy() -> str | None:
    """Return the path of py-spy, preferably from this environment."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def from_outside(way: str) -> int:
    """Print the results of py-spy for a server under load. Returns 2 if py-spy is not installed.

    Raises:
        Failed: py-spy failed, or found nothing.
    """
    found = spy()
    if found is None:
        print(f"py-spy is not installed: {python_path()} -m pip install py-spy")
        return 2
    line = ways.WAYS[way]
    print(
        f"{WAYS[way].replace('ASGI', 'HTTP')}: py-spy samples a server under load for {SECONDS} s …\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        seen, log, output = (Path(folder) / name for name in ("stacks", "log", "output"))
        serve = CONTENDERS[OURS].http(line.mode, "0", line.switch)
        headers = {"authorization": f"Bearer {wire.TOKEN}"} if line.switch == "token" else {}
        with started(serve, listens=True, log=log, patience=0) as target:
            requests = asyncio.run(
                requests_for(target, line.request, line.era, 16, headers, ordinary=line.ordinary)
            )
            record = [
                found,
                "record",
                "-p",
                str(target.pid),
                "-d",
                str(SECONDS),
                "-f",
                "raw",
                "-o",
                str(seen),
            ]
            with started(record, place="load", log=output, patience=0) as spying:
                Loader().run(target.port, target.pid, requests, 16, SECONDS + 1.0)
                code = spying.process.wait()
        busy = leaves(seen.read_text() if seen.exists() else "")
        if code or not busy:
            raise Failed(f"py-spy found nothing and ended with {code}: {spying.complaint()}")
    print(f"{'of the time':>11}  function, and the line in it")
    for frame, count in busy.most_common(SHOWN):
        print(f"{count / busy.total():11.1%}  {frame}")
    return 0


def leaves(stacks: str) -> Counter[str]:
    """Count the samples by function, without waiting threads."""
    found: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        leaf = stack.rpartition(";")[2]
        if not WAITING_OUTSIDE.search(leaf):
            found[leaf] += int(count)
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def main() -> int:
    """Profile and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.profile", description="Profile a request, function by function."
    )
    parser.add_argument("way", nargs="?", default="stateless", choices=list(WAYS))
    parser.add_argument(
        "--calls", type=_positive, default=3000, metavar="N", help="requests to measure (default: 3000)"
    )
    parser.add_argument("--order", default="own", choices=ORDERS, help="the column to sort by")
    parser.add_argument("--running", action="store_true", help="profile a server under load with py-spy")
    given = parser.parse_args()
    if given.running and given.way not in ways.WAYS:
        parser.error(f"--running requires a server that listens: {', '.join(ways.WAYS)}")
    if given.running:
        return from_outside(given.way)
    inside(given.way, given.calls, given.order)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
