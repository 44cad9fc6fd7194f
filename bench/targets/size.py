"""Prints the installed size of a package with its dependencies, in bytes: `size.py NAME [EXTRA]`.

Counts the files that the metadata list, without bytecode. Runs in the measured environment, with the standard
library alone.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
NAME = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?")


def _needed(package: Distribution, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """Return the requirements of a package. Some may not be installed, because they do not apply here."""
    found: list[tuple[str, frozenset[str]]] = []
    for requirement in package.requires or ():
        name, _, marker = requirement.partition(";")
        wanted = EXTRA.search(marker)
        named = NAME.match(name)
        if named and (wanted is None or wanted[1] in extras):
            found.append((named[1], frozenset((named[2] or "").split(",")) - {""}))
    return found


def _size(package: Distribution) -> int:
    files = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())


def main(name: str, *extras: str) -> int:
    """Return the total size."""
    waiting, seen, total = [(name, frozenset(extras))], set[tuple[str, frozenset[str]]](), 0
    counted: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            package = distribution(wanted[0])
        except PackageNotFoundError:
            continue
        if package.name not in counted:
            counted.add(package.name)
            total += _size(package)
        waiting += _needed(package, wanted[1])
    return total


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
