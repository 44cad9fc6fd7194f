"""Instructions that one call takes, counted by callgrind: the same on a busy machine as on a quiet one.

`python -m bench.instructions [--write] [WAY ...]` counts two runs that differ in their calls only, divides,
and prints what was recorded beside what is. `--write` records it in `instructions.json`. Less than a percent
says nothing; over stdio less than three, because who reads how much at a time is a matter of luck.
"""

import argparse
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench.contenders import CONTENDERS, script
from bench.figures import OURS
from bench.over_stdio import Pipe
from bench.process import Failed, Target, frozen_source, started

RECORD: Final = Path(__file__).with_name("instructions.json")
IN_FLIGHT: Final = 16
"""Calls over stdio that wait for their answers."""

FEW: Final = 200
MANY: Final = 800
"""Calls; the first hundred or so are slower, because the interpreter adapts to them."""

WAYS: Final = {
    "stateless": "ASGI, stateless",
    "session-json": "ASGI, session as JSON",
    "session-sse": "ASGI, session as SSE",
    "stdio": "stdio, 16 in flight",
}


VALGRIND: Final = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
FIXED: Final = ("env", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1")


def counted(way: str, calls: int) -> tuple[int, int]:
    """How many calls there were, and the instructions of the whole process that served them.

    Raises:
        Failed: it did not.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "log"
        command = CONTENDERS[OURS].stdio() if way == "stdio" else script("core_path", None, way, str(calls))
        with started([*FIXED, *VALGRIND, *command], log=log) as target:
            if way == "stdio":
                calls = talk(target, calls)
            code = target.process.wait()
        told = re.search(r"Collected : (\d+)", target.output())
        if code or told is None:
            raise Failed(f"{way} ended with {code}: {target.output()[-300:]}")
        return calls, int(told[1])


def talk(target: Target, calls: int) -> int:
    """Have a conversation over stdio, and end it; how many calls there were."""
    assert target.process.stdin is not None
    pipe = Pipe(target)
    pipe.greet()
    count = pipe.calls(calls, IN_FLIGHT)
    target.process.stdin.close()
    return count


def per_call(way: str, pool: ThreadPoolExecutor) -> int:
    """Instructions of one call."""
    runs = [pool.submit(counted, way, calls) for calls in (FEW, MANY)]
    (few, less), (many, more) = (run.result() for run in runs)
    return (more - less) // (many - few)


def recorded() -> tuple[str, dict[str, int]]:
    """What was counted before, and with which Python."""
    if not RECORD.exists():
        return platform.python_version(), {}
    told = json.loads(RECORD.read_text())
    return told["python"], told["per_call"]


def main() -> int:
    """Count, print old → new, and record if told to."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("ways", nargs="*", default=list(WAYS), metavar="WAY", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--write", action="store_true", help="record what was counted")
    given = parser.parse_args()
    if unknown := set(given.ways) - set(WAYS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    if shutil.which("valgrind") is None:
        print("valgrind is not installed; Debian has it as `valgrind`")
        return 2
    python, before = recorded()
    now: dict[str, int] = {}
    with frozen_source(), ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for way in given.ways:
            now[way] = per_call(way, pool)
            old = before.get(way)
            change = f"{old:>9,} → {now[way]:>9,}  {now[way] / old - 1:+.1%}" if old else f"{now[way]:>9,}"
            print(f"{WAYS[way]:24} {change}", flush=True)
    if python != platform.python_version():
        print(f"recorded with Python {python}: the two cannot be compared")
    if given.write:
        kept = {"python": platform.python_version(), "per_call": {**before, **now}}
        RECORD.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
