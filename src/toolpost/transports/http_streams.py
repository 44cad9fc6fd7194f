"""How a client reads what its session says: the answer to a post, and a stream resumed.

Reads the logs of a session into an HTTP response: one JSON body where the answer comes first, an event stream
where something comes before it. An event's id names its stream and its place there, so that a client can come
back to it (HTTPL-18 … HTTPL-21). Knows nothing of how a session is served, nor of its general stream.
"""

import logging
from collections.abc import AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from typing import Final

from toolpost.protocol.revisions import Revision
from toolpost.stores.promise import Entry, LogGap, Store
from toolpost.transports.attention import Pulse
from toolpost.transports.exchange import Exchange
from toolpost.transports.http_session import INTERRUPTED, KEPT, LAST, OVER, log_of, outline

__all__ = ["RETRY", "Streams", "prime"]

logger: Final = logging.getLogger("toolpost.http")

RETRY: Final = 1000
"""Milliseconds after which a client comes back to a stream that we have interrupted."""

DONE: Final = 10.0
"""Seconds for which a stream is kept whose answer was handed to the network: the last bytes may be lost."""


class Streams:
    """The streams of the sessions in a store."""

    def __init__(self, store: Store) -> None:
        self._logs = store.logs
        self._resumed: dict[str, Exchange] = {}

    # ----------------------------------------------------------------- the answer to a post

    def tail(self, session_id: str, stream: str) -> AbstractAsyncContextManager[AsyncIterator[Entry]]:
        """Begin to read a stream, before anything is said on it."""
        return self._logs.tail(log_of(session_id, stream))

    async def relay(
        self,
        exchange: Exchange,
        entries: AsyncIterator[Entry],
        session_id: str,
        stream: str,
        revision: Revision,
    ) -> list[bytes] | None:
        """The answers to the requests of a post, if nothing came before; None if they went out as events.

        The list is empty if there will be none, and short if there will be some only. Of a stream on which
        more is said than its client reads, something is left out, but never the last answer.

        Args:
            exchange: the post.
            entries: what is said on its stream.
            session_id: whose stream.
            stream: the name of the stream.
            revision: what its client speaks.
        """
        answers: list[Entry] = []
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
        exchange: Exchange,
        entries: AsyncIterator[Entry],
        session_id: str,
        stream: str,
        *,
        revision: Revision,
        answers: list[Entry],
    ) -> list[bytes] | None:
        async for entry in entries:
            if entry.data == OVER:
                break
            last, said = _told(entry)
            if said.data == INTERRUPTED:
                if revision.priming:
                    await self._begin(exchange, stream, revision, answers)
                    await exchange.end()
                    return None
            elif not exchange.streaming and outline(said.data).answers:
                answers.append(said)
            else:
                await self._begin(exchange, stream, revision, answers)
                await self._event(exchange, stream, said)
            if last:
                break
        if not exchange.streaming:
            return [said.data for said in answers]
        await exchange.end()
        await self._logs.touch(log_of(session_id, stream), DONE)
        return None

    async def _begin(self, exchange: Exchange, stream: str, revision: Revision, answers: list[Entry]) -> None:
        """Open an event stream; where the revision knows it, with an event to come back to (HTTPL-3)."""
        if exchange.streaming:
            return
        await exchange.open()
        if revision.priming:
            await prime(exchange, stream)
        for said in answers:
            await self._event(exchange, stream, said)

    async def _event(self, exchange: Exchange, stream: str, said: Entry) -> None:
        await exchange.event(said.data, kind="message", id=f"{stream}.{said.id}")

    # ----------------------------------------------------------------- coming back

    async def resume(
        self, exchange: Exchange, session_id: str, event_id: str, revision: Revision, alive: Pulse
    ) -> bool:
        """Whether a stream goes on behind this event; its rest has been relayed then.

        Who has come back to it before is ended: one reader is enough, and another could only be in the way.

        Args:
            exchange: the GET that comes back.
            session_id: whose stream.
            event_id: the last event that the client has seen, which was not one of the general stream.
            revision: what its client speaks.
            alive: called from time to time while the client listens.

        Raises:
            Disconnected: the client has gone.
        """
        stream, _, last = event_id.partition(".")
        log = log_of(session_id, stream)
        if not await self._logs.touch(log, KEPT):
            return False
        with self._alone(log, exchange):
            return await self._resume(exchange, log, stream, last, revision=revision, alive=alive)

    @contextmanager
    def _alone(self, log: str, exchange: Exchange) -> Generator[None]:
        """Be the only one on this worker who has come back to a stream."""
        before = self._resumed.get(log)
        self._resumed[log] = exchange
        if before is not None:
            before.hang_up()
        try:
            yield
        finally:
            if self._resumed.get(log) is exchange:
                del self._resumed[log]

    async def _resume(
        self, exchange: Exchange, log: str, stream: str, last: str, *, revision: Revision, alive: Pulse
    ) -> bool:
        try:
            said = await self._logs.read(log)
            known = {entry.id for entry in said}
            async with self._logs.tail(log, last or None) as entries:
                await exchange.open()
                if revision.priming:
                    await prime(exchange, stream, last)
                over = bool(said) and said[-1].id == last and (said[-1].data == OVER or _told(said[-1])[0])
                if over or self._resumed.get(log) is not exchange:
                    await exchange.end()
                elif await exchange.attend(self._replay(exchange, entries, stream, known), alive):
                    await self._logs.touch(log, DONE)
        except LogGap:
            if exchange.streaming:
                await exchange.end()
            return exchange.streaming
        return True

    async def _replay(
        self, exchange: Exchange, entries: AsyncIterator[Entry], stream: str, known: set[str]
    ) -> bool:
        """Whether the rest of a stream was all of it."""
        over = False
        async for entry in entries:
            if entry.data == INTERRUPTED and entry.id in known:
                continue  # the client has come back already
            if entry.data in {OVER, INTERRUPTED}:
                over = entry.data == OVER
                break
            over, said = _told(entry)
            await self._event(exchange, stream, said)
            if over:
                break
        await exchange.end()
        return over


async def prime(exchange: Exchange, stream: str, last: str | None = None) -> None:
    """Send an event that says no more than where to come back to, and when (HTTPL-5)."""
    await exchange.event(b"", id=f"{stream}.{last or ''}", retry=RETRY)


def _told(entry: Entry) -> tuple[bool, Entry]:
    """Whether a message is the last of its stream, and the message."""
    if not entry.data.startswith(LAST):
        return False, entry
    return True, Entry(entry.id, entry.data[len(LAST) :])
