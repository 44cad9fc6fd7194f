"""`Policy`: middleware that decides by rules who may list, call, read and fetch what.

Rules are tried in order, and the first one that matches decides. What no rule matches is hidden. `access`
describes what a client wants, and `approval` asks the user where a rule says so.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from toolpost import types
from toolpost.errors import RPCError
from toolpost.gateway.access import (
    SINGULAR,
    Access,
    AccessReader,
    Kind,
    Origin,
    find_origin,
    find_wanted,
    is_missing,
    make_unknown_error,
)
from toolpost.gateway.approval import FORBIDDEN, Approvals
from toolpost.protocol import jsonrpc
from toolpost.protocol.forward import ForwardedResult
from toolpost.protocol.jsonrpc import MEMBERS_READER, JSONReader, shorten
from toolpost.protocol.methods import (
    COMPLETION_COMPLETE,
    PROMPTS_LIST,
    RESOURCES_LIST,
    RESOURCES_SUBSCRIBE,
    RESOURCES_TEMPLATES_LIST,
    SUBSCRIPTIONS_LISTEN,
    TOOLS_LIST,
)
from toolpost.server.context import Context
from toolpost.server.middleware import Call, Next
from toolpost.server.registry.registry import RegistryEntry
from toolpost.types.base import JSON, Raw

Decision: TypeAlias = Literal["allow", "deny", "hide", "ask"]

_LISTS: Final[dict[str, tuple[Kind, str, str]]] = {
    TOOLS_LIST: ("tools", "tools", "name"),
    RESOURCES_LIST: ("resources", "resources", "uri"),
    RESOURCES_TEMPLATES_LIST: ("resources", "resourceTemplates", "uriTemplate"),
    PROMPTS_LIST: ("prompts", "prompts", "name"),
}
_ITEMS_READER: Final = JSONReader(list[Raw])
_NAME_READER: Final = JSONReader(str)


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
        names: Globs | None = getattr(self, access.kind)
        if self.has_kinds and not self._match(access.kind, names, [access.name]):
            return False
        principal = access.principal
        is_open = access.is_known or self.then == "allow"  # else it may come from there
        return (
            (not is_open or self._match("upstream", self.upstream, [access.upstream or ""]))
            and (not is_open or self._match("tags", self.tags, access.tags))
            and self._match("subjects", self.subjects, [principal.subject if principal else ""])
            and self._match("clients", self.clients, [(principal and principal.client) or access.client])
        )

    def _match(self, key: str, globs: Globs | None, found: Iterable[str]) -> bool:
        """Return whether a pattern matches one of the texts. The patterns are compiled once."""
        if globs is None:
            return True
        compiled = cast("dict[str, Any]", self.__dict__)
        pattern = compiled.get(key)
        if pattern is None:
            joined = "|".join(map(translate, list_globs(globs))) or "(?!)"
            pattern = compiled[key] = re.compile(joined)
        return any(each and pattern.match(each) for each in found)

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
        self.rules: Sequence[Rule | RuleFunction] = list(rules)
        self.on_decision = on_decision
        self._reader = AccessReader(origin)
        self._approvals = Approvals()

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call if the rules allow it."""
        if not self.rules or not call.incoming or call.is_notification:
            return await next(call)
        if call.method in _LISTS:
            return self._filter(call, await next(call))
        if call.method == SUBSCRIPTIONS_LISTEN:
            return await next(self._filter_subscriptions(call))
        wanted = find_wanted(call)
        return await (next(call) if wanted is None else self._serve(call, next, wanted))

    async def _serve(self, call: Call, next: Next, wanted: tuple[Kind, str]) -> Any:  # noqa: A002 - as above
        if await is_missing(call.context, *wanted):
            raise make_unknown_error(*wanted)
        access, scopes, decision = self._decide(call, *wanted)
        if decision == "hide":
            raise make_unknown_error(*wanted)
        if decision == "deny":
            raise _make_refusal(call, access, "the policy does not allow it")
        call.context.require(*scopes)
        if decision != "ask" or call.method in {COMPLETION_COMPLETE, RESOURCES_SUBSCRIBE}:
            return await next(call)

        async def serve_unchanged(call: Call) -> Any:
            # The user may take long to answer, and another server may have the name by then.
            if self._reader.describe(call.context, *wanted) != access:
                raise _make_refusal(call, access, "it has changed meanwhile; call again")
            return await next(call)

        return await self._approvals.serve(call, serve_unchanged, SINGULAR[access.kind], access.name)

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
        access = self._reader.describe(context, kind, name)
        number, decision, scopes = self.decide(access)
        if self.on_decision is not None:
            self.on_decision(context, number, decision)
        return access, scopes, decision

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
        return self.decide(self._reader.describe(context, kind, name))[1] == "hide"

    def _filter_subscriptions(self, call: Call) -> Call:
        """Return a call without the resources that the client may not use."""
        wanted = cast("types.ListenParams", call.params).notifications
        uris = wanted.resource_subscriptions
        if not uris:
            return call
        kept = [uri for uri in uris if self._decide(call, "resources", uri)[2] in {"allow", "ask"}]
        params = replace(call.params, notifications=replace(wanted, resource_subscriptions=kept))
        return replace(call, params=params)


def _read_name(item: Raw, key: str) -> str:
    return _NAME_READER(MEMBERS_READER(item).get(key, Raw(b'""')))


def _make_refusal(call: Call, access: Access, why: str) -> RPCError:
    server = call.context.server.info.name
    what = f"the {SINGULAR[access.kind]} {shorten(access.name)}"
    return RPCError(f"{server} does not serve {what}: {why}", code=FORBIDDEN, kind="forbidden")
