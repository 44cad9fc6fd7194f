"""How a client reads the general stream of its session: one at a time, each from where the last one stood.

Owns the right to read it, which stands in the store and lasts as long as its holder gives signs of life, and
what waits with an open stream. Most of the time nothing is said there, so that has to be little.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

from toolpost.protocol import jsonrpc
from toolpost.protocol.revisions import Revision
from toolpost.stores.promise import LogEntry, LogGap, Store
from toolpost.transports.exchange import HttpExchange
from toolpost.transports.http_session import (
    GENERAL_STREAM,
    STREAM_RETENTION,
    ReaderLease,
    read_lease,
    reader_key,
    stream_log,
)
from toolpost.transports.http_streams import send_priming_event

__all__ = ["GeneralStreamReader", "TouchSession", "acquire_lease"]

LEASE_TTL: Final = 45.0
"""Seconds for which a general stream counts as read without a sign of life: three times `KEEP_ALIVE`."""

POSITION_TTL: Final = 86400.0
"""Seconds for which it is known how far a general stream was read: longer than a session is idle."""

TouchSession: TypeAlias = Callable[[str], Awaitable[object]]
"""Notes that a session is in use, by its id."""


class GeneralStreamReader:
    """One who may read a session's general stream.

    Args:
        store: where it is.
        exchange: the GET that reads it.
        session_id: whose stream.
        lease: the right to read it.
        alive: called from time to time while the client listens.
        taken: called with the size of each message that the client has taken.
    """

    __slots__ = ("_alive", "_exchange", "_lease", "_session", "_store", "_taken")

    def __init__(
        self,
        store: Store,
        exchange: HttpExchange,
        session_id: str,
        lease: ReaderLease,
        *,
        alive: TouchSession,
        taken: Callable[[int], None] | None = None,
    ) -> None:
        self._store = store
        self._exchange = exchange
        self._session = session_id
        self._lease = lease
        self._alive = alive
        self._taken = taken

    async def relay(self, revision: Revision, greeting: bytes | None = None) -> None:
        """Relay the stream until its end.

        Args:
            revision: what its client speaks.
            greeting: an event of kind `make_endpoint` to begin with (HTTP+SSE).

        Raises:
            ClientDisconnected: the client has gone.
        """
        exchange, lease = self._exchange, self._lease
        try:
            await exchange.open_stream()
            if greeting is not None:
                await exchange.send_event(greeting, kind="endpoint")
            elif revision.priming:
                await send_priming_event(exchange, GENERAL_STREAM, lease.last)
            exchange.release_head()
            async with self._store.logs.tail(
                stream_log(self._session, GENERAL_STREAM), lease.last
            ) as entries:
                await exchange.run_while_connected(self._relay_entries(entries), self._renew_lease)
            await exchange.end_stream()
        except LogGap:
            await exchange.end_stream()  # the client was too slow; it comes back to what there is
        finally:
            await self._release_lease()

    async def _relay_entries(self, entries: AsyncIterator[LogEntry]) -> None:
        async for entry in entries:
            before = jsonrpc.encode(self._lease)
            self._lease.last = entry.id
            if not await self._swap(before, self._lease, LEASE_TTL):
                return  # another one reads it now
            await self._exchange.send_event(entry.data, kind="message", id=f"{GENERAL_STREAM}.{entry.id}")
            if self._taken is not None:
                self._taken(len(entry.data))

    async def _renew_lease(self) -> None:
        """Keep the session, its stream and our right to read it; read no more if another one has that."""
        await self._alive(self._session)
        await self._store.logs.touch(stream_log(self._session, GENERAL_STREAM), STREAM_RETENTION)
        if not await self._swap(jsonrpc.encode(self._lease), self._lease, LEASE_TTL):
            self._exchange.abort()

    async def _release_lease(self) -> None:
        """Nobody reads the stream any more; how far it was read is kept."""
        await self._swap(jsonrpc.encode(self._lease), ReaderLease("", self._lease.last), POSITION_TTL)

    async def _swap(self, old: bytes, new: ReaderLease, ttl: float) -> bool:
        return await self._store.records.swap(reader_key(self._session), old, jsonrpc.encode(new), ttl)


async def acquire_lease(store: Store, session_id: str, after: str | None = None) -> ReaderLease | None:
    """The right to read a session's general stream; None if another one has it.

    Args:
        store: where it is.
        session_id: whose stream.
        after: the id behind which a client goes on that has lost the stream, or nothing if it has lost all of
            it; another reader has to stop then. None: what was handed out before is not handed out again.
    """
    key = reader_key(session_id)
    while True:
        found = await store.records.get(key)
        held = None if found is None else read_lease(found)
        if after is not None:
            last = after or None
        elif held is None:
            last = None
        elif held.holder:
            return None
        else:
            last = held.last
        lease = ReaderLease(secrets.token_hex(8), await _find_position(store, session_id, last))
        if await store.records.swap(key, found, jsonrpc.encode(lease), LEASE_TTL):
            return lease


async def _find_position(store: Store, session_id: str, last: str | None) -> str | None:
    """The id, if the log still has what comes behind it."""
    try:
        await store.logs.read(stream_log(session_id, GENERAL_STREAM), last)
    except LogGap:
        return None
    return last
