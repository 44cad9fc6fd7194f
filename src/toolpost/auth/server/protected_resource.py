"""Authentication of HTTP requests at a protected resource: the checks in order, and the refusals.

Builds the metadata document (RFC 9728) and the challenges (RFC 6750 §3, RFC 9449 §7.1) for each URL. A
refusal does not say which check failed; the log does, without credentials. The verifier checks tokens.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from traceback import extract_tb
from typing import Final, TypeAlias

import msgspec

from toolpost.auth.server.auth import Auth
from toolpost.auth.server.dpop import PROOF_ALGORITHMS, DpopVerifier, NonceRequired, make_nonce
from toolpost.auth.server.introspection import VerificationCache
from toolpost.auth.urls import MAX_QUOTED_LENGTH, RESOURCE_METADATA_PATH, build_metadata_url, normalize_origin
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal
from toolpost.protocol.seal import KeyRing
from toolpost.protocol.urls import has_secret
from toolpost.stores.store import RecordStore

LOG_INTERVAL: Final = 60.0  # seconds for which a reason is not logged again: bad tokens must not fill the log
MAX_LOGGED_REASONS: Final = 16  # in that time: there are not many more, unless a verifier invents them
_ERROR_HINTS: Final = {
    "invalid_token": "The token may have expired or be for another server. See the server log.",
    "invalid_dpop_proof": "A proof is valid for one request and a short time. Check the clock.",
    "needs_proof": "The token must be bound to a key of the client and sent with a DPoP proof (RFC 9449).",
}
MAX_TOKEN_LENGTH: Final = 16 * 1024  # characters: tokens with many groups have a few thousand
_QUOTE_ESCAPES: Final = str.maketrans({'"': r"\"", "\\": r"\\"})
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEMES: Final = {"bearer": "Bearer", "dpop": "DPoP"}

HttpHeader: TypeAlias = tuple[bytes, bytes]

logger: Final = logging.getLogger("toolpost.auth")


class AccessDenied(Exception):
    """A request is refused; `message` is for the peer, `why` for the log."""

    def __init__(self, status: int, message: str, headers: Iterable[HttpHeader] = (), why: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)
        self.why = why


class LogThrottle:
    """Limits how often each reason of a refusal, the part before the first colon, is logged."""

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}

    def should_log(self, why: str) -> bool:
        """Return whether a reason was not logged recently, and count it."""
        now, reason = monotonic(), why.partition(":")[0]
        if now < self._quiet_until.get(reason, now):
            return False
        self._quiet_until = {each: until for each, until in self._quiet_until.items() if now < until}
        if len(self._quiet_until) >= MAX_LOGGED_REASONS:
            return False
        self._quiet_until[reason] = now + LOG_INTERVAL
        return True


class ProtectedResource:
    """A server at one URL: its metadata document (RFC 9728), and its challenges."""

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
        return [self.build_challenge("DPoP" if bound else "Bearer", "insufficient_scope", wanted)]

    def make_denial(
        self, why: str, scheme: str, problem: str = "invalid_token", headers: Iterable[HttpHeader] = ()
    ) -> AccessDenied:
        """Return the refusal of a token; `why` is for the log."""
        challenge = self.build_challenge(scheme, problem)
        return AccessDenied(401, "The token is not valid for this server.", [challenge, *headers], why=why)

    def build_challenge(self, scheme: str = "", problem: str = "", scope: str | None = None) -> HttpHeader:
        """Return the challenge header, without parameters that are None or empty."""
        scheme = "DPoP" if self._auth.dpop else scheme or "Bearer"
        parameters = {
            "error": "invalid_token" if problem == "needs_proof" else problem,
            "scope": " ".join(sorted(self._auth.scopes)) if scope is None else scope,
            "resource_metadata": self.metadata_url,
            "algs": " ".join(PROOF_ALGORITHMS) if scheme == "DPoP" else None,
            "error_description": _ERROR_HINTS.get(problem),
        }
        listed = ", ".join(
            f'{name}="{value.translate(_QUOTE_ESCAPES)}"' for name, value in parameters.items() if value
        )
        return b"www-authenticate", f"{scheme} {listed}".encode("latin-1", "replace")


class Admission:
    """Admits requests with a valid token.

    `path` counts from the mount point of the endpoint. Clients of HTTP+SSE use the paths in `sse`; tokens may
    name that URL of the server there as well. `metadata_documents` are published, by path.
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
        self.metadata_documents = _map_metadata_paths(self._resource, "" if path == "/" else path.rstrip("/"))
        # Otherwise the URL for HTTP+SSE is below the resource, or unknown.
        has_own_url = path != "/" and resource.endswith(path)
        self._sse_paths = frozenset(sse if has_own_url else ())
        if self._sse_paths:
            self._sse_resource = ProtectedResource(auth, self._base + sse[0])
            for document_path, document in _map_metadata_paths(self._sse_resource, sse[0]).items():
                self.metadata_documents.setdefault(document_path, document)

    async def admit(self, method: str, path: str, authorization: bytes, proof: bytes | None) -> Principal:
        """Return the principal of a request by its `Authorization` and `DPoP`, or raise AccessDenied."""
        resource, resources = self._resource, (self._resource.url,)
        if self._sse_paths and path.rstrip("/") in self._sse_paths:
            resource, resources = self._sse_resource, (self._resource.url, self._sse_resource.url)
        scheme, token = _parse_authorization(resource, str(authorization, "latin-1"))
        auth, cache_key, principal = self._auth, "", None
        verifier = auth.verifier
        if verifier.cache_ttl > 0:
            cache_key = f"{resource.url} {token}"  # a token may be valid for one of our URLs only
            principal = self._cache.get(cache_key)
        if principal is None or isinstance(principal, str):
            try:
                principal = auth.accept_principal(await verifier.verify(token, *resources))
            except Exception as error:  # noqa: BLE001 - a user's verifier may raise anything
                raise _refuse_token(resource, token, scheme, error) from None
            if cache_key:
                self._cache.put(cache_key, principal, verifier.cache_ttl)
        if scheme == "DPoP" or auth.dpop or principal.claims.get("cnf") is not None:
            if scheme != "DPoP" or proof is None:
                why = "the token requires a DPoP proof, but the request has none"
                raise resource.make_denial(why, "DPoP", "needs_proof")
            whole = path == "/" and self._base != normalize_origin(resource.url)
            url = self._base if whole else self._base + path
            shown = str(proof, "latin-1")
            await self._check_proof(resource, shown, principal, method=method, url=url, token=token)
        if not auth.scopes <= principal.scopes:
            missing = resource.build_step_up_headers((), principal)
            raise AccessDenied(403, "The token lacks a required scope.", missing)
        return principal

    async def _check_proof(
        self, resource: ProtectedResource, proof: str, principal: Principal, **request: str
    ) -> None:
        """Check that the client has the key that its token is bound to."""
        self._proof_verifier = self._proof_verifier or DpopVerifier()
        keys = await self._keys() if self._auth.nonce else None
        try:
            records = self._records()
            await self._proof_verifier.check(
                proof, **request, principal=principal, records=records, keys=keys
            )
        except NonceRequired:
            nonce = [(b"dpop-nonce", make_nonce(keys).encode())] if keys is not None else []
            raise resource.make_denial("", "DPoP", "use_dpop_nonce", nonce) from None  # the usual first step
        except TokenRejected as error:
            raise resource.make_denial(error.message, "DPoP", "invalid_dpop_proof") from None
        except RequestFailed as error:
            raise _make_unavailable(f"could not verify a proof: {error}") from None

    def step_up(
        self, scopes: Iterable[str], principal: Principal | None, *, sse: bool = False
    ) -> list[HttpHeader]:
        """Return the challenge for a request that needs more scopes."""
        return (self._sse_resource if sse else self._resource).build_step_up_headers(scopes, principal)


