"""The house rule about size: lines per package, modules per folder, and the totals.

Has the table of budgets, and counts lines of any kind. The length of a single module is another rule.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from tree import File, Finding, Tree

__all__ = ["budget", "report"]

# These numbers may only go down. When a package has shrunk, lower its number to its new size. When a change
# does not fit, make room first: remove what is not needed, merge what is there twice.

MAX_LINES: Final = {
    ".": 2_193,
    "auth": 4_480,
    "cli": 7_239,
    "client": 6_676,
    "protocol": 4_919,
    "server": 9_719,
    "server/http": 4_404,
    "stores": 406,
    "testing": 2_887,
    "transports": 4_152,
    "types": 1_400,
}
"""Folder of `src/toolpost` → lines of all that is in it, but for subfolders with a number of their own."""

MAX_ALL_LINES: Final = 48_475
MAX_FOLDER_MODULES: Final = 20
MAX_ALL_MODULES: Final = 201

ROOT: Final = "src/toolpost/"


def budget(tree: Tree) -> Iterator[Finding]:
    """A package stays within its lines, a folder within its modules, and so does the whole."""
    for name, files in _packages(tree).items():
        largest = max(files, key=_lines)
        if name not in MAX_LINES:
            yield largest.find(1, f"package `{name}` has no budget; give it one in dev/budget.py")
        elif (lines := sum(map(_lines, files))) > MAX_LINES[name]:
            yield largest.find(
                1, f"package `{name}`: {lines} lines, {MAX_LINES[name]} are its budget; make room, begin here"
            )
    for files in _folders(tree).values():
        for file in files[MAX_FOLDER_MODULES:]:
            yield file.find(
                1,
                f"module {len(files)} of its folder, {MAX_FOLDER_MODULES} are the limit; merge, or split it",
            )
    everything = _modules(tree)
    lines, modules = sum(map(_lines, everything)), sum(map(len, _folders(tree).values()))
    if lines > MAX_ALL_LINES:
        yield Finding(ROOT, 1, f"{lines} lines in all, {MAX_ALL_LINES} are the budget; make room")
    if modules > MAX_ALL_MODULES:
        yield Finding(ROOT, 1, f"{modules} modules in all, {MAX_ALL_MODULES} are the limit; merge small ones")


def report(tree: Tree) -> Iterator[str]:
    """The table of sizes, line by line; nothing if there are no modules."""
    packages = _packages(tree)
    if packages:
        yield f"{'package':<14}{'lines':>8}{'budget':>8}{'modules':>9}"
    for name, files in sorted(packages.items()):
        yield _row(name, sum(map(_lines, files)), MAX_LINES.get(name, 0), _count(files))
    if packages:
        everything = _modules(tree)
        yield _row("all", sum(map(_lines, everything)), MAX_ALL_LINES, _count(everything))


def _row(name: str, lines: int, most: int, modules: int) -> str:
    return f"{name:<14}{lines:>8,}{most:>8,}{modules:>9}"


def _modules(tree: Tree) -> list[File]:
    return [file for file in tree.source if file.path.startswith(ROOT)]


def _packages(tree: Tree) -> dict[str, list[File]]:
    """The files of each package that has a budget, or needs one."""
    packages: dict[str, list[File]] = {}
    for file in _modules(tree):
        folder = str(PurePosixPath(file.path.removeprefix(ROOT)).parent)
        name = folder if folder in MAX_LINES else folder.partition("/")[0]
        packages.setdefault(name, []).append(file)
    return packages


def _folders(tree: Tree) -> dict[str, list[File]]:
    """The modules of each folder; `__init__` says what the folder is, and does not count."""
    folders: dict[str, list[File]] = {}
    for file in _modules(tree):
        if file.stem != "__init__":
            folders.setdefault(str(PurePosixPath(file.path).parent), []).append(file)
    return folders


def _count(files: list[File]) -> int:
    return sum(file.stem != "__init__" for file in files)


def _lines(file: File) -> int:
    return len(file.text.splitlines())
