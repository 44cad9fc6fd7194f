"""Where a request shows its token, before anything else is looked at: whom a protected resource lets in.

Owns the order of the checks; what makes a token good is for the verifier to say, and how a refusal is put for
the front. Knows headers and URLs, no message, no session and no socket.

PART denial: How a server says no to credentials: the status, and the challenge that tells a client what to
do.

Owns the words of `WWW-Authenticate` that go out (RFC 6750 §3, RFC 9449 §7.1, RFC 9728 §5.1). The peer is told
what kind of thing is wrong and never which check failed; `why` is for the log, and never holds a credential.

PART front: A protected resource as others see it: what it publishes about itself, and what its challenges
say.

Owns the document of RFC 9728 and the words of a refusal. A server that is reached under two URLs has two
fronts, for a client takes only what is about the URL that it uses. Who is let in is not known here.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from traceback import extract_tb
from typing import Final

import msgspec

from toolpost.auth.server.auth import Auth
from toolpost.auth.server.dpop import PROOF_ALGORITHMS, DpopVerifier, NonceRequired, make_nonce
from toolpost.auth.server.verifier import VerificationCache
from toolpost.auth.urls import (
    MAX_QUOTED_LENGTH,
    RESOURCE_METADATA_PATH,
    build_metadata_url,
    extract_origin,
)
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal
from toolpost.protocol.seal import KeyRing
from toolpost.stores.store import RecordStore

LOG_INTERVAL: Final = 60.0
"""Seconds for which a reason is not told again: whoever sends bad tokens must not fill the log."""

MAX_LOGGED_REASONS: Final = 16
"""Reasons that are told in that time: there are not many more, unless a verifier makes them up."""

_QUOTE_ESCAPES: Final = str.maketrans({'"': r"\"", "\\": r"\\"})


class AccessDenied(Exception):
    """A request goes no further."""

    def __init__(
        self, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = (), why: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)
        self.why = why


class LogThrottle:
    """Why requests were refused of late, so that each reason is told once in a while.

    A reason is what stands before the first colon; what follows is about the one request.
    """

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}

    def should_log(self, why: str) -> bool:
        """Whether this one was not told of late."""
        now, reason = monotonic(), why.partition(":")[0]
        if now < self._quiet_until.get(reason, now):
            return False
        self._quiet_until = {each: until for each, until in self._quiet_until.items() if now < until}
        if len(self._quiet_until) >= MAX_LOGGED_REASONS:
            return False
        self._quiet_until[reason] = now + LOG_INTERVAL
        return True


def encode_challenge(scheme: str, **parameters: str | None) -> tuple[bytes, bytes]:
    """The header that challenges a client; parameters that are None or empty are left out."""
    told = ", ".join(
        f'{name}="{value.translate(_QUOTE_ESCAPES)}"' for name, value in parameters.items() if value
    )
    return b"www-authenticate", f"{scheme} {told}".rstrip().encode("latin-1", "replace")


# --------------------------------------------------------------------- front

_INVALID_TOKEN_MESSAGE: Final = "The token is not good for this server."  # noqa: S105 - a message
_ERROR_HINTS: Final = {
    "invalid_token": "It may have expired, or be for another server. The log of the server tells more.",
    "invalid_dpop_proof": "A proof is for one request, and made just before it: see that the clock is right.",
    "needs_proof": "The token has to be bound to a key of the client, and come with a proof (RFC 9449).",
}
"""What an error may be about; the same for all checks that it stands for."""


class ProtectedResource:
    """What a server says of itself, and to those whom it refuses."""

    def __init__(self, auth: "Auth", url: str) -> None:
        self._auth = auth
        self.url = url
        self.metadata_url = build_metadata_url(url)
        self.metadata = self._build_metadata()

    def _build_metadata(self) -> bytes:
        auth = self._auth
        told = {
            "resource": self.url,
            "authorization_servers": auth.issuers,
            "scopes_supported": sorted(auth.scopes) or None,
            "bearer_methods_supported": ["header"],
            "resource_name": auth.name,
            "dpop_signing_alg_values_supported": PROOF_ALGORITHMS,
            "dpop_bound_access_tokens_required": True if auth.dpop else None,
        }
        return msgspec.json.encode({name: value for name, value in told.items() if value is not None})

    def build_step_up_headers(
        self, scopes: Iterable[str], principal: Principal | None
    ) -> list[tuple[bytes, bytes]]:
        """The challenge for what a token may not do: all that is needed for it, granted or not (AUTH-52)."""
        bound = principal is not None and "cnf" in principal.claims
        wanted = " ".join(sorted(self._auth.scopes.union(scopes)))
        return [self.build_challenge("DPoP" if bound else "Bearer", error="insufficient_scope", scope=wanted)]

    def make_denial(
        self,
        why: str,
        scheme: str,
        error: str = "invalid_token",
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        hint: str | None = None,
    ) -> AccessDenied:
        """How a token is refused; `why` is for the log."""
        told = self.build_challenge(scheme, error=error, hint=hint or error)
        return AccessDenied(401, _INVALID_TOKEN_MESSAGE, [told, *headers], why=why)

    def build_challenge(
        self, scheme: str = "", *, error: str | None = None, scope: str | None = None, hint: str = ""
    ) -> tuple[bytes, bytes]:
        """The header that tells a client what to do."""
        scheme = "DPoP" if self._auth.dpop else scheme or "Bearer"
        return encode_challenge(
            scheme,
            error=error,
            scope=" ".join(sorted(self._auth.scopes)) if scope is None else scope,
            resource_metadata=self.metadata_url,
            algs=" ".join(PROOF_ALGORITHMS) if scheme == "DPoP" else None,
            error_description=_ERROR_HINTS.get(hint),
        )


# --------------------------------------------------------------------- admission

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
        records: Callable[[], RecordStore],
        *,
        keys: Callable[[], Awaitable[KeyRing]],
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
        """On whose behalf a request speaks."""
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
