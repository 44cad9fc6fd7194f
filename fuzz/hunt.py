"""Fuzzes one target with atheris: `python -m fuzz.hunt TARGET SECONDS CRASHES`.

Starts from the corpus and from the inputs of earlier runs. Ends after the time, or at the first crash, and
writes its input to the folder CRASHES.
"""

import sys
from pathlib import Path
from typing import Any, Final

import atheris  # pyright: ignore[reportMissingTypeStubs] - it has none

from fuzz.kept import CORPUS, CRASHES, FOUND, inputs
from fuzz.mutation import MAX_SIZE, Mutator
from fuzz.targets import load

TIME_LIMIT: Final = 20
"""Seconds for one input. Linear work needs less than 0.01 s."""
MEMORY_LIMIT: Final = 1024
"""Memory limit in MiB."""


def main(name: str, seconds: str, crashes: str) -> None:
    """Fuzz, and end the process."""
    libfuzzer: Any = atheris
    with libfuzzer.instrument_imports(include=["toolpost"]):
        target = load(name)
    mutator = Mutator(target.tokens, inputs(name))

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        mutator.dice.seed(seed)
        if seed % 2:
            return libfuzzer.Mutate(data, size)
        return mutator.mutate(data)[:size]

    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    Path(crashes).mkdir(parents=True, exist_ok=True)
    folders = [found, *(folder / name for folder in (CORPUS, CRASHES) if (folder / name).is_dir())]
    flags = {
        "max_total_time": seconds,
        "max_len": MAX_SIZE,
        "timeout": TIME_LIMIT,
        "report_slow_units": TIME_LIMIT,
        "rss_limit_mb": MEMORY_LIMIT,
        "artifact_prefix": f"{crashes}/",
        "print_final_stats": 1,
    }
    arguments = [name, *(f"-{flag}={value}" for flag, value in flags.items()), *map(str, folders)]
    libfuzzer.Setup(arguments, target.run, custom_mutator=mutate)
    libfuzzer.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
