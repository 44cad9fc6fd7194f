"""Where a request shows its token, before anything else is looked at: whom a protected resource lets in.

Owns the order of the checks; what makes a token good is for the verifier to say, and how a refusal is put for
the front. Knows headers and URLs, no message, no session and no socket.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from traceback import extract_tb
from typing import Final

from toolpost.auth.denial import AccessDenied
from toolpost.auth.front import ProtectedResource
from toolpost.auth.issuer import MAX_QUOTED_LENGTH
from toolpost.auth.places import RESOURCE_METADATA_PATH, extract_origin
from toolpost.auth.proof import DpopVerifier, NonceRequired, NonceSealer, ProofStore, make_nonce
from toolpost.auth.resource import Auth
from toolpost.auth.verifier import VerificationCache
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal

__all__ = ["Admission"]

logger: Final = logging.getLogger("toolpost.auth")

MAX_TOKEN_LENGTH: Final = 16 * 1024
"""Characters of a token: those with many groups in them have a few thousand."""

MIN_LEAK_LENGTH: Final = 6
"""Letters of a token that a text may have in common with it by accident."""

_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEMES: Final = {"bearer": "Bearer", "dpop": "DPoP"}


class Admission:
    """Lets in whoever has a good token.

    Args:
        auth: what is demanded.
        resource: the URL of the endpoint, as tokens name it.
        path: where the endpoint is, below the place where it is mounted.
        records: where proofs are remembered.
        keys: gives what nonces are sealed with.
        sse: where clients of HTTP+SSE come, and where they post; empty if they do not. They know the server
            by a URL of its own, so tokens may name that one there as well.

    Attributes:
        metadata_documents: what is published about the resource, by path.
    """

    def __init__(
        self,
        auth: Auth,
        resource: str,
        path: str,
        records: Callable[[], ProofStore],
        *,
        keys: Callable[[], Awaitable[NonceSealer]],
        sse: tuple[str, ...] = (),
    ) -> None:
        self._auth = auth
        self._base = resource.removesuffix(path) if path != "/" else resource.rstrip("/")
        self._records = records
        self._keys = keys
        self._cache = VerificationCache()
        self._proof_verifier: DpopVerifier | None = None
        self._resource = self._sse_resource = ProtectedResource(auth, resource)
        # Otherwise the URL for HTTP+SSE is below the resource, or nobody knows it.
        apart = path != "/" and resource.endswith(path)
        self._sse = frozenset(sse if apart else ())
        if self._sse:
            self._sse_resource = ProtectedResource(auth, self._base + sse[0])
        self.metadata_documents = _map_metadata_paths(self._resource, "" if path == "/" else path.rstrip("/"))
        if self._sse:
            for place, document in _map_metadata_paths(self._sse_resource, sse[0]).items():
                self.metadata_documents.setdefault(place, document)

    async def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Principal:
        """On whose behalf a request speaks.

        Args:
            method: of HTTP.
            path: below the place where the endpoint is mounted.
            headers: by their names in lower case.

        Raises:
            AccessDenied: it is not good enough.
        """
        front = self._sse_resource if path.rstrip("/") in self._sse else self._resource
        resources = tuple(dict.fromkeys((self._resource.url, front.url)))
        scheme, token = _parse_authorization(front, headers.get("authorization", ""))
        about = f"{front.url} {token}"  # what is good at one of our URLs may not be at the other
        principal = self._cache.get(about)
        if not isinstance(principal, Principal):
            principal = await self._verify_token(front, token, scheme, resources)
            if self._auth.verifier.cache_ttl > 0:
                self._cache.put(about, principal, self._auth.verifier.cache_ttl)
        bound = principal.claims.get("cnf")
        if scheme == "DPoP" or bound is not None or self._auth.dpop:
            if scheme != "DPoP" or "dpop" not in headers:
                why = "a token that has to be proven came without a proof"
                raise front.make_denial(why, "DPoP", hint="needs_proof")
            whole = path == "/" and self._base != extract_origin(front.url)
            url = self._base if whole else self._base + path
            await self._check_proof(front, headers["dpop"], principal, method=method, url=url, token=token)
        if not self._auth.scopes <= principal.scopes:
            raise AccessDenied(
                403,
                "The token lacks a scope that every request needs.",
                front.build_step_up_headers((), principal),
            )
        return principal

    async def _verify_token(
        self, front: ProtectedResource, token: str, scheme: str, resources: tuple[str, ...]
    ) -> Principal:
        try:
            return self._auth.accept_principal(await self._auth.verifier.verify(token, *resources))
        except TokenRejected as error:
            raise front.make_denial(error.message, scheme) from None
        except MCPError as error:
            raise _make_unavailable(f"a token cannot be checked: {error}") from None
        except Exception as error:  # noqa: BLE001 - its text may hold the token, and a traceback shows it
            place, told = (
                extract_tb(error.__traceback__)[-1],
                f"{type(error).__name__}: {error}"[:MAX_QUOTED_LENGTH],
            )
            logger.error(  # noqa: TRY400 - see above
                "a token cannot be checked: the verifier raised %s, in %s (%s:%s)",
                _redact_token(token, told), place.name, place.filename, place.lineno,
            )  # fmt: skip
            raise AccessDenied(
                500, "The token cannot be checked: a fault of the server, which its log tells."
            ) from None

    async def _check_proof(
        self, front: ProtectedResource, proof: str, principal: Principal, **request: str
    ) -> None:
        """Return if whoever sends a token holds the key that it is bound to."""
        if self._proof_verifier is None:
            self._proof_verifier = DpopVerifier()
        keys = await self._keys() if self._auth.nonce else None
        try:
            await self._proof_verifier.check(
                proof, **request, whose=principal, records=self._records(), keys=keys
            )
        except NonceRequired:
            told = [(b"dpop-nonce", make_nonce(keys).encode())] if keys is not None else []
            raise front.make_denial("", "DPoP", "use_dpop_nonce", told) from None  # how every client begins
        except TokenRejected as error:
            raise front.make_denial(error.message, "DPoP", "invalid_dpop_proof") from None
        except RequestFailed as error:
            raise _make_unavailable(f"a proof cannot be checked: {error}") from None

    def step_up(
        self, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The challenge for what a token may not do."""
        return (self._sse_resource if sse else self._resource).build_step_up_headers(scopes, principal)


