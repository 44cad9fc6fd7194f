"""A storage of anybody's, asked in one way, and what is done when it fails.

Owns what a storage could not keep, forget or lock, as long as the program runs. Texts are secrets, and not
looked at.
"""

import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

from toolpost.auth.storage import MemoryTokens, Storage
from toolpost.errors import AuthError

__all__ = ["Vault"]

logger: Final = logging.getLogger("toolpost.auth")


class Vault:
    """A storage of anybody's, asked in one way. What it cannot do is done in memory; the log says so once.

    Args:
        storage: the storage.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._spare = MemoryTokens()  # its locks, where the storage has none
        self._unkept: dict[str, tuple[str | None, str | None]] = {}  # what it has, and what it should have
        self._warned = False

    async def get(self, key: str) -> str | None:
        """The text that was kept.

        Raises:
            AuthError: the storage cannot say.
        """
        found = await self._call_storage(lambda: self._storage.get(key))
        found = found if isinstance(found, str) else None
        if key in self._unkept:
            instead, unkept = self._unkept[key]
            if found == instead:
                return unkept
            del self._unkept[key]  # somebody else has kept something newer
        return found

    async def put(self, key: str, value: str) -> None:
        """Keep a text: in memory at least, for a token that is lost cannot be had again."""
        try:
            await self._call_storage(lambda: self._storage.put(key, value))
        except AuthError as error:
            await self._remember(key, value, error)
        else:
            self._unkept.pop(key, None)

    async def delete(self, key: str) -> None:
        """Forget a text; for this program at least."""
        try:
            await self._call_storage(lambda: self._storage.delete(key))
        except AuthError as error:
            await self._remember(key, None, error)
        else:
            self._unkept.pop(key, None)

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncGenerator[None]:
        """Keep others out; those in this program at least."""
        lock = getattr(self._storage, "lock", self._spare.lock)
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(lock(key))
            except Exception as error:  # noqa: BLE001 - whatever a storage raises, tokens are needed
                self._warn(error)
                await held.enter_async_context(self._spare.lock(key))
            yield

    async def _remember(self, key: str, value: str | None, error: AuthError) -> None:
        self._warn(error)
        instead = None
        with suppress(AuthError):
            instead = await self._call_storage(lambda: self._storage.get(key))
        self._unkept[key] = instead, value

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            logger.warning("tokens are kept in memory only, until the program ends: %s", error)
        self._warned = True

    async def _call_storage(self, ask: Callable[[], Any]) -> Any:
        try:
            given = ask()
            return await given if inspect.isawaitable(given) else given
        except AuthError:
            raise
        except Exception as error:
            kind = type(self._storage).__name__
            raise AuthError(
                f"{kind}, which keeps tokens, failed: {type(error).__name__}", hint="see storage="
            ) from error
