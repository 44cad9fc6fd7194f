"""The house rule about size: lines per package, modules per folder, and the totals.

Defines the table of budgets, and counts all lines. The length of a single module is another rule.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from tree import File, Finding, Tree

__all__ = ["budget", "report"]

# Only ever lower these numbers. When a package has shrunk, lower its budget to its new size. When a change
# does not fit, make room first: remove unused code, merge duplicates.

MAX_LINES: Final = {
    ".": 2_374,
    "auth": 4_210,
    "auth/provider": 1_710,
    "cli": 6_750,
    "client": 6_993,
    "gateway": 4_692,
    "protocol": 4_956,
    "server": 10_858,
    "server/http": 4_330,
    "skills": 409,
    "stores": 1_309,
    "tasks": 1_731,
    "telemetry": 635,
    "testing": 2_715,
    "transports": 3_618,
    "types": 1_345,
}
"""Folder of `src/toolpost` → its lines, without subfolders that have their own budget."""

MAX_ALL_LINES: Final = 58_635
MAX_FOLDER_MODULES: Final = 20
MAX_ALL_MODULES: Final = 247

ROOT: Final = "src/toolpost/"


def budget(tree: Tree) -> Iterator[Finding]:
    """Report packages with too many lines, folders with too many modules, and totals over budget."""
    for name, files in _packages(tree).items():
        largest = max(files, key=_lines)
        if name not in MAX_LINES:
            yield largest.find(1, f"package `{name}` has no budget; add one in dev/budget.py")
        elif (lines := sum(map(_lines, files))) > MAX_LINES[name]:
            yield largest.find(
                1, f"package `{name}`: {lines} lines (budget: {MAX_LINES[name]}); make room, start here"
            )
    for files in _folders(tree).values():
        for file in files[MAX_FOLDER_MODULES:]:
            yield file.find(
                1,
                f"the folder has {len(files)} modules (limit: {MAX_FOLDER_MODULES}); merge some, or split it",
            )
    everything = _modules(tree)
    lines, modules = sum(map(_lines, everything)), sum(map(len, _folders(tree).values()))
    if lines > MAX_ALL_LINES:
        yield Finding(ROOT, 1, f"{lines} lines in total (budget: {MAX_ALL_LINES}); make room")
    if modules > MAX_ALL_MODULES:
        yield Finding(ROOT, 1, f"{modules} modules in total (limit: {MAX_ALL_MODULES}); merge small ones")


def report(tree: Tree) -> Iterator[str]:
    """Yield the table of sizes line by line; nothing if there are no modules."""
    packages = _packages(tree)
    if packages:
        yield f"{'package':<14}{'lines':>8}{'budget':>8}{'modules':>9}"
    for name, files in sorted(packages.items()):
        yield _row(name, sum(map(_lines, files)), MAX_LINES.get(name, 0), _count(files))
    if packages:
        everything = _modules(tree)
        yield _row("total", sum(map(_lines, everything)), MAX_ALL_LINES, _count(everything))


def _row(name: str, lines: int, most: int, modules: int) -> str:
    return f"{name:<14}{lines:>8,}{most:>8,}{modules:>9}"


def _modules(tree: Tree) -> list[File]:
    return [file for file in tree.source if file.path.startswith(ROOT)]


def _packages(tree: Tree) -> dict[str, list[File]]:
    """Group the files by package."""
    packages: dict[str, list[File]] = {}
    for file in _modules(tree):
        folder = str(PurePosixPath(file.path.removeprefix(ROOT)).parent)
        name = folder if folder in MAX_LINES else folder.partition("/")[0]
        packages.setdefault(name, []).append(file)
    return packages


def _folders(tree: Tree) -> dict[str, list[File]]:
    """Group the modules by folder, without `__init__`."""
    folders: dict[str, list[File]] = {}
    for file in _modules(tree):
        if file.stem != "__init__":
            folders.setdefault(str(PurePosixPath(file.path).parent), []).append(file)
    return folders


def _count(files: list[File]) -> int:
    return sum(file.stem != "__init__" for file in files)


def _lines(file: File) -> int:
    return len(file.text.splitlines())
