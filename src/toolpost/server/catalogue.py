"""A list that clients can read: entries in the order they came, pages with sealed cursors, answers as bytes.

Owns order, names, pages and the cached answers, and says when it has changed; any thread may change it. What
an entry does is the entry's business; who is told of a change is the announcer's.
"""

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from toolpost import types
from toolpost.errors import InvalidParams, SealBroken
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import Incoming
from toolpost.protocol.party import Party
from toolpost.server.cache import Cache, kept
from toolpost.types.base import Raw, Struct

if TYPE_CHECKING:
    from toolpost.protocol.seal import KeyRing

__all__ = ["PAGE_SIZE", "Catalogue", "Handle", "Kind", "Selected"]

logger: Final = logging.getLogger("toolpost.server")

PAGE_SIZE: Final = 1000
"""Entries on a page. Most lists have one page: a page costs the client a round trip and the model nothing."""

MAX_MEANT: Final = 64
"""Characters of a name for which another is suggested: comparing takes the square of it."""

MAX_COMPARED: Final = 100
"""Names that are compared with one that there is not: who asks for nonsense must not cost much."""

P = ParamSpec("P")
R = TypeVar("R")


class Handle(ABC, Generic[P, R]):
    """A function that stands in a catalogue: call it as before, or change how it is served.

    Every change is told to the clients by itself.
    """

    enabled: bool = True
    scopes: frozenset[str] = frozenset()
    """What a token needs to allow its use."""
    __name__: str

    def __init__(self, name: str, fn: Callable[P, R], home: "Catalogue[Any]") -> None:
        self.name = name
        self.fn = fn
        self._home = home
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function itself returns; nothing of the protocol is involved."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @abstractmethod
    def shown(self, structured: str | None) -> Any:
        """How it stands in the list, for peers that take structured output of this kind."""

    def enable(self) -> None:
        """Serve it again.

        Raises:
            RuntimeError: it was removed.
        """
        if not self._home.holds(self):
            raise RuntimeError(f"{self.name!r} was removed; register it again")
        if not self.enabled:
            self.enabled = True
            self._home.touch()

    def disable(self) -> None:
        """Serve it no longer, and show it in no list, until it is enabled."""
        if self.enabled:
            self.enabled = False
            self._home.touch()

    def remove(self) -> None:
        """Take it out for good."""
        self._home.remove(self.name, self)  # another one may have its name by now


E = TypeVar("E", bound=Handle[..., Any])


class Kind(Struct, frozen=True):
    """A kind of list: its name, what asks for it, what carries a page, and by what name changes are told.

    What carries a page stands here by its name in `toolpost.types`, and is loaded for the first page.
    """

    what: str
    method: str
    result: str
    field: str
    changes: str


