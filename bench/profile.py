"""Where the time of a request goes: `python -m bench.profile [WAY] [--calls N] [--running]`.

By default cProfile inside a process that calls the ASGI application, or serves stdio. With `--running`,
py-spy looks at a server under load from outside, where it is installed: that sees uvicorn as well.
"""

import argparse
import asyncio
import pstats
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from bench.contenders import CONTENDERS, script
from bench.figures import OURS
from bench.instructions import WAYS, talk
from bench.loader import Loader
from bench.over_http import requests_for
from bench.process import started

ASKED: Final = {
    "stateless": ("add", "stateless"),
    "session-json": ("add", "session"),
    "session-sse": ("told", "session"),
}
"""What a running server is asked, and in which era."""

SHOWN: Final = 40
SECONDS: Final = 5


def inside(way: str, calls: int, order: str) -> None:
    """Print what cProfile saw; it makes small functions look dearer than they are."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        seen, log = str(Path(folder) / "profile"), Path(folder) / "log"
        python, *serve = CONTENDERS[OURS].stdio()
        command = script("core_path", None, way, str(calls), seen)
        if way == "stdio":
            command = [python, "-m", "cProfile", "-o", seen, *serve]
        with started(command, log=log) as target:
            if way == "stdio":
                talk(target, calls)
            target.process.wait()
        pstats.Stats(seen).strip_dirs().sort_stats(order).print_stats(SHOWN)


def from_outside(way: str) -> int:
    """Print what py-spy saw of a server under load; 2 if it is not installed."""
    spy = shutil.which("py-spy")
    if spy is None:
        print("py-spy is not installed: pip install py-spy")
        return 2
    asked, era = ASKED[way]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        seen, log = Path(folder) / "stacks", Path(folder) / "log"
        with started(CONTENDERS[OURS].http("json"), listens=True, log=log) as target:
            requests = asyncio.run(requests_for(target, asked, era, 16))
            record = [spy, "record", "-p", str(target.pid), "-d", str(SECONDS), "-f", "raw", "-o", str(seen)]
            with subprocess.Popen(record) as spying:
                Loader().run(target.port, target.pid, requests, 16, SECONDS + 1.0)
                spying.wait()
        leaves: Counter[str] = Counter()
        for line in seen.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            leaves[stack.rpartition(";")[2]] += int(count)
    total = leaves.total()
    for frame, count in leaves.most_common(SHOWN):
        print(f"{count / total:7.1%}  {frame}")
    return 0


def main() -> int:
    """Look, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("way", nargs="?", default="stateless", choices=list(WAYS))
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--order", default="tottime", choices=("tottime", "cumtime", "ncalls"))
    parser.add_argument("--running", action="store_true", help="look at a server under load, by py-spy")
    given = parser.parse_args()
    if given.running and given.way in ASKED:
        return from_outside(given.way)
    inside(given.way, given.calls, given.order)
    return 0


if __name__ == "__main__":
    sys.exit(main())
