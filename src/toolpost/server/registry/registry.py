"""A registry of tools, resources or prompts: their order, pages, cursors and encoded list answers.

Also `Cache`, which says how long a client may keep an answer. How an entry is called is in `tools`,
`resources` and `prompts`.
"""

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import inf
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, get_args
from weakref import WeakSet

from msgspec.structs import replace

from toolpost import types
from toolpost.errors import InvalidParams, InvalidSeal
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.local_peer import LocalPeer
from toolpost.server.options import SERVER
from toolpost.types.base import Raw, Result, Struct
from toolpost.types.initialize import CacheableResult

if TYPE_CHECKING:
    from toolpost.protocol.seal import KeyRing

MAX_TTL: Final = (2**53 - 1) / 1000
"""Seconds; in milliseconds the largest integer that every JSON implementation reads as the same number."""

CacheScope: TypeAlias = Literal["public", "private"]

CacheableMethod: TypeAlias = Literal[
    "*",
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
]
"""The methods whose results clients may keep, and "*" for all others of them."""

_ANY_METHOD: Final = "*"

CacheableT = TypeVar("CacheableT", bound=Result)


class Cache(Struct, frozen=True):
    """How long clients may keep a result. A notification that it has changed ends that time at once.

    Attributes:
        ttl: seconds; 0 means that they ask again each time.
        scope: "private" if the result is for one client, "public" if it may be shared with any other.

    Raises:
        TypeError: the time is not a number.
        ValueError: it is negative or infinite, or the scope is unknown.

    Examples:
        >>> server = Server("almanac", cache={"tools/list": Cache(3600, scope="public"), "*": Cache(60)})
    """

    ttl: float
    scope: CacheScope = "private"

    def __post_init__(self) -> None:
        ttl: Any = self.ttl
        if not isinstance(ttl, int | float) or isinstance(ttl, bool):
            raise TypeError(f"ttl has to be a number of seconds, not {ttl!r}")
        if not 0 <= ttl < inf:
            raise ValueError(f"ttl has to be 0 seconds or more, and not for ever, not {ttl!r}")
        if ttl > MAX_TTL:
            raise ValueError(f"ttl has to be at most {MAX_TTL:.0f} seconds, not {ttl!r}")
        if self.scope not in get_args(CacheScope):
            raise ValueError(f'scope has to be "public" or "private", not {self.scope!r}')

    @property
    def ttl_ms(self) -> int:
        """The time in milliseconds, as clients get it."""
        return round(self.ttl * 1000)

    def as_private(self) -> "Cache":
        """Return a private one with the same time."""
        return Cache(self.ttl)


def check_cache(cache: Any) -> None:
    """Raise TypeError unless an argument is a `Cache`, or None."""
    if cache is not None and not isinstance(cache, Cache):
        raise TypeError(f"cache has to be a Cache, such as Cache(ttl=60), not {cache!r}")


def expand_cache_option(cache: Any) -> dict[str, Cache]:
    """Return the `cache` option of a server by method. Raises TypeError or ValueError."""
    methods: tuple[str, ...] = get_args(CacheableMethod)
    if not isinstance(cache, Mapping):
        check_cache(cache)
        cache = {} if cache is None else {_ANY_METHOD: cache}
    given = cast("Mapping[Any, Any]", cache)
    for method, one in given.items():
        if method not in methods:
            raise ValueError(f"cache has {method!r} in it, which is none of {', '.join(methods)}")
        if not isinstance(one, Cache):
            raise TypeError(f"cache[{method!r}] has to be a Cache, such as Cache(ttl=60), not {one!r}")
    named = {method: given.get(method, given.get(_ANY_METHOD)) for method in methods}
    return {method: one for method, one in named.items() if one is not None and method != _ANY_METHOD}


def apply_cache(result: CacheableT, cache: Cache | None) -> CacheableT:
    """Return the result with a cache hint, unless it has one, or cannot have one."""
    if cache is None or not isinstance(result, CacheableResult):
        return result
    if result.ttl_ms is not None or result.cache_scope is not None:
        return result
    return replace(result, ttl_ms=cache.ttl_ms, cache_scope=cache.scope)


# --------------------------------------------------------------------- registry

logger: Final = logging.getLogger("toolpost.server")

MAX_SUGGESTION_LENGTH: Final = 64
"""Characters of a name for which another is suggested: comparing takes quadratic time."""

