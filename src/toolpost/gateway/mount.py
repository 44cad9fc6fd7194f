"""`Mount`: a server as a part of another one. It decides the names and registers the entries.

`local` serves entries of servers in this process, `upstream` those of remote ones.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from fnmatch import fnmatchcase
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

from toolpost.errors import MCPError
from toolpost.gateway.edit import ArgumentPlan, Edit, EditError, edit_item
from toolpost.gateway.names import UriMap, make_name, normalize_template
from toolpost.protocol import jsonrpc
from toolpost.protocol.forward import ForwardedResult, read_forwarded
from toolpost.protocol.headers import find_annotations
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue, JSONReader
from toolpost.protocol.methods import RESOURCES_TEMPLATES_LIST, TOOLS_CALL, TOOLS_LIST
from toolpost.protocol.revisions import LATEST
from toolpost.server.middleware import Middleware
from toolpost.server.options import parse_tags
from toolpost.server.registry.proxy import ProxyEntry
from toolpost.server.registry.registry import LIST_KINDS, ListKind, Registry
from toolpost.types.base import Raw, Result, Struct
from toolpost.types.initialize import LogLevel
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolpost.server.context import Context
    from toolpost.server.mounting import MountingServer

logger: Final = logging.getLogger("toolpost.gateway")

Selection: TypeAlias = Iterable[str] | Callable[[str], bool]
"""Names, with `*` for any characters, or a function that gets a name."""

MountState: TypeAlias = Literal["idle", "connecting", "ready", "backoff", "removed"]

MAX_PROBLEMS: Final = 100
"""Problems of one mount that are kept."""

_NAME_MEMBERS: Final = {
    kind.attribute: member
    for kind, member in zip(LIST_KINDS.values(), ("name", "uri", "uriTemplate", "name"), strict=True)
}
"""Registry → the member of its list items that identifies them."""

_OBJECT: Final = JSONReader(dict[str, Any])


class MountOptions(Struct, frozen=True, kw_only=True):
    """The options of `Server.mount` that concern names and entries."""

    name: str | None = None
    only: Callable[[str], bool] | None = None
    hide: Callable[[str], bool] | None = None
    tools: "Mapping[str, Edit]"
    around: tuple[Middleware, ...] = ()
    max_name: int


class Offer(NamedTuple):
    """An item of the mounted server: its name or URI there, and its list item."""

    name: str
    item: Any
    entry: Any = None


class Appearance(NamedTuple):
    """How an entry of a mount differs from the item of its server."""

    name: str
    item: Raw | None  # None if only the name differs
    edit: Edit | None
    plan: ArgumentPlan | None


def parse_selection(name: str, given: Any) -> Callable[[str], bool] | None:
    """Return a selection as a function. Raises TypeError."""
    if given is None or callable(given):
        return cast("Callable[[str], bool] | None", given)
    if isinstance(given, str):
        raise TypeError(f"{name} must be a list of names, such as [{given!r}], or a function")
    patterns = tuple(given)
    return lambda each: any(fnmatchcase(each, pattern) for pattern in patterns)


class Mount(ABC):
    """A server that is a part of another one: `server.mount(…)` returns it.

    Attributes:
        label: the name of the server in messages.
        problems: what is wrong with its items, such as names that another server has too.

    Examples:
        >>> weather, server = Server("weather"), Server("all")
        >>> mount = server.mount(weather, "weather")
        >>> mount.state, mount.problems
        ('ready', [])
        >>> mount.remove()
    """

    is_pending: bool = False
    """For servers: whether its lists were never read and may come soon."""

    def __init__(self, host: "MountingServer", label: str, options: MountOptions) -> None:
        self.host = host
        self.label = label
        self.options = options
        self.uris = UriMap(label)
        self.problems: list[str] = []
        self.is_removed = False
        self._lock = RLock()  # changes may come from any thread
        self._second_names: dict[tuple[str, str], str] = {}  # of items whose names were taken

    def __repr__(self) -> str:
        return f"<Mount {self.label}: {self.state}>"

    @property
    @abstractmethod
    def state(self) -> MountState:
        """The state: "idle" (not started), "connecting", "ready", "backoff" (to be retried), or "removed"."""

    @property
    def error(self) -> Exception | None:
        """Why the server cannot be reached; None if it can."""
        return None

    @property
    def instructions(self) -> str | None:
        """The instructions of the server."""
        return None

    @abstractmethod
    async def open(self, stack: AsyncExitStack) -> None:
        """For servers: begin to serve in the running loop, until the stack ends."""

    def find_unlisted(self, uri: str) -> Any:  # noqa: ARG002 - an upstream has one
        """For servers: return the entry for a resource that is in no list; None if there is none."""
        return None

    async def wait_listed(self, context: "Context | None" = None) -> None:  # noqa: B027 - those in this process never wait
        """For servers: wait a moment for lists that were never read."""

    def end_session(self, identity: object) -> None:  # noqa: B027 - those in this process keep nothing
        """For servers: forget what belongs to a session that has ended."""

    async def set_log_level(self, level: LogLevel, context: "Context") -> None:  # noqa: B027 - as above
        """For servers: a client wants log messages of this level."""

    def remove(self) -> None:
        """Remove the server and all its entries."""
        with self._lock:
            self.is_removed = True
            if self in self.host.mounts:
                self.host.mounts.remove(self)
            for kind in LIST_KINDS.values():
                self._get_registry(kind).replace(self, ())

    def report(self, problem: str) -> None:
        """Record a problem, and log it once."""
        if problem not in self.problems and len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
            logger.warning("%s: %.1000s", self.label, problem)

    # ----------------------------------------------------------------- entries

    def _get_registry(self, kind: ListKind) -> Registry[Any]:
        return getattr(self.host, kind.attribute)

    def publish(
        self,
        kind: ListKind,
        offers: Iterable[Offer],
        make_entry: Callable[[Offer, Appearance], ProxyEntry],
        *,
        strict: bool = False,
    ) -> None:
        """Replace the entries of a list as one change. `strict`: raises ValueError if a name is taken."""
        with self._lock:
            if self.is_removed:
                return
            registry = self._get_registry(kind)
            entries: dict[str, ProxyEntry] = {}
            seen: set[str] = set()
            for offer in offers:
                if offer.name in seen:
                    self.report(f"{kind.label}: {offer.name!r} is listed twice; the second one is left out")
                    continue
                seen.add(offer.name)
                if not self._is_selected(kind, offer):
                    continue
                edit = self.options.tools.get(offer.name) if kind is LIST_KINDS[TOOLS_LIST] else None
                if edit is not None and edit.hide:
                    continue
                name = self._choose_name(kind, offer, edit, registry, entries, strict=strict)
                appearance = self._shape(kind, offer, name, edit)
                if appearance is not None:
                    entries[name] = make_entry(offer, appearance)
            if any(entry.header_parameters for entry in entries.values()):
                registry.has_header_parameters = True
            registry.replace(self, entries.values())

    def _is_selected(self, kind: ListKind, offer: Offer) -> bool:
        names = [offer.name]
        if kind.changed_list == "resources":
            names.append(_read_name(offer.item))
        only, hide = self.options.only, self.options.hide
        return (only is None or any(map(only, names))) and not (hide is not None and any(map(hide, names)))

    def _choose_name(
        self,
        kind: ListKind,
        offer: Offer,
        edit: Edit | None,
        registry: Registry[Any],
        entries: "Mapping[str, ProxyEntry]",
        *,
        strict: bool,
    ) -> str:
        """Return the name or URI of an item outside. One that had to differ once stays so."""
        if kind.changed_list == "resources":
            return self._choose_uri(kind, offer, registry)
        inside = offer.name if edit is None or edit.name is None else edit.name
        limit = self.options.max_name
        wanted = make_name(self.options.name, inside, limit) if self.options.name else inside
        key = (kind.attribute, offer.name)
        second = self._second_names.get(key)
        holder = registry.find(wanted)
        if second is None and wanted not in entries and (holder is None or holder.owner is self):
            return wanted
        if strict:
            raise ValueError(
                f"cannot mount {self.label}: a {kind.label.rstrip('s')} named {wanted!r} is already "
                "registered; give the mount a name, such as server.mount(…, 'shop')"
            )
        if second is None:
            second = make_name(self.label, inside, limit)
            while second in entries or ((other := registry.find(second)) and other.owner is not self):
                second = make_name(self.label, f"{second} of {self.label}", limit)
            self._second_names[key] = second
            owner = getattr(getattr(holder, "owner", None), "label", self.host.info.name)
            self.report(
                f"{kind.label}: {wanted!r} is the name of another one, of {owner}; it is shown as {second!r}"
            )
        return second

    def _choose_uri(self, kind: ListKind, offer: Offer, registry: Registry[Any]) -> str:
        is_template = kind is LIST_KINDS[RESOURCES_TEMPLATES_LIST]
        if not self.uris.is_renamed(offer.name):
            holder = registry.find(offer.name)
            taken = holder is not None and holder.owner is not self
            if is_template and not taken:
                form = normalize_template(offer.name)
                taken = any(
                    each.owner is not self and normalize_template(each.name) == form for each in registry
                )
            if not taken:
                return offer.name
        return self.uris.rename(offer.name, is_template=is_template)

    def _shape(self, kind: ListKind, offer: Offer, name: str, edit: Edit | None) -> Appearance | None:
        """Return how an entry appears; None if an edit does not fit, and the item must not be shown."""
        has_links = bool(self.uris) and kind is LIST_KINDS[TOOLS_LIST]
        is_plain = name.endswith(offer.name) and (name == offer.name or not isinstance(offer.item, Raw))
        if edit is None and not has_links and is_plain:
            return Appearance(name, None, None, None)
        item = offer.item if isinstance(offer.item, Raw) else Raw(jsonrpc.encode(offer.item))
        plan = None
        if edit is not None:
            try:
                item = edit_item(item, edit)
                plan = ArgumentPlan(edit.arguments) if edit.arguments else None
            except (EditError, InvalidJSONValue) as error:
                hidden = edit.has_constants
                self.report(f"the edit of {offer.name!r} does not fit, so the tool is "
                            f"{'hidden' if hidden else 'shown as it is'}: {error}")  # fmt: skip
                if hidden:
                    return None
                edit = None
        if has_links:
            item = self.uris.rewrite_item(item)
        if name != offer.name:
            inside = offer.name if edit is None or edit.name is None else edit.name
            item = self._set_name(kind, item, name, inside)
        return Appearance(name, item, edit, plan)

    def _set_name(self, kind: ListKind, item: Raw, name: str, inside: str) -> Raw:
        members: dict[str, Any] = {**MEMBERS_READER(item), _NAME_MEMBERS[kind.attribute]: name}
        if kind.changed_list != "resources" and not name.endswith(inside):  # it was shortened
            members.setdefault("title", f"{self.options.name or self.label}_{inside}")
        return Raw(jsonrpc.encode(members))


def _read_name(item: Any) -> str:
    """Return the `name` of a resource."""
    if isinstance(item, Raw):
        name = _OBJECT(item).get("name")
        return name if isinstance(name, str) else ""
    return str(item.name)


class MountedEntry(ProxyEntry):
    """An entry of a mounted server."""

    def __init__(self, mount: Mount, offer: Offer, appearance: Appearance) -> None:
        self.mount = mount
        self.name = appearance.name
        self.owner = mount  # also if it is in no list
        self.inside = offer.name
        self.shown = offer.item if appearance.item is None else appearance.item
        self._item, self.edit, self.plan = appearance.item, appearance.edit, appearance.plan
        entry, edit = offer.entry, self.edit
        self.scopes = frozenset() if entry is None else entry.scopes
        self.tags = frozenset() if entry is None else entry.tags
        if edit is not None:
            self.tags |= parse_tags(edit.tags)
        self.header_parameters = {} if entry is None else getattr(entry, "header_parameters", {})
        if self.plan is not None or (entry is None and b"x-mcp-header" in bytes(self.shown)):
            self.header_parameters = _find_header_parameters(self.shown)

    @property
    def item(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - it follows from another entry
        """The list item for the newest revision."""
        return self.to_list_item(LATEST.structured)

    def is_same_as(self, other: object) -> bool:
        """Return whether another entry shows clients the same."""
        if isinstance(other, MountedEntry) and self.shown is other.shown:
            return (self.name, self.enabled, self.scopes) == (other.name, other.enabled, other.scopes)
        return super().is_same_as(other)

    @property
    def changes_results(self) -> bool:
        """Whether results have to be decoded."""
        return bool(self.mount.uris) or (self.edit is not None and self.edit.result is not None)

    def translate_result(self, context: "Context", result: Any) -> Any:
        """Return the result of the server as clients get it."""
        if not isinstance(result, ForwardedResult):
            if not isinstance(result, Result) or result.result_type not in {None, "complete"}:
                return result
            result = ForwardedResult(jsonrpc.encode(result), "complete", LATEST.date)
        if result.result_type != "complete":
            return result
        if self.mount.uris:
            raw = self.mount.uris.rewrite_result(result.raw)
            result = ForwardedResult(raw, result.result_type, result.revision)
        if self.edit is not None and self.edit.result is not None and context.method == TOOLS_CALL:
            decoded = read_forwarded(TOOLS_CALL, result)
            if not isinstance(decoded, CallToolResult):
                raise MCPError(f"the result of {self.inside} is not a result of a tool")
            return self.edit.result(decoded)
        return result


def _find_header_parameters(item: Raw) -> "Mapping[str, tuple[str, ...]]":
    try:
        schema = _OBJECT(item).get("inputSchema")
        return find_annotations(cast("dict[str, Any]", schema)) if isinstance(schema, dict) else {}
    except ValueError:
        return {}
