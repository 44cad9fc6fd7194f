"""`Auth`: the settings of a protected server: issuers, scopes, and the URL that tokens name.

Also implied scopes, and functions of users as verifiers of tokens. `protected_resource` checks requests.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from inspect import isawaitable, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast, runtime_checkable
from urllib.parse import urlsplit

from msgspec.structs import replace

from toolpost.auth.arguments import check_flag
from toolpost.auth.jose import import_jose
from toolpost.auth.server.introspection import Introspection
from toolpost.auth.server.jwt import LEEWAY, Jwt, check_audience, check_times
from toolpost.auth.urls import MAX_QUOTED_LENGTH, check_issuer, check_url
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal, parse_scopes
from toolpost.threads import ThreadPool

if TYPE_CHECKING:
    from toolpost.auth.provider.providers import OAuthProvider

MAX_THREADS: Final = 16  # concurrent calls of a verifier that is not async
MAX_WAITING_TOKENS: Final = 256  # tokens that wait for one of these threads; they may be invented

ImpliedScopes: TypeAlias = Mapping[str, Iterable[str]] | Callable[[frozenset[str]], Iterable[str]]
"""Implied scopes: a table, or a function from the scopes of a token to those it adds."""

_EXAMPLE_RESOURCE: Final = "https://mcp.example.com/mcp"
VerifyFunction: TypeAlias = Callable[[str], "Principal | str | Awaitable[Principal | str | None] | None"]
"""A function of your own: takes a token; returns its principal, or None if the token is not valid *here*."""


@runtime_checkable
class Verifier(Protocol):
    """Verifies tokens."""

    cache_ttl: float
    """Seconds for which a result may be cached; 0 for not at all."""

    async def verify(self, token: str, *resources: str) -> Principal:
        """Return the principal of a valid token that was issued for one of these URLs of the server.

        Raises:
            TokenRejected: the token is not valid; the message is for the log and must not contain it.
            TransportError: the token cannot be checked now.
        """
        ...


class Auth:
    """Authorization of a server over HTTP: which tokens it accepts.

    Args:
        issuer: the issuer URL of the authorization server whose tokens are accepted, or several. With
            `provider`, the public URL of this server itself, below which it serves the login.
        resource: the URL of the server as tokens name it; by default from `public_url=`, or from the address
            of `run(http=…)`.
        scopes: the scopes that every request needs.
        verifier: checks tokens: `Jwt(…)`, `Introspection(…)`, or a function of your own, async or not, that
            takes a token and returns a `Principal`, or None. By default `Jwt(issuer)`. A function of your own
            must check the audience and the times of a token, unless its principal has these claims.
        implies: the scopes that broader ones include, such as {"admin": ["read", "write"]}.
        dpop: whether each token has to be bound to a key of its client. A bound token needs a proof in any
            case.
        nonce: whether proofs need a nonce of the server.
        name: the name of the server on consent pages.
        provider: who logs users in, such as `GitHub(…)`. Then this server is the authorization server of its
            clients, and accepts its own tokens only.
        optional_scopes: with `provider`, the scopes that clients may request in addition to `scopes`.
        redirect_hosts: with `provider`, the hosts that clients may send users to after the login; all by
            default.

    Raises:
        MCPError: joserfc is required, but not installed.
        TypeError: an argument has the wrong type; the error names it.
        ValueError: an argument is invalid; the error names it.

    Examples:
        >>> server = Server("notes", auth=Auth("https://login.example.com", scopes=["notes:read"]))
    """

    def __init__(
        self,
        issuer: str | Iterable[str] = (),
        *,
        resource: str | None = None,
        scopes: Iterable[str] = (),
        verifier: Verifier | VerifyFunction | None = None,
        implies: ImpliedScopes | None = None,
        dpop: bool = False,
        nonce: bool = False,
        name: str | None = None,
        provider: "OAuthProvider | None" = None,
        optional_scopes: Iterable[str] = (),
        redirect_hosts: Iterable[str] | None = None,
    ) -> None:
        if not isinstance(issuer, str | Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers err
            raise TypeError(f"issuer must be the URL of an authorization server, not {issuer!r}")
        self.issuers = [check_issuer(each) for each in ([issuer] if isinstance(issuer, str) else issuer)]
        self.provider = provider
        self.optional_scopes = parse_scopes(optional_scopes)
        self.redirect_hosts = None if redirect_hosts is None else frozenset(redirect_hosts)
        if provider is not None:
            if verifier is not None or dpop or nonce or len(self.issuers) > 1:
                raise ValueError("provider= cannot be used with verifier=, dpop=, nonce= or several issuers")
            import_jose()  # raises if it is not installed
            verifier = _reject_token  # until an endpoint binds its own
        else:
            self._check_issuers()
        if verifier is None and len(self.issuers) > 1:
            raise ValueError("several issuers require a verifier= that accepts them all")
        self.resource = None if resource is None else check_url(resource, "resource", _EXAMPLE_RESOURCE)
        self.scopes = parse_scopes(scopes)
        if "offline_access" in self.scopes:
            raise ValueError("scopes must not contain offline_access: only clients request it")
        self.verifier = Jwt(self.issuers[0]) if verifier is None else make_verifier(verifier)
        self._has_builtin_verifier = isinstance(self.verifier, Jwt | Introspection)
        known = self.verifier.issuer if isinstance(self.verifier, Jwt | Introspection) else ""
        if known and known not in self.issuers:
            raise ValueError(f"verifier= is for {known!r}, which is not in issuer=: {self.issuers}")
        if known and len(self.issuers) > 1:
            raise ValueError(
                f"issuer= names {len(self.issuers)} issuers, but verifier= only accepts tokens of {known!r}: "
                "pass a function that calls one Jwt(…) per issuer"
            )
        check_flag("dpop", dpop)
        check_flag("nonce", nonce)
        if dpop or nonce:
            import_jose()  # raises if it is not installed
        self._implies = _check_implies(implies)
        self.dpop = dpop
        self.nonce = nonce
        self.name = name

    def _check_issuers(self) -> None:
        """Check the arguments of a server that issues no tokens."""
        if not self.issuers:
            raise ValueError("issuer is empty; pass the URL of an authorization server")
        if self.optional_scopes or self.redirect_hosts is not None:
            raise ValueError("optional_scopes= and redirect_hosts= require provider=")

    def __repr__(self) -> str:
        return f"Auth({', '.join(map(repr, self.issuers))})"

    def bind(self, issuer: str, verifier: Verifier) -> "Auth":
        """Return these settings for one endpoint that issues its own tokens."""
        bound = copy(self)
        bound.issuers, bound.verifier = [issuer], verifier
        return bound

    def accept_principal(self, found: Principal) -> Principal:
        """Add the issuer and all implied scopes to the principal of a token."""
        issuer = found.issuer or (self.issuers[0] if len(self.issuers) == 1 else "")
        if self._has_builtin_verifier and issuer not in self.issuers:  # a user's verifier knows its issuers
            shown = issuer[:MAX_QUOTED_LENGTH]
            raise TokenRejected(f"unknown token issuer: {shown!r} is not in Auth(issuer=…)")
        return replace(found, issuer=issuer, scopes=self.expand_scopes(parse_scopes(found.scopes)))

    def expand_scopes(self, granted: frozenset[str]) -> frozenset[str]:
        """Return the scopes of a token, with all implied ones (AUTH-54)."""
        implies = self._implies
        if implies is None:
            return granted
        if not isinstance(implies, Mapping):
            return granted | frozenset(cast("Callable[..., Iterable[str]]", implies)(granted))
        table, found = cast("Mapping[str, Iterable[str]]", implies), granted
        while (more := found.union(*(parse_scopes(table.get(each, ())) for each in found))) != found:
            found = more
        return found


def _check_implies(given: Any) -> ImpliedScopes | None:
    if given is None or (callable(given) and not isinstance(given, Mapping)):
        return cast("ImpliedScopes | None", given)
    if not isinstance(given, Mapping):
        raise TypeError(f"implies must be a mapping or a function, not {given!r}")
    table = cast("Mapping[str, Iterable[str]]", given)
    for broad, included in table.items():
        try:
            parse_scopes(included)
        except (TypeError, ValueError) as error:
            raise type(error)(f"implies[{broad!r}]: {error}") from None
    return table


def resolve_resource_url(auth: Auth, public_url: str | None, path: str) -> str:
    """Return the URL of the server as tokens name it."""
    if auth.resource is not None:
        return auth.resource
    if public_url is None:
        raise ValueError(
            "auth= requires the public URL of the server, because tokens are issued for it: "
            "pass public_url=, or Auth(resource=…)"
        )
    base = check_url(public_url, "public_url", _EXAMPLE_RESOURCE).rstrip("/")
    path = path.rstrip("/")
    return base if base.endswith(path) and urlsplit(base).path else base + path


# --------------------------------------------------------------------- verifiers


async def _reject_token(_: str) -> None:
    """Accept no token: an endpoint with a provider accepts its own, which `Auth.bind` lets it verify."""


class _FunctionVerifier:
    """A function of a user as a verifier. It is called for each request, in a thread if it is not async."""

    cache_ttl = 0.0

    def __init__(self, check: VerifyFunction) -> None:
        self._check = check
        called = getattr(check, "__call__", check)  # noqa: B004 - the method of a callable object may be async
        is_async = iscoroutinefunction(check) or iscoroutinefunction(called)
        self._threads = None if is_async else ThreadPool(MAX_THREADS)
        self._waiting = 0

    async def verify(self, token: str, *resources: str) -> Principal:
        if self._threads is None:
            found = await cast("Callable[[str], Awaitable[Principal | str | None]]", self._check)(token)
        elif self._waiting >= MAX_THREADS + MAX_WAITING_TOKENS:
            raise RequestFailed("too many tokens are waiting for the verifier")
        else:
            self._waiting += 1
            try:
                found = await self._threads.run_in_thread(lambda: self._check(token))
            finally:
                self._waiting -= 1
            found = await found if isawaitable(found) else found
        try:
            principal = Principal.from_value(found)
        except TypeError:
            kind = type(found).__name__
            raise MCPError(f"a verifier must return a Principal, a subject or None, not {kind}") from None
        if principal is None or not (principal.subject or principal.client):
            raise TokenRejected("the verifier rejected the token or returned no subject")
        if principal.claims:
            if principal.claims.get("aud") is not None:
                check_audience(principal.claims, resources)
            check_times(principal.claims, LEEWAY)
        return principal


def make_verifier(given: Any) -> Verifier:
    """Return an argument as a verifier."""
    if not isinstance(given, type):
        if isinstance(given, Verifier):
            return given
        if callable(given):
            _check_arity(given)
            return _FunctionVerifier(cast("VerifyFunction", given))
    raise TypeError(
        "verifier must be Jwt(…), Introspection(…) or a function that takes a token and returns a "
        f"Principal or None, not {given!r}"
    )


def _check_arity(check: Callable[..., Any]) -> None:
    try:
        taken = signature(check)
    except (TypeError, ValueError):
        return  # some functions in C have none
    try:
        taken.bind("token")
    except TypeError:
        raise TypeError(f"verifier must take one argument, the token, not {taken}") from None
