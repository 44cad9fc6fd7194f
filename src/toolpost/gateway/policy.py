"""`Policy`: middleware that decides by rules who may list, call, read and fetch what.

Rules are tried in order, and the first one that matches decides. What no rule matches is hidden. `approval`
asks the user where a rule says so.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from toolpost import types
from toolpost.errors import InvalidParams, ResourceNotFound, RPCError
from toolpost.gateway.approval import FORBIDDEN, Approvals
from toolpost.principal import Principal
from toolpost.protocol import jsonrpc
from toolpost.protocol.forward import ForwardedResult
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue, JSONReader, shorten
from toolpost.protocol.methods import (
    COMPLETION_COMPLETE,
    PROMPTS_GET,
    PROMPTS_LIST,
    RESOURCES_LIST,
    RESOURCES_READ,
    RESOURCES_SUBSCRIBE,
    RESOURCES_TEMPLATES_LIST,
    SUBSCRIPTIONS_LISTEN,
    TOOLS_CALL,
    TOOLS_LIST,
)
from toolpost.server.context import Context
from toolpost.server.middleware import Call, Next
from toolpost.server.registry.registry import RegistryEntry
from toolpost.types.base import JSON, Raw

Kind: TypeAlias = Literal["tools", "resources", "prompts"]
Decision: TypeAlias = Literal["allow", "deny", "hide", "ask"]

_LISTS: Final[dict[str, tuple[Kind, str, str]]] = {
    TOOLS_LIST: ("tools", "tools", "name"),
    RESOURCES_LIST: ("resources", "resources", "uri"),
    RESOURCES_TEMPLATES_LIST: ("resources", "resourceTemplates", "uriTemplate"),
    PROMPTS_LIST: ("prompts", "prompts", "name"),
}
_SINGULAR: Final[dict[Kind, str]] = {"tools": "tool", "resources": "resource", "prompts": "prompt"}


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
    is_local: bool = False
    """Whether the client is on this machine and needs no token."""


Globs: TypeAlias = str | list[str]


def list_globs(given: Globs | None) -> list[str]:
    """Return patterns that may be one string."""
    return [] if given is None else [given] if isinstance(given, str) else list(given)


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A rule. It matches if all conditions that are set do.

    Attributes:
        tools: names of tools; `*` stands for any text.
        resources: URIs of resources.
        prompts: names of prompts.
        upstream: names of upstreams.
        tags: tags, one of which a tool has.
        read_only: whether the tool only reads, by its hint.
        destructive: whether the tool may destroy something, by its hint.
        open_world: whether the tool deals with the outside world, by its hint.
        subjects: users or services.
        clients: names or ids of clients.
        claims: claims of the token.
        has_scopes: scopes of the token; without them, the next rules decide.
        scopes: scopes that the token needs; without them, the client learns which to get.
        then: what happens. "deny" lists what may not be used, "hide" does not.
    """

    tools: Globs | None = None
    resources: Globs | None = None
    prompts: Globs | None = None
    upstream: Globs | None = None
    tags: Globs | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None
    subjects: Globs | None = None
    clients: Globs | None = None
    claims: dict[str, JSON] | None = None
    has_scopes: list[str] | None = None
    scopes: list[str] = []
    then: Decision = "allow"

    @property
    def has_hints(self) -> bool:
        """Whether hints of the tool are a condition."""
        return not (self.read_only is self.destructive is self.open_world is None)

    @property
    def has_kinds(self) -> bool:
        """Whether the rule names what it is about."""
        return not (self.tools is self.resources is self.prompts is None)

    @property
    def is_catch_all(self) -> bool:
        """Whether the rule matches everything."""
        conditions = (
            getattr(self, name) for name in self.__struct_fields__ if name not in {"then", "scopes"}
        )
        return all(each is None for each in conditions)

    def may_match(self, kind: Kind) -> bool:
        """Return whether the rule is about things of this kind."""
        if self.has_kinds:
            return getattr(self, kind) is not None
        return kind == "tools" or not self.has_hints

    def list_mistakes(self) -> list[str]:
        """Return what is wrong with the rule."""
        wrong: list[str] = []
        if self.has_hints and self.tools is None and self.has_kinds:
            wrong.append("only tools have hints: remove them, or name tools")
        if self.scopes and self.then in {"deny", "hide"}:
            wrong.append('"scopes" are what an allowed call needs; use "has_scopes" as a condition')
        return wrong

    def matches(self, access: Access) -> bool:
        """Return whether the rule decides about an access."""
        if not self.may_match(access.kind) or not self._match_texts(access):
            return False
        if self.has_hints:
            # A server that lies about its tools must not get them allowed.
            if self.then == "allow" and not access.trusted:
                return False
            hints = ("read_only", "destructive", "open_world")
            if any(getattr(self, name) not in {None, getattr(access, name)} for name in hints):
                return False
        return self._match_principal(access)

    def _match_texts(self, access: Access) -> bool:
        if self.has_kinds and not self._match(
            "_named", getattr(self, access.kind), access.kind, [access.name]
        ):
            return False
        conditions = (
            ("upstream", [access.upstream] if access.upstream else []),
            ("tags", access.tags),
            ("subjects", [access.principal.subject] if access.principal and access.principal.subject else []),
            (
                "clients",
                [each for each in (access.principal and access.principal.client, access.client) if each],
            ),
        )
        return all(
            getattr(self, name) is None or self._match("_" + name, getattr(self, name), "", found)
            for name, found in conditions
        )

    def _match(self, key: str, globs: Globs, kind: str, found: Iterable[str]) -> bool:
        """Return whether a pattern matches one of the texts. The patterns are compiled once."""
        compiled = cast("dict[str, Any]", self.__dict__)
        pattern = compiled.get(key + kind)
        if pattern is None:
            joined = "|".join(map(translate, list_globs(globs))) or "(?!)"
            pattern = compiled[key + kind] = re.compile(joined)
        return any(pattern.match(each) for each in found)

    def _match_principal(self, access: Access) -> bool:
        principal = access.principal
        if self.claims is not None:
            known = {} if principal is None else principal.claims
            if any(not _has_claim(known.get(name), wanted) for name, wanted in self.claims.items()):
                return False
        if self.has_scopes is None or access.is_local:
            return True
        return principal is not None and principal.scopes.issuperset(self.has_scopes)


