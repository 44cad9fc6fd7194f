"""Storages of tokens: files that only their owner may read, memory, or an object of the user.

Locks let several processes share a token. Values are secrets, which are never logged.
"""

import asyncio
import hashlib
import inspect
import logging
import os
import secrets
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from toolpost.errors import AuthError

if sys.platform == "win32":  # pragma: no cover - no such machine here
    import msvcrt
else:
    import fcntl

MIN_LOCK_RETRY_DELAY: Final = 0.01  # seconds before a lock is tried again; doubled each time
MAX_LOCK_RETRY_DELAY: Final = 0.25  # seconds, the limit of that
MAX_FILE_BYTES: Final = 1024 * 1024  # that are read: a larger file is not ours

# Files are opened as bytes, without following a link or waiting for a FIFO.
_OPEN_FLAGS: Final[int] = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))
_OTHER_PLACE_HINT: Final = "choose another storage: storage=FileTokens(…), or storage=MemoryTokens()"

logger: Final = logging.getLogger("toolpost.auth")


@runtime_checkable
class Storage(Protocol):
    """A storage of strings by key. Methods may be sync or async; a sync one must not block for long.

    A storage with `lock(key)`, an async context manager, can be shared by several processes.
    """

    def get(self, key: str, /) -> "str | Awaitable[str | None] | None":
        """Return the stored string; None if there is none."""
        ...

    def put(self, key: str, value: str, /) -> "Awaitable[None] | None":
        """Store a string, which is a secret."""
        ...

    def delete(self, key: str, /) -> "Awaitable[None] | None":
        """Delete a string, if it exists."""
        ...


class MemoryTokens:
    """Stores tokens in the memory of the process.

    Examples:
        >>> client = Client("https://example.com/mcp", auth=OAuth(storage=MemoryTokens()))
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._locks: dict[str, threading.Lock] = {}

    def __repr__(self) -> str:
        return "MemoryTokens()"

    def get(self, key: str, /) -> str | None:
        """Return the stored string."""
        return self._values.get(key)

    def put(self, key: str, value: str, /) -> None:
        """Store a string."""
        self._values[key] = value

    def delete(self, key: str, /) -> None:
        """Delete a string."""
        self._values.pop(key, None)

    @asynccontextmanager
    async def lock(self, key: str, /) -> AsyncGenerator[None]:
        """Hold the lock of a key, against all threads and event loops."""
        lock = self._locks.setdefault(key, threading.Lock())
        await _poll_until(lambda: lock.acquire(blocking=False))
        try:
            yield
        finally:
            lock.release()


class FileTokens:
    """Stores each token in a file that only its owner may read.

    Args:
        folder: the folder; by default in the user's folder for state. A `~` is the user's home.

    Examples:
        >>> client = Client("https://example.com/mcp", auth=OAuth(storage=FileTokens("~/.notes/tokens")))
    """

    def __init__(self, folder: "str | os.PathLike[str] | None" = None) -> None:
        self.folder = Path(folder).expanduser() if folder is not None else default_folder()

    def __repr__(self) -> str:
        return f"FileTokens({str(self.folder)!r})"

    async def get(self, key: str, /) -> str | None:
        """Return the stored string."""
        return await asyncio.to_thread(self._read, key)

    async def put(self, key: str, value: str, /) -> None:
        """Store a string atomically."""
        await asyncio.to_thread(self._write, key, value)

    async def delete(self, key: str, /) -> None:
        """Delete a string."""
        await asyncio.to_thread(self._path(key).unlink, missing_ok=True)

    @asynccontextmanager
    async def lock(self, key: str, /) -> AsyncGenerator[None]:
        """Hold the lock of a key, against other processes and threads."""
        try:  # not in a thread: after a cancellation the file would stay open
            self._check_folder(create=True)
            descriptor = os.open(self._path(key, "lock"), os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600)
        except OSError as error:
            problem = f"{self.folder} cannot be used for tokens: {_describe_error(error)}"
            raise AuthError(problem, hint=_OTHER_PLACE_HINT) from error
        try:
            await _poll_until(lambda: _lock(descriptor))
            yield
        finally:
            os.close(descriptor)  # unlocks it; the file stays, or two processes could lock two files

    def _path(self, key: str, ending: str = "json") -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.{ending}"

    def _check_folder(self, *, create: bool = False) -> None:
        """Raise AuthError if other users can replace files in the folder."""
        if create:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.folder.stat()
        wrong = _find_permission_problem(found) if stat.S_ISDIR(found.st_mode) else None
        if wrong is not None:
            raise AuthError(
                f"the folder {self.folder} {wrong}, so no tokens are stored there",
                hint=f"chmod 700 {self.folder}, or use a private folder: storage=FileTokens(…)",
            )

    def _read(self, key: str) -> str | None:
        path = self._path(key)
        try:
            self._check_folder()
            descriptor = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
            try:
                found = os.fstat(descriptor)
                wrong = _find_permission_problem(found) if stat.S_ISREG(found.st_mode) else "is not a file"
                if wrong is None:
                    return os.read(descriptor, MAX_FILE_BYTES).decode()
            finally:
                os.close(descriptor)
            logger.warning("ignored %s, which %s; it will be replaced", path, wrong)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("could not read the tokens in %s: %s", path, _describe_error(error))
        return None

    def _write(self, key: str, value: str) -> None:
        path = self._path(key)
        new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            self._check_folder(create=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(value.encode())
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            problem = f"could not store the tokens in {self.folder}: {_describe_error(error)}"
            raise AuthError(problem, hint=_OTHER_PLACE_HINT) from error


def _find_permission_problem(found: os.stat_result) -> str | None:
    """Return why others can use a file or folder; None if they cannot."""
    if sys.platform == "win32":  # pragma: no cover - no such machine here
        return None
    if found.st_uid != os.geteuid():
        return "belongs to another user"
    if found.st_mode & 0o022:
        return "is writable by other users"
    return "is readable by other users" if found.st_mode & 0o077 else None


def _describe_error(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def default_folder() -> Path:
    """Return the default folder, in the user's folder for state."""
    if sys.platform == "win32":  # pragma: no cover - no such machine here
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":  # pragma: no cover - no such machine here
        base = str(Path.home() / "Library" / "Application Support")
    else:
        base = os.environ.get("XDG_STATE_HOME", "")
        if not Path(base).is_absolute():  # the standard says to ignore it
            base = str(Path.home() / ".local" / "state")
    return Path(base) / "toolpost" / "tokens"


