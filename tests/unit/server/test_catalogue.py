"""The lists of a registry: order, pages, cursors, cached responses."""

import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, RLock
from typing import Any

import msgspec
import pytest

from pair import SERVER, Pair, open_pair
from toolpost.errors import InvalidParams
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.registry import registry as module
from toolpost.server.registry.registry import LIST_KINDS, Cache, Registry, RegistryEntry
from toolpost.types import Implementation, Tool

KIND = LIST_KINDS["tools/list"]


class Entry(RegistryEntry[[], str]):
    """An entry that counts how often it was shown."""

    def __init__(self, name: str, home: Registry[Any]) -> None:
        super().__init__(name, lambda: name, home)
        self.times = 0

    def to_list_item(self, structured: str | None) -> Tool:
        self.times += 1
        return Tool(self.name, {"type": "object"}, description=structured)


class Shelf:
    """A registry with entries, and the notifications of its changes."""

    def __init__(self, count: int = 0, size: int = 2) -> None:
        self.changes: list[str] = []
        self.catalogue: Registry[Entry] = Registry(KIND, self.changes.append, size)
        for number in range(count):
            self.add(f"t{number}")

    def add(self, name: str) -> Entry:
        entry = Entry(name, self.catalogue)
        self.catalogue.add(entry)
        return entry


def page(catalogue: Registry[Any], pair: Pair, cursor: str | None = None) -> dict[str, Any]:
    """A page of the list, as a client of the pair reads it."""
    _, incoming = pair.ask("tools/list")
    raw = catalogue.get_page(SERVER, incoming, cursor)
    data = pair.server.reply(incoming.id, raw)
    assert data is not None
    pair.client.receive(data)
    return msgspec.json.decode(raw)


def names(catalogue: Registry[Any], pair: Pair) -> list[list[str]]:
    """The names on all pages."""
    pages: list[list[str]] = []
    cursor = None
    while True:
        read = page(catalogue, pair, cursor)
        pages.append([tool["name"] for tool in read["tools"]])
        cursor = read.get("nextCursor")
        if cursor is None:
            return pages


