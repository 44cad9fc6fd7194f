"""The sessions of a Streamable HTTP endpoint: opened, found, moved between workers, put to sleep and ended.

One session is in `session`, what its HTTP requests do in `session_endpoints`.
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
from toolpost.protocol.jsonrpc import JSONReader, JSONRPCRequest
from toolpost.server.http.capacity import MAX_QUEUED_BYTES, FinishedStreams, RequestCounts, SessionLimit
from toolpost.server.http.session import (
    END_MARK,
    STREAM_RETENTION,
    AnswerFuture,
    HttpSession,
    SessionPost,
    SleepingConversation,
    StartedRequest,
    forget_session,
    has_reader,
    session_key,
    stream_log,
)
from toolpost.server.options import HttpOptions
from toolpost.stores.store import Store, TopicGap
from toolpost.types.base import Struct

AWAKE: Final = 64
"""Sessions that stay awake in any case; one that sleeps takes less memory."""

LOOKS: Final = 4
"""How many are looked at for one that may sleep, each time that another one wakes up or is opened."""


class SessionRecord(Struct, frozen=True, omit_defaults=True):
    """What every worker knows of a session: who holds it, whose it is, how it is reached, what is spoken."""

    worker: str
    principal: str = ""
    scopes: frozenset[str] = frozenset()
    """What a request has to be allowed, or it cannot be one of this session."""
    single: bool = False
    revision: str = ""


class Sleeper(Struct, eq=False):
    """A session that sleeps on this worker."""

    id: str
    owner: str
    record: SessionRecord
    talk: SleepingConversation
    answered: tuple[str, ...]
    principal: Principal | None
    context: Context
    used: float
    noted: float

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return False


class Bedtime:
    """How many sessions stay awake.

    To wake one up takes as long as a few calls. So each that is woken makes room for one more, and with time
    there is less room again: those who are used by turns are awake after their first turn.
    """

    __slots__ = ("_most", "limit")

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(AWAKE, most)

    def note_wake(self) -> None:
        """One of them was woken."""
        self.limit = min(self.limit + 1, self._most)

    def shrink(self) -> None:
        """Some time has passed."""
        self.limit = max(min(AWAKE, self._most), self.limit - self.limit // 8)


# --------------------------------------------------------------------- sessions

logger: Final = logging.getLogger("toolpost.http")

SWEEP_INTERVAL: Final = 5.0
"""Seconds between two looks at the sessions that this worker holds: how late a time-out may come."""

TOUCH_INTERVAL: Final = 1.0
"""Seconds for which a session in use is not noted again as such: the store has its time-out in minutes."""

MAX_SHARED_RECORDS: Final = 256
"""Records that are known again; behind that, all are forgotten."""

MAX_CONCURRENT_ENDS: Final = 100
"""Sessions that are forgotten at the same time, when the server stops: a store may be far away."""

WORKER_TTL: Final = 30.0
"""Seconds for which a worker counts as alive without a sign of it: several times `SWEEP_INTERVAL`."""


class _LiveSession(Struct, eq=False):
    """A session whose conversation this worker holds."""

    session: HttpSession
    task: "asyncio.Task[None]"
    record: SessionRecord
    principal: Principal | None
    context: Context
    """What it was opened in, and is served in: who wakes it up may be another client."""
    noted: float = 0.0
    """When the store was last told that it is in use."""


class StartedSessionRequest(Struct, eq=False):
    """A request that was begun in a session, and has no answer yet."""

    record: SessionRecord
    session: HttpSession
    begun: StartedRequest

    def go_on(self, post: SessionPost) -> AnswerFuture:
        """What will bring its answer; nothing may have come in between."""
        return self.session.go_on(self.begun, post)


class _WorkerMessage(Struct):
    """What one worker tells another about a session: something was posted, or it is to end."""

    session: str
    post: SessionPost | None = None


_NO_SCOPES: Final[frozenset[str]] = frozenset()
_SESSION_RECORD: Final = JSONReader(SessionRecord)
_WORKER_MESSAGE: Final = JSONReader(_WorkerMessage)

ServeSession = Callable[[HttpSession, Principal | None], Awaitable[None]]
"""Holds the conversation of a session, on behalf of a principal."""


class Sessions:
    """The sessions of an endpoint."""

    def __init__(
        self,
        store: Store,
        serve: ServeSession,
        limits: HttpOptions,
        *,
        json_only: bool = False,
        chosen: bool = False,
        load: RequestCounts | None = None,
    ) -> None:
        self.store = store
        self._serve = serve
        self._limits = limits
        self._touch_interval = min(TOUCH_INTERVAL, limits.idle / 10)
        self._json_only = json_only
        self._is_scoped = chosen
        self.load = load or RequestCounts()
        self._worker = secrets.token_urlsafe(12)
        self._finished_streams = FinishedStreams(store.logs)
        self._session_limit = SessionLimit(limits.max_sessions)
        self._held: OrderedDict[str, _LiveSession] = OrderedDict()
        """Those who are awake; who was used last is at the end."""
        self._asleep: dict[str, Sleeper] = {}
        self._records: dict[SessionRecord, SessionRecord] = {}
        self._bedtime = Bedtime(limits.max_sessions)
        self._wake: Callable[[str], object] = self._wake_up  # one object for all of them
        self._ending: set[asyncio.Task[None]] = set()
        """The conversations of those who have just fallen asleep, which end."""
        self._maintenance: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    # ----------------------------------------------------------------- opening and finding

    async def open(self, principal: Principal | None, *, single: bool = False) -> tuple[str, SessionRecord]:
        """A new session, whose conversation has begun (HTTPL-22, HTTPL-23)."""
        owner = "" if principal is None else principal.key
        while (least := self._session_limit.find_session_to_evict(owner)) is not None:
            await self._evict(least)
        session_id = secrets.token_urlsafe(24)
        record = self._add_scopes(
            SessionRecord(self._worker, _get_principal_key(principal), single=single), principal
        )
        session = self._make_session(session_id, owner, single=single)
        loop = asyncio.get_running_loop()
        self._session_limit.add(session)
        context = copy_context()
        task = loop.create_task(self._run_session(session, principal), context=context)
        self._held[session_id] = _LiveSession(session, task, record, principal, context)
        self._put_idle_to_sleep()
        if self._maintenance is None:
            self._subscribed = asyncio.Event()
            self._maintenance = loop.create_task(self._maintain(self._subscribed))
        await self._subscribed.wait()
        await self.save_record(session_id, record)
        return session_id, record

    def _make_session(self, session_id: str, owner: str, *, single: bool = False) -> HttpSession:
        return HttpSession(
            session_id,
            owner,
            self.store,
            self._finished_streams,
            self.load,
            single=single,
            json_only=self._json_only,
        )

    def find_live(self, session_id: str) -> HttpSession | None:
        """A session, if this worker holds it, and it is awake."""
        held = self._held.get(session_id)
        return held and held.session

    def _find_local(self, session_id: str) -> _LiveSession | Sleeper | None:
        """What this worker knows of a session that it holds."""
        return self._held.get(session_id) or self._asleep.get(session_id)

    async def save_record(self, session_id: str, record: SessionRecord) -> None:
        """Let every worker know this of a session, which is in use."""
        known = self._find_local(session_id)
        if known is not None:
            known.record = self._share_record(record)
        await self.store.records.put(session_key(session_id), jsonrpc.encode(record), self._limits.idle)

    async def find(
        self, session_id: str, principal: Principal | None, *, single: bool = False
    ) -> SessionRecord | None:
        """What is known of a session, which is in use.

        None if there is none, or it is somebody else's, or it is reached in another way, or the principal is
        allowed less than it takes.
        """
        key, held = session_key(session_id), self._find_local(session_id)
        if held is None or (isinstance(held, _LiveSession) and held.session.is_ended):
            found = await self.store.records.get(key)
            if found is None:
                return None
            record, noted = _SESSION_RECORD(found), -inf
        else:
            record, noted = held.record, held.noted
        if record.single is not single or not _can_use(record, principal):
            return None
        now = time.monotonic()
        if now - noted > self._touch_interval:
            if not await self.store.records.touch(key, self._limits.idle):
                return None
            if held is not None:
                held.noted = now
        return record

    def _share_record(self, record: SessionRecord) -> SessionRecord:
        """The record, or one that says the same: most do, and one for all of them is enough."""
        if len(self._records) > MAX_SHARED_RECORDS:
            self._records.clear()
        return self._records.setdefault(record, record)

    async def set_revision(self, session_id: str, record: SessionRecord, revision: str) -> None:
        """Let every worker know which revision is spoken in a session."""
        await self.save_record(session_id, replace(record, revision=revision))

    async def set_scopes(self, session_id: str, record: SessionRecord, principal: Principal | None) -> None:
        """Let every worker know that a session begins with what this principal is allowed."""
        chosen = self._add_scopes(record, principal)
        if chosen != record:
            await self.save_record(session_id, chosen)

    def _add_scopes(self, record: SessionRecord, principal: Principal | None) -> SessionRecord:
        return (
            replace(record, scopes=principal.scopes) if self._is_scoped and principal is not None else record
        )

    async def touch(self, session_id: str) -> bool:
        """Whether a session is still there; it is in use."""
        known = self._find_local(session_id)
        if isinstance(known, _LiveSession):
            known.session.used_at = time.monotonic()
            self._mark_used(known.session)
        elif known is not None:
            known.used = time.monotonic()
            self._session_limit.use(known)
        return await self.store.records.touch(session_key(session_id), self._limits.idle)

    # ----------------------------------------------------------------- posting and ending

    async def post(self, session_id: str, record: SessionRecord, post: SessionPost) -> bool:
        """Hand a post to the worker that holds the conversation; return False if there is none."""
        held = self._ensure_awake(session_id)
        if held is not None:
            self._deliver(held.session, post)
            return True
        if record.worker != self._worker and await self.is_worker_alive(record):
            await self._send_to_worker(record, _WorkerMessage(session_id, post))
            return True
        await self.store.records.delete(session_key(session_id))  # its worker has died
        return False

    def begin(
        self, session_id: str, request: JSONRPCRequest, principal: Principal | None
    ) -> "bytes | StartedSessionRequest | None":
        """The answer to a request, if it is there at once; else the request, to go on with.

        None if it has to be posted: another worker serves it, or somebody has to be asked before.
        """
        held, now = self._held.get(session_id), time.monotonic()
        if held is None or now - held.noted > self._touch_interval:
            return None
        session, record = held.session, held.record
        anonymous = principal is None and not (record.principal or record.scopes)
        if record.single or not (anonymous or _can_use(record, principal)):
            return None
        if now - session.used_at > self._touch_interval:  # who was used just now is among the last anyway
            self._mark_used(session)
        begun = session.begin(request, now)
        return (
            begun
            if begun is None or isinstance(begun, bytes)
            else StartedSessionRequest(record, session, begun)
        )

    def _deliver(self, session: HttpSession, post: SessionPost) -> None:
        session.deliver(post)
        self._mark_used(session)
        if self.load.waiting > MAX_QUEUED_BYTES:
            fattest = max((held.session for held in self._held.values()), key=lambda held: held.queued_bytes)
            fattest.end(f"posts of more than {MAX_QUEUED_BYTES} bytes wait, and most of them are its own")

    @contextmanager
    def track_waiting_client(self, session_id: str) -> Generator[None]:
        """A client waits for what a session says, here and now."""
        session = self.find_live(session_id)
        if session is None:
            yield  # another worker holds it
            return
        session.waiting_clients += 1
        try:
            yield
        finally:
            session.waiting_clients -= 1

    async def forget_stream(self, session_id: str, stream: str) -> None:
        """Forget a stream whose answer was no event, so that it cannot be resumed."""
        session = self.find_live(session_id)
        if session is None:
            await self._finished_streams.drop(stream_log(session_id, stream))
        else:
            await session.forget_stream(stream)

    async def is_worker_alive(self, record: SessionRecord) -> bool:
        """Whether the worker that holds a session lives."""
        return (
            record.worker == self._worker
            or await self.store.records.get(_get_worker_key(record.worker)) is not None
        )

    async def end(self, session_id: str, record: SessionRecord, why: str) -> None:
        """End a session: from now on it is not found any more."""
        await self.store.records.delete(session_key(session_id))
        if record.worker != self._worker:
            await self._send_to_worker(record, _WorkerMessage(session_id))
        else:
            await self._end_here(session_id, why)

    async def _end_here(self, session_id: str, why: str) -> None:
        """End a session that this worker holds, awake or asleep."""
        if session_id in self._held:
            self._held[session_id].session.end(why)
        elif session_id in self._asleep:
            sleeper = self._asleep.pop(session_id)
            self._session_limit.remove(sleeper)
            sleeper.talk.end()
            self._stop_maintenance()
            await forget_session(session_id, sleeper.answered, self.store, self._finished_streams)

    async def _send_to_worker(self, record: SessionRecord, mail: _WorkerMessage) -> None:
        await self.store.topics.publish(f"worker/{record.worker}", jsonrpc.encode(mail))

    async def close(self) -> None:
        """End all sessions that this worker holds, and wait for their conversations."""
        tasks = [held.task for held in self._held.values()]
        for held in self._held.values():
            held.session.end("the server stops")
        ends = asyncio.Semaphore(MAX_CONCURRENT_ENDS)

        async def end(session_id: str) -> None:
            async with ends:
                with self._log_errors(session_id):
                    await self._end_here(session_id, "the server stops")

        await asyncio.gather(*map(end, tuple(self._asleep)))
        # After that: sessions may have been woken, and ended, meanwhile.
        ending = {*tasks, *(held.task for held in self._held.values()), *self._ending}
        if ending:
            await asyncio.wait(ending)
        if self._subscribed.is_set():
            await self.store.records.delete(_get_worker_key(self._worker))

    # ----------------------------------------------------------------- holding

    async def _run_session(self, session: HttpSession, principal: Principal | None) -> None:
        try:
            await self._serve(session, principal)
        except Exception:  # a session that fails, fails alone
            logger.exception("session %s… failed", session.id[:8])
        finally:
            if not session.asleep:
                del self._held[session.id]
                self._session_limit.remove(session)
                self._stop_maintenance()
                with self._log_errors(session.id):
                    await session.close()

    @contextmanager
    def _log_errors(self, session_id: str) -> Generator[None]:
        """Go on if a session that has ended cannot be forgotten: the others end all the same."""
        try:
            yield
        except Exception:  # whatever a store raises
            logger.exception("session %s… could not be forgotten", session_id[:8])

    def _stop_maintenance(self) -> None:
        """Stop the maintenance task if no session is left."""
        if not (self._held or self._asleep) and self._maintenance is not None:
            self._maintenance.cancel()
            self._maintenance = None
            self._subscribed.set()  # it may never have begun

    async def _evict(self, session_id: str) -> None:
        logger.info("session %s… ends: there are too many (max_sessions=)", session_id[:8])
        held = self._held.get(session_id)
        await self._end_here(session_id, "other sessions need the room")
        if held is not None:
            await asyncio.wait([held.task])

    # ----------------------------------------------------------------- sleeping

    def _mark_used(self, session: HttpSession) -> None:
        """Note that a session is in use, which is awake."""
        self._held.move_to_end(session.id)
        self._session_limit.use(session)

    def _put_idle_to_sleep(self, looks: int = LOOKS) -> None:
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
                tuple(session.answered_streams),
                held.principal,
                held.context,
                session.used_at,
                held.noted,
            )
            self._session_limit.replace(sleeper)
            self._ending.add(held.task)
            held.task.add_done_callback(self._ending.discard)

    def _ensure_awake(self, session_id: str) -> _LiveSession | None:
        """A session that this worker holds, which is awake from now on."""
        if session_id in self._asleep:
            self._bedtime.note_wake()
            self._wake_up(session_id)
        return self._held.get(session_id)

    def _wake_up(self, session_id: str) -> None:
        """Let a session go on, if it sleeps."""
        sleeper = self._asleep.pop(session_id, None)
        if sleeper is None:
            return
        session = self._make_session(session_id, sleeper.owner)
        session.wake(sleeper.talk, sleeper.answered, sleeper.used)
        principal, context = sleeper.principal, sleeper.context
        task = asyncio.get_running_loop().create_task(self._run_session(session, principal), context=context)
        self._held[session_id] = _LiveSession(
            session, task, sleeper.record, principal, context, sleeper.noted
        )
        self._session_limit.replace(session)
        self._put_idle_to_sleep()

    async def _maintain(self, heard: asyncio.Event) -> None:
        """Receive posts from other workers, and end idle sessions."""
        sweeping = asyncio.get_running_loop().create_task(self._sweep())
        try:
            while True:
                try:
                    await self._receive_from_workers(heard)
                except TopicGap:
                    logger.warning("other workers hand on more than this one can take; some of it is lost")
                except Exception:  # a store that cannot be reached comes back
                    logger.exception("what other workers hand on cannot be heard; trying again")
                    heard.set()  # sessions that are used on this worker only need no other
                    await asyncio.sleep(SWEEP_INTERVAL)
        finally:
            heard.set()
            sweeping.cancel()

    async def _receive_from_workers(self, heard: asyncio.Event) -> None:
        async with self.store.topics.subscribe(f"worker/{self._worker}") as mails:
            await self.store.records.put(_get_worker_key(self._worker), b"", WORKER_TTL)
            heard.set()
            async for mail in mails:
                await self._take_worker_message(_WORKER_MESSAGE(mail))

    async def _take_worker_message(self, mail: _WorkerMessage) -> None:
        post = mail.post
        held = self._find_local(mail.session) if post is None else self._ensure_awake(mail.session)
        if held is None:
            if post is not None and post.stream:  # ends the wait for its answer
                await self.store.logs.append(
                    stream_log(mail.session, post.stream), END_MARK, STREAM_RETENTION
                )
        elif post is None:
            await self._end_here(mail.session, "its client has ended it")
        elif isinstance(held, _LiveSession):
            self._deliver(held.session, post)

    async def _sweep(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(min(SWEEP_INTERVAL, limits.idle / 2, limits.handshake / 2))
            try:
                await self.store.records.put(_get_worker_key(self._worker), b"", WORKER_TTL)
                for held in tuple(self._held.values()):
                    await self._check_session(held.session)
                for sleeper in tuple(self._asleep.values()):
                    await self._check_sleeper(sleeper)
                self._bedtime.shrink()
                self._put_idle_to_sleep(len(self._held))
            except Exception:  # as above
                logger.exception("the sessions could not be looked at; trying again")

    async def _check_session(self, session: HttpSession) -> None:
        """Keep a session that is in use; end one that is not."""
        limits, now = self._limits, time.monotonic()
        if not session.ready and now - session.opened_at > limits.handshake:
            session.end(f"the handshake was not completed within {limits.handshake:g} s")
            return
        await session.renew_streams()  # a client that has gone may come back for a while
        if session.waiting_clients or await has_reader(session.id, self.store):
            await self.touch(session.id)
        elif now - session.used_at > limits.idle and await self._is_expired(session.id):
            session.end(f"nobody used it for {limits.idle:g} s")

    async def _check_sleeper(self, sleeper: Sleeper) -> None:
        """The same for one that sleeps."""
        if await has_reader(sleeper.id, self.store):
            await self.touch(sleeper.id)
        elif time.monotonic() - sleeper.used > self._limits.idle and await self._is_expired(sleeper.id):
            await self._end_here(sleeper.id, f"nobody used it for {self._limits.idle:g} s")

    async def _is_expired(self, session_id: str) -> bool:
        return await self.store.records.get(session_key(session_id)) is None


def _can_use(record: SessionRecord, principal: Principal | None) -> bool:
    """Whether a session is that of a principal, who is allowed as much as it takes."""
    ours = hmac.compare_digest(record.principal.encode(), _get_principal_key(principal).encode())
    return ours and record.scopes <= (_NO_SCOPES if principal is None else principal.scopes)


def _get_principal_key(principal: Principal | None) -> str:
    """Return the key of the owner of a session and its client; anonymous ones share the empty key."""
    return "" if principal is None else jsonrpc.encode([principal.key, principal.client]).decode()


def _get_worker_key(worker: str) -> str:
    """The key of a worker's sign of life."""
    return f"worker/{worker}"