def _map_metadata_paths(front: ProtectedResource, path: str) -> dict[str, bytes]:
    """What is published where: at the path in the public URL, and at our own; and one at the root."""
    at = front.metadata_url.removeprefix(extract_origin(front.url)).partition("?")[0]
    return dict.fromkeys((at, f"{RESOURCE_METADATA_PATH}{path}", RESOURCE_METADATA_PATH), front.metadata)


def _redact_token(token: str, text: str) -> str:
    """A text that somebody else wrote, if it shows nothing of a token; only its first word otherwise."""
    parts = (
        token[start : start + MIN_LEAK_LENGTH] for start in range(max(len(token) - MIN_LEAK_LENGTH, 0) + 1)
    )
    return text.partition(":")[0] if any(part in text for part in parts) else text


def _parse_authorization(front: ProtectedResource, sent: str) -> tuple[str, str]:
    """The scheme and the token that a request came with."""
    name, _, token = sent.partition(" ")
    scheme = _SCHEMES.get(name.lower())
    if scheme is None:
        raise AccessDenied(401, "This server wants an access token.", [front.build_challenge()])
    token = token.strip(" ")
    if len(token) > MAX_TOKEN_LENGTH or _TOKEN_PATTERN.fullmatch(token) is None:
        told = front.build_challenge(scheme, error="invalid_request")
        raise AccessDenied(400, "The Authorization header is malformed.", [told])
    return scheme, token


def _make_unavailable(why: str) -> AccessDenied:
    """How a request is refused that may well be good: a token is not bad because nobody can check it."""
    return AccessDenied(503, "The token cannot be checked at the moment.", [(b"retry-after", b"5")], why)
