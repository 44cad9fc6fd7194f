"""Our end of a conversation: role, name, icons, capabilities, revisions.

Made once and shared by all connections of a server or client, so that what follows from it is computed once.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Final

from toolpost import types
from toolpost.errors import UnsupportedRevision
from toolpost.protocol import jsonrpc
from toolpost.protocol.headers import quote_value
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.methods import CLIENT, DATES, SERVER, Role, Row
from toolpost.protocol.revisions import REVISIONS, Revision
from toolpost.types.base import JSON, Icon, Meta, Raw

Capabilities = types.ClientCapabilities | types.ServerCapabilities


class LocalPeer:
    """Our end of a conversation.

    Args:
        info: our name and version.
        capabilities: what we declare; their type makes us a client or a server.
        supported: the revisions that we support.
        anonymous: leave `info` out of stateless messages (META-9, META-16).
    """

    def __init__(
        self,
        info: types.Implementation,
        capabilities: Capabilities,
        *,
        supported: Iterable[str] = DATES,
        anonymous: bool = False,
    ) -> None:
        if isinstance(supported, str):
            raise TypeError("the supported revisions are a list, also when there is only one")
        is_client = isinstance(capabilities, types.ClientCapabilities)
        self.role: Role = CLIENT if is_client else SERVER
        self.peer_role: Role = SERVER if is_client else CLIENT
        self.info = info
        self.capabilities = capabilities
        spoken = frozenset(supported)
        self.supported = tuple(date for date in DATES if date in spoken)
        self.has_sessions = any(not REVISIONS[date].stateless for date in self.supported)
        if not self.supported:
            raise ValueError(f"no known protocol revision is supported; there are {', '.join(DATES)}")
        self.newest = REVISIONS[self.supported[-1]]
        self._anonymous = anonymous
        self._capability_cache: dict[str, bool] = {}
        self._meta_by_revision: dict[str, Meta] = {}
        self.served_rows = _ServedRows(self)
        """By date of a revision: the requests that the other end may send."""

    def make_unsupported_error(self, requested: str) -> UnsupportedRevision:
        """Return the error for an unsupported revision; it names the supported ones (VER-1)."""
        named = shorten(requested)
        return UnsupportedRevision(
            f"Unsupported protocol version: {named}; this {self.role} speaks {', '.join(self.supported)}",
            {"supported": list(self.supported), "requested": named},
        )

    def has_capability(self, path: str) -> bool:
        """Return whether we declare a capability."""
        known = self._capability_cache.get(path)
        if known is None:
            known = self._capability_cache[path] = has_capability(self.capabilities, path)
        return known

    def select_capabilities(self, revision: Revision) -> Capabilities:
        """Return our capabilities; in the stateless era without those of sessions."""
        if not revision.stateless:
            return self.capabilities
        capabilities = copy(self.capabilities)
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

    def build_meta(self, revision: Revision) -> Meta:
        """Return the `_meta` of our stateless messages: all about a client, the name of a server."""
        facts = self._meta_by_revision.get(revision.date)
        if facts is None:
            facts = {}
            if not self._anonymous:
                facts[_INFO_KEYS[self.role]] = Raw(jsonrpc.encode(self.info))
            if self.role == CLIENT:
                facts[types.PROTOCOL_VERSION] = revision.date
                facts[types.CLIENT_CAPABILITIES] = Raw(jsonrpc.encode(self.select_capabilities(revision)))
            self._meta_by_revision[revision.date] = facts
        return facts


class _ServedRows(dict[str, Mapping[str, Row]]):
    """By revision: the requests whose capability we declare; computed on first use."""

    def __init__(self, local_peer: LocalPeer) -> None:
        super().__init__()
        self._local_peer = local_peer

    def __missing__(self, date: str) -> Mapping[str, Row]:
        revision = REVISIONS[date]
        rows = revision.requests[self._local_peer.peer_role]
        self[date] = {
            name: row
            for name, row in rows.items()
            if not row.needs or name in revision.ungated or self._local_peer.has_capability(row.needs)
        }
        return self[date]


_INFO_KEYS: Final[dict[Role, str]] = {CLIENT: types.CLIENT_INFO, SERVER: types.SERVER_INFO}


def has_capability(capabilities: Capabilities, path: str) -> bool:
    """Return whether a capability was declared; `path` names attributes, such as "tools.list_changed"."""
    value: JSON = capabilities
    for name in path.split("."):
        value = getattr(value, name, None)
    # An empty object declares a capability, a false flag does not.
    return value is not None and value is not False


# --------------------------------------------------------------------- icons

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp")
"""What clients must or should be able to draw (ICON-1, ICON-2)."""


def explain_unsafe_icon(icon: Icon) -> str | None:
    """Return what is wrong with an icon, or None (ICON-4); a redirect needs the same check again."""
    named = f"the icon {quote_value(icon.src)}"
    # Also because browsers skip tabs and line ends, which could hide a scheme from us.
    if not icon.src.isascii() or not icon.src.isprintable() or " " in icon.src:
        return f"{named} is no URI: it may have only visible ASCII characters"
    if icon.mime_type is not None and not icon.mime_type.lower().startswith("image/"):
        return f"{named} is no picture, but {quote_value(icon.mime_type)}"
    scheme, _, rest = icon.src.partition(":")
    if scheme.lower() == "data":
        kind = rest.partition(",")[0].partition(";")[0]
        return None if kind.lower() in IMAGE_TYPES else f"{named} holds none of {', '.join(IMAGE_TYPES)}"
    if scheme.lower() == "https" and rest.startswith("//") and (rest[2:3].isalnum() or rest[2:3] == "["):
        return None
    return f"{named} is not safe: it must be an https: or data: URI"


def safe_icons(icons: Iterable[Icon] | None) -> list[Icon]:
    """The icons that may be shown, in their order. A client asks: what a server says is not to be trusted.

    Examples:
        >>> offered = [Icon("https://example.com/pen.png"), Icon("javascript:alert(1)")]
        >>> [icon.src for icon in safe_icons(offered)]
        ['https://example.com/pen.png']
    """
    return [icon for icon in icons or () if explain_unsafe_icon(icon) is None]


def check_icons(icons: Iterable[Icon] | None) -> None:
    """Raise TypeError if these are not a list of icons, ValueError if clients would refuse one."""
    if isinstance(icons, str | Icon):
        raise TypeError("icons has to be a list, also when there is only one")
    for icon in icons or ():
        if not isinstance(icon, Icon):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
            raise TypeError(
                f'icons has to be a list of Icon objects, such as Icon("https://…"), not of {icon!r}'
            )
        if (wrong := explain_unsafe_icon(icon)) is not None:
            raise ValueError(wrong)
