"""The sessions of an endpoint, as one worker sees them: opened, found again, ended in time.

That a session exists, whose it is and which worker holds its conversation stands in the store; a post that
reaches another worker is handed on through a topic. Owns the conversations that this worker holds, and the
tasks that end those nobody uses. Knows neither HTTP nor servers.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from itertools import islice
from math import inf
from typing import Final

from msgspec.structs import replace

from toolpost.principal import Principal
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import Reader, Request
from toolpost.stores.promise import Store, TopicGap
from toolpost.transports.http_asleep import LOOKS, Bedtime, Record, Sleeper
from toolpost.transports.http_kept import Kept
from toolpost.transports.http_load import MAX_WAITING, Load
from toolpost.transports.http_room import Room
from toolpost.transports.http_session import (
    KEPT,
    OVER,
    Begun,
    Post,
    Session,
    Shortcut,
    forgotten,
    heard,
    key_of,
    log_of,
)
from toolpost.types.base import Struct

__all__ = ["Limits", "Record", "Sessions", "Underway"]

logger: Final = logging.getLogger("toolpost.http")

SWEEP: Final = 5.0
"""Seconds between two looks at the sessions that this worker holds: how late a time-out may come."""

TOUCH: Final = 1.0
"""Seconds for which a session in use is not noted again as such: the store has its time-out in minutes."""

ALIKE: Final = 256
"""Records that are known again; behind that, all are forgotten."""

ENDING: Final = 100
"""Sessions that are forgotten at the same time, when the server stops: a store may be far away."""

ALIVE: Final = 30.0
"""Seconds for which a worker counts as alive without a sign of it: several times `SWEEP`."""


class Limits(Struct, frozen=True):
    """How long sessions live, and how many of them.

    Args:
        handshake: seconds that a client has to complete the handshake.
        idle: seconds after which a session that nobody uses ends.
        most: sessions that one worker holds; the one that was idle for longest makes room for another, and a
            principal may have a part of them only.
    """

    handshake: float = 30.0
    idle: float = 1800.0
    most: int = 10_000


class _Held(Struct, eq=False):
    """A session whose conversation this worker holds."""

    session: Session
    task: "asyncio.Task[None]"
    record: Record
    principal: Principal | None
    context: Context
    """What it was opened in, and is served in: who wakes it up may be another client."""
    noted: float = 0.0
    """When the store was last told that it is in use."""


class Underway(Struct, eq=False):
    """A request that was begun in a session, and has no answer yet."""

    record: Record
    session: Session
    begun: Begun

    def go_on(self, post: Post) -> Shortcut:
        """What will bring its answer; nothing may have come in between."""
        return self.session.go_on(self.begun, post)


class _Mail(Struct):
    """What one worker tells another about a session: something was posted, or it is to end."""

    session: str
    post: Post | None = None


_NOTHING: Final[frozenset[str]] = frozenset()
_RECORD: Final = Reader(Record)
_MAIL: Final = Reader(_Mail)

Serve = Callable[[Session, Principal | None], Awaitable[None]]
"""Holds the conversation of a session, on behalf of a principal."""


class Sessions:
    """The sessions of an endpoint.

    Args:
        store: where they live.
        serve: holds the conversation of a session.
        limits: how long they live, and how many there may be.
        json_only: whether requests are answered with plain JSON only.
        chosen: whether who is served what is chosen when a session begins: then no request with fewer scopes
            may use it.
        load: how much is under way on this worker.
    """

    def __init__(
        self,
        store: Store,
        serve: Serve,
        limits: Limits,
        *,
        json_only: bool = False,
        chosen: bool = False,
        load: Load | None = None,
    ) -> None:
        self.store = store
        self._serve = serve
        self._limits = limits
        self._fresh = min(TOUCH, limits.idle / 10)
        self._json_only = json_only
        self._chosen = chosen
        self.load = load or Load()
        self._worker = secrets.token_urlsafe(12)
        self._kept = Kept(store.logs)
        self._room = Room(limits.most)
        self._held: OrderedDict[str, _Held] = OrderedDict()
        """Those who are awake; who was used last is at the end."""
        self._asleep: dict[str, Sleeper] = {}
        self._records: dict[Record, Record] = {}
        self._bedtime = Bedtime(limits.most)
        self._wake: Callable[[str], object] = self._woken  # one object for all of them
        self._going: set[asyncio.Task[None]] = set()
        """The conversations of those who have just fallen asleep, which end."""
        self._care: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()

    # ----------------------------------------------------------------- opening and finding

    async def open(self, principal: Principal | None, *, single: bool = False) -> tuple[str, Record]:
        """A new session, whose conversation has begun (HTTPL-22, HTTPL-23).

        Args:
            principal: on whose behalf its client speaks; nobody else may use it.
            single: whether all that it says goes to one stream.

        Raises:
            Crowded: there are too many.
        """
        owner = "" if principal is None else principal.key
        while (least := self._room.in_the_way(owner)) is not None:
            await self._evict(least)
        session_id = secrets.token_urlsafe(24)
        record = self._allowing(Record(self._worker, _key(principal), single=single), principal)
        session = self._session(session_id, owner, single=single)
        loop = asyncio.get_running_loop()
        self._room.add(session)
        context = copy_context()
        task = loop.create_task(self._hold(session, principal), context=context)
        self._held[session_id] = _Held(session, task, record, principal, context)
        self._doze()
        if self._care is None:
            self._heard = asyncio.Event()
            self._care = loop.create_task(self._look_after(self._heard))
        await self._heard.wait()
        await self.note(session_id, record)
        return session_id, record

    def _session(self, session_id: str, owner: str, *, single: bool = False) -> Session:
        return Session(
            session_id,
            owner,
            self.store,
            self._kept,
            self.load,
            single=single,
            json_only=self._json_only,
        )

    def held(self, session_id: str) -> Session | None:
        """A session, if this worker holds it, and it is awake."""
        held = self._held.get(session_id)
        return held and held.session

    def _known(self, session_id: str) -> _Held | Sleeper | None:
        """What this worker knows of a session that it holds."""
        return self._held.get(session_id) or self._asleep.get(session_id)

    async def note(self, session_id: str, record: Record) -> None:
        """Let every worker know this of a session, which is in use."""
        known = self._known(session_id)
        if known is not None:
            known.record = self._alike(record)
        await self.store.records.put(key_of(session_id), jsonrpc.encode(record), self._limits.idle)

    async def find(
        self, session_id: str, principal: Principal | None, *, single: bool = False
    ) -> Record | None:
        """What is known of a session, which is in use.

        None if there is none, or it is somebody else's, or it is reached in another way, or the principal is
        allowed less than it takes.
        """
        key, held = key_of(session_id), self._known(session_id)
        if held is None or (isinstance(held, _Held) and held.session.ended):
            found = await self.store.records.get(key)
            if found is None:
                return None
            record, noted = _RECORD(found), -inf
        else:
            record, noted = held.record, held.noted
        if record.single is not single or not _admits(record, principal):
            return None
        now = time.monotonic()
        if now - noted > self._fresh:
            if not await self.store.records.touch(key, self._limits.idle):
                return None
            if held is not None:
                held.noted = now
        return record

    def _alike(self, record: Record) -> Record:
        """The record, or one that says the same: most do, and one for all of them is enough."""
        if len(self._records) > ALIKE:
            self._records.clear()
        return self._records.setdefault(record, record)

    async def agree(self, session_id: str, record: Record, revision: str) -> None:
        """Let every worker know which revision is spoken in a session."""
        await self.note(session_id, replace(record, revision=revision))

    async def choose(self, session_id: str, record: Record, principal: Principal | None) -> None:
        """Let every worker know that a session begins with what this principal is allowed."""
        chosen = self._allowing(record, principal)
        if chosen != record:
            await self.note(session_id, chosen)

    def _allowing(self, record: Record, principal: Principal | None) -> Record:
        return replace(record, scopes=principal.scopes) if self._chosen and principal is not None else record

    async def touch(self, session_id: str) -> bool:
        """Whether a session is still there; it is in use."""
        known = self._known(session_id)
        if isinstance(known, _Held):
            known.session.used = time.monotonic()
            self._use(known.session)
        elif known is not None:
            known.used = time.monotonic()
            self._room.use(known)
        return await self.store.records.touch(key_of(session_id), self._limits.idle)

    # ----------------------------------------------------------------- posting and ending

    async def post(self, session_id: str, record: Record, post: Post) -> bool:
        """Whether what was posted could be handed to whoever holds the conversation."""
        held = self._awake(session_id)
        if held is not None:
            self._deliver(held.session, post)
            return True
        if record.worker != self._worker and await self.served(record):
            await self._mail(record, _Mail(session_id, post))
            return True
        await self.store.records.delete(key_of(session_id))  # whoever held it has died
        return False

    def begin(
        self, session_id: str, request: Request, principal: Principal | None
    ) -> "bytes | Underway | None":
        """The answer to a request, if it is there at once; else the request, to go on with.

        None if it has to be posted: another worker serves it, or somebody has to be asked before.
        """
        held, now = self._held.get(session_id), time.monotonic()
        if held is None or now - held.noted > self._fresh:
            return None
        session, record = held.session, held.record
        anonymous = principal is None and not (record.principal or record.scopes)
        if record.single or not (anonymous or _admits(record, principal)):
            return None
        if now - session.used > self._fresh:  # who was used just now is among the last anyway
            self._use(session)
        begun = session.begin(request, now)
        return begun if begun is None or isinstance(begun, bytes) else Underway(record, session, begun)

    def _deliver(self, session: Session, post: Post) -> None:
        session.deliver(post)
        self._use(session)
        if self.load.waiting > MAX_WAITING:
            fattest = max((held.session for held in self._held.values()), key=lambda held: held.waiting)
            fattest.end(f"posts of more than {MAX_WAITING} bytes wait, and most of them are its own")

    @contextmanager
    def awaited(self, session_id: str) -> Generator[None]:
        """A client waits for what a session says, here and now."""
        session = self.held(session_id)
        if session is None:
            yield  # another worker holds it
            return
        session.awaited += 1
        try:
            yield
        finally:
            session.awaited -= 1

    async def forget(self, session_id: str, stream: str) -> None:
        """Forget a stream whose answer was no event, so that nobody can come back to it."""
        session = self.held(session_id)
        if session is None:
            await self._kept.drop(log_of(session_id, stream))
        else:
            await session.forget(stream)

    async def served(self, record: Record) -> bool:
        """Whether the worker that holds a session lives."""
        return record.worker == self._worker or await self.store.records.get(_sign(record.worker)) is not None

    async def end(self, session_id: str, record: Record, why: str) -> None:
        """End a session: from now on it is not found any more."""
        await self.store.records.delete(key_of(session_id))
        if record.worker != self._worker:
            await self._mail(record, _Mail(session_id))
        else:
            await self._end_here(session_id, why)

    async def _end_here(self, session_id: str, why: str) -> None:
        """End a session that this worker holds, awake or asleep."""
        if session_id in self._held:
            self._held[session_id].session.end(why)
        elif session_id in self._asleep:
            sleeper = self._asleep.pop(session_id)
            self._room.remove(sleeper)
            sleeper.talk.end()
            self._rest_from_care()
            await forgotten(session_id, sleeper.answered, self.store, self._kept)

    async def _mail(self, record: Record, mail: _Mail) -> None:
        await self.store.topics.publish(f"worker/{record.worker}", jsonrpc.encode(mail))

    async def close(self) -> None:
        """End all sessions that this worker holds, and wait for their conversations."""
        tasks = [held.task for held in self._held.values()]
        for held in self._held.values():
            held.session.end("the server stops")
        ends = asyncio.Semaphore(ENDING)

        async def end(session_id: str) -> None:
            async with ends:
                with self._all_the_same(session_id):
                    await self._end_here(session_id, "the server stops")

        await asyncio.gather(*map(end, tuple(self._asleep)))
        # Behind that: somebody may have been woken, and ended, meanwhile.
        ending = {*tasks, *(held.task for held in self._held.values()), *self._going}
        if ending:
            await asyncio.wait(ending)
        if self._heard.is_set():
            await self.store.records.delete(_sign(self._worker))

    # ----------------------------------------------------------------- holding

    async def _hold(self, session: Session, principal: Principal | None) -> None:
        try:
            await self._serve(session, principal)
        except Exception:  # a session that fails, fails alone
            logger.exception("session %s… failed", session.id[:8])
        finally:
            if not session.asleep:
                del self._held[session.id]
                self._room.remove(session)
                self._rest_from_care()
                with self._all_the_same(session.id):
                    await session.close()

    @contextmanager
    def _all_the_same(self, session_id: str) -> Generator[None]:
        """Go on if a session that has ended cannot be forgotten: the others end all the same."""
        try:
            yield
        except Exception:  # whatever a store raises
            logger.exception("session %s… could not be forgotten", session_id[:8])

    def _rest_from_care(self) -> None:
        """Look after nobody, if nobody is left."""
        if not (self._held or self._asleep) and self._care is not None:
            self._care.cancel()
            self._care = None
            self._heard.set()  # it may never have begun

    async def _evict(self, session_id: str) -> None:
        logger.info("session %s… ends: there are too many (max_sessions=)", session_id[:8])
        held = self._held.get(session_id)
        await self._end_here(session_id, "other sessions need the room")
        if held is not None:
            await asyncio.wait([held.task])

    # ----------------------------------------------------------------- sleeping

    def _use(self, session: Session) -> None:
        """Note that a session is in use, which is awake."""
        self._held.move_to_end(session.id)
        self._room.use(session)

    def _doze(self, looks: int = LOOKS) -> None:
        """Let those sleep that were not used for longest, if too many are awake."""
        for session_id in tuple(islice(self._held, looks)):
            if len(self._held) <= self._bedtime.limit:
                return
            held = self._held[session_id]
            session, talk = held.session, held.session.rest(self._wake)
            if talk is None:
                self._held.move_to_end(session_id)  # it is busy, or has something to keep: look at others
                continue
            del self._held[session_id]
            self._asleep[session_id] = sleeper = Sleeper(
                session.id,
                session.owner,
                held.record,
                talk,
                tuple(session.answered),
                held.principal,
                held.context,
                session.used,
                held.noted,
            )
            self._room.replace(sleeper)
            self._going.add(held.task)
            held.task.add_done_callback(self._going.discard)

    def _awake(self, session_id: str) -> _Held | None:
        """A session that this worker holds, which is awake from now on."""
        if session_id in self._asleep:
            self._bedtime.woken()
            self._woken(session_id)
        return self._held.get(session_id)

    def _woken(self, session_id: str) -> None:
        """Let a session go on, if it sleeps."""
        sleeper = self._asleep.pop(session_id, None)
        if sleeper is None:
            return
        session = self._session(session_id, sleeper.owner)
        session.wake(sleeper.talk, sleeper.answered, sleeper.used)
        principal, context = sleeper.principal, sleeper.context
        task = asyncio.get_running_loop().create_task(self._hold(session, principal), context=context)
        self._held[session_id] = _Held(session, task, sleeper.record, principal, context, sleeper.noted)
        self._room.replace(session)
        self._doze()

    async def _look_after(self, heard: asyncio.Event) -> None:
        """Hear what other workers hand on, and end the sessions that nobody uses."""
        sweeping = asyncio.get_running_loop().create_task(self._sweep())
        try:
            while True:
                try:
                    await self._hear(heard)
                except TopicGap:
                    logger.warning("other workers hand on more than this one can take; some of it is lost")
                except Exception:  # a store that cannot be reached comes back
                    logger.exception("what other workers hand on cannot be heard; trying again")
                    heard.set()  # sessions that are used on this worker only need no other
                    await asyncio.sleep(SWEEP)
        finally:
            heard.set()
            sweeping.cancel()

    async def _hear(self, heard: asyncio.Event) -> None:
        async with self.store.topics.subscribe(f"worker/{self._worker}") as mails:
            await self.store.records.put(_sign(self._worker), b"", ALIVE)
            heard.set()
            async for mail in mails:
                await self._take(_MAIL(mail))

    async def _take(self, mail: _Mail) -> None:
        post = mail.post
        held = self._known(mail.session) if post is None else self._awake(mail.session)
        if held is None:
            if post is not None and post.stream:  # whoever waits there learns that the session is gone
                await self.store.logs.append(log_of(mail.session, post.stream), OVER, KEPT)
        elif post is None:
            await self._end_here(mail.session, "its client has ended it")
        elif isinstance(held, _Held):
            self._deliver(held.session, post)

    async def _sweep(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(min(SWEEP, limits.idle / 2, limits.handshake / 2))
            try:
                await self.store.records.put(_sign(self._worker), b"", ALIVE)
                for held in tuple(self._held.values()):
                    await self._look_at(held.session)
                for sleeper in tuple(self._asleep.values()):
                    await self._look_at_sleeper(sleeper)
                self._bedtime.passed()
                self._doze(len(self._held))
            except Exception:  # as above
                logger.exception("the sessions could not be looked at; trying again")

    async def _look_at(self, session: Session) -> None:
        """Keep a session that is in use; end one that is not."""
        limits, now = self._limits, time.monotonic()
        if not session.ready and now - session.opened > limits.handshake:
            session.end(f"the handshake was not completed within {limits.handshake:g} s")
            return
        await session.keep()  # a client that has gone may come back, but not for ever
        if session.awaited or await heard(session.id, self.store):
            await self.touch(session.id)
        elif now - session.used > limits.idle and await self._gone(session.id):
            session.end(f"nobody used it for {limits.idle:g} s")

    async def _look_at_sleeper(self, sleeper: Sleeper) -> None:
        """The same for one that sleeps."""
        if await heard(sleeper.id, self.store):
            await self.touch(sleeper.id)
        elif time.monotonic() - sleeper.used > self._limits.idle and await self._gone(sleeper.id):
            await self._end_here(sleeper.id, f"nobody used it for {self._limits.idle:g} s")

    async def _gone(self, session_id: str) -> bool:
        return await self.store.records.get(key_of(session_id)) is None


def _admits(record: Record, principal: Principal | None) -> bool:
    """Whether a session is that of a principal, who is allowed as much as it takes."""
    ours = hmac.compare_digest(record.principal.encode(), _key(principal).encode())
    return ours and record.scopes <= (_NOTHING if principal is None else principal.scopes)


def _key(principal: Principal | None) -> str:
    """Whose a session is, and through which client; those whom nobody knows share the empty key."""
    return "" if principal is None else jsonrpc.encode([principal.key, principal.client]).decode()


def _sign(worker: str) -> str:
    """The key of a worker's sign of life."""
    return f"worker/{worker}"