def _has_claim(found: object, wanted: object) -> bool:
    return found == wanted or (isinstance(found, list) and wanted in found)


RuleFunction: TypeAlias = Callable[[Access], Decision | None]
"""A rule of your own: returns what happens, or None if the next rules decide."""


class Policy:
    """Middleware that allows, denies, hides, or asks the user, by rules in order.

    Args:
        rules: the rules, or functions that take an `Access`. Without any, everything is allowed; otherwise
            what no rule matches is hidden.
        origin: returns where an entry comes from.
        on_decision: is called with the context, the number of the rule from 1 (0 for none), and what happens.

    Examples:
        >>> policy = Policy([Rule(tools="delete_*", then="ask"), Rule(tools="*")])
        >>> server = Server("shop", middleware=[policy])
    """

    def __init__(
        self,
        rules: "Sequence[Rule | RuleFunction]" = (),
        *,
        origin: "Callable[[RegistryEntry[..., Any]], Origin]" = find_origin,
        on_decision: "Callable[[Context, int, Decision], object] | None" = None,
    ) -> None:
        self.rules = list(rules)
        self.on_decision = on_decision
        self._origin = origin
        self._approvals = Approvals()
        self._hints = WeakKeyDictionary[Any, tuple[object, types.ToolAnnotations]]()

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call if the rules allow it."""
        if not self.rules or not call.incoming or call.is_notification:
            return await next(call)
        if call.method in _LISTS:
            return self._filter(call, await next(call))
        if call.method == SUBSCRIPTIONS_LISTEN:
            return await next(self._filter_subscriptions(call))
        wanted = _find_wanted(call)
        if wanted is None:
            return await next(call)
        access, scopes, decision = self._decide(call, *wanted)
        if decision == "hide":
            raise _make_unknown_error(access)
        if decision == "deny":
            raise _make_refusal(call, access, "the policy does not allow it")
        call.context.require(*scopes)
        if decision == "ask" and call.method not in {COMPLETION_COMPLETE, RESOURCES_SUBSCRIBE}:
            return await self._approvals.serve(call, next, _SINGULAR[access.kind], access.name)
        return await next(call)

    # ----------------------------------------------------------------- decisions

    def decide(self, access: Access) -> tuple[int, Decision, Sequence[str]]:
        """Return the number of the rule that decides (0 for none), what happens, and the scopes it needs."""
        for number, rule in enumerate(self.rules, 1):
            if isinstance(rule, Rule):
                if rule.matches(access):
                    return number, rule.then, rule.scopes
            elif (decision := rule(access)) is not None:
                return number, decision, ()
        return 0, "hide", ()

    def _decide(self, call: Call, kind: Kind, name: str) -> tuple[Access, Sequence[str], Decision]:
        context = call.context
        access = self._describe(context, kind, name, _find_entry(context, kind, name))
        number, decision, scopes = self.decide(access)
        if self.on_decision is not None:
            self.on_decision(context, number, decision)
        return access, scopes, decision

    def _describe(
        self, context: Context, kind: Kind, name: str, entry: "RegistryEntry[..., Any] | None"
    ) -> Access:
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

    # ----------------------------------------------------------------- lists

    def _filter(self, call: Call, result: Any) -> Any:
        """Return a list without what is hidden. Other clients may see another one."""
        kind, member, key = _LISTS[call.method]
        raw = result.raw if isinstance(result, ForwardedResult) else result
        members = MEMBERS_READER(Raw(raw if isinstance(raw, bytes | Raw) else jsonrpc.encode(raw)))
        items = _ITEMS_READER(members.get(member, Raw(b"[]")))
        kept = [item for item in items if not self._is_hidden(call.context, kind, _read_name(item, key))]
        members[member] = Raw(jsonrpc.encode(kept))
        if "cacheScope" in members:
            members["cacheScope"] = Raw(b'"private"')
        data = Raw(jsonrpc.encode(members))
        return replace(result, raw=data) if isinstance(result, ForwardedResult) else data

    def _is_hidden(self, context: Context, kind: Kind, name: str) -> bool:
        access = self._describe(context, kind, name, _find_entry(context, kind, name))
        return self.decide(access)[1] == "hide"

    def _filter_subscriptions(self, call: Call) -> Call:
        """Return a call without the resources that the client may not use."""
        wanted = cast("types.ListenParams", call.params).notifications
        uris = wanted.resource_subscriptions
        if not uris:
            return call
        kept = [uri for uri in uris if self._decide(call, "resources", uri)[2] in {"allow", "ask"}]
        params = replace(call.params, notifications=replace(wanted, resource_subscriptions=kept))
        return replace(call, params=params)


# --------------------------------------------------------------------- requests and entries


class _Hinted(msgspec.Struct):
    annotations: types.ToolAnnotations | None = None


_HINTED_READER: Final = JSONReader(_Hinted)
_ITEMS_READER: Final = JSONReader(list[Raw])
_NAME_READER: Final = JSONReader(str)


def _read_name(item: Raw, key: str) -> str:
    return _NAME_READER(MEMBERS_READER(item).get(key, Raw(b'""')))


def _find_wanted(call: Call) -> tuple[Kind, str] | None:
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


def _find_entry(context: Context, kind: Kind, name: str) -> "RegistryEntry[..., Any] | None":
    """Return the entry of the server that serves a request; None if it has none."""
    server: Any = context.server
    registry: Mapping[str, Any] | None = getattr(server, kind, None)
    entry = None if registry is None else registry.get(name)
    if entry is not None or kind != "resources" or registry is None:
        return entry
    templates = server.templates
    same = templates.get(name)
    return same or next((each for each in templates if each.enabled and each.match(name) is not None), None)


def _make_unknown_error(access: Access) -> RPCError:
    """Return the error for something that does not exist."""
    if access.kind == "resources":
        return ResourceNotFound(f"Resource not found: {access.name}", {"uri": access.name})
    return InvalidParams(f"Unknown {_SINGULAR[access.kind]}: {shorten(access.name)}")


def _make_refusal(call: Call, access: Access, why: str) -> RPCError:
    server = call.context.server.info.name
    what = f"the {_SINGULAR[access.kind]} {shorten(access.name)}"
    return RPCError(f"{server} does not serve {what}: {why}", code=FORBIDDEN, kind="forbidden")