def _map_metadata_paths(resource: ProtectedResource, path: str) -> dict[str, bytes]:
    """Return the metadata by path: at the path of the public URL, at our own, and at the root."""
    at = resource.metadata_url.removeprefix(normalize_origin(resource.url)).partition("?")[0]
    return dict.fromkeys((at, f"{RESOURCE_METADATA_PATH}{path}", RESOURCE_METADATA_PATH), resource.metadata)


def _parse_authorization(resource: ProtectedResource, sent: str) -> tuple[str, str]:
    """Return the scheme and the token of a request."""
    name, _, token = sent.partition(" ")
    scheme = _SCHEMES.get(name.lower())
    if scheme is None:
        raise AccessDenied(401, "This server requires an access token.", [resource.build_challenge()])
    token = token.strip(" ")
    if len(token) > MAX_TOKEN_LENGTH or _TOKEN_PATTERN.fullmatch(token) is None:
        challenge = resource.build_challenge(scheme, "invalid_request")
        raise AccessDenied(400, "The Authorization header is malformed.", [challenge])
    return scheme, token


def _refuse_token(resource: ProtectedResource, token: str, scheme: str, error: Exception) -> AccessDenied:
    """Return the refusal of a token, and log an unexpected error of its verifier."""
    if isinstance(error, TokenRejected):
        return resource.make_denial(error.message, scheme)
    if isinstance(error, MCPError):
        return _make_unavailable(f"could not verify a token: {error}")
    place, kind = extract_tb(error.__traceback__)[-1], type(error).__name__
    shown = kind if has_secret(str(error), [token]) else f"{kind}: {error}"[:MAX_QUOTED_LENGTH]
    template = "could not verify a token: the verifier raised %s, in %s (%s:%s)"
    logger.error(template, shown, place.name, place.filename, place.lineno)  # a traceback may show the token
    message = "The token could not be verified because of an internal error; see the server log."
    return AccessDenied(500, message)


def _make_unavailable(why: str) -> AccessDenied:
    """Return the refusal of a request whose token cannot be checked now."""
    return AccessDenied(503, "The token cannot be verified at the moment.", [(b"retry-after", b"5")], why)
