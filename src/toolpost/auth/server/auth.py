"""`Auth`: a server as a protected resource, with the issuers, scopes and URL that it requires of tokens.

Owns the arguments, which scopes include others, and functions of users as verifiers of tokens. Requests are
checked in `admission`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable, iscoroutinefunction, signature
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable
from urllib.parse import urlsplit

from msgspec.structs import replace

from toolpost.auth.jose import import_jose
from toolpost.auth.server.introspection import Introspection
from toolpost.auth.server.jwt import Jwt
from toolpost.auth.urls import MAX_QUOTED_LENGTH, check_issuer, check_url
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal, parse_scopes
from toolpost.threads import ThreadPool

MAX_IMPLIED_DEPTH: Final = 16  # how often a scope may imply one that implies one
MAX_THREADS: Final = 16  # functions that are not async and check a token at the same time
MAX_WAITING_TOKENS: Final = 256  # tokens that wait for one of these threads; they may be invented

ImpliedScopes: TypeAlias = Mapping[str, Iterable[str]] | Callable[[frozenset[str]], Iterable[str]]
"""What broader scopes include: a table, or a function from the scopes of a token to those it adds."""

_EXAMPLE_RESOURCE: Final = "https://mcp.example.com/mcp"
VerifyFunction: TypeAlias = Callable[[str], "Principal | str | Awaitable[Principal | str | None] | None"]
"""A function of your own: gets the token; returns whose it is, or None if it is not good *here*."""


@runtime_checkable
class Verifier(Protocol):
    """Tells whose a token is."""

    cache_ttl: float
    """Seconds for which an answer may be remembered; 0 to be asked each time."""

    async def verify(self, token: str, *resources: str) -> Principal:
        """Return the principal of a token that is good and was issued for one of these URLs of the server.

        Raises:
            TokenRejected: it is not; the text is for the log and must not hold the token.
            TransportError: the token cannot be checked now.
        """
        ...


class Auth:
    """How a server that is reached over HTTP recognises whoever speaks to it.

    Args:
        issuer: the authorization server whose tokens are good, or several of them, by their issuer URLs.
        resource: the URL of the server as tokens name it; it need not be said where `public_url=`, or the
            address of `run(http=…)`, tells.
        scopes: what every request needs.
        verifier: checks tokens: `Jwt(…)`, `Introspection(…)`, or a function of your own, async or not, that
            takes a token and returns a `Principal`, or None. Without it, `Jwt(issuer)`. A function of yours
            has to see to it that the token was issued for this server, and for no other.
        implies: what broader scopes include, such as {"admin": ["read", "write"]}.
        dpop: whether each token has to be bound to a key of its client. One that is bound has to be proven in
            any case.
        nonce: whether proofs need a nonce of ours.
        name: of the server, for people who are asked for their consent.

    Raises:
        MCPError: joserfc is not installed, and is needed.
        TypeError: an argument is of another type than it should be; the text names it.
        ValueError: an argument cannot work; the text names it.

    Examples:
        >>> server = Server("notes", auth=Auth("https://login.example.com", scopes=["notes:read"]))
    """

    def __init__(
        self,
        issuer: str | Iterable[str],
        *,
        resource: str | None = None,
        scopes: Iterable[str] = (),
        verifier: Verifier | VerifyFunction | None = None,
        implies: ImpliedScopes | None = None,
        dpop: bool = False,
        nonce: bool = False,
        name: str | None = None,
    ) -> None:
        self.issuers = _check_issuers(issuer)
        if verifier is None and len(self.issuers) > 1:
            raise ValueError("several issuers need a verifier= that knows them all")
        self.resource = None if resource is None else check_url(resource, "resource", _EXAMPLE_RESOURCE)
        self.scopes = parse_scopes(scopes)
        if "offline_access" in self.scopes:
            raise ValueError("scopes has offline_access in it, which is between a client and its issuer")
        self.verifier = Jwt(self.issuers[0]) if verifier is None else make_verifier(verifier)
        self._has_builtin_verifier = isinstance(self.verifier, Jwt | Introspection)
        known = self.verifier.issuer if isinstance(self.verifier, Jwt | Introspection) else ""
        if known and known not in self.issuers:
            raise ValueError(f"verifier= is for {known!r}, which issuer= does not name: {self.issuers}")
        if known and len(self.issuers) > 1:
            raise ValueError(
                f"issuer= names {len(self.issuers)} issuers, and verifier= takes tokens of {known!r} alone: "
                "give a function that asks a Jwt(…) for each"
            )
        for flag, value in (("dpop", dpop), ("nonce", nonce)):
            if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - who is not checked may err
                raise TypeError(f"{flag} has to be True or False, not {value!r}")
        if dpop or nonce:
            import_jose()  # if it is missing, raise now
        self._implies = _check_implies(implies)
        self.dpop = dpop
        self.nonce = nonce
        self.name = name

    def __repr__(self) -> str:
        return f"Auth({', '.join(map(repr, self.issuers))})"

    def accept_principal(self, found: Principal) -> Principal:
        """Complete the principal that the verifier found with its issuer and all its scopes."""
        issuer = found.issuer or (self.issuers[0] if len(self.issuers) == 1 else "")
        if self._has_builtin_verifier and issuer not in self.issuers:  # a user's verifier knows its issuers
            raise TokenRejected(
                f"its issuer is {issuer[:MAX_QUOTED_LENGTH]!r}, which Auth(issuer=…) does not name"
            )
        return replace(found, issuer=issuer, scopes=self.expand_scopes(parse_scopes(found.scopes)))

    def expand_scopes(self, granted: frozenset[str]) -> frozenset[str]:
        """Return the scopes of a token, with all that they imply (AUTH-54)."""
        implies = self._implies
        if implies is None:
            return granted
        if not isinstance(implies, Mapping):
            return granted | frozenset(cast("Callable[..., Iterable[str]]", implies)(granted))
        table, found = cast("Mapping[str, Iterable[str]]", implies), granted
        for _ in range(MAX_IMPLIED_DEPTH):
            more = found.union(*(parse_scopes(table.get(each, ())) for each in found))
            if more == found:
                break
            found = more
        return found


def _check_implies(given: Any) -> ImpliedScopes | None:
    if given is None or (callable(given) and not isinstance(given, Mapping)):
        return cast("ImpliedScopes | None", given)
    if not isinstance(given, Mapping):
        raise TypeError(f"implies has to be a mapping or a function, not {given!r}")
    table = cast("Mapping[str, Iterable[str]]", given)
    for broad, included in table.items():
        try:
            parse_scopes(included)
        except (TypeError, ValueError) as error:
            raise type(error)(f"implies[{broad!r}]: {error}") from None
    return table


def _check_issuers(given: Any) -> list[str]:
    if not isinstance(given, str | Iterable):
        raise TypeError(f"issuer has to be the URL of an authorization server, not {given!r}")
    issuers = [given] if isinstance(given, str) else list(cast("Iterable[Any]", given))
    if not issuers:
        raise ValueError("issuer names nobody; give the URL of an authorization server")
    return [check_issuer(each) for each in issuers]


def resolve_resource_url(auth: Auth, public_url: str | None, path: str) -> str:
    """Return the URL of the server as tokens name it."""
    if auth.resource is not None:
        return auth.resource
    if public_url is None:
        raise ValueError(
            "auth= needs to know under which URL clients reach the server, since tokens name it: "
            "give public_url=, or Auth(resource=…)"
        )
    base = check_url(public_url, "public_url", _EXAMPLE_RESOURCE).rstrip("/")
    path = path.rstrip("/")
    return base if base.endswith(path) and urlsplit(base).path else base + path


# --------------------------------------------------------------------- verifiers


class _FunctionVerifier:
    """A function of a user as a verifier. It is called each time, in a thread if it is not async."""

    cache_ttl = 0.0

    def __init__(self, check: VerifyFunction) -> None:
        self._check = check
        called = getattr(check, "__call__", check)  # noqa: B004 - of an object, what is called may be async
        self._threads = (
            None if iscoroutinefunction(check) or iscoroutinefunction(called) else ThreadPool(MAX_THREADS)
        )
        self._waiting = 0

    async def verify(self, token: str, *resources: str) -> Principal:
        del resources  # the function knows what it accepts
        found = await self._run_in_thread(token) if self._threads is not None else self._check(token)
        found = await found if isawaitable(found) else found
        if not isinstance(found, Principal | str | None):
            kind = type(found).__name__
            raise MCPError(f"the verifier returned a {kind}, where a Principal, a subject or None is due")
        whose = Principal.from_value(found)
        if whose is None or not (whose.subject or whose.client):
            raise TokenRejected("the verifier does not know the token, or names nobody")
        return whose

    async def _run_in_thread(self, token: str) -> Any:
        assert self._threads is not None, "it is asked only then"
        if self._waiting >= MAX_THREADS + MAX_WAITING_TOKENS:
            raise RequestFailed("too many tokens wait for the verifier")
        self._waiting += 1
        try:
            return await self._threads.run_in_thread(lambda: self._check(token))
        finally:
            self._waiting -= 1


def make_verifier(given: Any) -> Verifier:
    """Return an argument as a verifier."""
    if not isinstance(given, type):
        if isinstance(given, Verifier):
            return given
        if callable(given):
            _check_arity(given)
            return _FunctionVerifier(cast("VerifyFunction", given))
    raise TypeError(
        "verifier has to be Jwt(…), Introspection(…) or a function that takes a token and returns a "
        f"Principal or None, not {given!r}"
    )


def _check_arity(check: Callable[..., Any]) -> None:
    try:
        taken = signature(check)
    except (TypeError, ValueError):
        return  # one that was not written in Python may have none
    try:
        taken.bind("token")
    except TypeError:
        raise TypeError(f"verifier takes {taken}, where it gets one argument, the token") from None
