"""Authentication of HTTP requests at a protected resource: the order of checks, and the words of a refusal.

Owns the metadata document (RFC 9728) and the challenges (RFC 6750 §3, RFC 9449 §7.1), one pair for each URL.
A client learns what kind of thing is wrong and never which check failed; the log has the reason, without a
credential. Tokens are checked by the verifier.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from traceback import extract_tb
from typing import Final, TypeAlias

import msgspec

from toolpost.auth.server.auth import Auth
from toolpost.auth.server.dpop import PROOF_ALGORITHMS, DpopVerifier, NonceRequired, make_nonce
from toolpost.auth.server.introspection import VerificationCache
from toolpost.auth.urls import MAX_QUOTED_LENGTH, RESOURCE_METADATA_PATH, build_metadata_url, extract_origin
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal
from toolpost.protocol.seal import KeyRing
from toolpost.stores.store import RecordStore

LOG_INTERVAL: Final = 60.0  # seconds for which a reason is not logged again: bad tokens must not fill the log
MAX_LOGGED_REASONS: Final = 16  # in that time: there are not many more, unless a verifier makes them up
_ERROR_HINTS: Final = {
    "invalid_token": "It may have expired, or be for another server. The log of the server tells more.",
    "invalid_dpop_proof": "A proof is for one request, and made just before it: see that the clock is right.",
    "needs_proof": "The token has to be bound to a key of the client, and come with a proof (RFC 9449).",
}
MAX_TOKEN_LENGTH: Final = 16 * 1024  # characters: tokens with many groups in them have a few thousand
MIN_LEAK_LENGTH: Final = 6  # letters that a text must not have in common with a token; fewer are an accident
_QUOTE_ESCAPES: Final = str.maketrans({'"': r"\"", "\\": r"\\"})
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEMES: Final = {"bearer": "Bearer", "dpop": "DPoP"}

HttpHeader: TypeAlias = tuple[bytes, bytes]

logger: Final = logging.getLogger("toolpost.auth")


class AccessDenied(Exception):
    """A request is refused; `message` is for the peer, and `why` for the log, if that is worth it."""

    def __init__(self, status: int, message: str, headers: Iterable[HttpHeader] = (), why: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)
        self.why = why


class LogThrottle:
    """Logs each reason of refusals, the part before the first colon, once in a while."""

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}

    def should_log(self, why: str) -> bool:
        """Return whether a reason was not logged of late."""
        now, reason = monotonic(), why.partition(":")[0]
        if now < self._quiet_until.get(reason, now):
            return False
        self._quiet_until = {each: until for each, until in self._quiet_until.items() if now < until}
        if len(self._quiet_until) >= MAX_LOGGED_REASONS:
            return False
        self._quiet_until[reason] = now + LOG_INTERVAL
        return True


class ProtectedResource:
    """A server under one URL: its metadata document (RFC 9728), and its challenges."""

    def __init__(self, auth: Auth, url: str) -> None:
        self._auth = auth
        self.url = url
        self.metadata_url = build_metadata_url(url)
        document = {
            "resource": url,
            "authorization_servers": auth.issuers,
            "scopes_supported": sorted(auth.scopes) or None,
            "bearer_methods_supported": ["header"],
            "resource_name": auth.name,
            "dpop_signing_alg_values_supported": PROOF_ALGORITHMS,
            "dpop_bound_access_tokens_required": True if auth.dpop else None,
        }
        known = {name: value for name, value in document.items() if value is not None}
        self.metadata = msgspec.json.encode(known)

    def build_step_up_headers(self, scopes: Iterable[str], principal: Principal | None) -> list[HttpHeader]:
        """Return the challenge with all scopes that a request needs, granted or not (AUTH-52)."""
        bound = principal is not None and "cnf" in principal.claims
        wanted = " ".join(sorted(self._auth.scopes.union(scopes)))
        return [self.build_challenge("DPoP" if bound else "Bearer", error="insufficient_scope", scope=wanted)]

    def make_denial(
        self,
        why: str,
        scheme: str,
        error: str = "invalid_token",
        headers: Iterable[HttpHeader] = (),
        *,
        hint: str | None = None,
    ) -> AccessDenied:
        """Return the refusal of a token; `why` is for the log."""
        challenge = self.build_challenge(scheme, error=error, hint=hint or error)
        return AccessDenied(401, "The token is not good for this server.", [challenge, *headers], why=why)

    def build_challenge(
        self, scheme: str = "", *, error: str | None = None, scope: str | None = None, hint: str = ""
    ) -> HttpHeader:
        """Return the header that tells a client what to do, without parameters that are None or empty."""
        scheme = "DPoP" if self._auth.dpop else scheme or "Bearer"
        parameters = {
            "error": error,
            "scope": " ".join(sorted(self._auth.scopes)) if scope is None else scope,
            "resource_metadata": self.metadata_url,
            "algs": " ".join(PROOF_ALGORITHMS) if scheme == "DPoP" else None,
            "error_description": _ERROR_HINTS.get(hint),
        }
        listed = ", ".join(
            f'{name}="{value.translate(_QUOTE_ESCAPES)}"' for name, value in parameters.items() if value
        )
        return b"www-authenticate", f"{scheme} {listed}".encode("latin-1", "replace")


class Admission:
    """Admits requests with a good token.

    `path` is below the place where the endpoint is mounted. Clients of HTTP+SSE use the paths in `sse`; they
    know the server by a URL of its own, so tokens may name that one there as well. `metadata_documents` are
    published, by path.
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
        # Otherwise the URL for HTTP+SSE is below the resource, or not known.
        apart = path != "/" and resource.endswith(path)
        self._sse = frozenset(sse if apart else ())
        if self._sse:
            self._sse_resource = ProtectedResource(auth, self._base + sse[0])
        self.metadata_documents = _map_metadata_paths(self._resource, "" if path == "/" else path.rstrip("/"))
        if self._sse:
            for place, document in _map_metadata_paths(self._sse_resource, sse[0]).items():
                self.metadata_documents.setdefault(place, document)

    async def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Principal:
        """Return the principal of a request, whose header names are in lower case, or raise AccessDenied."""
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
            missing = front.build_step_up_headers((), principal)
            raise AccessDenied(403, "The token lacks a scope that every request needs.", missing)
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
            place = extract_tb(error.__traceback__)[-1]
            shown = _redact_token(token, f"{type(error).__name__}: {error}"[:MAX_QUOTED_LENGTH])
            what = "a token cannot be checked: the verifier raised %s, in %s (%s:%s)"
            logger.error(what, shown, place.name, place.filename, place.lineno)  # noqa: TRY400 - see above
            message = "The token cannot be checked: a fault of the server, which its log tells."
            raise AccessDenied(500, message) from None

    async def _check_proof(
        self, front: ProtectedResource, proof: str, principal: Principal, **request: str
    ) -> None:
        """Check that the sender of a token holds the key that it is bound to."""
        self._proof_verifier = self._proof_verifier or DpopVerifier()
        keys = await self._keys() if self._auth.nonce else None
        try:
            records = self._records()
            await self._proof_verifier.check(proof, **request, whose=principal, records=records, keys=keys)
        except NonceRequired:
            nonce = [(b"dpop-nonce", make_nonce(keys).encode())] if keys is not None else []
            raise front.make_denial("", "DPoP", "use_dpop_nonce", nonce) from None  # how every client begins
        except TokenRejected as error:
            raise front.make_denial(error.message, "DPoP", "invalid_dpop_proof") from None
        except RequestFailed as error:
            raise _make_unavailable(f"a proof cannot be checked: {error}") from None

    def step_up(
        self, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
    ) -> list[HttpHeader]:
        """Return the challenge for a request that needs more scopes."""
        return (self._sse_resource if sse else self._resource).build_step_up_headers(scopes, principal)


def _map_metadata_paths(front: ProtectedResource, path: str) -> dict[str, bytes]:
    """Return what is published where: at the path in the public URL, at our own, and at the root."""
    at = front.metadata_url.removeprefix(extract_origin(front.url)).partition("?")[0]
    return dict.fromkeys((at, f"{RESOURCE_METADATA_PATH}{path}", RESOURCE_METADATA_PATH), front.metadata)


def _redact_token(token: str, text: str) -> str:
    """Return a foreign text if it shows nothing of a token; only its first word otherwise."""
    starts = range(max(len(token) - MIN_LEAK_LENGTH, 0) + 1)
    leaks = any(token[start : start + MIN_LEAK_LENGTH] in text for start in starts)
    return text.partition(":")[0] if leaks else text


def _parse_authorization(front: ProtectedResource, sent: str) -> tuple[str, str]:
    """Return the scheme and the token of a request."""
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
    """Return the refusal of a request that may be good: its token cannot be checked now."""
    return AccessDenied(503, "The token cannot be checked at the moment.", [(b"retry-after", b"5")], why)
