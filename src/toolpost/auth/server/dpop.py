"""Proofs of possession (DPoP, RFC 9449): a token that was stolen is of no use without the key behind it.

Owns the checks of §4.3, the nonces that make proofs fresh, and that no proof is accepted twice, which the
store remembers up to a bound. Clients make their proofs in `signing`.
"""

import hmac
import time
from collections import Counter, deque
from collections.abc import Mapping
from hashlib import sha256
from time import monotonic
from typing import Any, Final, cast
from urllib.parse import urlsplit

from toolpost.auth.jose import MalformedToken, hash_s256, import_jose, parse_jws
from toolpost.auth.server.jwks import ASYMMETRIC_ALGORITHMS, read_keys
from toolpost.auth.urls import normalize_origin
from toolpost.errors import InvalidSeal, RequestFailed, TokenRejected
from toolpost.principal import Principal
from toolpost.protocol.seal import KeyRing
from toolpost.stores.store import RecordStore

PROOF_ALGORITHMS: Final = tuple(
    name for name in ASYMMETRIC_ALGORITHMS if name not in {"RS384", "RS512", "PS384", "PS512"}
)
PROOF_LIFETIME: Final = 300.0  # seconds for which a proof is good after it was made, as the extension says
MAX_CLOCK_SKEW: Final = 30.0  # seconds by which the clock of a client may be ahead of ours
NONCE_LIFETIME: Final = 240.0  # seconds for which a nonce is good; then the client is given another one
MAX_PROOF_LENGTH: Final = 8 * 1024  # characters: an RSA key of 4096 bits and its signature have about 1500
MAX_JTI_LENGTH: Final = 256  # characters of the name of a proof
MAX_PROOFS: Final = 65536  # proofs that are remembered at once: about 200 in each second

MAX_PROOFS_PER_PRINCIPAL: Final = MAX_PROOFS // 4  # among them: one must not use up the memory for all

_NONCE_AUDIENCE: Final = "DPoP nonce"
_PRIVATE_JWK_MEMBERS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


class NonceRequired(TokenRejected):
    """A proof has no nonce of ours, or an old one."""