MAX_SUGGESTION_CANDIDATES: Final = 100
"""Names that are compared with an unknown one: nonsense must not cost much."""

P = ParamSpec("P")
R = TypeVar("R")


class RegistryEntry(ABC, Generic[P, R]):
    """A registered function: call it as before, or change how it is served. Clients are notified."""

    enabled: bool = True
    scopes: frozenset[str] = frozenset()
    """The scopes that a token needs for it."""
    __name__: str

    def __init__(self, name: str, fn: Callable[P, R], home: "Registry[Any]") -> None:
        self.name = name
        self.fn = fn
        self._registry = home
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @abstractmethod
    def to_list_item(self, structured: str | None) -> Any:
        """Return its list item, for peers that take structured output of this kind."""

    def enable(self) -> None:
        """Serve it again.

        Raises:
            RuntimeError: it was removed.
        """
        if not self._registry.has_entry(self):
            raise RuntimeError(f"{self.name!r} was removed; register it again")
        if not self.enabled:
            self.enabled = True
            self._registry.mark_changed()

    def disable(self) -> None:
        """Neither list nor serve it, until it is enabled."""
        if self.enabled:
            self.enabled = False
            self._registry.mark_changed()

    def remove(self) -> None:
        """Remove it."""
        self._registry.remove(self.name, self)  # the name may be another entry's by now


E = TypeVar("E", bound=RegistryEntry[..., Any])


class ListKind(Struct, frozen=True):
    """A kind of list: its name, method and result class (by its name in `toolpost.types`)."""

    label: str
    method: str
    result: str
    field: str
    """The field of the result that holds the items."""
    changed_list: str
    """The list whose change is broadcast."""