@pytest.mark.requirement("PAGE-1", "PAGE-3")
@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_pages_have_all_entries_in_order(date, count):
    shelf = Shelf(count)
    found = names(shelf.catalogue, open_pair(date))
    assert [name for one in found for name in one] == [f"t{number}" for number in range(count)]
    assert all(len(one) <= 2 for one in found)
    assert len(found) == max(1, (count + 1) // 2)


@pytest.mark.parametrize("date", DATES)
def test_an_answer_is_made_once_and_forgotten_with_a_change(date):
    shelf = Shelf()
    entry, pair = shelf.add("a"), open_pair(date)
    for _ in range(3):
        page(shelf.catalogue, pair)
    assert entry.times == 1
    entry.disable()
    assert page(shelf.catalogue, pair)["tools"] == []
    entry.disable()
    entry.enable()
    entry.enable()
    assert [tool["name"] for tool in page(shelf.catalogue, pair)["tools"]] == ["a"]
    assert entry.times == 2
    assert shelf.changes == ["tools"] * 3


@pytest.mark.parametrize("date", DATES)
def test_entries_are_shown_as_the_revision_takes_them(date):
    shelf = Shelf(1)
    [tool] = page(shelf.catalogue, open_pair(date))["tools"]
    assert tool.get("description") == REVISIONS[date].structured
    tag = page(shelf.catalogue, open_pair(date)).get("_meta", {})
    assert bool(tag) is REVISIONS[date].stateless


@pytest.mark.requirement("PAGE-7")
@pytest.mark.parametrize("cursor", ["x", "!", "AAAA" * 40])
def test_a_cursor_that_is_none_of_ours_is_refused(cursor):
    with pytest.raises(InvalidParams, match="cursor"):
        page(Shelf(5).catalogue, open_pair(DATES[0]), cursor)


def test_a_cursor_of_another_list_is_refused():
    pair, one = open_pair(DATES[0]), Shelf(5)
    cursor = page(one.catalogue, pair)["nextCursor"]
    assert page(Shelf(5).catalogue, pair, cursor) == page(one.catalogue, pair, cursor)  # at another worker
    prompts: Registry[Entry] = Registry(msgspec.structs.replace(KIND, label="prompts"), print)
    with pytest.raises(InvalidParams):
        page(prompts, pair, cursor)
    _, incoming = pair.ask("tools/list")
    other = type(SERVER)(Implementation("other", "1"), SERVER.capabilities)
    with pytest.raises(InvalidParams):
        one.catalogue.get_page(other, incoming, cursor)


def test_a_cursor_stays_good_while_entries_come_and_go():
    pair, shelf = open_pair(DATES[0]), Shelf(5)
    cursor = page(shelf.catalogue, pair)["nextCursor"]
    shelf.catalogue.remove("t0")
    shelf.catalogue.remove("t2")
    shelf.catalogue.remove("t2")
    shelf.add("new")
    read = page(shelf.catalogue, pair, cursor)
    assert [tool["name"] for tool in read["tools"]] == ["t3", "t4"]
    assert shelf.changes == ["tools"] * 8


def test_names_are_taken_once_and_found():
    shelf = Shelf(2)
    catalogue = shelf.catalogue
    assert len(catalogue) == 2
    assert "t0" in catalogue
    assert [entry.name for entry in catalogue] == ["t0", "t1"]
    with pytest.raises(ValueError, match="a tool named 't0' is already registered"):
        shelf.add("t0")
    entry: Any = catalogue.get("t1")
    assert entry() == "t1"
    assert repr(entry) == "<Entry t1>"
    entry.disable()
    assert catalogue.get("t1") is None
    assert catalogue.get("nope") is None
    entry.remove()
    assert "t1" not in catalogue
    assert catalogue.has_been_used
    assert not Shelf().catalogue.has_been_used


def test_a_handle_has_to_say_how_it_is_shown():
    class Silent(RegistryEntry[[], str]):
        pass

    with pytest.raises(TypeError, match="to_list_item"):
        Silent("x", lambda: "", Shelf().catalogue)  # pyright: ignore[reportAbstractUsage] - that is the point


def test_a_selection_shows_a_part_and_follows_the_whole():
    shelf, pair = Shelf(6), open_pair(DATES[0])
    changes: list[str] = []
    odd = shelf.catalogue.select(lambda entry: entry.name[-1] in "135", changes.append)
    few = odd.select(lambda entry: entry.name != "t3", print)
    assert names(odd, pair) == [["t1", "t3"], ["t5"]]
    assert names(few, pair) == [["t1", "t5"]]
    assert [entry.name for entry in few] == ["t1", "t5"]
    assert (len(few), "t1" in few, "t3" in few, "t0" in few) == (2, True, False, False)
    one: Any = odd.get("t1")
    one.disable()
    assert changes == ["tools"]
    assert names(few, pair) == [["t5"]]
    assert few.get("t1") is None
    assert few.get("t0") is None
    with pytest.raises(TypeError, match="cannot add to a selection"):
        few.add(one)
    few.remove("t5")
    assert names(few, pair) == [[]]
    assert few.has_been_used
    assert "t5" not in shelf.catalogue


def test_entries_may_come_while_a_list_is_read():
    shelf, pair = Shelf(1, size=10), open_pair(DATES[0])
    late = iter(["first", "second"])

    def keep(_: Entry) -> bool:  # as another thread would, between two entries
        if len(shelf.catalogue) == 1:
            shelf.add(next(late))
        return True

    part = shelf.catalogue.select(keep, print)
    assert names(part, pair) == [["t0"]]
    assert names(part, pair) == [["t0", "first"]]
    shelf.catalogue.remove("first")
    assert [entry.name for entry in part] == ["t0"]
    assert [entry.name for entry in part] == ["t0", "second"]


def test_an_answer_that_a_change_has_overtaken_is_not_kept():
    shelf, pair = Shelf(size=10), open_pair(DATES[0])

    class Busy(Entry):
        def to_list_item(self, structured: str | None) -> Tool:
            if "late" not in shelf.catalogue:
                shelf.add("late")
            return super().to_list_item(structured)

    shelf.catalogue.add(Busy("busy", shelf.catalogue))
    assert names(shelf.catalogue, pair) == [["busy"]]
    assert names(shelf.catalogue, pair) == [["busy", "late"]]


def test_what_was_kept_once_is_used_for_good():
    shelf = Shelf(1)
    some = shelf.catalogue.select(lambda entry: entry.name == "late", print)
    assert not some.has_been_used
    shelf.add("late")
    assert some.has_been_used
    shelf.catalogue.remove("late")
    assert some.has_been_used
    assert len(some) == 0


# --------------------------------------------------------------------- what is gone, and what was meant


def test_a_removed_entry_cannot_be_enabled():
    shelf = Shelf(2)
    gone, stays = shelf.catalogue.get("t0"), shelf.catalogue.get("t1")
    assert gone is not None
    assert stays is not None
    gone.remove()
    again = shelf.add("t0")
    with pytest.raises(RuntimeError, match="'t0' was removed; register it again"):
        gone.enable()
    gone.remove()
    assert shelf.catalogue.get("t0") is again
    stays.disable()
    stays.enable()
    assert shelf.catalogue.get("t1") is stays


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kindz", "; did you mean kinds?"),
        ("Kinds", "; did you mean kinds?"),
        ("get_wether", "; did you mean get_weather?"),
        ("get-weather", "; did you mean get_weather?"),
        ("hiden", ""),
        ("other", ""),
        ("", ""),
        ("k" * 100_000, ""),
    ],
)
def test_a_name_that_there_is_not_may_have_been_another(name, said):
    shelf = Shelf()
    for known in ("kinds", "get_weather", "hidden", "secret"):
        shelf.add(known)
    hidden = shelf.catalogue.get("hidden")
    assert hidden is not None
    hidden.disable()
    assert shelf.catalogue.suggest(name) == said