class DpopVerifier:
    """Checks the proofs that an endpoint gets."""

    def __init__(self) -> None:
        import_jose()  # if it is missing, raise now
        self._expiries: deque[tuple[float, str]] = deque()  # of remembered proofs, with their principals
        self._proof_counts: Counter[str] = Counter()

    async def check(
        self,
        proof: str,
        *,
        method: str,
        url: str,
        token: str,
        whose: Principal,
        records: RecordStore,
        keys: KeyRing | None = None,
    ) -> None:
        """Check that a proof is good for this request and this token, and was not used before."""
        claims, thumbprint = self._check_request(proof, method, url)
        wanted = get_bound_thumbprint(whose.claims)
        if wanted is None or not hmac.compare_digest(wanted.encode(), thumbprint.encode()):
            raise TokenRejected("the proof is by another key than the token is bound to")
        ath = claims.get("ath")
        if not isinstance(ath, str) or not hmac.compare_digest(ath.encode(), hash_s256(token).encode()):
            raise TokenRejected("the proof is for another token")
        if keys is not None:
            _check_nonce(claims.get("nonce"), keys)
        name = claims.get("jti")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_JTI_LENGTH:
            raise TokenRejected("the proof has no name")
        # Last, so that only what the holder of a good token has signed is remembered.
        seen = sha256(f"{thumbprint} {name}".encode()).hexdigest()
        self._check_capacity(whose.key)
        if not await records.swap(f"proof/{seen}", None, b"1", PROOF_LIFETIME + MAX_CLOCK_SKEW):
            raise TokenRejected("the proof was shown before")
        self._expiries.append((monotonic() + PROOF_LIFETIME + MAX_CLOCK_SKEW, whose.key))
        self._proof_counts[whose.key] += 1

    def _check_capacity(self, key: str) -> None:
        """Check that one more proof can be remembered. None is forgotten early: it would be good again."""
        now, kept, kept_of = monotonic(), self._expiries, self._proof_counts
        while kept and kept[0][0] <= now:
            whose = kept.popleft()[1]
            kept_of[whose] -= 1
            if not kept_of[whose]:
                del kept_of[whose]
        if len(kept) >= MAX_PROOFS or kept_of[key] >= MAX_PROOFS_PER_PRINCIPAL:
            raise RequestFailed("there are more proofs than can be remembered")

    def read_thumbprint(self, proof: str, method: str, url: str) -> str:
        """Return the thumbprint of the key in a proof, for an issuer of tokens."""
        return self._check_request(proof, method, url)[1]

    def _check_request(self, proof: str, method: str, url: str) -> tuple[dict[str, Any], str]:
        """Return the claims of a proof that is good for this request, and the thumbprint of its key."""
        claims, thumbprint = self._parse_proof(proof)
        if claims.get("htm") != method:
            raise TokenRejected("the proof is for another method")
        if _normalize_url(claims.get("htu")) != _normalize_url(url):
            raise TokenRejected("the proof is for another URL")
        now, made = time.time(), claims.get("iat")
        if isinstance(made, bool) or not isinstance(made, int | float):
            raise TokenRejected("the proof does not say when it was made")
        if not now - PROOF_LIFETIME <= made <= now + MAX_CLOCK_SKEW:
            raise TokenRejected("the proof was made too long ago, or in the future")
        return claims, thumbprint

    def _parse_proof(self, proof: str) -> tuple[dict[str, Any], str]:
        """Return the claims of a proof, and the thumbprint of the key that has signed it."""
        if len(proof) > MAX_PROOF_LENGTH:
            raise TokenRejected("the proof is too long")
        try:
            read = parse_jws(proof)
        except MalformedToken as error:
            raise TokenRejected(f"the proof is no JWT: {error}") from None
        if read.typ != "dpop+jwt" or read.algorithm not in PROOF_ALGORITHMS:
            raise TokenRejected("the proof is no proof by its type or its algorithm")
        jwk = read.header.get("jwk")
        if not isinstance(jwk, dict) or _PRIVATE_JWK_MEMBERS & jwk.keys():
            raise TokenRejected("the proof does not come with a public key")
        try:
            [key] = read_keys([cast("dict[str, Any]", jwk)])  # one, and no set
        except ValueError:
            raise TokenRejected("the key of the proof cannot be read") from None
        if not key.can_verify(read.algorithm, None) or not key.has_signed(read):
            raise TokenRejected("the proof is not signed by its key")
        return read.claims, key.material.thumbprint()


def make_nonce(keys: KeyRing) -> str:
    """Return a nonce that the keys recognise, so that none has to be stored."""
    return keys.seal(b"", audience=_NONCE_AUDIENCE, expires=int(time.time() + NONCE_LIFETIME))


def _check_nonce(said: Any, keys: KeyRing) -> None:
    try:
        keys.open(said if isinstance(said, str) else "", audience=_NONCE_AUDIENCE, now=int(time.time()))
    except InvalidSeal:
        raise NonceRequired("the proof has no nonce of ours that is good now") from None


def get_bound_thumbprint(claims: Mapping[str, Any]) -> str | None:
    """Return the thumbprint of the key that a token is bound to; None if it is bound to none."""
    bound = claims.get("cnf")
    named = cast("dict[str, Any]", bound).get("jkt") if isinstance(bound, dict) else None
    return named if isinstance(named, str) else None


def _normalize_url(url: Any) -> str | None:
    """Return a URL as far as it counts: without query, fragment, case of scheme and host, default port."""
    if not isinstance(url, str):
        return None
    try:
        return f"{normalize_origin(url)}{urlsplit(url).path or '/'}" if urlsplit(url).hostname else None
    except ValueError:
        return None