class Registry(Generic[E]):
    """Entries by name, in the order of registration.

    `changed` is called after every change, with the name of the list. `keys` returns the keys that seal
    cursors. A page has `size` entries, and clients may keep each for the same time (`cache`, CACHE-3).
    """

    def __init__(
        self,
        kind: ListKind,
        changed: Callable[[str], None],
        keys: "Callable[[], KeyRing]",
        size: int = SERVER.page_size,
        cache: Cache | None = None,
    ) -> None:
        self.kind = kind
        self.keys = keys
        self.size = size
        self.cache = cache
        self._on_changed = changed
        self._lock = RLock()  # reentrant: a finaliser that removes an entry may run anywhere
        self._entries: dict[str, tuple[int, E]] = {}
        self._serial = 0
        self._encoded_pages: dict[tuple[str, int], Raw] = {}
        self.has_header_parameters = False
        """Whether HTTP headers mirror parameters of an entry."""
        self._views: WeakSet[RegistryView[E]] = WeakSet()
        self._keep: Callable[[E], bool] | None = None
        """What a view selects."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[E]:
        return (entry for _, entry in self._snapshot() if self.is_selected(entry))

    def __contains__(self, name: str) -> bool:
        found = self._entries.get(name)
        return found is not None and self.is_selected(found[1])

    def is_selected(self, entry: E) -> bool:
        """Return whether an entry belongs to this registry; all do, unless it is a view."""
        return self._keep is None or self._keep(entry)

    @property
    def has_been_used(self) -> bool:
        """Whether there was ever an entry: a capability stays declared when the list is empty again."""
        return self._serial > 0

    def get(self, name: str) -> E | None:
        """Return the entry of this name, if clients see one."""
        found = self._entries.get(name)
        if found is None or not found[1].enabled:
            return None
        return found[1] if self._keep is None or self._keep(found[1]) else None

    def has_entry(self, entry: E) -> bool:
        """Return whether this entry is registered, enabled or not."""
        found = self._entries.get(entry.name)
        return found is not None and found[1] is entry

    def suggest(self, name: str) -> str:
        """Return the end of a sentence about an unknown name: "; did you mean …?", or nothing."""
        if len(name) > MAX_SUGGESTION_LENGTH:
            return ""
        from difflib import get_close_matches  # noqa: PLC0415 - most processes never need it

        alike = (entry.name for entry in self if entry.enabled and abs(len(entry.name) - len(name)) <= 3)
        near = get_close_matches(name, islice(alike, MAX_SUGGESTION_CANDIDATES), n=1, cutoff=0.75)
        return f"; did you mean {near[0]}?" if near else ""

    def select(self, keep: Callable[[E], bool], changed: Callable[[str], None]) -> "RegistryView[E]":
        """Return a view of the entries that `keep` accepts, now and later."""
        view = RegistryView(self, keep, changed)
        with self._lock:
            self._views.add(view)
        return view

    def add(self, name: str, entry: E) -> None:
        """Add an entry at the end. Raises ValueError if the name is taken."""
        with self._lock:
            if name in self._entries:
                raise ValueError(
                    f"{name!r} is among the {self.kind.label} already; remove it first, "
                    "or choose another name"
                )
            self._serial += 1
            self._entries[name] = (self._serial, entry)
        self.mark_changed()

    def remove(self, name: str, entry: E | None = None) -> None:
        """Remove the entry of a name; with `entry`, only if it is that one."""
        with self._lock:
            if name not in self._entries or (entry is not None and not self.has_entry(entry)):
                return
            del self._entries[name]
        self.mark_changed()

    def mark_changed(self) -> None:
        """Drop the encoded pages and report the change."""
        self._encoded_pages = {}  # not cleared: a page being encoded belongs to the old dict
        with self._lock:
            views = tuple(self._views)
        for view in views:
            view.mark_changed()
        self._on_changed(self.kind.changed_list)

    def get_page(self, local_peer: LocalPeer, incoming: InboundRequest, cursor: str | None) -> Raw:
        """Return a page for the client of a request. Raises InvalidParams for an invalid cursor (PAGE-7)."""
        audience = f"cursor of {self.kind.label} of {local_peer.info.name}"
        after = 0 if cursor is None else self._open_cursor(cursor, audience)
        revision = incoming.peer.revision
        key = (revision.date, after)
        answers = self._encoded_pages
        answer = answers.get(key)
        if answer is None:
            items = (
                (serial, entry)
                for serial, entry in self._snapshot()
                if serial > after and entry.enabled and self.is_selected(entry)
            )
            page = list(islice(items, self.size))
            more = next(items, None) is not None
            last = str(page[-1][0]).encode() if more else b""
            listed: dict[str, Any] = {
                self.kind.field: [entry.to_list_item(revision.structured) for _, entry in page],
                "next_cursor": self.keys().seal(last, audience=audience) if more else None,
                "meta": local_peer.build_meta(revision) if revision.stateless else None,
            }
            result = apply_cache(getattr(types, self.kind.result)(**listed), self.cache)
            stamped = ERAS[revision.era].stamp_result(local_peer, incoming, result)
            answer = answers[key] = Raw(jsonrpc.encode(stamped))
        return answer

    def _snapshot(self) -> list[tuple[int, E]]:
        """Return a copy of the entries: another thread may add some meanwhile."""
        return list(self._entries.values())

    def _open_cursor(self, cursor: str, audience: str) -> int:
        try:
            return int(self.keys().open(cursor, audience=audience, now=0))
        except InvalidSeal as error:
            raise InvalidParams(
                "Invalid params: the cursor is not valid here; start again without one"
            ) from error


class RegistryView(Registry[E]):
    """The part of a registry that `keep` accepts. Its pages are private: others may see another part."""

    def __init__(self, whole: Registry[E], keep: Callable[[E], bool], changed: Callable[[str], None]) -> None:
        super().__init__(
            whole.kind, changed, whole.keys, whole.size, whole.cache and whole.cache.as_private()
        )
        self._source = whole
        self.has_header_parameters = True  # an entry of the whole may have some, now or later
        self._entries = whole._entries  # noqa: SLF001 - the same class: a view follows the whole
        self._keep = lambda entry: whole.is_selected(entry) and _is_kept(keep, entry)
        self._has_been_used = False

    @property
    def has_been_used(self) -> bool:
        """Whether there was an entry whenever this was read."""
        self._has_been_used = self._has_been_used or any(True for _ in self)
        return self._has_been_used

    def add(self, name: str, entry: E) -> None:  # noqa: ARG002 - it is refused
        """Raise TypeError: entries are added to the whole."""
        raise TypeError(
            f"a selection of {self.kind.label} cannot be added to; register with the whole server"
        )

    def remove(self, name: str, entry: E | None = None) -> None:
        """Remove an entry from the whole."""
        self._source.remove(name, entry)


def _is_kept(keep: Callable[[E], bool], entry: E) -> bool:
    try:
        return keep(entry)
    except Exception:  # the other entries are still served
        logger.exception("%r is left out: whether it is selected cannot be told", entry)
        return False
