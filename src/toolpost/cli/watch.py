"""Files that may change: how each looked when it was last looked at.

Owns the looks. Nothing here waits, and what a change means is not known.
"""

import os
from collections.abc import Iterable, Mapping
from stat import S_ISDIR
from typing import TypeAlias

__all__ = ["FileState", "FileWatcher", "read_file_state"]

FileState: TypeAlias = tuple[int, int, int] | frozenset[str] | None
"""When a file was changed, its size and its number; the names in a folder; None if there is nothing."""


class FileWatcher:
    """Some files and folders."""

    def __init__(self) -> None:
        self._states: dict[str, FileState] = {}

    def follow(self, paths: Iterable[str], looks: Mapping[str, FileState]) -> None:
        """Look at these from here on. What was looked at before is compared with how it was then.

        Args:
            paths: the files and folders.
            looks: how some of them were when somebody else looked at them.
        """
        known = {**looks, **self._states}
        self._states = {path: known[path] if path in known else read_file_state(path) for path in paths}

    def poll_changes(self) -> set[str]:
        """Those that look different than the last time, or have gone, or have come."""
        now = {path: read_file_state(path) for path in self._states}
        before, self._states = self._states, now
        return {path for path, seen in now.items() if seen != before[path]}


def read_file_state(path: str) -> FileState:
    """How a file or folder is now."""
    try:
        found = os.stat(path)  # noqa: PTH116 - often, for many files
        if S_ISDIR(found.st_mode):
            return frozenset(os.listdir(path))  # noqa: PTH208 - what comes and goes again is no change
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
