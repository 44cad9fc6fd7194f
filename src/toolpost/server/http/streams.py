"""How clients read the streams of their session: the answer to a post, a resumed stream, the general stream.

Relays the logs of a session to an HTTP response: one JSON body if the answer comes first, else an event
stream. The id of an event names its stream and its position there, so that a client can resume it (HTTPL-18
… HTTPL-21). The general stream has one reader at a time. How a session is served is not known here.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from typing import Final, TypeAlias

from toolpost.protocol import jsonrpc
from toolpost.protocol.revisions import Revision
from toolpost.server.http.disconnect import KeepAliveCallback
from toolpost.server.http.request import HttpExchange
from toolpost.server.http.session import (
    END_MARK,
    GENERAL_STREAM,
    INTERRUPTED_MARK,
    LAST_PREFIX,
    STREAM_RETENTION,
    ReaderLease,
    read_lease,
    read_outline,
    reader_key,
    stream_log,
)
from toolpost.stores.store import LogEntry, LogGap, Store

logger: Final = logging.getLogger("toolpost.http")

RETRY_MILLISECONDS: Final = 1000  # after which a client reconnects to a stream that we have interrupted
DELIVERED_RETENTION: Final = 10.0  # seconds to keep a stream after its answer: the last bytes may be lost


class SessionStreams:
    """The streams of the sessions in a store."""

    def __init__(self, store: Store) -> None:
        self._logs = store.logs
        self._readers: dict[str, HttpExchange] = {}

    # ----------------------------------------------------------------- the answer to a post

    def tail(self, session_id: str, stream: str) -> AbstractAsyncContextManager[AsyncIterator[LogEntry]]:
        """Start to read a stream, before its first message."""
        return self._logs.tail(stream_log(session_id, stream))

    async def relay(
        self,
        exchange: HttpExchange,
        entries: AsyncIterator[LogEntry],
        session_id: str,
        stream: str,
        revision: Revision,
    ) -> list[bytes] | None:
        """Return the answers to the requests of a post; None if they were sent as events.

        The list is empty if there will be none. A client that reads too slowly misses messages, but never the
        last answer.
        """
        answers: list[LogEntry] = []
        async with AsyncExitStack() as again:
            while True:
                try:
                    return await self._relay(
                        exchange, entries, session_id, stream, revision=revision, answers=answers
                    )
                except LogGap:
                    logger.warning("a client does not read what is said to it; some of it is left out")
                    await again.aclose()
                    entries = await again.enter_async_context(self.tail(session_id, stream))

    async def _relay(
        self,
        exchange: HttpExchange,
        entries: AsyncIterator[LogEntry],
        session_id: str,
        stream: str,
        *,
        revision: Revision,
        answers: list[LogEntry],
    ) -> list[bytes] | None:
        async for entry in entries:
            if entry.data == END_MARK:
                break
            last, said = _split_last(entry)
            if said.data == INTERRUPTED_MARK:
                if revision.priming:
                    await self._begin_stream(exchange, stream, revision, answers)
                    await exchange.end_stream()
                    return None
            elif not exchange.streaming and read_outline(said.data).is_answer:
                answers.append(said)
            else:
                await self._begin_stream(exchange, stream, revision, answers)
                await self._send_entry(exchange, stream, said)
            if last:
                break
        if not exchange.streaming:
            return [said.data for said in answers]
        await exchange.end_stream()
        await self._logs.touch(stream_log(session_id, stream), DELIVERED_RETENTION)
        return None

    async def _begin_stream(
        self, exchange: HttpExchange, stream: str, revision: Revision, answers: list[LogEntry]
    ) -> None:
        """Open an event stream; if the revision has it, with a priming event (HTTPL-3)."""
        if exchange.streaming:
            return
        await exchange.open_stream()
        if revision.priming:
            await send_priming_event(exchange, stream)
        for said in answers:
            await self._send_entry(exchange, stream, said)

    async def _send_entry(self, exchange: HttpExchange, stream: str, said: LogEntry) -> None:
        await exchange.send_event(said.data, kind="message", id=f"{stream}.{said.id}")

    # ----------------------------------------------------------------- resuming

    async def resume(
        self,
        exchange: HttpExchange,
        session_id: str,
        event_id: str,
        revision: Revision,
        alive: KeepAliveCallback,
    ) -> bool:
        """Relay the rest of a stream after this event; return False if that is not possible any more.

        An earlier connection that resumed the same stream is ended.
        """
        stream, _, last = event_id.partition(".")
        log = stream_log(session_id, stream)
        if not await self._logs.touch(log, STREAM_RETENTION):
            return False
        with self._replace_reader(log, exchange):
            return await self._resume(exchange, log, stream, last, revision=revision, alive=alive)

    @contextmanager
    def _replace_reader(self, log: str, exchange: HttpExchange) -> Generator[None]:
        """Be the only connection on this worker that has resumed a stream."""
        before = self._readers.get(log)
        self._readers[log] = exchange
        if before is not None:
            before.abort()
        try:
            yield
        finally:
            if self._readers.get(log) is exchange:
                del self._readers[log]

    async def _resume(
        self,
        exchange: HttpExchange,
        log: str,
        stream: str,
        last: str,
        *,
        revision: Revision,
        alive: KeepAliveCallback,
    ) -> bool:
        try:
            said = await self._logs.read(log)
            known = {entry.id for entry in said}
            async with self._logs.tail(log, last or None) as entries:
                await exchange.open_stream()
                if revision.priming:
                    await send_priming_event(exchange, stream, last)
                over = (
                    bool(said)
                    and said[-1].id == last
                    and (said[-1].data == END_MARK or _split_last(said[-1])[0])
                )
                if over or self._readers.get(log) is not exchange:
                    await exchange.end_stream()
                elif await exchange.run_while_connected(
                    self._replay(exchange, entries, stream, known), alive
                ):
                    await self._logs.touch(log, DELIVERED_RETENTION)
        except LogGap:
            if exchange.streaming:
                await exchange.end_stream()
            return exchange.streaming
        return True

    async def _replay(
        self, exchange: HttpExchange, entries: AsyncIterator[LogEntry], stream: str, known: set[str]
    ) -> bool:
        """Relay the rest of a stream; return whether that was all of it."""
        over = False
        async for entry in entries:
            if entry.data == INTERRUPTED_MARK and entry.id in known:
                continue  # the client has reconnected already
            if entry.data in {END_MARK, INTERRUPTED_MARK}:
                over = entry.data == END_MARK
                break
            over, said = _split_last(entry)
            await self._send_entry(exchange, stream, said)
            if over:
                break
        await exchange.end_stream()
        return over


async def send_priming_event(exchange: HttpExchange, stream: str, last: str | None = None) -> None:
    """Send an event with an id and a delay only, so that the client can resume from here (HTTPL-5)."""
    await exchange.send_event(b"", id=f"{stream}.{last or ''}", retry=RETRY_MILLISECONDS)


def _split_last(entry: LogEntry) -> tuple[bool, LogEntry]:
    """Return whether a message is the last of its stream, and the message."""
    if not entry.data.startswith(LAST_PREFIX):
        return False, entry
    return True, LogEntry(entry.id, entry.data[len(LAST_PREFIX) :])


# --------------------------------------------------------------------- the general stream

LEASE_TTL: Final = 45.0  # seconds until the lease of a silent reader ends: three times KEEP_ALIVE_INTERVAL
POSITION_TTL: Final = 86400.0  # seconds to keep the position of the last reader: more than a session is idle
TouchSession: TypeAlias = Callable[[str], Awaitable[object]]
"""Notes that a session is used, by its id."""


class GeneralStreamReader:
    """Relays the general stream of a session to one client, which holds the lease.

    `alive` is called from time to time; `taken` gets the size of each message that was sent.
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
        """Relay the stream until its end; HTTP+SSE begins it with an `endpoint` event, the greeting."""
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
            await exchange.end_stream()  # the client was too slow; it resumes with what there is
        finally:
            await self._release_lease()

    async def _relay_entries(self, entries: AsyncIterator[LogEntry]) -> None:
        async for entry in entries:
            before = jsonrpc.encode(self._lease)
            self._lease.last = entry.id
            if not await self._swap(before, self._lease, LEASE_TTL):
                return  # another reader has the lease now
            await self._exchange.send_event(entry.data, kind="message", id=f"{GENERAL_STREAM}.{entry.id}")
            if self._taken is not None:
                self._taken(len(entry.data))

    async def _renew_lease(self) -> None:
        """Keep the session, its stream and our lease; stop if another reader has taken that."""
        await self._alive(self._session)
        await self._store.logs.touch(stream_log(self._session, GENERAL_STREAM), STREAM_RETENTION)
        if not await self._swap(jsonrpc.encode(self._lease), self._lease, LEASE_TTL):
            self._exchange.abort()

    async def _release_lease(self) -> None:
        """Give the lease up; keep the position."""
        await self._swap(jsonrpc.encode(self._lease), ReaderLease("", self._lease.last), POSITION_TTL)

    async def _swap(self, old: bytes, new: ReaderLease, ttl: float) -> bool:
        return await self._store.records.swap(reader_key(self._session), old, jsonrpc.encode(new), ttl)


async def acquire_lease(store: Store, session_id: str, after: str | None = None) -> ReaderLease | None:
    """Take the lease of a session's general stream; return None if another reader has it.

    `after` is the id from which a client resumes, empty for the start: then another reader has to stop. With
    None, messages that were sent before are not sent again.
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
    """Return the id if the log still has what comes after it."""
    try:
        await store.logs.read(stream_log(session_id, GENERAL_STREAM), last)
    except LogGap:
        return None
    return last
