"""A registry of tools, resources or prompts: their order, pages, cursors and encoded lists.

Also `Cache`: how long a client may keep a result. `tools`, `resources` and `prompts` serve the entries.
"""

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, get_args
from weakref import WeakSet

from msgspec.structs import replace

from toolpost import types
from toolpost.errors import InvalidParams, InvalidSeal, suggest
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import PROMPTS_LIST, RESOURCES_LIST, RESOURCES_TEMPLATES_LIST, TOOLS_LIST
from toolpost.server.options import SERVER, check_strings, parse_hints, parse_icons
from toolpost.types.base import Raw, Result, Struct
from toolpost.types.initialize import CacheableResult

if TYPE_CHECKING:
    from toolpost.protocol.seal import KeyRing
    from toolpost.server.registry.proxy import ProxyEntry
    from toolpost.server.runtime.worker_threads import WorkerThreads
    from toolpost.server.signature.function_schema import BoundFunction
    from toolpost.tasks.options import TaskOptions

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
"""The methods whose results clients may keep, and "*" for all others among them."""

_ANY_METHOD: Final = "*"

CacheableT = TypeVar("CacheableT", bound=Result)


class Cache(Struct, frozen=True):
    """How long clients may cache a result. A change notification invalidates it earlier.

    Attributes:
        ttl: seconds; 0 means that clients ask again each time.
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
            raise TypeError(f"ttl must be a number of seconds, not {ttl!r}")
        if not 0 <= ttl < inf:
            raise ValueError(f"ttl must be finite and at least 0 seconds, not {ttl!r}")
        if ttl > MAX_TTL:
            raise ValueError(f"ttl must be at most {MAX_TTL:.0f} seconds, not {ttl!r}")
        if self.scope not in get_args(CacheScope):
            raise ValueError(f'scope must be "public" or "private", not {self.scope!r}')

    @property
    def ttl_ms(self) -> int:
        """The time in milliseconds, as clients get it."""
        return round(self.ttl * 1000)

    def as_private(self) -> "Cache":
        """Return a private cache hint with the same time."""
        return Cache(self.ttl)


def check_cache(cache: Any) -> None:
    """Raise TypeError unless an argument is a `Cache`, or None."""
    if cache is not None and not isinstance(cache, Cache):
        raise TypeError(f"cache must be a Cache, such as Cache(ttl=60), not {cache!r}")


def expand_cache_option(cache: Any) -> dict[str, Cache]:
    """Return the `cache` option of a server by method. Raises TypeError or ValueError."""
    methods: tuple[str, ...] = get_args(CacheableMethod)
    if not isinstance(cache, Mapping):
        check_cache(cache)
        cache = {} if cache is None else {_ANY_METHOD: cache}
    given = cast("Mapping[Any, Any]", cache)
    for method, one in given.items():
        if method not in methods:
            raise ValueError(f"cache: unknown method {method!r} (expected one of: {', '.join(methods)})")
        if not isinstance(one, Cache):
            raise TypeError(f"cache[{method!r}] must be a Cache, such as Cache(ttl=60), not {one!r}")
    named = {method: given.get(method, given.get(_ANY_METHOD)) for method in methods}
    return {method: one for method, one in named.items() if one is not None and method != _ANY_METHOD}


def apply_cache(result: CacheableT, cache: Cache | None) -> CacheableT:
    """Return the result with a cache hint, unless it has one, or cannot have one."""
    if cache is None or not isinstance(result, CacheableResult):
        return result
    if result.ttl_ms is not None or result.cache_scope is not None:
        return result
    return replace(result, ttl_ms=cache.ttl_ms, cache_scope=cache.scope)


logger: Final = logging.getLogger("toolpost.server")

MAX_SUGGESTION_LENGTH: Final = 64
"""Characters of a name for which another is suggested: comparing takes quadratic time."""

MAX_SUGGESTION_CANDIDATES: Final = 100
"""Names that are compared with an unknown one: this bounds the cost of invalid calls."""

P = ParamSpec("P")
R = TypeVar("R")
ItemT = TypeVar("ItemT", types.Tool, types.Prompt, types.Resource, types.ResourceTemplate)


class RegistryEntry(ABC, Generic[P, R]):
    """A registered function: call it as before, or change how it is served. Clients are notified."""

    enabled: bool = True
    _registry: "Registry[Any] | None" = None
    owner: object = None
    """The key under which `Registry.replace` replaces the entry together with others."""
    scopes: frozenset[str] = frozenset()
    """The scopes that a token needs."""
    tags: frozenset[str] = frozenset()
    """Labels for `select`. Clients do not see them."""
    task: "TaskOptions | None" = None
    """Whether and how calls become tasks; only of tools."""
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
        """Return the list item, for peers that take structured output of this kind."""

    def enable(self) -> None:
        """Serve the entry again. Raises RuntimeError if it was removed."""
        if self._registry is not None and not self._registry.has_entry(self):
            raise RuntimeError(f"{self.name!r} was removed; register it again")
        if not self.enabled:
            self.enabled = True
            self._mark_changed()

    def disable(self) -> None:
        """Neither list nor serve the entry until it is enabled."""
        if self.enabled:
            self.enabled = False
            self._mark_changed()

    def remove(self) -> None:
        """Remove the entry."""
        if self._registry is not None:
            self._registry.remove(self.name, self)  # another entry may have the name by now

    def _mark_changed(self) -> None:
        if self._registry is not None:
            self._registry.mark_changed()


class FunctionEntry(RegistryEntry[P, R], Generic[P, R, ItemT]):
    """An entry that a function of the author serves."""

    key: str = "name"
    """The field of the list item under which the entry is registered."""
    hint_type: type[types.Annotations | types.ToolAnnotations] = types.Annotations
    """The type of the `annotations` of the list item."""

    def __init__(
        self,
        item: ItemT,
        bound: "BoundFunction",
        home: "Registry[Any]",
        threads: "WorkerThreads",
        scopes: frozenset[str],
    ) -> None:
        check_strings(name=item.name, title=item.title, description=item.description)
        item = replace(
            item, **self._parse_hints(annotations=getattr(item, "annotations", None), icons=item.icons)
        )
        super().__init__(getattr(item, self.key), bound.fn, home)
        self.bound = bound
        self.scopes = scopes
        self._item = item
        self._threads = threads

    def to_list_item(self, structured: str | None) -> ItemT:  # noqa: ARG002 - the same for most peers
        """Return the list item."""
        return self._item

    def _change_item(self, **changes: Any) -> None:
        """Change fields of the list item; None leaves a field as it is."""
        given = {name: value for name, value in changes.items() if value is not None}
        self._item = replace(self._item, **(given | self._parse_hints(**given)))
        self._mark_changed()

    def _parse_hints(self, *, annotations: Any = None, icons: Any = None, **_: Any) -> dict[str, Any]:
        """Return the annotations and icons that were given, checked: they may be dicts."""
        parsed: dict[str, Any] = {}
        if annotations is not None:
            parsed["annotations"] = parse_hints(self.hint_type, "annotations", annotations)
        if icons is not None:
            parsed["icons"] = parse_icons(icons)
        return parsed


E = TypeVar("E", bound=RegistryEntry[..., Any])


class ListKind(Struct, frozen=True):
    """A kind of list: `result` has the items in `field`; a server has the registry in `attribute`."""

    label: str
    attribute: str
    changed_list: str  # the list whose change is broadcast
    result: Callable[..., Result]
    field: str


LIST_KINDS: Final = {
    TOOLS_LIST: ListKind("tools", "tools", "tools", types.ListToolsResult, "tools"),
    RESOURCES_LIST: ListKind("resources", "resources", "resources", types.ListResourcesResult, "resources"),
    RESOURCES_TEMPLATES_LIST: ListKind(
        "resource templates",
        "templates",
        "resources",
        types.ListResourceTemplatesResult,
        "resource_templates",
    ),
    PROMPTS_LIST: ListKind("prompts", "prompts", "prompts", types.ListPromptsResult, "prompts"),
}
"""The lists, by method."""


@functools.cache
def _get_cursor_keys() -> "KeyRing":
    """Return the keys that seal cursors. No secret: a cursor grants nothing, and any worker opens it."""
    from toolpost.protocol.seal import KeyRing  # noqa: PLC0415 - start-up time

    return KeyRing(["toolpost: a position in a list of a server"], encrypt=False)


class Registry(Generic[E]):
    """Entries by name, in the order of registration.

    Calls `changed` after every change, with the name of the list. A page has `size` entries, and clients may
    keep each page for the same time (`cache`, CACHE-3).
    """

    def __init__(
        self,
        kind: ListKind,
        changed: Callable[[str], None],
        size: int = SERVER.page_size,
        cache: Cache | None = None,
    ) -> None:
        self.kind = kind
        self.size = size
        self.cache = cache
        self._on_changed = changed
        self._lock = RLock()  # reentrant: a finaliser that removes an entry may run anywhere
        self._entries: dict[str, tuple[int, E]] = {}
        self._serial = 0
        self._encoded_pages: dict[tuple[str, int], Raw] = {}
        self.has_header_parameters = False  # whether HTTP headers mirror parameters of an entry
        self._views: WeakSet[RegistryView[E]] = WeakSet()
        self._watchers: tuple[Callable[[], object], ...] = ()
        self._keep: Callable[[E], bool] | None = None  # the selection of a view

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
        """Return the entry of this name, if clients see it."""
        found = self._entries.get(name)
        if found is None or not found[1].enabled:
            return None
        return found[1] if self._keep is None or self._keep(found[1]) else None

    def find(self, name: str) -> E | None:
        """Return the entry of this name, whether clients see it or not."""
        found = self._entries.get(name)
        return None if found is None else found[1]

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Call a function after each change, in its thread; return a function that ends this."""
        with self._lock:
            self._watchers += (watcher,)

        def unwatch() -> None:
            with self._lock:
                self._watchers = tuple(each for each in self._watchers if each is not watcher)

        return unwatch

    def has_entry(self, entry: E) -> bool:
        """Return whether this entry is registered, enabled or not."""
        found = self._entries.get(entry.name)
        return found is not None and found[1] is entry

    def suggest(self, name: str) -> str:
        """Return the end of a sentence about an unknown name: "; did you mean …?", or nothing."""
        if len(name) > MAX_SUGGESTION_LENGTH:
            return ""
        alike = (entry.name for entry in self if entry.enabled and abs(len(entry.name) - len(name)) <= 3)
        return suggest(name, islice(alike, MAX_SUGGESTION_CANDIDATES))

    def select(self, keep: Callable[[E], bool], changed: Callable[[str], None]) -> "RegistryView[E]":
        """Return a view of the entries that `keep` accepts, now and later."""
        view = RegistryView(self, keep, changed)
        with self._lock:
            self._views.add(view)
        return view

    def add(self, entry: E) -> None:
        """Add an entry at the end. Raises ValueError if the name is taken."""
        with self._lock:
            if entry.name in self._entries:
                raise self._make_name_error(entry.name)
            self._serial += 1
            self._entries[entry.name] = (self._serial, entry)
        self.mark_changed()

    def _make_name_error(self, name: str) -> ValueError:
        return ValueError(f"a {self.kind.label.rstrip('s')} named {name!r} is already registered")

    def replace(self, owner: object, entries: "Iterable[ProxyEntry]") -> None:
        """Replace all entries of an owner as one change, with one notification.

        An entry keeps its place in the list as long as its name stays. There is no notification if clients
        see no change. Raises ValueError if a name is taken or given twice, or if there is no owner; then
        nothing is changed.
        """
        if owner is None:
            raise ValueError("an owner is required, such as a name; None owns the entries of functions")
        given: dict[str, ProxyEntry] = {}
        for entry in entries:
            if given.setdefault(entry.name, entry) is not entry:
                raise ValueError(f"{owner!r} has two {self.kind.label} named {entry.name!r}")
        with self._lock:
            before = {name: entry for name, (_, entry) in self._entries.items() if entry.owner == owner}
            for name in given:
                if name in self._entries and name not in before:
                    raise self._make_name_error(name)
            changed = before.keys() != given.keys()
            for name in before.keys() - given.keys():
                del self._entries[name]
            for name, entry in given.items():
                entry.attach(owner, self)
                changed = changed or not entry.is_same_as(before.get(name))
                if name not in before:
                    self._serial += 1
                serial = self._entries[name][0] if name in before else self._serial
                self._entries[name] = (serial, cast("E", entry))
        if changed:
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
        for watcher in self._watchers:
            watcher()
        self._on_changed(self.kind.changed_list)

    def get_page(self, local_peer: LocalPeer, incoming: InboundRequest, cursor: str | None) -> Raw:
        """Return a page for the client of a request. Raises InvalidParams for an invalid cursor (PAGE-7)."""
        audience = f"cursor of {self.kind.label} of {local_peer.info.name}"
        after = self._open_cursor(cursor, audience) if cursor else 0  # some clients send "" first
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
                "next_cursor": _get_cursor_keys().seal(last, audience=audience) if more else None,
                "meta": local_peer.stamps[revision.date] if revision.stateless else None,
            }
            result = apply_cache(self.kind.result(**listed), self.cache)
            stamped = ERAS[revision.era].stamp_result(local_peer, incoming, result)
            answer = answers[key] = Raw(jsonrpc.encode(stamped))
        return answer

    def _snapshot(self) -> list[tuple[int, E]]:
        """Return a copy of the entries: another thread may add some meanwhile."""
        return list(self._entries.values())

    def _open_cursor(self, cursor: str, audience: str) -> int:
        try:
            return int(_get_cursor_keys().open(cursor, audience=audience, now=0))
        except InvalidSeal as error:
            raise InvalidParams("Invalid params: the cursor is not valid; start again without one") from error


