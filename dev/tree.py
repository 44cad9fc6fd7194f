"""The text files of a repository for the house rules: path, text, syntax tree.

Uses the list of files from git. The rules are in `house`, `budget` and `pages`.
"""

import ast
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["File", "Finding", "Tree"]

NOT_OURS: Final = frozenset({"__pycache__", "build", "dist", "site"})
"""Generated folders. Skipped, like hidden ones, if git is not available."""


class Finding(NamedTuple):
    """A violation of a rule, and how to fix it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class File:
    """A text file, parsed on demand."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of a Python file."""
        return ast.parse(self.text, self.path)

    @property
    def stem(self) -> str:
        """The name of the file without folder and extension."""
        return Path(self.path).stem

    def find(self, line: int, text: str) -> Finding:
        """Create a finding in this file."""
        return Finding(self.path, line, text)


class Tree:
    """The text files of a repository.

    Args:
        root: its folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.files = [
            File(path, text) for path in _paths(self.root) if (text := _text(self.root / path)) is not None
        ]

    @property
    def python(self) -> list[File]:
        """All Python files."""
        return [file for file in self.files if file.path.endswith(".py")]

    @property
    def source(self) -> list[File]:
        """The Python files that are shipped."""
        return [file for file in self.python if file.path.startswith("src/")]

    @property
    def pages(self) -> list[File]:
        """The Markdown files."""
        return [file for file in self.files if file.path.endswith(".md")]


def _paths(root: Path) -> list[str]:
    """Return tracked and addable files; without git, all files except hidden and generated ones."""
    git = shutil.which("git")
    if git:
        command = [git, "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, check=False, capture_output=True)
        if listed.returncode == 0:
            paths = set(listed.stdout.decode().split("\0"))
            return sorted(path for path in paths if (root / path).is_file())
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.startswith(".")]
        found += [Path(folder, name).relative_to(root).as_posix() for name in names]
    return sorted(found)


def _text(path: Path) -> str | None:
    """Return the text of a file, or None for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
