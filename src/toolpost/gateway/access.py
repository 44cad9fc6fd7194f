"""What a client wants to use: `Access`, as rules see it, read from the entries of the server.

Finds the entry that will serve a request as the server itself does. `policy` decides.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from toolpost import types
from toolpost.errors import InvalidParams, ResourceNotFound, RPCError
from toolpost.principal import Principal
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader, shorten
from toolpost.protocol.methods import (
    COMPLETION_COMPLETE,
    PROMPTS_GET,
    RESOURCES_READ,
    RESOURCES_SUBSCRIBE,
    TOOLS_CALL,
)
from toolpost.server.context import Context
from toolpost.server.middleware import Call
from toolpost.server.mounting import MountingServer
from toolpost.server.registry.registry import RegistryEntry
from toolpost.types.base import Raw

Kind: TypeAlias = Literal["tools", "resources", "prompts"]

SINGULAR: Final[dict[Kind, str]] = {"tools": "tool", "resources": "resource", "prompts": "prompt"}


class Origin(NamedTuple):
    """Where an entry comes from: its upstream, if any, and whether its hints are trusted."""

    upstream: str | None = None
    trusted: bool = True


def find_origin(entry: "RegistryEntry[..., Any]") -> Origin:
    """Return the origin of an entry: its owner is an upstream, and entries of functions are our own."""
    owner: Any = entry.owner
    return Origin() if owner is None else Origin(getattr(owner, "label", str(owner)), trusted=False)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants to use, as rules see it.

    A hint that a server does not give counts as the protocol says: not read-only, destructive, open world.
    """

    kind: Kind
    name: str
    upstream: str | None = None
    trusted: bool = False
    tags: frozenset[str] = frozenset()
    read_only: bool = False
    destructive: bool = True
    open_world: bool = True
    principal: Principal | None = None
    client: str = ""
    is_known: bool = True
    """Whether it is known where it comes from: of a resource that is in no list it may not be."""
    is_local: bool = False
    """Whether the client is on this machine and needs no token."""


class _Hinted(msgspec.Struct):
    annotations: types.ToolAnnotations | None = None


_HINTED_READER: Final = JSONReader(_Hinted)


class AccessReader:
    """Describes accesses. `origin` returns where an entry comes from."""

    def __init__(self, origin: "Callable[[RegistryEntry[..., Any]], Origin]") -> None:
        self._origin = origin
        self._hints = WeakKeyDictionary[Any, tuple[object, types.ToolAnnotations]]()

    def describe(self, context: Context, kind: Kind, name: str) -> Access:
        """Return what a client wants to use."""
        entry = _find_entry(context, kind, name)
        origin = Origin(trusted=False) if entry is None else self._origin(entry)
        hints = self._read_hints(entry) if kind == "tools" and entry is not None else types.ToolAnnotations()
        read_only = hints.read_only_hint is True
        info, principal = context.client.info, context.principal
        return Access(
            kind=kind,
            name=name,
            upstream=origin.upstream,
            trusted=origin.trusted,
            tags=frozenset(getattr(entry, "tags", ())),
            read_only=read_only,
            destructive=not read_only and hints.destructive_hint is not False,
            open_world=hints.open_world_hint is not False,
            principal=principal,
            client="" if info is None else info.name,
            is_known=entry is not None,
            is_local=principal is None and not context.client_connection.is_remote,
        )

    def _read_hints(self, entry: "RegistryEntry[..., Any]") -> types.ToolAnnotations:
        """Return the hints of a tool, which another server may have sent."""
        item: Any = (
            getattr(entry, "tool", None) or getattr(entry, "shown", None) or getattr(entry, "item", None)
        )
        known = self._hints.get(entry)
        if known is None or known[0] is not item:
            hints = types.ToolAnnotations()
            if isinstance(item, Raw):
                with suppress(InvalidJSONValue):  # hints that cannot be read are none
                    hints = _HINTED_READER(item).annotations or hints
            elif isinstance(item, types.Tool):
                hints = item.annotations or hints
            known = self._hints[entry] = (item, hints)
        return known[1]


# --------------------------------------------------------------------- requests and entries


def find_wanted(call: Call) -> tuple[Kind, str] | None:
    """Return what a request is about; None if no rule can be."""
    params = call.params
    if call.method == TOOLS_CALL:
        return "tools", params.name
    if call.method in {RESOURCES_READ, RESOURCES_SUBSCRIBE}:
        return "resources", params.uri
    if call.method == PROMPTS_GET:
        return "prompts", params.name
    if call.method == COMPLETION_COMPLETE:
        ref = params.ref
        return ("prompts", ref.name) if isinstance(ref, types.PromptReference) else ("resources", ref.uri)
    return None


async def is_missing(context: Context, kind: Kind, name: str) -> bool:
    """Return whether a tool or prompt does not exist; servers that have just started get time to list it."""
    server: Any = context.server
    if kind == "resources" or not isinstance(server, MountingServer) or name in getattr(server, kind):
        return False
    await server.wait_listed(context)
    return name not in getattr(server, kind)


def _find_entry(context: Context, kind: Kind, name: str) -> "RegistryEntry[..., Any] | None":
    """Return the entry of the server that serves a request; None if it has none."""
    server: Any = context.server
    if not isinstance(server, MountingServer):
        return None
    entry = getattr(server, kind).get(name)
    if entry is not None or kind != "resources":
        return entry
    found: Any = server.templates.get(name)
    for template in server.templates:
        if found is None and template.enabled and template.match(name) is not None:
            found = template
    if found is not None:
        return found
    unlisted = [each for mount in server.mounts if (each := mount.find_unlisted(name)) is not None]
    return unlisted[0] if len(unlisted) == 1 else None  # as the server itself finds it


def make_unknown_error(kind: Kind, name: str) -> RPCError:
    """Return the error for something that does not exist."""
    if kind == "resources":
        return ResourceNotFound(f"Resource not found: {name}", {"uri": name})
    return InvalidParams(f"Unknown {SINGULAR[kind]}: {shorten(name)}")