class RegistryView(Registry[E]):
    """The part of a registry that `keep` accepts. Its pages are private: others may see another part."""

    def __init__(self, whole: Registry[E], keep: Callable[[E], bool], changed: Callable[[str], None]) -> None:
        super().__init__(whole.kind, changed, whole.size, whole.cache and whole.cache.as_private())
        self._source = whole
        self.has_header_parameters = True  # an entry of the whole may have some, now or later
        self._entries = whole._entries  # noqa: SLF001 - the same class: a view follows the whole
        self._keep = lambda entry: whole.is_selected(entry) and _is_kept(keep, entry)
        self._has_been_used = False

    @property
    def has_been_used(self) -> bool:
        """Whether this property found an entry, now or when it was read before."""
        self._has_been_used = self._has_been_used or any(True for _ in self)
        return self._has_been_used

    def add(self, entry: E) -> None:  # noqa: ARG002 - it is refused
        """Raise TypeError: entries are added to the whole."""
        raise TypeError(f"cannot add to a selection of {self.kind.label}; register with the original server")

    def remove(self, name: str, entry: E | None = None) -> None:
        """Remove an entry from the whole."""
        self._source.remove(name, entry)

    def replace(self, owner: object, entries: "Iterable[ProxyEntry]") -> None:
        """Replace entries of the whole."""
        self._source.replace(owner, entries)


def _is_kept(keep: Callable[[E], bool], entry: E) -> bool:
    try:
        return keep(entry)
    except Exception:  # the other entries are still served
        logger.exception("%r is left out: the selection function failed", entry)
        return False
