"""A server as a protected resource: what it demands of tokens, and whom it lets in.

Owns the order of the checks; what makes a token good is for the verifier to say, and how a refusal is put for
the front. Knows headers and URLs, no message, no session and no socket.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from traceback import extract_tb
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from msgspec.structs import replace

from toolpost.auth.denial import Denial
from toolpost.auth.front import Front
from toolpost.auth.introspection import Introspection
from toolpost.auth.issuer import MAX_NAMED, check_url
from toolpost.auth.jwt import Jwt
from toolpost.auth.places import WELL_KNOWN, origin_of
from toolpost.auth.proof import Keys, Proofs, Records, Stale, nonce_of
from toolpost.auth.verifier import Check, Memory, Verifier, verifier_of
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal, scopes_of

__all__ = ["Auth", "Implies", "Keeper", "resource_of"]

logger: Final = logging.getLogger("toolpost.auth")

MAX_TOKEN: Final = 16 * 1024
"""Characters of a token: those with many groups in them have a few thousand."""

MAX_STEPS: Final = 16
"""How often a scope may imply one that implies one."""

Implies: TypeAlias = Mapping[str, Iterable[str]] | Callable[[frozenset[str]], Iterable[str]]
"""What broader scopes include: a table, or a function from the scopes of a token to those it adds."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEMES: Final = {"bearer": "Bearer", "dpop": "DPoP"}


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
    """

    def __init__(
        self,
        issuer: str | Iterable[str],
        *,
        resource: str | None = None,
        scopes: Iterable[str] = (),
        verifier: Verifier | Check | None = None,
        implies: Implies | None = None,
        dpop: bool = False,
        nonce: bool = False,
        name: str | None = None,
    ) -> None:
        self.issuers = _issuers_of(issuer)
        if verifier is None and len(self.issuers) > 1:
            raise ValueError("several issuers need a verifier= that knows them all")
        self.resource = None if resource is None else check_url(resource, "resource")
        self.scopes = scopes_of(scopes)
        if "offline_access" in self.scopes:
            raise ValueError("scopes has offline_access in it, which is between a client and its issuer")
        self.verifier = Jwt(self.issuers[0]) if verifier is None else verifier_of(verifier)
        self._ours = isinstance(self.verifier, Jwt | Introspection)
        known = self.verifier.issuer if isinstance(self.verifier, Jwt | Introspection) else ""
        if known and known not in self.issuers:
            raise ValueError(f"verifier= is for {known!r}, which issuer= does not name: {self.issuers}")
        for flag, value in (("dpop", dpop), ("nonce", nonce)):
            if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - who is not checked may err
                raise TypeError(f"{flag} has to be True or False, not {value!r}")
        if implies is not None and not callable(implies) and not isinstance(implies, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - who is not checked may err
            raise TypeError(f"implies has to be a mapping or a function, not {implies!r}")
        self._implies = implies
        self.dpop = dpop
        self.nonce = nonce
        self.name = name

    def __repr__(self) -> str:
        return f"Auth({', '.join(map(repr, self.issuers))})"

    def recognised(self, found: Principal) -> Principal:
        """Whose a token is, as the verifier says, with its issuer and all its scopes.

        Raises:
            TokenRejected: somebody else has issued it.
        """
        issuer = found.issuer or (self.issuers[0] if len(self.issuers) == 1 else "")
        if self._ours and issuer not in self.issuers:  # who has a verifier of their own knows what it accepts
            raise TokenRejected(f"its issuer is {issuer[:MAX_NAMED]!r}, which Auth(issuer=…) does not name")
        return replace(found, issuer=issuer, scopes=self.widened(scopes_of(found.scopes)))

    def widened(self, granted: frozenset[str]) -> frozenset[str]:
        """The scopes of a token, with all that they imply (AUTH-54)."""
        implies = self._implies
        if implies is None:
            return granted
        if not isinstance(implies, Mapping):
            return granted | frozenset(cast("Callable[..., Iterable[str]]", implies)(granted))
        table, found = cast("Mapping[str, Iterable[str]]", implies), granted
        for _ in range(MAX_STEPS):
            more = found.union(*(scopes_of(table.get(each, ())) for each in found))
            if more == found:
                break
            found = more
        return found


def _issuers_of(given: Any) -> list[str]:
    if not isinstance(given, str | Iterable):
        raise TypeError(f"issuer has to be the URL of an authorization server, not {given!r}")
    issuers = [given] if isinstance(given, str) else list(cast("Iterable[Any]", given))
    if not issuers:
        raise ValueError("issuer names nobody; give the URL of an authorization server")
    for each in issuers:
        if "?" in check_url(each, "issuer"):
            raise ValueError("issuer has a query in it, which such a URL cannot have (RFC 8414)")
    return issuers


def resource_of(auth: Auth, public_url: str | None, path: str) -> str:
    """The URL of the server as tokens name it.

    Raises:
        ValueError: nobody has said it.
    """
    if auth.resource is not None:
        return auth.resource
    if public_url is None:
        raise ValueError(
            "auth= needs to know under which URL clients reach the server, since tokens name it: "
            "give public_url=, or Auth(resource=…)"
        )
    base = check_url(public_url, "public_url").rstrip("/")
    path = path.rstrip("/")
    return base if base.endswith(path) and urlsplit(base).path else base + path


class Keeper:
    """Lets in whoever has a good token.

    Args:
        auth: what is demanded.
        resource: the URL of the endpoint, as tokens name it.
        path: where the endpoint is, below the place where it is mounted.
        records: where proofs are remembered.
        keys: gives what nonces are sealed with.
        sse: where clients of HTTP+SSE come, and where they post; empty if they do not. They know the server
            by a URL of its own, so tokens may name that one as well.

    Attributes:
        published: what is published about the resource, by path.
    """

    def __init__(
        self,
        auth: Auth,
        resource: str,
        path: str,
        records: Callable[[], Records],
        *,
        keys: Callable[[], Awaitable[Keys]],
        sse: tuple[str, ...] = (),
    ) -> None:
        self._auth = auth
        self._base = resource.removesuffix(path) if path != "/" else resource.rstrip("/")
        self._records = records
        self._keys = keys
        self._memory = Memory()
        self._proofs: Proofs | None = None
        self._front = self._sse_front = Front(auth, resource)
        # Otherwise the URL for HTTP+SSE is below the resource, or nobody knows it.
        apart = path != "/" and resource.endswith(path)
        self._sse = frozenset(sse if apart else ())
        if self._sse:
            self._sse_front = Front(auth, self._base + sse[0])
        self._resources = tuple(dict.fromkeys((resource, self._sse_front.url)))
        self.published = self._placed("" if path == "/" else path.rstrip("/"), *sse[: len(self._sse) and 1])

    def _placed(self, *local: str) -> dict[str, bytes]:
        """What is published where: at the path in the public URL, and at our own; and one at the root."""
        placed: dict[str, bytes] = {}
        for front, path in zip((self._front, self._sse_front), local, strict=False):
            at = front.place.removeprefix(origin_of(front.url)).partition("?")[0]
            for each in (at, f"{WELL_KNOWN}{path}", WELL_KNOWN):
                placed.setdefault(each, front.metadata)
        return placed

    async def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Principal:
        """On whose behalf a request speaks.

        Args:
            method: of HTTP.
            path: below the place where the endpoint is mounted.
            headers: by their names in lower case.

        Raises:
            Denial: it is not good enough.
        """
        front = self._sse_front if path.rstrip("/") in self._sse else self._front
        scheme, token = _credentials(front, headers.get("authorization", ""))
        principal = self._memory.recall(token)
        if not isinstance(principal, Principal):
            principal = await self._verified(front, token, scheme)
        bound = principal.claims.get("cnf")
        if scheme == "DPoP" or bound is not None or self._auth.dpop:
            if scheme != "DPoP" or "dpop" not in headers:
                why = "a token that has to be proven came without a proof"
                raise front.unfit(why, "DPoP", hint="needs_proof")
            whole = path == "/" and self._base != origin_of(front.url)
            url = self._base if whole else self._base + path
            await self._prove(front, headers["dpop"], principal, method=method, url=url, token=token)
        if not self._auth.scopes <= principal.scopes:
            raise Denial(
                403, "The token lacks a scope that every request needs.", front.step_up((), principal)
            )
        return principal

    async def _verified(self, front: Front, token: str, scheme: str) -> Principal:
        auth = self._auth
        try:
            found = await auth.verifier.verify(token, *self._resources)
            principal = auth.recognised(found)
        except TokenRejected as error:
            raise front.unfit(error.message, scheme) from None
        except MCPError as error:
            raise _later(f"a token cannot be checked: {error}") from None
        except Exception as error:  # noqa: BLE001 - its text may hold the token, and a traceback shows it
            place = extract_tb(error.__traceback__)[-1]
            logger.error(  # noqa: TRY400 - see above
                "a token cannot be checked: the verifier raised %s in %s (%s:%s)",
                type(error).__name__, place.name, place.filename, place.lineno,
            )  # fmt: skip
            raise Denial(500, "The token cannot be checked.") from None
        if auth.verifier.keep > 0:
            self._memory.note(token, principal, auth.verifier.keep)
        return principal

    async def _prove(self, front: Front, proof: str, principal: Principal, **request: str) -> None:
        """Return if whoever sends a token holds the key that it is bound to."""
        if self._proofs is None:
            self._proofs = Proofs()
        keys = await self._keys() if self._auth.nonce else None
        bound, records = principal.claims, self._records()
        try:
            await self._proofs.check(proof, **request, bound=bound, records=records, keys=keys)
        except Stale as error:
            told = [(b"dpop-nonce", nonce_of(keys).encode())] if keys is not None else []
            raise front.unfit(error.message, "DPoP", "use_dpop_nonce", told) from None
        except TokenRejected as error:
            raise front.unfit(error.message, "DPoP", "invalid_dpop_proof") from None
        except RequestFailed as error:
            raise _later(f"a proof cannot be checked: {error}") from None

    def step_up(
        self, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The challenge for what a token may not do."""
        return (self._sse_front if sse else self._front).step_up(scopes, principal)


def _credentials(front: Front, sent: str) -> tuple[str, str]:
    """The scheme and the token that a request came with."""
    name, _, token = sent.partition(" ")
    scheme = _SCHEMES.get(name.lower())
    if scheme is None:
        raise Denial(401, "This server wants an access token.", [front.challenge()])
    token = token.strip(" ")
    if len(token) > MAX_TOKEN or _TOKEN.fullmatch(token) is None:
        told = front.challenge(scheme, error="invalid_request")
        raise Denial(400, "The Authorization header is malformed.", [told])
    return scheme, token


def _later(why: str) -> Denial:
    """How a request is refused that may well be good: a token is not bad because nobody can check it."""
    logger.warning("%s", why)
    return Denial(503, "The token cannot be checked at the moment.", [(b"retry-after", b"5")])
