"""Our end of a conversation: role, name, icons, capabilities, revisions.

Made once and shared by all connections of a server or client, so that derived values are computed once.
"""

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Final

from toolpost import types
from toolpost.errors import UnsupportedRevision
from toolpost.protocol import jsonrpc
from toolpost.protocol.headers import quote_value
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.methods import CLIENT, DATES, SERVER, Role, Row
from toolpost.protocol.revisions import LATEST, REVISIONS, Revision
from toolpost.types.base import JSON, Icon, Meta, Raw

if TYPE_CHECKING:
    from toolpost.protocol.extension import Extension

Capabilities = types.ClientCapabilities | types.ServerCapabilities


class LocalPeer:
    """Our end of a conversation.

    The type of the capabilities makes us a client or a server. If we are `anonymous`, stateless messages do
    not carry `info` (META-9, META-16). `rows` are custom methods, which no revision and no extension has;
    with `forwards` we accept methods that we do not know.
    """

    def __init__(
        self,
        info: types.Implementation,
        capabilities: Capabilities,
        *,
        supported: Iterable[str] = DATES,
        anonymous: bool = False,
        extensions: "Iterable[Extension]" = (),
        rows: Mapping[str, Row] | None = None,
        forwards: bool = False,
    ) -> None:
        if isinstance(supported, str):
            raise TypeError("the supported revisions must be a list, even if there is only one")
        is_client = isinstance(capabilities, types.ClientCapabilities)
        self.role: Role = CLIENT if is_client else SERVER
        self.peer_role: Role = SERVER if is_client else CLIENT
        self.info = info
        self.capabilities = capabilities
        dates = frozenset(supported)
        self.supported = tuple(date for date in DATES if date in dates)
        self.has_sessions = any(not REVISIONS[date].stateless for date in self.supported)
        if not self.supported:
            raise ValueError(f"no known protocol revision (expected one of: {', '.join(DATES)})")
        self.newest = REVISIONS[self.supported[-1]]
        self._anonymous = anonymous
        self.forwards = forwards
        self.extensions = tuple(extensions)
        self._own_rows = rows or {}
        self.extra_rows = collect_rows(self.extensions, self._own_rows)
        """The methods that no revision has, or that an extension has changed."""
        self.stamps = {each.date: self._build_meta(each) for each in REVISIONS.values() if each.stateless}
        """By date of a revision: the `_meta` of our messages."""
        self.served_rows = {date: self._select_served_rows(REVISIONS[date]) for date in DATES}
        """By date of a revision: the requests that the other end may send, if we declare their capability."""
        self.stateless_revisions = {
            date.encode(): REVISIONS[date] for date in self.supported if REVISIONS[date].stateless
        }
        """The supported revisions of the stateless era, by the value of their header."""

    def _select_served_rows(self, revision: Revision) -> dict[str, Row]:
        own = {
            name: row
            for name, row in self.extra_rows.items()
            if row.is_request and row.is_sendable_by(self.peer_role, revision.date)
        }
        return {
            name: row
            for name, row in {**revision.requests[self.peer_role], **own}.items()
            if not row.needs or name in revision.ungated or self.has_capability(row.needs)
        }

    def with_capabilities(
        self, capabilities: Capabilities, extensions: "Iterable[Extension]" = ()
    ) -> "LocalPeer":
        """Return the same end with other capabilities, and with more extensions."""
        return LocalPeer(
            self.info,
            capabilities,
            supported=self.supported,
            anonymous=self._anonymous,
            extensions=dict.fromkeys((*self.extensions, *extensions)),
            rows=self._own_rows,
        )

    def make_unsupported_error(self, requested: str) -> UnsupportedRevision:
        """Return the error for an unsupported revision; it names the supported ones (VER-1)."""
        named = shorten(requested)
        return UnsupportedRevision(
            f"Unsupported protocol version: {named}; this {self.role} supports {', '.join(self.supported)}",
            {"supported": list(self.supported), "requested": named},
        )

    def has_capability(self, path: str) -> bool:
        """Return whether we declare a capability."""
        return has_capability(self.capabilities, path)

    def select_capabilities(self, revision: Revision) -> Capabilities:
        """Return our capabilities in a revision: with its extensions, and without what it lacks."""
        declared = {each.name: each.settings for each in self.extensions if revision.date in each.span}
        if not revision.stateless and not declared:
            return self.capabilities
        capabilities = copy(self.capabilities)
        if declared:
            capabilities.extensions = {**(capabilities.extensions or {}), **declared}
        if not revision.stateless:
            return capabilities
        capabilities.tasks = None
        if isinstance(capabilities, types.ClientCapabilities) and capabilities.roots is not None:
            capabilities.roots = types.ListCapability()
        return capabilities

    def introduce(
        self, revision: Revision, instructions: str | None = None
    ) -> types.InitializeResult | types.DiscoverResult:
        """Return the result of `initialize` or of `server/discover`."""
        capabilities = self.select_capabilities(revision)
        assert isinstance(capabilities, types.ServerCapabilities), "only a server introduces itself"
        if revision.stateless:
            return types.DiscoverResult(list(self.supported), capabilities, instructions)
        return types.InitializeResult(revision.date, capabilities, self.info, instructions)

    def _build_meta(self, revision: Revision) -> Meta:
        """Return the `_meta` of our stateless messages: all about a client, the name of a server."""
        facts: Meta = {}
        if not self._anonymous:
            facts[_INFO_KEYS[self.role]] = Raw(jsonrpc.encode(self.info))
        if self.role == CLIENT:
            facts[types.PROTOCOL_VERSION] = revision.date
            facts[types.CLIENT_CAPABILITIES] = Raw(jsonrpc.encode(self.select_capabilities(revision)))
        return facts


