"""Where tokens are stored between runs: in files that only their owner may read, in memory, or with the user.

Owns the interface, the locks that let several processes share a token, and what happens when a storage
fails. A value is a secret string, which is never logged.
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
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from toolpost.errors import AuthError

MIN_LOCK_RETRY_DELAY: Final = 0.01  # seconds before a lock is tried again; they grow
MAX_LOCK_RETRY_DELAY: Final = 0.25  # seconds to which that grows
MAX_FILE_BYTES: Final = 1024 * 1024  # bytes of a file that is read: what is larger is not ours

# Files are opened as bytes, without following a link, and without waiting, as for a FIFO.
_OPEN_FLAGS: Final[int] = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))
_OTHER_PLACE_HINT: Final = "give another place: storage=FileTokens(…), or storage=MemoryTokens()"

logger: Final = logging.getLogger("toolpost.auth")


@runtime_checkable
class Storage(Protocol):
    """Keeps texts by keys. Methods may be sync or async; a sync one must not block for long.

    One that also has `lock(key)`, an async context manager, can be shared by several processes.
    """

    def get(self, key: str, /) -> "str | Awaitable[str | None] | None":
        """The text that was kept; None if there is none."""
        ...

    def put(self, key: str, value: str, /) -> "Awaitable[None] | None":
        """Keep a text. It is a secret."""
        ...

    def delete(self, key: str, /) -> "Awaitable[None] | None":
        """Forget a text; nothing happens if there is none."""
        ...


class MemoryTokens:
    """Keeps tokens as long as the process lives.

    Examples:
        >>> client = Client("https://example.com/mcp", auth=OAuth(storage=MemoryTokens()))
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._locks: dict[str, threading.Lock] = {}

    def __repr__(self) -> str:
        return "MemoryTokens()"

    def get(self, key: str, /) -> str | None:
        """The text that was kept."""
        return self._values.get(key)

    def put(self, key: str, value: str, /) -> None:
        """Keep a text."""
        self._values[key] = value

    def delete(self, key: str, /) -> None:
        """Forget a text."""
        self._values.pop(key, None)

    @asynccontextmanager
    async def lock(self, key: str, /) -> AsyncGenerator[None]:
        """Keep others out, in whichever thread and loop they are."""
        lock = self._locks.setdefault(key, threading.Lock())
        await _poll_until(lambda: lock.acquire(blocking=False))
        try:
            yield
        finally:
            lock.release()


class FileTokens:
    """Keeps each text in a file of its own, which only its owner may read.

    Args:
        folder: where; by default in the user's folder for state. A `~` is the user's home.

    Examples:
        >>> client = Client("https://example.com/mcp", auth=OAuth(storage=FileTokens("~/.notes/tokens")))
    """

    def __init__(self, folder: "str | os.PathLike[str] | None" = None) -> None:
        self.folder = Path(folder).expanduser() if folder is not None else default_folder()

    def __repr__(self) -> str:
        return f"FileTokens({str(self.folder)!r})"

    async def get(self, key: str, /) -> str | None:
        """The text that was kept."""
        return await asyncio.to_thread(self._read, key)

    async def put(self, key: str, value: str, /) -> None:
        """Keep a text: whole or not at all, whatever happens meanwhile."""
        await asyncio.to_thread(self._write, key, value)

    async def delete(self, key: str, /) -> None:
        """Forget a text."""
        await asyncio.to_thread(self._path(key).unlink, missing_ok=True)

    @asynccontextmanager
    async def lock(self, key: str, /) -> AsyncGenerator[None]:
        """Keep other processes out, and other threads of this one."""
        descriptor = self._open_lock(key)  # in no thread: a cancelled one would leave it open
        try:
            await _poll_until(lambda: _lock(descriptor))
            yield
        finally:
            os.close(descriptor)  # which unlocks it; the file stays, or two could hold locks of one name

    def _path(self, key: str, ending: str = "json") -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.{ending}"

    def _check_folder(self, *, create: bool = False) -> None:
        """Raise AuthError if others can exchange what is in the folder."""
        if create:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.folder.stat()
        wrong = _find_permission_problem(found) if stat.S_ISDIR(found.st_mode) else None
        if wrong is not None:
            raise AuthError(
                f"the folder {self.folder} {wrong}, so no tokens are kept there",
                hint=f"chmod 700 {self.folder}, or give a folder that is only yours: storage=FileTokens(…)",
            )

    def _read(self, key: str) -> str | None:
        path = self._path(key)
        try:
            self._check_folder()
            with ExitStack() as stack:
                descriptor = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
                stack.callback(os.close, descriptor)
                found = os.fstat(descriptor)
                wrong = _find_permission_problem(found) if stat.S_ISREG(found.st_mode) else "is no file"
                if wrong is None:
                    file = stack.enter_context(open(descriptor, "rb", closefd=False))
                    return file.read(MAX_FILE_BYTES).decode()
            logger.warning("%s %s and is not used; it is written anew", path, wrong)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("the tokens in %s cannot be read: %s", path, _describe_error(error))
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
            problem = f"the tokens cannot be kept in {self.folder}: {_describe_error(error)}"
            raise AuthError(problem, hint=_OTHER_PLACE_HINT) from error

    def _open_lock(self, key: str) -> int:
        try:
            self._check_folder(create=True)
            return os.open(self._path(key, "lock"), os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600)
        except OSError as error:
            problem = f"{self.folder} cannot be used for tokens: {_describe_error(error)}"
            raise AuthError(problem, hint=_OTHER_PLACE_HINT) from error


