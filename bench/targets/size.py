"""Bytes that installing something brings, all that it needs included: `size.py NAME [EXTRA]`.

Counts the files of the packages as their metadata list them, without bytecode. Runs in the environment that
is looked at, with nothing but the standard library.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
NAME = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?")


def _needed(package: Distribution, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """What a package requires; who is not installed here was not required here."""
    found: list[tuple[str, frozenset[str]]] = []
    for requirement in package.requires or ():
        told, _, marker = requirement.partition(";")
        wanted = EXTRA.search(marker)
        named = NAME.match(told)
        if named and (wanted is None or wanted[1] in extras):
            found.append((named[1], frozenset((named[2] or "").split(",")) - {""}))
    return found


def _size(package: Distribution) -> int:
    files = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())


def main(name: str, *extras: str) -> int:
    """The sum."""
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
