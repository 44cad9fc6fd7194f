"""The exception tree, and the table between JSON-RPC codes and classes.

Knows nothing of bytes, eras or transports.

    MCPError                                every error that toolpost raises on purpose
    ├─ RPCError                             an error response: raise it in a handler, catch it from a call
    │  ├─ ParseError · InvalidRequest · MethodNotFound · InvalidParams · InternalError
    │  ├─ ResourceNotFound                  its code depends on the era
    │  ├─ HeaderMismatch · MissingCapability · UnsupportedRevision
    │  ├─ UrlElicitationRequired · UserRejected · RateLimited
    │  └─ MissingScopes                     also an InsufficientScope
    ├─ ToolError                            a tool failed: an `isError` result, not a protocol error
    ├─ ProtocolError
    │  ├─ LocalProtocolError                we attempted something that this state or revision forbids
    │  │  └─ CapabilityNotDeclared          … because a capability was not declared, by the peer or by us
    │  │     └─ ClientCapabilityNotDeclared … by the client of a stateless request; also a MissingCapability
    │  └─ RemoteProtocolError               the peer did; carries the error to answer with
    ├─ TransportError
    │  ├─ ConnectFailed · RequestTimeout (also a TimeoutError)
    │  ├─ RequestFailed                     one request was lost on its way; the others are not
    │  └─ ChannelClosed                     there will be no more messages
    │     └─ SessionLost                    … because the server has forgotten the session
    ├─ AuthError
    │  └─ AuthorizationRequired · AuthorizationDenied · TokenRejected · InsufficientScope
    ├─ StoreUnavailable                     a store cannot be reached, or refuses; it may work again soon
    └─ InvalidSeal                          a sealed string is forged, damaged, expired or for another use
"""

import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final, ParamSpec, TypedDict, TypeVar, Unpack, cast

__all__ = [
    "AuthError", "AuthorizationDenied", "AuthorizationRequired", "CapabilityNotDeclared", "ChannelClosed",
    "ClientCapabilityNotDeclared", "ConnectFailed", "HeaderMismatch", "InsufficientScope",
    "InternalError", "InvalidParams", "InvalidRequest", "InvalidSeal", "LocalProtocolError", "MCPError",
    "MethodNotFound", "MissingCapability", "MissingScopes", "ParseError", "ProtocolError", "RPCError",
    "RateLimited", "RemoteProtocolError", "RequestFailed", "RequestTimeout", "ResourceNotFound",
    "SessionLost", "StoreUnavailable", "TokenRejected", "ToolError", "TransportError",
    "UnsupportedRevision", "UrlElicitationRequired", "UserRejected",
]  # fmt: skip


P = ParamSpec("P")
R = TypeVar("R")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: "; did you mean …?", or nothing."""
    from difflib import get_close_matches  # noqa: PLC0415 - most processes never need it

    near = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def explain_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method suggest a similar keyword when it is called with an unknown one."""
    code = method.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @wraps(method)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in known:
                called = call.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{called}() has no keyword {name!r}{suggest(name, known)}")
        return method(*args, **keywords)

    return call


def name_methods(mixin: type, name: str) -> None:
    """Let Python's errors about the methods of a mixin name the class that users know."""
    for each in vars(mixin).values():
        if hasattr(each, "__code__"):
            each.__qualname__ = f"{name}.{each.__name__}"


class _Details(TypedDict, total=False):
    """The keywords that every error takes, as `MCPError` describes them."""

    hint: str | None
    peer: str | None
    retry_safe: bool | None


class MCPError(Exception):
    """The base of all errors of toolpost.

    Args:
        message: what happened, in one sentence.
        hint: how to fix it.
        peer: the name of the other side, if known.
        retry_safe: whether the same request may be sent again without doing its work twice.

    `__cause__` is the exception that caused the error, if any.

    Examples:
        >>> str(MCPError("the shop is closed", hint="come back at nine"))
        'the shop is closed (come back at nine)'
    """

    retry_safe: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        peer: str | None = None,
        retry_safe: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.peer = peer
        if retry_safe is not None:
            self.retry_safe = retry_safe

    def __str__(self) -> str:
        text = self.message
        if self.peer:
            text = f"{self.peer}: {text}"
        if self.hint:
            text = f"{text} ({self.hint})"
        return text


# --------------------------------------------------------------------- authorization


class AuthError(MCPError):
    """Authorization failed: credentials are missing, invalid or not sufficient.

    Examples:
        >>> issubclass(AuthError, MCPError)
        True
    """


class AuthorizationDenied(AuthError):
    """The authorization server refused.

    Attributes:
        code: its error code, such as "invalid_client"; empty if it sent none.
    """

    def __init__(self, message: str, code: str = "", **details: Unpack[_Details]) -> None:
        super().__init__(message, **details)
        self.code = code


class AuthorizationRequired(AuthError):
    """The peer requires credentials, and there are none."""

    retry_safe = True


class TokenRejected(AuthError):
    """The peer does not accept the credentials."""

    retry_safe = True


class InsufficientScope(AuthError):
    """The credentials are valid, but do not allow this request."""

    retry_safe = True