def collect_rows(extensions: "Iterable[Extension]", own: Mapping[str, Row]) -> dict[str, Row]:
    """Return custom rows and those of extensions, and the rows that get more kinds of results.

    Raises ValueError if extensions contradict each other.
    """
    rows = dict(own)
    for extension in extensions:
        for name, row in extension.rows.items():
            other = rows.get(name)
            if other is not None and other.extension not in {None, extension.name}:
                raise ValueError(f"two extensions define {name}: {other.extension}, {extension.name}")
            rows[name] = row
    for extension in extensions:
        for (method, result_type), result in extension.results.items():
            row = rows.get(method) or LATEST.requests[CLIENT].get(method)
            if row is None:
                raise ValueError(f"{extension.name} has a result for {method}, which is not a method")
            rows[method] = row.with_result(result_type, result)
    return rows


_INFO_KEYS: Final[dict[Role, str]] = {CLIENT: types.CLIENT_INFO, SERVER: types.SERVER_INFO}


def has_capability(capabilities: Capabilities, path: str) -> bool:
    """Return whether a capability was declared; `path` names attributes, such as "tools.list_changed"."""
    value: JSON = capabilities
    for name in path.split("."):
        value = getattr(value, name, None)
    # An empty object declares a capability, a false flag does not.
    return value is not None and value is not False


# --------------------------------------------------------------------- icons

# Clients must or should be able to draw these (ICON-1, ICON-2).
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp")


def explain_unsafe_icon(icon: Icon) -> str | None:
    """Return the problem with an icon, or None (ICON-4); a redirect needs the same check again."""
    named = f"the icon {quote_value(icon.src)}"
    # Also because browsers skip tabs and line ends, which could hide a scheme from us.
    if not icon.src.isascii() or not icon.src.isprintable() or " " in icon.src:
        return f"{named} is not a URI: it must be visible ASCII"
    if icon.mime_type is not None and not icon.mime_type.lower().startswith("image/"):
        return f"{named} is not an image: its type is {quote_value(icon.mime_type)}"
    scheme, _, rest = icon.src.partition(":")
    if scheme.lower() == "data":
        kind = rest.partition(",")[0].partition(";")[0]
        return None if kind.lower() in IMAGE_TYPES else f"{named} must be one of {', '.join(IMAGE_TYPES)}"
    if scheme.lower() == "https" and rest.startswith("//") and (rest[2:3].isalnum() or rest[2:3] == "["):
        return None
    return f"{named} is not safe: it must be an https: or data: URI"


def safe_icons(icons: Iterable[Icon] | None) -> list[Icon]:
    """Return the icons that are safe to display, in their order. Do not trust the icons of a server.

    Examples:
        >>> offered = [Icon("https://example.com/pen.png"), Icon("javascript:alert(1)")]
        >>> [icon.src for icon in safe_icons(offered)]
        ['https://example.com/pen.png']
    """
    return [icon for icon in icons or () if explain_unsafe_icon(icon) is None]


def check_icons(icons: Iterable[Icon] | None) -> None:
    """Raise TypeError if these are not a list of icons, ValueError if clients would refuse one."""
    if isinstance(icons, str | Icon):
        raise TypeError("icons must be a list, even if there is only one")
    for icon in icons or ():
        if not isinstance(icon, Icon):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
            wanted = 'a list of Icon objects, such as Icon("https://…")'
            raise TypeError(f"icons must be {wanted}, not {icon!r}")
        if (wrong := explain_unsafe_icon(icon)) is not None:
            raise ValueError(wrong)


def declare_capabilities(
    lists: Collection[str], *, subscribe: bool = True, complete: bool = True, log: bool = True
) -> types.ServerCapabilities:
    """Return the capabilities of a server that has these lists: "tools", "resources", "prompts"."""
    resources = types.ResourcesCapability(list_changed=True, subscribe=subscribe or None)
    return types.ServerCapabilities(
        tools=types.ListCapability(list_changed=True) if "tools" in lists else None,
        resources=resources if "resources" in lists else None,
        prompts=types.ListCapability(list_changed=True) if "prompts" in lists else None,
        completions={} if complete else None,
        logging={} if log else None,
    )
