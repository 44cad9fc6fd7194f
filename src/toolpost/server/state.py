"""`ctx.state`: values that outlast a request, in the store, under the session or the principal of a request.

Values are JSON, so that any worker can read them. Who may see which values is decided in `context`.
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
"""Bytes of one value as JSON: a store is for small things."""

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

    __slots__ = ("_prefix", "_records")

    def __init__(self, records: "RecordStore", prefix: str) -> None:
        self._records = records
        self._prefix = prefix

    @classmethod
    def in_memory(cls) -> "State":
        """Return a state that nothing else shares."""
        from toolpost.stores.memory import MemoryRecords  # noqa: PLC0415 - start-up time

        return cls(MemoryRecords(time.monotonic), "")

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
            LocalProtocolError: JSON cannot hold it.
            ValueError: as JSON it has more than 64 KiB.
        """
        data = jsonrpc.encode(value)
        if len(data) > MAX_VALUE_BYTES:
            raise ValueError(
                f"state {key!r} has {len(data)} bytes as JSON; at most {MAX_VALUE_BYTES} are kept"
            )
        await self._records.put(self._prefix + key, data, STATE_TTL)

    async def delete(self, key: str) -> None:
        """Delete a value, if there is one."""
        await self._records.delete(self._prefix + key)


class SyncState:
    """As `State`, for a thread."""

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
