"""`ctx.state`: values that outlast a request, in the store, under the session or the principal of a request.

Values are JSON, so that any worker can read them. `context` chooses the session or the principal.
"""

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolpost.principal import Principal
from toolpost.protocol import jsonrpc
from toolpost.types.base import JSON

if TYPE_CHECKING:
    from toolpost.stores.store import RecordStore

MAX_VALUE_BYTES: Final = 64 * 1024
"""Bytes of one value as JSON: the store is for small values."""

MAX_KEYS, MAX_KEY_BYTES = 256, 256
"""Keys of one session, and bytes of one key as JSON: a session keeps the list of its keys in one record."""

STATE_TTL: Final = 30 * 86400.0
"""Seconds for which a value is kept after it was set."""


class State:
    """Values by key, kept for one session or one principal.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... async def visit(ctx: Context) -> int:
        ...     count = await ctx.state.get("visits", 0) + 1
        ...     await ctx.state.set("visits", count)
        ...     return count
        >>> with SyncClient(server, revision="2025-11-25") as mcp:
        ...     mcp.call_tool("visit").data, mcp.call_tool("visit").data
        (1, 2)
    """

    __slots__ = ("_keys", "_prefix", "_records")

    def __init__(self, records: "RecordStore", prefix: str, keys: tuple[str, ...] | None = None) -> None:
        self._records = records
        self._prefix = prefix
        self._keys = keys  # None if they are not counted here

    @classmethod
    def in_memory(cls) -> "State":
        """Return a separate state in memory."""
        from toolpost.stores.memory import MemoryRecords  # noqa: PLC0415 - start-up time

        return cls(MemoryRecords(time.monotonic), "", ())

    @classmethod
    def of_principal(cls, records: "RecordStore", principal: Principal) -> "State":
        """Return the state of a principal, for all requests without a session."""
        from hashlib import sha256  # noqa: PLC0415 - start-up time

        digest = sha256(principal.key.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        return cls(records, f"state/principal-{digest}/")

    async def get(self, key: str, default: Any = None) -> Any:
        """Return a value; `default` if there is none."""
        found = await self._records.get(self._prefix + key)
        return default if found is None else msgspec.json.decode(found)

    async def set(self, key: str, value: JSON) -> None:
        """Keep a value.

        Raises:
            LocalProtocolError: JSON cannot hold the value or the key.
            ValueError: a limit is exceeded: 64 KiB for a value, 256 bytes for a key, 256 keys in a session.
        """
        name, data = self._prefix + key, jsonrpc.encode(value)
        for what, size, most in (
            ("", len(data), MAX_VALUE_BYTES),
            ("key ", len(jsonrpc.encode(key)), MAX_KEY_BYTES),
        ):
            if size > most:
                raise ValueError(f"state {what}{key[:40]!r} has {size} bytes as JSON; the limit is {most}")

        def add_key(keys: tuple[str, ...]) -> tuple[str, ...]:
            if key not in keys and len(keys) >= MAX_KEYS:
                raise ValueError(f"state {key!r} exceeds the limit of {MAX_KEYS} keys")
            return keys if key in keys else (*keys, key)

        if await self._change_keys(add_key):
            await self._records.put(name, data, STATE_TTL)

    async def delete(self, key: str) -> None:
        """Delete a value, if there is one."""
        await self._records.delete(self._prefix + key)
        await self._change_keys(lambda keys: tuple(each for each in keys if each != key))

    async def _change_keys(self, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> bool:
        """Change the list of keys; return whether the session continues."""
        if self._keys is not None:
            self._keys = change(self._keys)
        return True


class SyncState:
    """The values of `State`, for functions that are not async."""

    __slots__ = ("_state", "_wait")

    def __init__(self, state: State, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._state = state
        self._wait = wait

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; `default` if there is none."""
        return self._wait(self._state.get(key, default))

    def set(self, key: str, value: JSON) -> None:
        """Keep a value."""
        self._wait(self._state.set(key, value))

    def delete(self, key: str) -> None:
        """Delete a value, if there is one."""
        self._wait(self._state.delete(key))
