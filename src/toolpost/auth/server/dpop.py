"""DPoP on the server (RFC 9449): a stolen token is useless without the key that it is bound to.

Does the checks of §4.3, makes nonces, and stores accepted proofs, up to a limit, to refuse their reuse.
Clients make their proofs in `jose`.
"""

import hmac
import time
from collections import Counter, deque
from hashlib import sha256
from time import monotonic
from typing import Any, Final, cast
from urllib.parse import urlsplit

from toolpost.auth.jose import hash_s256, import_jose, parse_jws
from toolpost.auth.server.jwt import ASYMMETRIC_ALGORITHMS, read_keys, read_text
from toolpost.auth.urls import normalize_origin
from toolpost.errors import InvalidSeal, RequestFailed, TokenRejected
from toolpost.json_schema import as_object, is_number
from toolpost.principal import Principal
from toolpost.protocol.seal import KeyRing
from toolpost.stores.store import RecordStore

PROOF_ALGORITHMS: Final = tuple(
    name for name in ASYMMETRIC_ALGORITHMS if name not in {"RS384", "RS512", "PS384", "PS512"}
)
PROOF_LIFETIME: Final = 300.0  # seconds for which a proof is valid, as the extension says
MAX_CLOCK_SKEW: Final = 30.0  # seconds by which the clock of a client may be ahead of ours
NONCE_LIFETIME: Final = 240.0  # seconds; then the client gets another nonce
MAX_PROOF_LENGTH: Final = 8 * 1024  # characters: an RSA key of 4096 bits and its signature have about 1500
MAX_JTI_LENGTH: Final = 256  # characters of the id of a proof
MAX_PROOFS: Final = 65536  # that are stored at once: about 200 for each second
MAX_PROOFS_PER_PRINCIPAL: Final = MAX_PROOFS // 4  # of these: one client must not use the room of all

_NONCE_AUDIENCE: Final = "DPoP nonce"
_PRIVATE_JWK_MEMBERS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


class NonceRequired(TokenRejected):
    """A proof has no nonce of this server, or an expired one."""


class DpopVerifier:
    """Checks the proofs that an endpoint gets."""

    def __init__(self) -> None:
        import_jose()  # raises if it is not installed
        self._expiries: deque[tuple[float, str]] = deque()  # of stored proofs, with their principals
        self._proof_counts: Counter[str] = Counter()

    async def check(
        self,
        proof: str,
        *,
        method: str,
        url: str,
        token: str,
        principal: Principal,
        records: RecordStore,
        keys: KeyRing | None = None,
    ) -> None:
        """Check that a proof is valid for this request and token, and was not used before."""
        claims, thumbprint = read_proof(proof, method, url)
        wanted = read_text(as_object(principal.claims.get("cnf")), "jkt")
        if not hmac.compare_digest(wanted.encode(), thumbprint.encode()):
            raise TokenRejected("the proof is signed by a different key than the token is bound to")
        if not hmac.compare_digest(read_text(claims, "ath").encode(), hash_s256(token).encode()):
            raise TokenRejected("the proof is for another token")
        if keys is not None:
            try:
                keys.open(read_text(claims, "nonce"), audience=_NONCE_AUDIENCE, now=int(time.time()))
            except InvalidSeal:
                raise NonceRequired("the proof has no valid nonce") from None
        name = read_text(claims, "jti")
        if not 0 < len(name) <= MAX_JTI_LENGTH:
            raise TokenRejected("the proof has no jti")
        # Last, so that only proofs for valid tokens are stored.
        seen = sha256(f"{thumbprint} {name}".encode()).hexdigest()
        self._check_capacity(principal.key)
        if not await records.swap(f"proof/{seen}", None, b"1", PROOF_LIFETIME + MAX_CLOCK_SKEW):
            raise TokenRejected("the proof was already used")
        self._expiries.append((monotonic() + PROOF_LIFETIME + MAX_CLOCK_SKEW, principal.key))
        self._proof_counts[principal.key] += 1

    def _check_capacity(self, key: str) -> None:
        """Check that there is room for one more proof. None is dropped early: it could be used again."""
        now, expiries, counts = monotonic(), self._expiries, self._proof_counts
        while expiries and expiries[0][0] <= now:
            owner = expiries.popleft()[1]
            counts[owner] -= 1
            if not counts[owner]:
                del counts[owner]
        if len(expiries) >= MAX_PROOFS or counts[key] >= MAX_PROOFS_PER_PRINCIPAL:
            raise RequestFailed("too many proofs are in use")


def read_proof(proof: str, method: str, url: str) -> tuple[dict[str, Any], str]:
    """Return the claims of a proof that is valid for this request, and the thumbprint of its key."""
    if len(proof) > MAX_PROOF_LENGTH:
        raise TokenRejected("the proof is too long")
    read = parse_jws(proof, "the proof")
    if read.typ != "dpop+jwt" or read.algorithm not in PROOF_ALGORITHMS:
        raise TokenRejected("the proof has the wrong type or algorithm")
    jwk = read.header.get("jwk")
    if not isinstance(jwk, dict) or _PRIVATE_JWK_MEMBERS & jwk.keys():
        raise TokenRejected("the proof contains no public key")
    try:
        [key] = read_keys([cast("dict[str, Any]", jwk)])  # a single key, not a set
    except ValueError:
        raise TokenRejected("the key of the proof is invalid") from None
    if not key.can_verify(read.algorithm, None) or not key.has_signed(read):
        raise TokenRejected("the proof is not signed by its key")
    if read.claims.get("htm") != method:
        raise TokenRejected("the proof is for another method")
    if _normalize_url(read.claims.get("htu")) != _normalize_url(url):
        raise TokenRejected("the proof is for another URL")
    now, made = time.time(), read.claims.get("iat")
    if not is_number(made):
        raise TokenRejected("the proof has no valid iat")
    if not now - PROOF_LIFETIME <= made <= now + MAX_CLOCK_SKEW:
        raise TokenRejected("the proof is too old or from the future")
    return read.claims, key.material.thumbprint()


def make_nonce(keys: KeyRing) -> str:
    """Return a sealed nonce, so that none has to be stored."""
    return keys.seal(b"", audience=_NONCE_AUDIENCE, expires=int(time.time() + NONCE_LIFETIME))


def _normalize_url(url: Any) -> str | None:
    """Return a URL for comparison: without query, fragment, default port, and upper case in the host."""
    if not isinstance(url, str):
        return None
    try:
        return f"{normalize_origin(url)}{urlsplit(url).path or '/'}" if urlsplit(url).hostname else None
    except ValueError:
        return None