# --------------------------------------------------------------------- error responses


class RPCError(MCPError):
    """A JSON-RPC error response.

    Raise one in a handler to send it to the peer; a rejected call raises one. `code` is the
    number on the wire, `data` the JSON that the sender attached, `kind` a readable name for the code.

    Examples:
        >>> RPCError("no more of that", code=-31999, data={"left": 0}).data
        {'left': 0}
    """

    code: int = -32603
    kind: str = "error"
    is_foreign: bool = False  # whether a peer has sent it: it does not answer another peer
    is_forwarded: bool = False  # whether a gateway passes it on all the same

    def __init_subclass__(cls, *, code: int | None = None, kind: str | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.code = cls.code if code is None else code
        cls.kind = kind or cls.kind

    def __init__(
        self,
        message: str,
        data: Any = None,
        *,
        code: int | None = None,
        kind: str | None = None,
        **details: Unpack[_Details],
    ) -> None:
        super().__init__(message, **details)
        self.data = data
        self.code = self.code if code is None else code
        self.kind = kind or self.kind

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, code={self.code}, data={self.data!r})"


class ParseError(RPCError, code=-32700, kind="parse error"):
    """The bytes were not JSON."""


class InvalidRequest(RPCError, code=-32600, kind="invalid request"):
    """The JSON was not a message that may be sent now."""


class MethodNotFound(RPCError, code=-32601, kind="method not found"):
    """The method does not exist in this revision, or its capability was not declared."""


class InvalidParams(RPCError, code=-32602, kind="invalid params"):
    """The parameters are not valid for the method.

    Examples:
        >>> InvalidParams("there is no such shelf").code
        -32602
    """


class InternalError(RPCError, code=-32603, kind="internal error"):
    """The receiver failed while it served the request."""


class ResourceNotFound(RPCError, code=-32002, kind="resource not found"):
    """No resource has this URI. Code −32002 in the session era, −32602 in the stateless era.

    Examples:
        >>> ResourceNotFound("there is no item 7").code
        -32002
    """


class HeaderMismatch(RPCError, code=-32020, kind="header mismatch"):
    """An HTTP header is missing, or differs from the body."""


class MissingCapability(RPCError, code=-32021, kind="missing client capability"):
    """The request needs a client capability that it did not declare."""


class UnsupportedRevision(RPCError, code=-32022, kind="unsupported protocol revision"):
    """The request names a protocol revision that the server does not support."""


class UrlElicitationRequired(RPCError, code=-32042, kind="URL elicitation required"):
    """The user has to visit a URL first; then the same request can be served (2025-11-25).

    `ctx.url_required` makes it for a server to raise. A client shows the URLs, then sends the request again.

    Examples:
        >>> UrlElicitationRequired("sign in first", {"elicitations": []}).elicitations
        []
    """

    def __init__(self, message: str, data: Any = None, **details: Unpack[_Details]) -> None:
        super().__init__(message, data, **details)
        urls = " and ".join(each["url"] for each in self.elicitations)
        if urls:
            self.hint = f"visit {urls}, then try again"

    @property
    def elicitations(self) -> list[dict[str, str]]:
        """The pages to visit, each with `message` and `url`, and `elicitationId` if the server sent it."""
        data: Any = self.data
        entries = cast("dict[str, Any]", data).get("elicitations") if isinstance(data, dict) else None
        found = map(_select_strings, cast("list[Any]", entries) if isinstance(entries, list) else ())
        return [entry for entry in found if {"message", "url"} <= entry.keys()]


def _select_strings(entry: Any) -> dict[str, str]:
    members = cast("dict[str, Any]", entry).items() if isinstance(entry, dict) else ()
    return {key: value for key, value in members if isinstance(value, str)}


class UserRejected(RPCError, code=-1, kind="user rejected"):
    """The user declined a sampling request, or a URL to visit.

    Examples:
        >>> issubclass(UserRejected, RPCError)
        True
    """


_SCOPE: Final = re.compile(r"[!#-\[\]-~]+").fullmatch  # they go into a header


class MissingScopes(RPCError, InsufficientScope, code=403, kind="missing scopes"):
    """The token of a request lacks scopes; over HTTP, the response names them.

    The code is outside the reserved range (ERR-8). `ctx.require` raises it.
    """

    retry_safe = False  # the function may have started

    @classmethod
    def for_scopes(cls, scopes: Iterable[str], why: str | None = None) -> "MissingScopes":
        """Return the error for an operation that needs these scopes; `why` if no token can have them."""
        wanted = " ".join(sorted(scopes))
        message = f"Insufficient scope; required: {wanted}"
        return cls(message if why is None else f"{message} ({why})", {"scope": wanted})

    @property
    def scopes(self) -> list[str]:
        """All scopes that the operation needs, if the server sent them; others are left out."""
        return list(filter(_SCOPE, _select_strings(self.data).get("scope", "").split()))


class RateLimited(RPCError, code=429, kind="rate limited"):
    """The client exceeds a rate limit. The code is outside the reserved range (ERR-8).

    Examples:
        >>> RateLimited("too fast", data={"retryAfter": 3}).data["retryAfter"]
        3
    """

    retry_safe = True


