"""Proofs of possession (DPoP, RFC 9449): a token that was stolen is of no use without the key behind it.

Owns the checks of §4.3 on one proof, the nonces that make them fresh, and that no proof is taken twice, which
the store remembers. How proofs are made is the client's business.
"""

import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from toolpost.auth.compact import Malformed, object_in, split
from toolpost.auth.keys import ASYMMETRIC, jose, read_keys, verified
from toolpost.errors import TokenRejected

__all__ = ["ALGORITHMS", "Proofs", "Stale", "thumbprint_of"]

ALGORITHMS: Final = tuple(name for name in ASYMMETRIC if name not in {"RS384", "RS512", "PS384", "PS512"})
"""What proofs may be signed with."""

WINDOW: Final = 300.0
"""Seconds for which a proof is good after it was made, as the extension says."""

AHEAD: Final = 30.0
"""Seconds by which the clock of a client may be ahead of ours."""

NONCE: Final = 120.0
"""Seconds after which a new nonce is given out; the one before it stays good as long."""

MAX_PROOF: Final = 8 * 1024
"""Characters: an RSA key of 4096 bits and its signature have about 1500."""

MAX_JTI: Final = 256
"""Characters of the name of a proof."""

_KEY: Final = "keys/nonces"
_SECRETS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_PORTS: Final = {"http": 80, "https": 443}


class Stale(TokenRejected):
    """A proof needs a nonce of ours, and has none, or an old one."""


class Records(Protocol):
    """What is needed of a store."""

    async def get(self, key: str) -> bytes | None: ...

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool: ...


class Proofs:
    """The proofs that an endpoint is shown.

    Args:
        nonces: whether each has to carry a nonce of ours.
    """

    def __init__(self, *, nonces: bool = False) -> None:
        jose()  # whoever lacks it learns it now
        self._nonces = nonces
        self._secret = b""

    async def check(
        self, proof: str, *, method: str, url: str, token: str, bound: Mapping[str, Any], records: Records
    ) -> None:
        """Return if a proof is good for this request and this token.

        Args:
            proof: what the header says.
            method: of the request.
            url: of the request, as the client knows it.
            token: the access token.
            bound: the claims of the token, which name its key.
            records: where proofs are remembered.

        Raises:
            TokenRejected: it is not; the text is for the log.
            Stale: it needs a (newer) nonce.
        """
        claims, thumbprint = self._fitting(proof, method, url)
        wanted = thumbprint_of(bound)
        if wanted is None or not hmac.compare_digest(wanted.encode(), thumbprint.encode()):
            raise TokenRejected("the proof is by another key than the token is bound to")
        said = claims.get("ath")
        if not isinstance(said, str) or not hmac.compare_digest(said.encode(), _digest(token).encode()):
            raise TokenRejected("the proof is for another token")
        await self._check_nonce(claims.get("nonce"), records)
        name = claims.get("jti")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_JTI:
            raise TokenRejected("the proof has no name")
        # Last, so that only what the holder of a good token has signed is remembered.
        seen = sha256(f"{thumbprint} {name}".encode()).hexdigest()
        if not await records.swap(f"proof/{seen}", None, b"1", WINDOW + AHEAD):
            raise TokenRejected("the proof was shown before")

    def key_of(self, proof: str, method: str, url: str) -> str:
        """The thumbprint of the key that a proof shows, for whoever issues tokens.

        Raises:
            TokenRejected: the proof is not good for this request.
        """
        return self._fitting(proof, method, url)[1]

    def _fitting(self, proof: str, method: str, url: str) -> tuple[dict[str, Any], str]:
        """The claims of a proof that is good for this request and now, and the thumbprint of its key."""
        claims, thumbprint = self._read(proof)
        if claims.get("htm") != method:
            raise TokenRejected("the proof is for another method")
        if _plain(claims.get("htu")) != _plain(url):
            raise TokenRejected("the proof is for another URL")
        now, made = time.time(), claims.get("iat")
        if isinstance(made, bool) or not isinstance(made, int | float):
            raise TokenRejected("the proof does not say when it was made")
        if not now - WINDOW <= made <= now + AHEAD:
            raise TokenRejected("the proof was made too long ago, or in the future")
        return claims, thumbprint

    def _read(self, proof: str) -> tuple[dict[str, Any], str]:
        """The claims of a proof, and the thumbprint of the key that has signed it."""
        if len(proof) > MAX_PROOF:
            raise TokenRejected("the proof is too long")
        try:
            read = split(proof)
            claims = object_in(read.payload)
        except Malformed as error:
            raise TokenRejected(f"the proof is no JWT: {error}") from None
        if read.typ != "dpop+jwt" or read.algorithm not in ALGORITHMS:
            raise TokenRejected("the proof is no proof by its type or its algorithm")
        jwk = read.header.get("jwk")
        if not isinstance(jwk, dict) or _SECRETS & jwk.keys():
            raise TokenRejected("the proof does not come with a public key")
        try:
            [key] = read_keys(cast("dict[str, Any]", jwk))
        except ValueError:
            raise TokenRejected("the key of the proof cannot be read") from None
        if not key.fits(read.algorithm, None) or not verified(read, key):
            raise TokenRejected("the proof is not signed by its key")
        return claims, key.material.thumbprint()

    # ----------------------------------------------------------------- nonces

    async def nonce(self, records: Records) -> str | None:
        """The nonce that a client is to use; None if none is needed. Any worker takes that of another."""
        return await self._made(int(time.time() // NONCE), records) if self._nonces else None

    async def _check_nonce(self, said: Any, records: Records) -> None:
        if not self._nonces:
            return
        turn = int(time.time() // NONCE)
        for made in (turn, turn - 1):
            good = await self._made(made, records)
            if isinstance(said, str) and hmac.compare_digest(said.encode(), good.encode()):
                return
        raise Stale("the proof has no nonce of ours that is good now")

    async def _made(self, turn: int, records: Records) -> str:
        if not self._secret:
            await records.swap(_KEY, None, secrets.token_bytes(32), None)
            self._secret = await records.get(_KEY) or secrets.token_bytes(32)
        return _text(hmac.digest(self._secret, turn.to_bytes(8, "big"), "sha256"))


def thumbprint_of(claims: Mapping[str, Any]) -> str | None:
    """The key that a token is bound to, by its thumbprint; None if it is bound to none."""
    bound = claims.get("cnf")
    named = cast("dict[str, Any]", bound).get("jkt") if isinstance(bound, dict) else None
    return named if isinstance(named, str) else None


def _digest(token: str) -> str:
    return _text(sha256(token.encode()).digest())


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _plain(url: Any) -> tuple[str, str, int | None, str] | None:
    """A URL as far as it counts: no query, no fragment, scheme and host without case, no default port."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port, parts.path or "/") if parts.hostname else None
