"""Instructions that one call takes, counted by callgrind: the same on a busy machine as on a quiet one.

`python -m bench.instructions [--write] [WAY ...]` counts two runs that differ in their calls only, divides,
and prints what was recorded beside what is. `--write` records it in `instructions.json`. Less than a percent
says nothing; over stdio less than three, because who reads how much at a time is a matter of luck.
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

from bench.command import exit_code, python_shown
from bench.contenders import CONTENDERS, script
from bench.figures import OURS
from bench.over_stdio import Pipe
from bench.process import Failed, Place, Target, frozen_source, started
from bench.targets import ways

__all__ = ["RECORD", "WAYS", "serve_stdio", "talk"]

RECORD: Final = Path(__file__).with_name("instructions.json")
IN_FLIGHT: Final = 16
"""Calls over stdio that wait for their answers."""

FEW: Final = 200
MANY: Final = 800
"""Calls; the first hundred or so are slower, because the interpreter adapts to them."""

SECONDS: Final = 20
"""What a way takes, more or less: a program starts slowly under callgrind."""

RUNS: Final[tuple[tuple[int, Place], ...]] = ((FEW, "target"), (MANY, "load"))
"""Both runs of a way, at the same time: instructions are the same on any core."""

WAYS: Final = {name: f"ASGI, {way.title}" for name, way in ways.WAYS.items()} | {
    "stdio": f"stdio, {IN_FLIGHT} in flight"
}
USUAL: Final = ("stateless", "stateless-context", "session", "session-context", "session-progress-1", "stdio")
"""What is counted unless ways are named."""

VALGRIND: Final = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
FIXED: Final = ("env", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1")


# --------------------------------------------------------------------- over stdio


def serve_stdio() -> list[str]:
    """The command that serves over stdio.

    Raises:
        Failed: its environment was never made.
    """
    python, *serve = CONTENDERS[OURS].stdio()
    if not Path(python).exists():
        name = Path(python).parent.parent.name
        make = f"{python_shown()} interop/environments.py {name}"
        raise Failed(
            f"stdio is served from the environment `{name}`, which is not there; make it by `{make}`"
        )
    return [python, *serve]


def talk(target: Target, calls: int) -> int:
    """Have a conversation over stdio, and end it; how many calls there were.

    Raises:
        Failed: it did not answer.
    """
    assert target.process.stdin is not None
    pipe = Pipe(target)
    try:
        pipe.greet()
        count = pipe.calls(calls, IN_FLIGHT)
    except BrokenPipeError as error:
        raise Failed(f"it has ended instead of listening: {target.complaint()}") from error
    target.process.stdin.close()
    return count


# --------------------------------------------------------------------- counting


def counted(way: str) -> list[tuple[int, int]]:
    """For each run, how many calls there were, and the instructions of the process that served them.

    Raises:
        Failed: it did not.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
        running: list[tuple[int, Target]] = []
        for calls, place in RUNS:
            command = serve_stdio() if way == "stdio" else script("core_path", None, way, str(calls))
            log = Path(folder) / f"log-{calls}"
            # Whoever is interrupted has no use for its last words.
            run = started([*FIXED, *VALGRIND, *command], place=place, log=log, patience=0)
            running.append((calls, stack.enter_context(run)))
        # While one is talked to, the other one still starts, which takes the longest.
        return [_instructions(way, calls, target) for calls, target in running]


def _instructions(way: str, calls: int, target: Target) -> tuple[int, int]:
    if way == "stdio":
        calls = talk(target, calls)
    code = target.process.wait()
    told = re.search(r"Collected : (\d+)", target.output())
    if code or told is None:
        raise Failed(f"{way} ended with {code}: {target.output()[-300:]}")
    return calls, int(told[1])


def per_call(way: str) -> int:
    """Instructions of one call."""
    (few, less), (many, more) = counted(way)
    return (more - less) // (many - few)


def recorded() -> tuple[str, dict[str, int]]:
    """What was counted before, and with which Python."""
    if not RECORD.exists():
        return platform.python_version(), {}
    told = json.loads(RECORD.read_text())
    return told["python"], told["per_call"]


def main() -> int:
    """Count, print old → new, and record if told to."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions",
        description="Instructions that one call takes, by callgrind, beside those on record. "
        "Less than a percent says nothing; over stdio less than three.",
    )
    parser.add_argument(
        "ways",
        nargs="*",
        default=list(USUAL),
        metavar="WAY",
        help=f"of {', '.join(WAYS)}; if none is named, {', '.join(USUAL)}",
    )
    parser.add_argument("--write", action="store_true", help="record what was counted")
    given = parser.parse_args()
    if unknown := set(given.ways) - set(WAYS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    if shutil.which("valgrind") is None:
        print("valgrind is not installed; Debian has it as `valgrind`")
        return 2
    if "stdio" in given.ways:
        serve_stdio()  # what is missing is told before anything is counted
    python, before = recorded()
    now: dict[str, int] = {}
    print(f"Counts {FEW} calls and {MANY} under callgrind: about {SECONDS} seconds for each of the lines.\n")
    width = max(len(WAYS[way]) for way in given.ways)
    print(f"{'one call':{width}} {'recorded':>9} → {'now':>9}", flush=True)
    with frozen_source():
        for way in given.ways:
            now[way] = per_call(way)
            old = before.get(way)
            change = f"  {now[way] / old - 1:+.1%}" if old else ""
            print(f"{WAYS[way]:{width}} {f'{old:,}' if old else '–':>9} → {now[way]:>9,}{change}", flush=True)
    if python != platform.python_version():
        print(f"recorded with Python {python}: the two cannot be compared")
    if given.write:
        kept = {"python": platform.python_version(), "per_call": {**before, **now}}
        RECORD.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