class Catalogue(Generic[E]):
    """Entries by name, in a stable order.

    Args:
        kind: of what.
        changed: called after every change, with what has changed.
        keys: gives the keys that cursors are sealed with, when they are first needed.
        size: entries on a page.
        cache: how long clients may keep a page. It is the same for all of them (CACHE-3).
    """

    def __init__(
        self,
        kind: Kind,
        changed: Callable[[str], None],
        keys: "Callable[[], KeyRing]",
        size: int = PAGE_SIZE,
        cache: Cache | None = None,
    ) -> None:
        self.kind = kind
        self.keys = keys
        self.size = size
        self.cache = cache
        self._changed = changed
        self._lock = RLock()  # not a plain one: a finaliser that takes an entry out may run anywhere
        self._entries: dict[str, tuple[int, E]] = {}
        self._serial = 0
        self._answers: dict[tuple[str, int], Raw] = {}
        self._views: WeakSet[Selected[E]] = WeakSet()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[E]:
        return (entry for _, entry in self._now())

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def used(self) -> bool:
        """Whether there was ever an entry. What was declared once stays so, be the list empty by now."""
        return self._serial > 0

    def serves(self, entry: E) -> bool:
        """Whether an entry is there for clients."""
        return entry.enabled

    def get(self, name: str) -> E | None:
        """The entry of this name, if there is one for clients."""
        found = self._entries.get(name)
        return found[1] if found is not None and found[1].enabled else None

    def holds(self, entry: E) -> bool:
        """Whether this very entry is there, be it for clients or not."""
        found = self._entries.get(entry.name)
        return found is not None and found[1] is entry

    def suggest(self, name: str) -> str:
        """The rest of a sentence about a name that there is not: which one was perhaps meant."""
        if len(name) > MAX_MEANT:
            return ""
        from difflib import get_close_matches  # noqa: PLC0415 - most processes never need it

        alike = (entry.name for entry in self if self.serves(entry) and abs(len(entry.name) - len(name)) <= 3)
        near = get_close_matches(name, islice(alike, MAX_COMPARED), n=1, cutoff=0.75)
        return f"; did you mean {near[0]}?" if near else ""

    def select(self, keep: Callable[[E], bool], changed: Callable[[str], None]) -> "Selected[E]":
        """The same entries, as far as they are kept, now and later."""
        view = Selected(self, self._entries, keep, changed)
        with self._lock:
            self._views.add(view)
        return view

    def add(self, name: str, entry: E) -> None:
        """Put an entry at the end.

        Raises:
            ValueError: the name is taken.
        """
        with self._lock:
            if name in self._entries:
                raise ValueError(
                    f"{name!r} is among the {self.kind.what} already; remove it first, or choose another name"
                )
            self._serial += 1
            self._entries[name] = (self._serial, entry)
        self.touch()

    def remove(self, name: str, entry: E | None = None) -> None:
        """Take an entry out, if given only this very one; one that is gone already stays gone."""
        with self._lock:
            if name not in self._entries or (entry is not None and not self.holds(entry)):
                return
            del self._entries[name]
        self.touch()

    def touch(self) -> None:
        """Forget the cached answers and say that something has changed."""
        self._answers = {}  # not cleared: an answer that is being made belongs into the old one
        with self._lock:
            views = tuple(self._views)
        for view in views:
            view.touch()
        self._changed(self.kind.changes)

    def page(self, party: Party, incoming: Incoming, cursor: str | None) -> Raw:
        """The answer to a list request, stamped for the peer that sent it.

        Args:
            party: whose list it is; the connection may speak for several.
            incoming: the request.
            cursor: where to go on.

        Raises:
            InvalidParams: the cursor is none of ours (PAGE-7).
        """
        after = 0 if cursor is None else self._open(party, cursor)
        revision = incoming.peer.revision
        key = (revision.date, after)
        answers = self._answers
        answer = answers.get(key)
        if answer is None:
            items = (
                (serial, entry) for serial, entry in self._now() if serial > after and self.serves(entry)
            )
            page = list(islice(items, self.size))
            more = next(items, None) is not None
            listed: dict[str, Any] = {
                self.kind.field: [entry.shown(revision.structured) for _, entry in page],
                "next_cursor": self._seal(party, page[-1][0]) if more else None,
                "meta": party.facts(revision) if revision.stateless else None,
            }
            result = kept(getattr(types, self.kind.result)(**listed), self.cache)
            stamped = ERAS[revision.era].stamp_result(party, incoming, result)
            answer = answers[key] = Raw(jsonrpc.encode(stamped))
        return answer

    def _now(self) -> list[tuple[int, E]]:
        """The entries as they are now: another thread may add some meanwhile."""
        return list(self._entries.values())

    def _audience(self, party: Party) -> str:
        return f"cursor of {self.kind.what} of {party.info.name}"

    def _seal(self, party: Party, serial: int) -> str:
        return self.keys().seal(str(serial).encode(), audience=self._audience(party))

    def _open(self, party: Party, cursor: str) -> int:
        try:
            return int(self.keys().open(cursor, audience=self._audience(party), now=0))
        except SealBroken as error:
            raise InvalidParams(
                "Invalid params: the cursor is not valid here; start again without one"
            ) from error


def _kept(keep: Callable[[E], bool], entry: E) -> bool:
    """Whether an entry belongs to a part; one that nobody can tell of does not."""
    try:
        return keep(entry)
    except Exception:  # whatever the author's function raises, the other entries stay
        logger.exception("%r is left out: whether it is selected cannot be told", entry)
        return False


class Selected(Catalogue[E]):
    """A part of a catalogue, with pages of its own. Its entries are those of the whole: nothing is copied.

    Its pages are never public: others may see another part.

    Args:
        whole: the catalogue.
        entries: those of the whole, which fills and empties them.
        keep: whether an entry belongs to the part.
        changed: called after every change of the whole.
    """

    def __init__(
        self,
        whole: Catalogue[E],
        entries: dict[str, tuple[int, E]],
        keep: Callable[[E], bool],
        changed: Callable[[str], None],
    ) -> None:
        super().__init__(whole.kind, changed, whole.keys, whole.size, whole.cache and whole.cache.unshared())
        self._whole = whole
        self._entries = entries
        self._keep = functools.partial(_kept, keep)
        self._used = False

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[E]:
        return (entry for entry in self._whole if self._keep(entry))

    def __contains__(self, name: str) -> bool:
        found = self._entries.get(name)
        return found is not None and name in self._whole and self._keep(found[1])

    @property
    def used(self) -> bool:
        """Whether an entry was ever kept, as far as anybody has asked."""
        self._used = self._used or any(True for _ in self)
        return self._used

    def get(self, name: str) -> E | None:
        """The entry of this name, if there is one for clients of the part."""
        found = self._entries.get(name)
        return found[1] if found is not None and self.serves(found[1]) else None

    def serves(self, entry: E) -> bool:
        """Whether an entry is there for clients of the whole, and belongs to the part."""
        return self._whole.serves(entry) and self._keep(entry)

    def add(self, name: str, entry: E) -> None:  # noqa: ARG002 - it is refused
        """Refuse: the part is chosen from the whole.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"a selection of {self.kind.what} cannot be added to; register with the whole server")

    def remove(self, name: str, entry: E | None = None) -> None:
        """Take an entry out of the whole."""
        self._whole.remove(name, entry)