def _find_permission_problem(found: os.stat_result) -> str | None:
    """Return why a file or folder is not only ours; None if it is."""
    if sys.platform == "win32":  # pragma: no cover - no such machine here
        return None
    if found.st_uid != os.geteuid():
        return "belongs to somebody else"
    if found.st_mode & 0o022:
        return "can be written by others"
    return "can be read by others" if found.st_mode & 0o077 else None


def _describe_error(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def default_folder() -> Path:
    """Return the folder for state of this user's programs."""
    if sys.platform == "win32":  # pragma: no cover - no such machine here
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":  # pragma: no cover - no such machine here
        base = str(Path.home() / "Library" / "Application Support")
    else:
        base = os.environ.get("XDG_STATE_HOME", "")
        if not Path(base).is_absolute():  # which the standard wants to be ignored
            base = str(Path.home() / ".local" / "state")
    return Path(base) / "toolpost" / "tokens"


if sys.platform == "win32":  # pragma: no cover - no such machine here
    import msvcrt

    def _lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


async def _poll_until(done: Callable[[], bool]) -> None:
    """Try until it succeeds. A thread that waits for a lock could not be cancelled."""
    pause = MIN_LOCK_RETRY_DELAY
    while not done():
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_LOCK_RETRY_DELAY)


class ResilientStorage:
    """Any storage behind async methods. What it fails to save stays in memory; the log says so once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._memory = MemoryTokens()  # for locks, if the storage has none
        self._unsaved: dict[str, tuple[str | None, str | None]] = {}  # what it has, what it should have
        self._has_warned = False

    async def get(self, key: str) -> str | None:
        """Return a value. A storage that cannot be read raises AuthError."""
        found = await self._call(self._storage.get, key)
        found = found if isinstance(found, str) else None
        instead_of, value = self._unsaved.get(key, (found, found))
        if found == instead_of:
            return value
        del self._unsaved[key]  # another program has saved something newer
        return found

    async def put(self, key: str, value: str) -> None:
        """Save a value, in memory at least: a token that is lost cannot be had again."""
        await self._save(key, value, self._storage.put, key, value)

    async def delete(self, key: str) -> None:
        """Delete a value, for this program at least."""
        await self._save(key, None, self._storage.delete, key)

    async def _save(self, key: str, value: str | None, method: Callable[..., Any], *arguments: str) -> None:
        try:
            await self._call(method, *arguments)
        except AuthError as error:
            self._warn(error)
            instead_of = None
            with suppress(AuthError):
                instead_of = await self._call(self._storage.get, key)
            self._unsaved[key] = instead_of, value
        else:
            self._unsaved.pop(key, None)

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncGenerator[None]:
        """Keep others out, those in this program at least."""
        lock = getattr(self._storage, "lock", self._memory.lock)
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(lock(key))
            except Exception as error:  # noqa: BLE001 - whatever a storage raises, tokens are needed
                self._warn(error)
                await held.enter_async_context(self._memory.lock(key))
            yield

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            logger.warning("tokens are kept in memory only, until the program ends: %s", error)
        self._has_warned = True

    async def _call(self, method: Callable[..., Any], *arguments: str) -> Any:
        try:
            given = method(*arguments)
            return await given if inspect.isawaitable(given) else given
        except AuthError:
            raise
        except Exception as error:
            kind = type(self._storage).__name__
            raise AuthError(
                f"{kind}, which keeps tokens, failed: {type(error).__name__}", hint="see storage="
            ) from error


def check_storage(given: object) -> None:
    """Check that an argument can keep tokens, or is None."""
    if isinstance(given, type):
        raise TypeError(f"storage={given.__name__}: this is a class; make one of it: {given.__name__}(…)")
    if given is not None and not isinstance(given, Storage):
        raise TypeError(
            f"storage: FileTokens(folder), MemoryTokens(), or an object with get, put and delete, "
            f"not a {type(given).__name__}"
        )
