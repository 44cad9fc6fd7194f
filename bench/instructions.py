"""Counts the instructions of one call with callgrind: a busy machine does not change them.

`python -m bench.instructions [--write] [WAY ...]` counts two runs that differ only in the number of calls,
and prints recorded and new counts. `--write` records them in `instructions.json`. Differences below 1 % are
noise; over stdio below 3 %, because the sizes of reads vary.
"""

import argparse
import json
import platform
import re
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.command import exit_code, python_path
from bench.contenders import CONTENDERS, script
from bench.figures import OURS
from bench.over_stdio import Pipe
from bench.process import Failed, Place, Target, frozen_source, started
from bench.targets import ways

__all__ = ["RECORD", "WAYS", "serve_stdio", "talk"]

RECORD: Final = Path(__file__).with_name("instructions.json")
IN_FLIGHT: Final = 16
"""Calls in flight over stdio."""

FEW: Final = 200
MANY: Final = 800
"""Calls of both runs. The interpreter specializes code during the first hundred."""

SECONDS: Final = 20
"""Approximate seconds per way: programs start slowly under callgrind."""

RUNS: Final[tuple[tuple[int, Place], ...]] = ((FEW, "target"), (MANY, "load"))
"""Concurrent runs: the count is the same on any core."""

WAYS: Final = {name: f"ASGI, {way.title}" for name, way in ways.WAYS.items()} | {
    "stdio": f"stdio, {IN_FLIGHT} in flight"
}
USUAL: Final = ("stateless", "stateless-context", "session", "session-context", "session-progress-1", "stdio")
"""The default ways."""

VALGRIND: Final = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
FIXED: Final = ("env", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1")


# --------------------------------------------------------------------- over stdio


def serve_stdio() -> list[str]:
    """Return the command that serves over stdio.

    Raises:
        Failed: its environment does not exist.
    """
    python, *serve = CONTENDERS[OURS].stdio()
    if not Path(python).exists():
        name = Path(python).parent.parent.name
        make = f"{python_path()} interop/environments.py {name}"
        raise Failed(
            f"stdio requires the environment `{name}`, which does not exist; create it with `{make}`"
        )
    return [python, *serve]


def talk(target: Target, calls: int) -> int:
    """Run a session over stdio. Returns the number of calls.

    Raises:
        Failed: the server did not respond.
    """
    assert target.process.stdin is not None
    pipe = Pipe(target)
    try:
        pipe.greet()
        count = pipe.calls(calls, IN_FLIGHT)
    except BrokenPipeError as error:
        raise Failed(f"the server ended instead of listening: {target.complaint()}") from error
    target.process.stdin.close()
    return count


# --------------------------------------------------------------------- counting


def count_instructions(way: str) -> list[tuple[int, int]]:
    """Return for each run the number of calls and of instructions of the server.

    Raises:
        Failed: the server failed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        running: list[tuple[int, Target]] = []
        for calls, place in RUNS:
            command = serve_stdio() if way == "stdio" else script("core_path", None, way, str(calls))
            log = Path(folder) / f"log-{calls}"
            # After an interrupt, its last output is not needed.
            run = started([*FIXED, *VALGRIND, *command], place=place, log=log, patience=0)
            running.append((calls, stack.enter_context(run)))
        # While one is called, the other still starts, which takes longest.
        return [_instructions(way, calls, target) for calls, target in running]


def _instructions(way: str, calls: int, target: Target) -> tuple[int, int]:
    if way == "stdio":
        calls = talk(target, calls)
    code = target.process.wait()
    collected = re.search(r"Collected : (\d+)", target.output())
    if code or collected is None:
        raise Failed(f"{way} ended with {code}: {target.output()[-300:]}")
    return calls, int(collected[1])


def per_call(way: str) -> int:
    """Return the instructions of one call."""
    (few, less), (many, more) = count_instructions(way)
    return (more - less) // (many - few)


def read_record() -> tuple[str, dict[str, int]]:
    """Return the recorded counts and their Python version."""
    if not RECORD.exists():
        return platform.python_version(), {}
    record = json.loads(RECORD.read_text())
    return record["python"], record["per_call"]


def main() -> int:
    """Count, print old → new, and record with --write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions",
        description="Count the instructions of one call with callgrind; compare with the recorded counts. "
        "Differences below 1 % are noise; over stdio below 3 %.",
    )
    parser.add_argument(
        "ways",
        nargs="*",
        default=list(USUAL),
        metavar="WAY",
        help=f"one of {', '.join(WAYS)} (default: {', '.join(USUAL)})",
    )
    parser.add_argument("--write", action="store_true", help="record the counts")
    given = parser.parse_args()
    if unknown := set(given.ways) - set(WAYS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; available: {', '.join(WAYS)}")
    if shutil.which("valgrind") is None:
        print("valgrind is not installed; on Debian: apt-get install valgrind")
        return 2
    if "stdio" in given.ways:
        serve_stdio()  # fails early if the environment is missing
    python, before = read_record()
    now: dict[str, int] = {}
    print(f"Counting {FEW} and {MANY} calls under callgrind: about {SECONDS} seconds per line.\n")
    width = max(len(WAYS[way]) for way in given.ways)
    print(f"{'one call':{width}} {'recorded':>9} → {'now':>9}", flush=True)
    with frozen_source():
        for way in given.ways:
            now[way] = per_call(way)
            old = before.get(way)
            change = f"  {now[way] / old - 1:+.1%}" if old else ""
            print(f"{WAYS[way]:{width}} {f'{old:,}' if old else '–':>9} → {now[way]:>9,}{change}", flush=True)
    if python != platform.python_version():
        print(f"recorded with Python {python}: not comparable")
    if given.write:
        record = {"python": platform.python_version(), "per_call": {**before, **now}}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
