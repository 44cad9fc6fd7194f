"""Fuzzes all targets, or the named ones: `python -m fuzz [--seconds N] [TARGET ...]`.

Runs two at a time, each in its own process. Prints a line per target; the exit code is 1 after a crash.
"""

import argparse
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from fuzz.kept import CRASHES, FOUND
from fuzz.targets import TARGETS

AT_ONCE: Final = 2
"""Concurrent targets: one per core of a small machine."""
SHOWN: Final = 40
"""Lines of the log to show after a crash."""


class Hunt(NamedTuple):
    """The result of one target."""

    name: str
    executions: int
    coverage: int
    inputs: int
    broken: bool
    log: Path

    def __str__(self) -> str:
        word = "BROKEN" if self.broken else "ok"
        return f"{self.name:12}{self.executions:>14,}{self.coverage:>10}{self.inputs:>9}  {word}"


def _last(pattern: str, text: str) -> int:
    """Return the last number of this kind in libFuzzer's output."""
    return int((re.findall(pattern, text) or ["0"])[-1])


def _hunt(seconds: int, crashes: Path, name: str) -> Hunt:
    FOUND.mkdir(parents=True, exist_ok=True)
    log = FOUND / f"{name}.log"
    command = [sys.executable, "-m", "fuzz.hunt", name, str(seconds), str(crashes / name)]
    with log.open("wb") as output:
        broken = subprocess.run(command, check=False, stdout=output, stderr=output).returncode != 0
    text = log.read_text(encoding="utf-8", errors="replace")
    done = _last(r"stat::number_of_executed_units: (\d+)", text) or _last(r"(?m)^#(\d+)\t", text)
    return Hunt(name, done, _last(r"cov: (\d+)", text), _last(r"corp: (\d+)", text), broken, log)


def main() -> int:
    """Fuzz, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Coverage-guided fuzzing.")
    parser.add_argument("targets", nargs="*", help=f"one or more of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="seconds per target (default: 60)")
    parser.add_argument("--crashes", type=Path, default=CRASHES, help="folder for inputs that crash a target")
    chosen = parser.parse_args()
    if find_spec("atheris") is None:
        parser.error("atheris is not installed; it requires Linux on x86-64 and Python 3.11 to 3.13")
    print(f"{'target':12}{'executions':>14}{'coverage':>10}{'inputs':>9}", flush=True)
    hunts: list[Hunt] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for hunt in pool.map(partial(_hunt, chosen.seconds, chosen.crashes), chosen.targets or TARGETS):
            print(hunt, flush=True)
            hunts.append(hunt)
    for hunt in hunts:
        if hunt.broken:
            tail = hunt.log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN:]
            print(f"\n{hunt.name}, the end of {hunt.log}:", *tail, sep="\n")
    return any(hunt.broken for hunt in hunts)


if __name__ == "__main__":
    sys.exit(main())
