"""The skills in a folder: finds them, digests their files, and reads a file as it was digested.

Everything here blocks, and may be called from any thread. Serving is left to `toolpost.server.skills`.
"""

import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from toolpost.skills.manifest import (
    MAX_SKILL_BYTES,
    MAX_SKILL_FILES,
    SCHEME,
    SKILL_FILE,
    check_front_matter,
    digest_bytes,
    read_front_matter,
)
from toolpost.types.base import JSON
from toolpost.types.skills import Skill, SkillFile

logger: Final = logging.getLogger("toolpost.server")

READ_ATTEMPTS: Final = 3

_OPEN_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe in place of a file must not block
    | getattr(os, "O_BINARY", 0)
)

FileKey: TypeAlias = tuple[int, int, int]
"""Changes when a file does: time of modification, size, inode."""


class _Digest(NamedTuple):
    key: FileKey
    digest: str
    size: int


class SkillFolder:
    """The skills in a folder: each folder below it, and itself, that has a `SKILL.md`.

    Names that begin with a dot, and `__pycache__`, are left out silently. Left out with a warning are links
    that lead out of the folder, and what is not a file.

    Raises:
        ValueError: there is no such folder, no skill in it, or one is not valid; the message has its path.
        MCPError: PyYAML is not installed.
    """

    def __init__(self, folder: "str | os.PathLike[str]") -> None:
        self.root: Final = Path(folder).resolve()
        if not self.root.is_dir():
            raise ValueError(f"{folder}: not a folder")
        self._top = self.root.parent if (self.root / SKILL_FILE).is_file() else self.root
        self._lock = Lock()
        self._digests: dict[Path, _Digest] = {}
        self._reported: set[str] = set()
        self.skills: dict[str, Skill] = {}
        """The skills by URI."""
        self.paths: dict[str, Path] = {}
        """The files of all skills by URI."""
        for path, files in self._find_skills().items():
            self._add_skill(path, files, self.skills, self.paths)
        if not self.skills:
            raise ValueError(f"{folder}: no folder in it has a file {SKILL_FILE}")

    def refresh(self) -> None:
        """Look at all files again; digest those that have changed, leave out invalid skills."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        skills: dict[str, Skill] = {}
        paths: dict[str, Path] = {}
        try:
            found = self._find_skills()
        except OSError as error:
            found = {}
            self._report(f"skills cannot be read: {error}")
        for folder, files in found.items():
            try:
                self._add_skill(folder, files, skills, paths)
            except (OSError, ValueError) as error:
                self._report(f"a skill is left out: {error}")
        used = set(paths.values())
        self._digests = {path: known for path, known in self._digests.items() if path in used}
        if skills != self.skills:  # else the same object, so that a change is quickly seen
            self.skills, self.paths = skills, paths

    def read(self, uri: str) -> bytes | None:
        """Return the bytes of a file, which are those of its digest; None if no skill has it.

        Raises:
            OSError: the file changes all the time.
        """
        with self._lock:
            for _ in range(READ_ATTEMPTS):
                self._refresh()
                path = self.paths.get(uri)
                if path is None:
                    return None
                data, _key = _read_file(path)
                if digest_bytes(data) == self._digests[path].digest:
                    return data
                del self._digests[path]  # it changed, although its size and time did not
        raise OSError(errno.EBUSY, "the file changes while it is read", uri)

    # ----------------------------------------------------------------- finding

    def _find_skills(self) -> dict[Path, list[Path]]:
        """Return the folders of skills, with their files by path."""
        files = list(self._walk(self.root))
        folders = [each.parent for each in files if each.name == SKILL_FILE]
        return {folder: [each for each in files if each.is_relative_to(folder)] for folder in folders}

    def _walk(self, folder: Path) -> Iterator[Path]:
        """Yield the files below a folder that may be served."""
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: (entry.name != SKILL_FILE, entry.name))
        for entry in found:
            path = folder / entry.name
            if not _is_visible(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path)
            elif not entry.name.isprintable():
                self._report(f"{path!r} is left out: its name cannot be part of a URI")
            elif not self._is_inside(path) or not path.is_file():
                self._report(f"{path} is left out: it is not a file, or a link that leads out of {self.root}")
            else:
                yield path

    def _is_inside(self, path: Path) -> bool:
        """Return whether a path leads to a visible place in the folder."""
        target = Path(os.path.realpath(path))
        return target.is_relative_to(self.root) and all(map(_is_visible, target.relative_to(self.root).parts))

    def _report(self, message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            logger.warning("%s", message)

    # ----------------------------------------------------------------- digesting

    def _add_skill(
        self, folder: Path, files: list[Path], skills: dict[str, Skill], paths: dict[str, Path]
    ) -> None:
        """Add a skill to `skills`, and its files to `paths`. Raises ValueError if it is not valid."""
        if len(files) > MAX_SKILL_FILES:
            raise ValueError(f"{folder}: {len(files)} files (limit: {MAX_SKILL_FILES})")
        total = sum(path.stat().st_size for path in files)
        if total > MAX_SKILL_BYTES:
            raise ValueError(f"{folder}: {total} bytes (limit: {MAX_SKILL_BYTES})")
        uris = {self._make_uri(path): path for path in files}
        listed = [SkillFile(uri, *self._digest(path)[1:]) for uri, path in uris.items()]
        manifest = listed[0]
        known = self.skills.get(manifest.uri)
        if known is not None and known.files[0] == manifest:
            front = known.frontmatter
        else:
            front = _read_manifest(folder / SKILL_FILE, manifest.digest)
        skills[manifest.uri] = Skill(manifest.uri, front, listed)
        paths |= uris

    def _make_uri(self, path: Path) -> str:
        return SCHEME + "/".join(quote(part, safe="") for part in path.relative_to(self._top).parts)

    def _digest(self, path: Path) -> _Digest:
        """Return the digest of a file; it is computed again when the file changes."""
        known = self._digests.get(path)
        if known is None or known.key != _make_key(path.stat()):
            data, key = _read_file(path)
            known = self._digests[path] = _Digest(key, digest_bytes(data), len(data))
        return known


def _read_manifest(path: Path, digest: str) -> dict[str, JSON]:
    """Return the front matter of a `SKILL.md`. Raises ValueError, with the path, if it is not valid."""
    data, _ = _read_file(path)
    if digest_bytes(data) != digest:
        raise ValueError(f"{path}: it changes while it is read")
    try:
        front = read_front_matter(data.decode())
        check_front_matter(front, path.parent.name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return front


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__"


def _make_key(status: os.stat_result) -> FileKey:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_file(path: Path) -> tuple[bytes, FileKey]:
    """Return the bytes of a file and its key; it is read again if it changes meanwhile.

    Raises:
        OSError: it is not a file, is too large, or changes all the time.
    """
    for _ in range(READ_ATTEMPTS):
        with open(os.open(os.path.realpath(path), _OPEN_FLAGS), "rb") as file:  # noqa: PTH123 - a descriptor
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise OSError(errno.EINVAL, "it is not a file", str(path))
            data = file.read(MAX_SKILL_BYTES + 1)
            key = _make_key(os.fstat(file.fileno()))
        if _make_key(before) == key and len(data) == before.st_size:
            return data, key
    raise OSError(errno.EBUSY, "the file changes while it is read", str(path))