def test_only_listed_names_are_suggested():
    shelf = Shelf()
    shelf.add("secret")
    part = shelf.catalogue.select(lambda entry: False, shelf.changes.append)
    assert shelf.catalogue.suggest("secrets") == "; did you mean secret?"
    assert part.suggest("secrets") == ""


def test_not_every_name_is_compared(monkeypatch):
    shelf = Shelf(module.MAX_SUGGESTION_CANDIDATES + 10)
    seen: list[str] = []
    monkeypatch.setattr("difflib.get_close_matches", lambda name, given, **how: seen.extend(given) or [])
    assert shelf.catalogue.suggest("t") == ""
    assert len(seen) == module.MAX_SUGGESTION_CANDIDATES


# --------------------------------------------------------------------- threads

WORKERS = 6


@contextmanager
def impatient() -> Generator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """Return the results of several threads that start together."""
    ready = Barrier(WORKERS)

    def begin(number: int) -> Any:
        ready.wait()
        return work(number)

    with impatient(), ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(begin, range(WORKERS)))


def test_any_thread_may_change_a_list():
    shelf = Shelf()

    def work(number: int) -> None:
        for turn in range(30):
            entry = shelf.add(f"{number}-{turn}")
            view = shelf.catalogue.select(lambda _: True, print_nothing)
            entry.disable()
            entry.enable()
            if turn % 2:
                entry.remove()
                entry.remove()
            assert (entry.name in view) is not turn % 2

    at_once(work)
    serials = [serial for serial, _ in shelf.catalogue._snapshot()]
    assert sorted(serials) == serials
    assert len({*serials}) == WORKERS * 15
    assert {entry.name for entry in shelf.catalogue} == {
        f"{number}-{turn}" for number in range(WORKERS) for turn in range(0, 30, 2)
    }


def print_nothing(_: str) -> None:
    """Ignore a change."""


def test_of_threads_that_want_a_name_one_gets_it():
    shelf = Shelf()

    def work(number: int) -> bool:
        try:
            shelf.add("wanted")
        except ValueError:
            return False
        return True

    assert at_once(work).count(True) == 1


def test_a_list_is_changed_by_one_at_a_time():
    shelf = Shelf()
    lock: Any = RLock()
    shelf.catalogue._lock = lock

    class Watched(dict[str, Any]):
        def __setitem__(self, *item: Any) -> None:
            assert lock._is_owned()
            super().__setitem__(*item)

        def __delitem__(self, key: str) -> None:
            assert lock._is_owned()
            super().__delitem__(key)

    shelf.catalogue._entries = Watched()

    def told(_: str) -> None:
        assert not lock._is_owned()  # a listener may wait for another thread, which also changes the list

    shelf.catalogue._on_changed = told
    shelf.add("a").remove()
    shelf.catalogue.remove("a")
    assert len(shelf.catalogue) == 0


# --------------------------------------------------------------------- how long a page may be kept


@pytest.mark.requirement("CACHE-1", "CACHE-2", "CACHE-3")
@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize(
    ("cache", "said", "selected"),
    [
        (None, (0, "private"), (0, "private")),
        (Cache(ttl=1.5, scope="public"), (1500, "public"), (1500, "private")),
        (Cache(ttl=0, scope="public"), (0, "public"), (0, "private")),
    ],
)
def test_every_page_says_how_long_it_may_be_kept(date, cache, said, selected):
    shelf, pair = Shelf(5), open_pair(date)
    whole = Registry(KIND, print_nothing, 2, cache)
    for entry in shelf.catalogue:
        whole.add(entry)
    for catalogue, expected in ((whole, said), (whole.select(lambda _: True, print_nothing), selected)):
        cursor = None
        for _ in range(3):
            page(catalogue, pair, cursor)
            read = page(catalogue, pair, cursor)  # made before, and kept
            found = (read.get("ttlMs"), read.get("cacheScope"))
            assert found == (expected if REVISIONS[date].stateless else (None, None))
            cursor = read.get("nextCursor")
        assert cursor is None
