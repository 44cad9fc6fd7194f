"""The two eras of the protocol, each a class with the same three hooks.

`SessionEra`: a handshake, then both sides may send requests. `StatelessEra`: every request has all context
in its `_meta`, and a server asks for input by its result. Owns the keys of `_meta`. Knows no transports.
"""

import re
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from toolpost import types
from toolpost.errors import (
    CapabilityNotDeclared,
    ClientCapabilityNotDeclared,
    InvalidParams,
    LocalProtocolError,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.downgrade import DOWNGRADES, downgrade_value
from toolpost.protocol.jsonrpc import DECODE_ERRORS, InvalidJSONValue, JSONReader, describe_decode_error
from toolpost.protocol.local_peer import Capabilities, LocalPeer, has_capability
from toolpost.protocol.methods import INITIALIZE, ROWS, SERVER_DISCOVER, SUBSCRIPTIONS_LISTEN, Row
from toolpost.protocol.revisions import REVISIONS, Revision
from toolpost.types.base import JSON, UNSET, Meta, Raw, Result, Struct, Unset, WireStruct

if TYPE_CHECKING:
    from toolpost.protocol.connection import Connection
    from toolpost.protocol.events import InboundRequest, OutboundRequest

# --------------------------------------------------------------------- keys of _meta

DEFINED_META_KEYS: Final = frozenset(
    {
        types.PROTOCOL_VERSION,
        types.CLIENT_CAPABILITIES,
        types.CLIENT_INFO,
        types.LOG_LEVEL,
        types.SERVER_INFO,
        types.SUBSCRIPTION_ID,
        types.RELATED_TASK,
        "io.modelcontextprotocol/model-immediate-response",
    }
)
"""The reserved keys that a revision gives a meaning."""

_KEY_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_KEY_PREFIX: Final = rf"{_KEY_LABEL}(?:\.{_KEY_LABEL})*"
_KEY_NAME: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_RESERVED_LABELS: Final = frozenset({"modelcontextprotocol", "mcp"})


def explain_invalid_meta_key(key: str, *, extension: bool = False) -> str | None:
    """Return the problem with a key, or None (META-2, META-3, META-5, META-6).

    An extension is identified by such a key, which then needs a prefix (VER-4).
    """
    prefix, slash, name = key.rpartition("/")
    if slash and not re.fullmatch(_KEY_PREFIX, prefix):
        return f"{key!r}: a prefix must be labels of letters, digits and hyphens, joined by dots"
    if not re.fullmatch(_KEY_NAME, name):
        return f"{key!r}: a name must start and end with a letter or digit; only - _ and . are also allowed"
    if extension:
        problem = "an extension needs a prefix, a slash and a name, as in com.example/x"
        return None if slash and name else f"{key!r}: {problem}"
    if _RESERVED_LABELS.intersection(prefix.split(".")[1:2]) and key not in DEFINED_META_KEYS:
        return f"{key!r}: this prefix is reserved for the specification, which defines no such key"
    return None


# --------------------------------------------------------------------- _meta of a received request


class Peer(Struct):
    """The other end: of a whole session, or of one stateless request."""

    revision: Revision
    capabilities: Capabilities | None = None
    info: types.Implementation | None = None
    log_level: types.LogLevel | None = None


class _ParamsWithRequestMeta(Struct, rename={"meta": "_meta"}):
    meta: types.RequestMeta | None = None


class _ProtocolVersionMeta(Struct, rename={"version": types.PROTOCOL_VERSION}):
    version: Raw | Unset = UNSET


class _ParamsWithVersion(Struct, rename={"meta": "_meta"}):
    meta: _ProtocolVersionMeta | None = None


CORE_RESULT_TYPES: Final = frozenset({"complete", "input_required"})
_CACHE_SCOPES: Final = frozenset({"public", "private"})
_CAPABILITY_BY_METHOD: Final = {row.name: row.needs for row in ROWS if row.asked is not None and row.needs}
"""The client capability of each request that a server may send."""
NO_META: Final = types.RequestMeta()
_REQUEST_META_READER: Final = JSONReader(_ParamsWithRequestMeta)
_VERSION_READER: Final = JSONReader(_ParamsWithVersion)
_VERSION_KEY: Final = types.PROTOCOL_VERSION.encode()
_BACKSLASH: Final = 0x5C


def read_meta(params: Raw | Unset) -> types.RequestMeta:
    """Read the protocol's keys in the `_meta` of a request; InvalidParams if one has the wrong type."""
    if params is UNSET:
        return NO_META
    try:
        return _REQUEST_META_READER.decode(params).meta or NO_META
    except DECODE_ERRORS as error:
        raise InvalidParams(f"Invalid params: {describe_decode_error(error)}") from error


def has_protocol_version(params: Raw | Unset) -> bool:
    """Return whether a request claims to belong to the stateless era, valid or not."""
    if params is UNSET:
        return False
    text = bytes(params)
    if text.find(_VERSION_KEY) < 0 and _BACKSLASH not in text:
        return False  # as nearly always in a session
    try:
        meta = _VERSION_READER(params).meta
    except InvalidJSONValue:
        return False
    return meta is not None and meta.version is not UNSET


def find_missing_capability(capabilities: Capabilities | None, row: Row, params: object) -> str | None:
    """Return the client capability that a request needs and lacks; its parameters may need a finer one."""
    if capabilities is None or (row.needs and not has_capability(capabilities, row.needs)):
        return row.needs
    if isinstance(params, types.ElicitParams):
        if params.mode == "url":
            return None if has_capability(capabilities, "elicitation.url") else "elicitation.url"
        # A client that names neither mode has forms (REVISIONS.md §7).
        has_url, has_form = (has_capability(capabilities, f"elicitation.{mode}") for mode in ("url", "form"))
        return "elicitation.form" if has_url and not has_form else None
    if not isinstance(params, types.CreateMessageParams) or params.tools is params.tool_choice is None:
        return None
    return None if has_capability(capabilities, "sampling.tools") else "sampling.tools"


# --------------------------------------------------------------------- parameters that we send

_SENDER_META_KEYS: Final = frozenset(
    {"progressToken", types.PROTOCOL_VERSION, types.CLIENT_CAPABILITIES, types.CLIENT_INFO}
)
"""The keys of `_meta` that only the sender of a request may set."""

_NULL: Final = Raw(b"null")


def drop_sender_meta(meta: Mapping[str, JSON], revision: Revision) -> Meta:
    """Remove the keys that only the sender of a request may set."""
    # In a session the log level is set once, by a request of its own.
    dropped = _SENDER_META_KEYS if revision.stateless else _SENDER_META_KEYS | {types.LOG_LEVEL}
    return {key: value for key, value in meta.items() if key not in dropped}


def stamp_request(
    party: LocalPeer, revision: Revision, meta: Mapping[str, JSON] | None, token: types.ProgressToken | None
) -> Meta | None:
    """Return the `_meta` of a request; a stateless one has our name and capabilities (META-7 … META-9)."""
    stamped = drop_sender_meta(meta, revision) if meta else {}
    if revision.stateless:
        stamped |= party.stamps[revision.date]
    if token is not None:
        stamped["progressToken"] = token
    return stamped or None


def prepare_params(
    params: WireStruct | Mapping[str, JSON] | None, meta: Meta | None, revision: Revision
) -> Any:
    """Translate parameters for the peer, and merge `meta` over their own `_meta`."""
    if not isinstance(params, WireStruct):
        if not isinstance(params, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
            raise LocalProtocolError(f"parameters must be an object, not {type(params).__name__}")
        if meta is None and (params is None or "_meta" not in params):
            return UNSET if params is None else params
        plain = params or {}
        return {**plain, "_meta": _merge_meta(plain.get("_meta"), meta, revision)}
    params = downgrade_value(params, revision)
    if "meta" not in params.__struct_fields__:
        return params if meta is None else {**jsonrpc.MEMBERS_READER(jsonrpc.encode(params)), "_meta": meta}
    own: Any = getattr(params, "meta", None) or None  # UNSET is false
    if own is not None or meta is not None:
        params = copy(params)
        # The encoder takes a dict where the struct, which is also read, has raw bytes.
        setattr(params, "meta", _merge_meta(own, meta, revision))  # noqa: B010 - see above
    return params


def _merge_meta(own: Any, meta: Meta | None, revision: Revision) -> Meta:
    """Merge `meta` over the `_meta` of the parameters, except the keys of another sender."""
    if own is None or own == _NULL:
        return meta or {}
    try:
        return {
            **drop_sender_meta(jsonrpc.MEMBERS_READER(own) if isinstance(own, Raw) else own, revision),
            **(meta or {}),
        }
    except (InvalidJSONValue, AttributeError) as error:
        raise LocalProtocolError("the _meta of a request must be an object") from error


# --------------------------------------------------------------------- the session era


class SessionEra:
    """A handshake, then both sides may send requests."""

    def open(self, connection: "Connection") -> "OutboundRequest":
        """Make `initialize`, offering the revision of the connection (LIFE-2, LIFE-8)."""
        party = connection.local_peer
        capabilities = party.select_capabilities(connection.revision)
        assert isinstance(capabilities, types.ClientCapabilities), "only a client opens a conversation"
        params = types.InitializeParams(
            protocol_version=connection.revision.date, capabilities=capabilities, client_info=party.info
        )
        return connection.request(INITIALIZE, params)

    def stamp_result(self, party: LocalPeer, incoming: "InboundRequest", result: Result) -> Result:  # noqa: ARG002 - a hook
        """Return the result without the members of the stateless era."""
        revision = incoming.peer.revision
        if isinstance(result, types.InputRequiredResult):
            raise LocalProtocolError(f"a result cannot ask for input in {revision.date}")
        result = downgrade_value(result, revision)
        if isinstance(result, types.CacheableResult) and (
            result.ttl_ms is not None or result.cache_scope is not None
        ):
            result = replace(result, ttl_ms=None, cache_scope=None)
        return result if result.result_type is None else replace(result, result_type=None)

    def make_client_request(
        self, connection: "Connection", incoming: "InboundRequest", method: str, params: WireStruct
    ) -> "OutboundRequest":
        """Make a request, to be sent on the stream of the call."""
        revision = incoming.peer.revision
        if method in _CAPABILITY_BY_METHOD and method not in revision.requests["server"]:
            raise CapabilityNotDeclared(
                _CAPABILITY_BY_METHOD[method], f"clients of {revision.date} do not support {method}"
            )
        if isinstance(params, types.ElicitParams) and params.mode == "url" and not revision.rich_forms:
            raise CapabilityNotDeclared(
                "elicitation.url", f"clients of {revision.date} do not support URL elicitation"
            )
        return connection.request(method, params)


# --------------------------------------------------------------------- the stateless era


class StatelessEra:
    """Every request has all context in its `_meta`; a server asks for input by its result."""

    def check_meta(self, meta: types.RequestMeta) -> None:
        """Raise InvalidParams if `_meta` lacks a required key (META-7, META-8, META-10)."""
        if meta.protocol_version is UNSET:
            raise InvalidParams(f"Invalid params: _meta lacks {types.PROTOCOL_VERSION}")
        if meta.client_capabilities is UNSET:
            raise InvalidParams(f"Invalid params: _meta lacks {types.CLIENT_CAPABILITIES}")

    def open(self, connection: "Connection") -> "OutboundRequest":
        """Make `server/discover`, whose result describes the server."""
        return connection.request(SERVER_DISCOVER)

    def read_peer(self, party: LocalPeer, meta: types.RequestMeta) -> Peer:
        """Return the sender of a request; raise UnsupportedRevision if we do not support its revision."""
        requested = cast("str", meta.protocol_version)
        revision = REVISIONS.get(requested)
        if revision is None or not revision.stateless or revision.date not in party.supported:
            raise party.make_unsupported_error(requested)
        return Peer(
            revision, meta.client_capabilities or None, meta.client_info or None, meta.log_level or None
        )

    def stamp_result(self, party: LocalPeer, incoming: "InboundRequest", result: Result) -> Result:
        """Return the result with its type, cache hints and server name (MSG-11, META-16)."""
        revision = incoming.peer.revision
        downgrade = DOWNGRADES[type(result)]
        if downgrade is not None:
            result = downgrade(result, revision)
        kind = result.result_type or "complete"
        if result.result_type is not None and kind not in CORE_RESULT_TYPES:
            check_extension_result(party, incoming, kind)
        meta = party.stamps[revision.date]
        if result.meta:
            meta = {**meta, **result.meta}
        if type(result) is types.CallToolResult:
            pass
        elif isinstance(result, types.CacheableResult):
            return _add_cache_hints(result, meta, kind)
        elif isinstance(result, types.InputRequiredResult):
            if not incoming.row.can_require_input:
                raise LocalProtocolError(f"the result of {incoming.row.name} cannot ask for input")
            if not result.input_requests and result.request_state is None:
                raise LocalProtocolError("a result that asks for input must have questions, a state, or both")
            kind = "input_required"
        elif incoming.row.name == SUBSCRIPTIONS_LISTEN:
            meta = {**meta, types.SUBSCRIPTION_ID: incoming.id}
        own: Any = result  # the type stubs of msgspec lack `__copy__`
        stamped: Result = own.__copy__()  # it may be the author's own object
        stamped.meta, stamped.result_type = meta, kind
        return stamped

    def make_client_request(
        self,
        connection: "Connection",  # noqa: ARG002 - a hook
        incoming: "InboundRequest",
        method: str,
        params: WireStruct,
    ) -> types.InputRequest:
        """Make the input request to return in a result (MRTR-1, MRTR-2, MRTR-6)."""
        revision = incoming.peer.revision
        if not incoming.row.can_require_input:
            raise LocalProtocolError(f"{incoming.row.name} cannot ask the client in {revision.date}")
        row = revision.input_requests.get(method)
        if row is None:
            raise LocalProtocolError(f"{method} cannot be sent to a client in {revision.date}")
        missing = find_missing_capability(incoming.peer.capabilities, row, params)
        if missing is not None:
            needed: JSON = {}
            for name in reversed(missing.split(".")):
                needed = {name: needed}
            raise ClientCapabilityNotDeclared(
                missing, f"{method} needs the client capability {missing!r}", {"requiredCapabilities": needed}
            )
        return types.InputRequest(method, Raw(jsonrpc.encode(downgrade_value(params, revision))))


def check_extension_result(party: LocalPeer, incoming: "InboundRequest", kind: str) -> None:
    """Refuse a kind of result that no extension has, or that the client did not declare (MSG-14)."""
    declared = (incoming.peer.capabilities and incoming.peer.capabilities.extensions) or {}
    for extension in party.extensions if incoming.peer.revision.stateless else ():
        if (incoming.row.name, kind) in extension.results and extension.name in declared:
            return
    raise LocalProtocolError(
        f"{incoming.row.name} cannot have a result of type {jsonrpc.shorten(kind)!r}: "
        "it belongs to no extension that server and client declare"
    )


def _add_cache_hints(result: types.CacheableResult, meta: Meta, kind: str) -> Result:
    """Return the result with its time to live and cache scope (CACHE-1, CACHE-2)."""
    age, scope = result.ttl_ms or 0, result.cache_scope or "private"
    if type(age) is not int or age < 0 or scope not in _CACHE_SCOPES:
        raise LocalProtocolError(
            "the ttl of a result must be 0 or more milliseconds, and its scope public or private; "
            f"not {age!r}, {scope!r}"
        )
    return replace(result, meta=meta, result_type=kind, ttl_ms=age, cache_scope=scope)


SESSION_ERA: Final = SessionEra()
STATELESS_ERA: Final = StatelessEra()
ERAS: Final[dict[str, SessionEra | StatelessEra]] = {"session": SESSION_ERA, "stateless": STATELESS_ERA}