def _lock(descriptor: int) -> bool:
    """Return whether a file could be locked."""
    try:
        if sys.platform == "win32":  # pragma: no cover - no such machine here
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


async def _poll_until(done: Callable[[], bool]) -> None:
    """Wait until a call returns True. A thread that waits for a lock could not be cancelled."""
    pause = MIN_LOCK_RETRY_DELAY
    while not done():
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_LOCK_RETRY_DELAY)


class ResilientStorage:
    """A storage of any kind, with async methods. Values that it fails to save stay in memory."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._memory = MemoryTokens()  # for locks, if the storage has none
        self._unsaved: dict[str, tuple[str | None, str | None]] = {}  # key → stored and actual value
        self._has_warned = False

    async def get(self, key: str) -> str | None:
        """Return a value. AuthError if the storage cannot be read."""
        found = await self._call(self._storage.get, key)
        found = found if isinstance(found, str) else None
        stored, value = self._unsaved.get(key, (found, found))
        if found == stored:
            return value
        del self._unsaved[key]  # another program has saved a newer value
        return found

    async def put(self, key: str, value: str) -> None:
        """Save a value, at least in memory: a lost refresh token cannot be replaced."""
        await self._save(key, value, self._storage.put, key, value)

    async def delete(self, key: str) -> None:
        """Delete a value, at least for this program."""
        await self._save(key, None, self._storage.delete, key)

    async def _save(self, key: str, value: str | None, method: Callable[..., Any], *arguments: str) -> None:
        try:
            await self._call(method, *arguments)
        except AuthError as error:
            self._warn(error)
            stored = None
            with suppress(AuthError):
                stored = await self._call(self._storage.get, key)
            self._unsaved[key] = stored, value
        else:
            self._unsaved.pop(key, None)

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock of a key, at least within this program."""
        lock = getattr(self._storage, "lock", self._memory.lock)
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(lock(key))
            except Exception as error:  # noqa: BLE001 - a storage may raise anything, and tokens are needed
                self._warn(error)
                await held.enter_async_context(self._memory.lock(key))
            yield

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            logger.warning("tokens are only kept in memory until the program ends: %s", error)
        self._has_warned = True

    async def _call(self, method: Callable[..., Any], *arguments: str) -> Any:
        try:
            given = method(*arguments)
            return await given if inspect.isawaitable(given) else given
        except AuthError:
            raise
        except Exception as error:
            problem = f"token storage {type(self._storage).__name__} failed: {type(error).__name__}"
            raise AuthError(problem, hint="see storage=") from error


def check_storage(given: object) -> None:
    """Check that an argument is a storage, or None."""
    if isinstance(given, type):
        raise TypeError(f"storage={given.__name__} is a class; pass an instance: {given.__name__}(…)")
    if given is not None and not isinstance(given, Storage):
        raise TypeError(
            f"storage must be FileTokens(folder), MemoryTokens(), or an object with get, put and delete, "
            f"not {type(given).__name__}"
        )