CODES: Final[dict[int, type[RPCError]]] = {kind.code: kind for kind in RPCError.__subclasses__()}
"""JSON-RPC code → class; the other direction is the class's `code`."""

LEGACY_ERROR_KINDS: Final[dict[int, str]] = {
    -32001: "resource not readable",
    -32003: "tool not found",
    -32004: "tool execution failed",
    -32005: "prompt not found",
    -32006: "sampling not supported",
    -32007: "capability not supported",
}
"""Codes of some servers of the first revision: known in the session era only, never sent (ERR-2, ERR-3)."""


def make_rpc_error(
    code: int, message: str, data: Any = None, *, session: bool, peer: str | None = None
) -> RPCError:
    """Return the error for a code that a peer sent; the legacy codes have a meaning in sessions only."""
    kind = CODES.get(code)
    if kind is not None:
        return kind(message, data, peer=peer)
    name = LEGACY_ERROR_KINDS.get(code) if session else None
    return RPCError(message, data, code=code, kind=name, peer=peer)


# --------------------------------------------------------------------- tools, protocol, transport


class ToolError(MCPError):
    """A tool failed. The model reads the message; on the wire it is a result with `isError`.

    Examples:
        >>> raise ToolError("we never sold a cat; ask for a pen")
        Traceback (most recent call last):
        toolpost.errors.ToolError: we never sold a cat; ask for a pen
    """


class ProtocolError(MCPError):
    """A rule of the protocol was broken.

    Examples:
        >>> issubclass(CapabilityNotDeclared, ProtocolError)
        True
    """


class LocalProtocolError(ProtocolError):
    """We attempted something that this state or revision forbids; nothing was sent."""

    retry_safe = True


class CapabilityNotDeclared(LocalProtocolError):
    """A required `capability` was not declared, by the peer or by us.

    Examples:
        >>> CapabilityNotDeclared("prompts", "the server has no prompts").capability
        'prompts'
    """

    def __init__(self, capability: str, message: str, **details: Unpack[_Details]) -> None:
        super().__init__(message, **details)
        self.args = (capability, message)  # for copy and pickle
        self.capability = capability


class ClientCapabilityNotDeclared(MissingCapability, CapabilityNotDeclared):
    """A client request needs a capability that the client's own request did not declare."""

    def __init__(self, capability: str, message: str, data: Any = None, **details: Unpack[_Details]) -> None:
        MCPError.__init__(self, message, **details)
        self.args = (capability, message, data)  # for copy and pickle
        self.capability = capability
        self.data = data


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule.

    Args:
        message: which rule.
        answer: the error to answer with; None if no answer is allowed.
        id: the id of the message, if it could be read.
        reply: whether the broken message was a response to a request of ours.
    """

    def __init__(
        self,
        message: str,
        *,
        answer: RPCError | None = None,
        id: int | str | None = None,  # noqa: A002 - its name in JSON-RPC
        reply: bool = False,
        **details: Unpack[_Details],
    ) -> None:
        super().__init__(message, **details)
        self.answer = answer
        self.id = id
        self.reply = reply


class TransportError(MCPError):
    """The transport failed. `sent` is whether the request may have been sent.

    Examples:
        >>> TransportError("the line is dead", sent=False).sent
        False
    """

    sent: bool = True

    def __init__(self, message: str, *, sent: bool | None = None, **details: Unpack[_Details]) -> None:
        super().__init__(message, **details)
        if sent is not None:
            self.sent = sent
            if details.get("retry_safe") is None:
                self.retry_safe = not sent


class ConnectFailed(TransportError):
    """The connection to the peer could not be opened.

    Examples:
        >>> SyncClient(["no-such-program"]).connect()
        Traceback (most recent call last):
        toolpost.errors.ConnectFailed: no-such-program: program 'no-such-program' not found...
    """

    sent = False
    retry_safe = True


class ChannelClosed(TransportError):
    """The channel is closed, by us or by the peer.

    Examples:
        >>> issubclass(ChannelClosed, TransportError)
        True
    """


class SessionLost(ChannelClosed):
    """The server no longer knows the session. `sent` is whether it may have served the request."""


class RequestFailed(TransportError):
    """One request was lost; the connection still works.

    Attributes:
        status: the HTTP status of the response; None if there was none.
        retry_after: the seconds to wait before a retry, if the peer named them.

    Examples:
        >>> RequestFailed("it was too busy", status=503).status
        503
    """

    retry_after: float | None = None

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        sent: bool | None = None,
        **details: Unpack[_Details],
    ) -> None:
        super().__init__(message, sent=sent, **details)
        self.status = status


class RequestTimeout(TransportError, TimeoutError):
    """No response arrived in time.

    Examples:
        >>> issubclass(RequestTimeout, TimeoutError)
        True
    """


class StoreUnavailable(MCPError):
    """A store that several workers share did not answer in time, or refused a command."""


class InvalidSeal(MCPError):
    """A sealed string was refused. `reason` is for the log and never for the peer."""

    def __init__(self, reason: str) -> None:
        super().__init__("the sealed value is not valid here")
        self.reason = reason
