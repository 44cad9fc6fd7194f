"""A server as a protected resource: what it demands of tokens, what it publishes, whom it lets in.

Owns the order of the checks and what each failure looks like to a client; what makes a token good is for the
verifier to say. Knows headers and URLs, no message, no session and no socket.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from toolpost.auth.denial import Denial, challenge
from toolpost.auth.issuer import check_url
from toolpost.auth.jwt import Jwt
from toolpost.auth.places import WELL_KNOWN, metadata_of, origin_of
from toolpost.auth.proof import ALGORITHMS, Proofs, Records, Stale
from toolpost.auth.verifier import Check, Memory, Verifier, verifier_of
from toolpost.errors import MCPError, TokenRejected
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
_UNFIT: Final = "The token is not good for this server."


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
        issuers = [issuer] if isinstance(issuer, str) else list(issuer)
        if not issuers:
            raise ValueError("issuer names nobody; give the URL of an authorization server")
        self.issuers = [check_url(each, "issuer") for each in issuers]
        if verifier is None and len(self.issuers) > 1:
            raise ValueError("several issuers need a verifier= that knows them all")
        self.resource = None if resource is None else check_url(resource, "resource")
        self.scopes = scopes_of(scopes)
        if "offline_access" in self.scopes:
            raise ValueError("scopes has offline_access in it, which is between a client and its issuer")
        self.verifier = Jwt(self.issuers[0]) if verifier is None else verifier_of(verifier)
        if implies is not None and not callable(implies) and not isinstance(implies, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - who is not checked may err
            raise TypeError(f"implies has to be a mapping or a function, not {implies!r}")
        self._implies = implies
        self.dpop = dpop
        self.nonce = nonce
        self.name = name

    def __repr__(self) -> str:
        return f"Auth({', '.join(map(repr, self.issuers))})"

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

    Attributes:
        metadata: what is published about the resource, as JSON (RFC 9728).
        paths: where it is published: the first is the one that challenges name.
    """

    def __init__(self, auth: Auth, resource: str, path: str, records: Callable[[], Records]) -> None:
        self._auth = auth
        self._resource = resource
        self._base = resource.removesuffix(path) if path != "/" else resource.rstrip("/")
        self._records = records
        self._memory = Memory()
        self._proofs: Proofs | None = None
        self._document = metadata_of(resource)
        self.metadata = self._described()
        at = self._document.removeprefix(origin_of(resource)).partition("?")[0]
        local = "" if path == "/" else path.rstrip("/")
        self.paths = tuple(dict.fromkeys((at, f"{WELL_KNOWN}{local}", WELL_KNOWN)))

    def _described(self) -> bytes:
        auth = self._auth
        told = {
            "resource": self._resource,
            "authorization_servers": auth.issuers,
            "scopes_supported": sorted(auth.scopes) or None,
            "bearer_methods_supported": ["header"],
            "resource_name": auth.name,
            "dpop_signing_alg_values_supported": ALGORITHMS,
            "dpop_bound_access_tokens_required": True if auth.dpop else None,
        }
        return msgspec.json.encode({name: value for name, value in told.items() if value is not None})

    # ----------------------------------------------------------------- letting in

    async def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Principal:
        """On whose behalf a request speaks.

        Args:
            method: of HTTP.
            path: below the place where the endpoint is mounted.
            headers: by their names in lower case.

        Raises:
            Denial: it is not good enough.
        """
        scheme, token = self._credentials(headers.get("authorization", ""))
        principal = self._memory.recall(token)
        if principal is None:
            principal = await self._verified(token, scheme)
        bound = principal.claims.get("cnf")
        if scheme == "DPoP" or bound is not None or self._auth.dpop:
            if scheme != "DPoP" or "dpop" not in headers:
                raise self._unfit("a token that has to be proven came without a proof", "DPoP")
            await self._prove(method, path, headers["dpop"], token, principal)
        if not self._auth.scopes <= principal.scopes:
            raise Denial(
                403, "The token lacks a scope that every request needs.", self.step_up((), principal)
            )
        return principal

    def _credentials(self, sent: str) -> tuple[str, str]:
        """The scheme and the token that a request came with."""
        name, _, token = sent.partition(" ")
        scheme = _SCHEMES.get(name.lower())
        if scheme is None:
            raise Denial(401, "This server wants an access token.", [self._challenge()])
        token = token.strip(" ")
        if len(token) > MAX_TOKEN or _TOKEN.fullmatch(token) is None:
            told = self._challenge(scheme, error="invalid_request")
            raise Denial(400, "The Authorization header is malformed.", [told])
        return scheme, token

    async def _verified(self, token: str, scheme: str) -> Principal:
        auth = self._auth
        try:
            found = await auth.verifier.verify(token, self._resource)
            issuer = found.issuer or (auth.issuers[0] if len(auth.issuers) == 1 else "")
            principal = replace(found, issuer=issuer, scopes=auth.widened(found.scopes))
        except TokenRejected as error:
            raise self._unfit(error.message, scheme) from None
        except MCPError as error:
            logger.warning("a token cannot be checked: %s", error)
            raise Denial(
                503, "The token cannot be checked at the moment.", [(b"retry-after", b"5")]
            ) from None
        except Exception as error:  # noqa: BLE001 - its text may hold the token, and a traceback shows it
            logger.error("a token cannot be checked: the verifier raised %s", type(error).__name__)  # noqa: TRY400 - see above
            raise Denial(500, "The token cannot be checked.") from None
        if auth.verifier.keep > 0:
            self._memory.note(token, principal, auth.verifier.keep)
        return principal

    async def _prove(self, method: str, path: str, proof: str, token: str, principal: Principal) -> None:
        """Return if whoever sends a token holds the key that it is bound to."""
        records = self._records()
        if self._proofs is None:
            self._proofs = Proofs(nonces=self._auth.nonce)
        whole = path == "/" and self._base != origin_of(self._resource)
        url = self._base if whole else self._base + path
        try:
            await self._proofs.check(
                proof, method=method, url=url, token=token, bound=principal.claims, records=records
            )
        except Stale as error:
            fresh = await self._proofs.nonce(records) or ""
            told = [(b"dpop-nonce", fresh.encode())]
            raise self._unfit(error.message, "DPoP", "use_dpop_nonce", told) from None
        except TokenRejected as error:
            raise self._unfit(error.message, "DPoP", "invalid_dpop_proof") from None

    # ----------------------------------------------------------------- refusing

    def step_up(self, scopes: Iterable[str], principal: Principal | None) -> list[tuple[bytes, bytes]]:
        """The challenge for what a token may not do: all that is needed for it, granted or not (AUTH-52)."""
        bound = principal is not None and "cnf" in principal.claims
        wanted = " ".join(sorted(self._auth.scopes.union(scopes)))
        return [self._challenge("DPoP" if bound else "Bearer", error="insufficient_scope", scope=wanted)]

    def _unfit(
        self,
        why: str,
        scheme: str,
        kind: str = "invalid_token",
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> Denial:
        return Denial(401, _UNFIT, [self._challenge(scheme, error=kind), *headers], why=why)

    def _challenge(
        self, scheme: str = "", *, error: str | None = None, scope: str | None = None
    ) -> tuple[bytes, bytes]:
        scheme = "DPoP" if self._auth.dpop else scheme or "Bearer"
        return challenge(
            scheme,
            error=error,
            scope=" ".join(sorted(self._auth.scopes)) if scope is None else scope,
            resource_metadata=self._document,
            algs=" ".join(ALGORITHMS) if scheme == "DPoP" else None,
        )
