"""Sealed sessions: the content of the id, its owner, its lifetime, and the shared state."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from hosted import run
from toolpost import Server
from toolpost.principal import Principal
from toolpost.protocol.eras import Peer
from toolpost.protocol.revisions import LATEST_SESSION, REVISIONS
from toolpost.protocol.seal import KeyRing
from toolpost.server.http import sessions as module
from toolpost.server.http.exchange import HTTPRefusal
from toolpost.server.http.sessions import Session, Sessions
from toolpost.server.options import HttpOptions
from toolpost.stores.memory import FRESH, MemoryStore
from toolpost.types import ClientCapabilities, ElicitationCapability, Implementation

ANN = Principal("ann", scopes=frozenset({"read"}))
BOB = Principal("bob", scopes=frozenset({"read"}))
CLIENT = Peer(
    LATEST_SESSION,
    ClientCapabilities(elicitation=ElicitationCapability()),
    Implementation("c", "1", title="C", website_url="https://c.example"),
)


class Clock:
    """The time of sessions."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class SomeWorker:
    """The sessions of one worker, and its log."""

    def __init__(self, store: MemoryStore | None = None, **options: Any) -> None:
        kept = {name: options.pop(name) for name in ("keys", "revisions", "name") if name in options}
        self.server = Server(kept.pop("name", "s"), store=store or MemoryStore(), **kept)
        self.announced: list[tuple[str, str]] = []
        self.released: list[Session] = []
        self.sessions = Sessions(self.server, HttpOptions(**options), self._announce, self._release)

    async def _announce(self, kind: str, about: str) -> None:
        self.announced.append((kind, about))

    async def _release(self, session: Session) -> None:
        self.released.append(session)

    async def open(self, peer: Peer = CLIENT, principal: Principal | None = None) -> Session:
        return await self.sessions.open(peer, principal)

    async def knows(self, session: Session, principal: Principal | None = None) -> bool:
        try:
            found = self.sessions.find_fresh(session.id, principal)
            found = found or await self.sessions.find(session.id, principal)
        except HTTPRefusal:
            return False
        return found.id == session.id


def two_workers(**options: Any) -> tuple[SomeWorker, SomeWorker]:
    """Two workers with one store."""
    store = MemoryStore()
    return SomeWorker(store, **options), SomeWorker(store, **options)


# --------------------------------------------------------------------- what an id carries


@pytest.mark.parametrize("revision", [date for date, each in REVISIONS.items() if not each.stateless])
def test_another_worker_reads_the_facts_in_the_id(revision):
    async def main():
        one, two = two_workers()
        opened = await one.open(Peer(REVISIONS[revision], CLIENT.capabilities, CLIENT.info))
        found = await two.sessions.find(opened.id, None)
        assert found is not opened
        assert (found.peer.revision.date, found.peer.capabilities) == (revision, CLIENT.capabilities)
        assert found.peer.info == Implementation("c", "1", title="C")  # the rest is not needed later
        assert found.key == opened.key
        assert opened.key not in opened.id

    run(main)


def test_given_keys_need_no_store():
    async def main():
        keys = KeyRing([b"k" * 32])
        opened = await SomeWorker(keys=keys).open()
        assert await SomeWorker(keys=keys).knows(opened)
        assert not await SomeWorker(keys=KeyRing([b"l" * 32])).knows(opened)
        assert not await SomeWorker().knows(opened)

    run(main)


def test_each_id_is_another_one_and_clients_of_a_kind_share_their_description():
    async def main():
        worker = SomeWorker()
        sessions = [await worker.open() for _ in range(10)]
        assert len({session.id for session in sessions}) == 10
        assert len({id(session.peer) for session in sessions}) == 1

    run(main)


@pytest.mark.parametrize("size", [10, 10_000])
def test_large_facts_stay_in_the_store(size):
    async def main():
        one, two = two_workers()
        capabilities = ClientCapabilities(experimental={"x": {"y": "z" * size}})
        opened = await one.open(Peer(LATEST_SESSION, capabilities, CLIENT.info))
        records: Any = one.server.store.records
        stored = [key for key in records._values._items if key.startswith("facts/")]
        assert len(stored) == (size > module.MAX_FACTS_BYTES)
        assert len(opened.id) < 2 * module.MAX_FACTS_BYTES
        assert (await two.sessions.find(opened.id, None)).peer.capabilities == capabilities
        for key in stored:
            await one.server.store.records.delete(key)
            assert not await SomeWorker(one.server.store).knows(opened)  # pyright: ignore[reportArgumentType] - it is one

    run(main)


def test_a_client_that_describes_itself_at_length_is_refused():
    async def main():
        capabilities = ClientCapabilities(experimental={"x": {"y": "z" * module.MAX_STORED_FACTS_BYTES}})
        with pytest.raises(HTTPRefusal) as refused:
            await SomeWorker().open(Peer(LATEST_SESSION, capabilities, CLIENT.info))
        assert refused.value.status == 413

    run(main)


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given[:-1],
        lambda given: given[:-4] + "AAAA",
        lambda given: "x" * 40,
        lambda given: "",
    ],
)
def test_an_id_that_no_worker_gave_is_unknown(change: Callable[[str], str]):
    async def main():
        one, two = two_workers()
        opened = await one.open()
        for worker in (one, two):
            with pytest.raises(HTTPRefusal) as caught:
                await worker.sessions.find(change(opened.id), None)
            assert caught.value.status == 404

    run(main)


def test_an_id_is_for_one_server_and_for_revisions_that_it_speaks():
    async def main():
        keys = KeyRing([b"k" * 32])
        opened = await SomeWorker(keys=keys).open()
        assert not await SomeWorker(keys=keys, name="another").knows(opened)
        others = [date for date in REVISIONS if date != LATEST_SESSION.date]
        assert not await SomeWorker(keys=keys, revisions=others).knows(opened)

    run(main)


# --------------------------------------------------------------------- access


@pytest.mark.parametrize(
    ("owner", "other", "ours"),
    [
        (None, None, True),
        (None, ANN, False),
        (ANN, None, False),
        (ANN, ANN, True),
        (ANN, BOB, False),
        (ANN, Principal("ann", client="another"), False),
        (ANN, Principal("ann"), True),  # scopes count only where each client has a server of its own
    ],
)
def test_a_session_belongs_to_its_principal(owner, other, ours):
    async def main():
        one, two = two_workers()
        opened = await one.open(principal=owner)
        for _ in range(2):  # the second time it is cached
            for worker in (one, two):
                assert await worker.knows(opened, other) is ours

    run(main)


def test_a_session_of_a_server_that_was_chosen_needs_the_scopes_of_its_handshake():
    async def main():
        worker = SomeWorker()
        worker.server.is_per_client = True
        opened = await worker.open(principal=ANN)
        other = SomeWorker(worker.server.store)  # pyright: ignore[reportArgumentType] - it is one
        for each in (worker, other):
            assert await each.knows(opened, ANN)
            assert await each.knows(opened, Principal("ann", scopes=frozenset({"read", "write"})))
            assert not await each.knows(opened, Principal("ann"))

    run(main)


# --------------------------------------------------------------------- for how long


def test_a_seal_has_an_end(clock):
    async def main():
        one, two = two_workers(session_life=100, idle=1e6)
        opened = await one.open()
        clock.now += 99
        assert await two.knows(opened)
        clock.now += 2
        assert not await SomeWorker(one.server.store).knows(opened)  # pyright: ignore[reportArgumentType] - it is one

    run(main)


@pytest.mark.parametrize("sweeps", [False, True])
def test_an_idle_session_is_refused(clock, sweeps):
    async def main():
        worker = SomeWorker(idle=100)
        idle, used = await worker.open(), await worker.open()
        clock.now += 90
        assert await worker.knows(used)
        clock.now += 20
        if sweeps:
            await worker.sessions.end_idle()
            assert worker.released == [idle]
            assert len(worker.sessions._cache) == 1
        assert not await worker.knows(idle)
        assert await worker.knows(used)
        assert not await worker.knows(idle)

    run(main)


def test_a_session_that_is_used_elsewhere_is_not_idle(clock):
    async def main():
        one, two = two_workers(idle=100)
        opened = await one.open()
        for _ in range(8):
            clock.now += 20
            assert await two.knows(opened)
            for worker in (one, two):
                await worker.sessions.end_idle()
        assert await one.knows(opened)

    run(main)


def test_a_session_in_use_is_not_idle(clock):
    async def main():
        worker = SomeWorker(idle=100)
        opened = await worker.open()
        opened.reader_count = 1
        clock.now += 500
        assert await worker.knows(opened)
        opened.reader_count = 0
        clock.now += 101
        assert not await worker.knows(opened)

    run(main)


# --------------------------------------------------------------------- what is shared


def test_settings_are_shared_as_soon_as_they_are_read_again(clock):
    async def main():
        one, two = two_workers()
        opened = await one.open()
        there = await two.sessions.find(opened.id, None)
        assert there.settings.log_level is None
        await one.sessions.set_log_level(opened, "error")
        assert one.announced == [("changed", opened.key)]
        await two.sessions.find(opened.id, None)
        assert there.settings.log_level is None
        there.checked_at = -inf  # as the worker does when it is notified
        assert two.sessions.find_fresh(opened.id, None) is None
        await two.sessions.find(opened.id, None)
        assert there.settings.log_level == "error"
        await two.sessions.set_log_level(there, "debug")
        clock.now += FRESH + 0.1  # or after a while without a word
        await one.sessions.find(opened.id, None)
        assert opened.settings.log_level == "debug"

    run(main)


def test_changes_at_two_workers_are_both_kept():
    async def main():
        one, two = two_workers()
        here = await one.open()
        there = await two.sessions.find(here.id, None)
        await one.sessions.set_subscription(here, "a", is_active=True)
        await two.sessions.set_subscription(there, "b", is_active=True)
        assert there.settings.uris == ("a", "b")
        assert (here.subscribed, there.subscribed) == (("a",), ("b",))
        await two.sessions.set_subscription(there, "b", is_active=False)
        assert (there.settings.uris, there.subscribed) == (("a",), ())
        for number in range(3):
            await one.sessions.set_url_elicitation(here, str(number), is_pending=True)
        await two.sessions.set_url_elicitation(there, "1", is_pending=False)
        assert there.settings.url_elicitations == ("0", "2")

    run(main)


def test_a_session_that_ends_at_one_worker_ends_at_all(clock):
    async def main():
        one, two = two_workers()
        here = await one.open()
        there = await two.sessions.find(here.id, None)
        await one.sessions.end(here)
        assert one.released == [here]
        assert [kind for kind, _ in one.announced] == ["changed"]
        assert not await one.knows(here)
        clock.now += FRESH + 0.1
        assert not await two.knows(there)
        assert not await SomeWorker(one.server.store).knows(here)  # pyright: ignore[reportArgumentType] - it is one

    run(main)


def test_a_handshake_that_fails_leaves_nothing():
    async def main():
        worker = SomeWorker()
        session = await worker.sessions.open(CLIENT, None)
        await worker.sessions.discard(session)
        assert len(worker.sessions._cache) == 0
        assert worker.released == [session]
        assert worker.sessions.by_key.get(session.key) is None

    run(main)


# --------------------------------------------------------------------- what a worker remembers


def test_a_worker_remembers_some_sessions_and_knows_the_others_by_their_ids(monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED_SESSIONS", 3)

    async def main():
        worker = SomeWorker()
        busy = await worker.open()
        busy.calls = {1: object()}  # pyright: ignore[reportAttributeAccessIssue] - any call
        others = [await worker.open() for _ in range(10)]
        assert len(worker.sessions._cache) == 3
        assert worker.released == others[:-2]  # oldest first; what they hold here is released
        assert worker.sessions.by_key.get(busy.key) is busy
        assert worker.sessions.by_key.get(others[0].key) is None
        busy.calls = None
        for session in (busy, *others):
            assert await worker.knows(session)
        assert len(worker.sessions._cache) == 3

    run(main)


def test_idle_sessions_that_have_ended_have_a_bound(clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_ENDED_SESSIONS", 2)

    async def main():
        worker = SomeWorker(idle=10)
        sessions = [await worker.open() for _ in range(5)]
        clock.now += 11
        await worker.sessions.end_idle()
        assert len(worker.sessions._ended) == 2
        assert not await worker.knows(sessions[-1])

    run(main)


@pytest.mark.parametrize("how", ["deleted", "idle"])
def test_an_ended_session_leaves_an_empty_record_until_its_seal_expires(clock, how):
    async def main():
        store: Any = MemoryStore(clock=clock.monotonic)
        worker = SomeWorker(store, idle=10, session_life=1000)
        long = Implementation("x" * 3000, "1")
        session = await worker.open(Peer(LATEST_SESSION, ClientCapabilities(), long))
        await worker.sessions.set_subscription(session, "a", is_active=True)
        for name in ("one", "two", "one"):
            await worker.sessions.open_state(session).set(name, 1)
        clock.now += 400
        if how == "deleted":
            await worker.sessions.end(session)
        else:
            await worker.sessions.end_idle()
        clock.now += 100  # what notes its use is gone
        left = {key: await store.records.get(key) for key in list(store.records._values._items)}
        left.pop("keys/states")
        assert {key: value for key, value in left.items() if value is not None} == {
            f"session/{session.key}": b'{"is_ended":true}'
        }
        assert not await worker.knows(session)
        assert not await SomeWorker(store).knows(session)
        await worker.sessions.set_log_level(session, "debug")  # a call that ends late does not revive it
        assert await store.records.get(f"session/{session.key}") == b'{"is_ended":true}'
        clock.now += 500 + module.SEAL_LEEWAY
        assert await store.records.get(f"session/{session.key}") is None

    run(main)
