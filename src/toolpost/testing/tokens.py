"""Tokens for tests: keys that rotate, and access tokens that are as good or as bad as a test wants them.

Not for production: the keys live in memory, and the holder of an issuer can be anybody.
"""

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from toolpost.auth.jose import import_jose, parse_jws

_CURVE: Final = {"ES256": "P-256", "ES384": "P-384"}


class TokenIssuer:
    """Signs tokens for one issuer.

    Args:
        issuer: in whose name.
        algorithm: "ES256", "ES384", "RS256" or "PS256".
        lifetime: seconds for which tokens are good, unless one is made otherwise.
    """

    def __init__(self, issuer: str, *, algorithm: str = "ES256", lifetime: float = 300.0) -> None:
        self.issuer = issuer
        self.lifetime = lifetime
        self.algorithm = algorithm
        self._keys: list[Any] = []
        self.rotate()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.issuer}>"

    def rotate(self, *, forget: bool = False) -> None:
        """Sign with a new key from now on.

        Args:
            forget: whether the old keys are withdrawn, so that what they have signed is good no longer.
        """
        jwk = import_jose().jwk
        about = {"kid": secrets.token_hex(4), "use": "sig", "alg": self.algorithm}
        if self.algorithm in _CURVE:
            key = jwk.ECKey.generate_key(_CURVE[self.algorithm], about)
        else:
            key = jwk.RSAKey.generate_key(2048, about)
        self._keys = [key, *([] if forget else self._keys)]

    @property
    def jwks(self) -> dict[str, Any]:
        """The public keys, as a JWK set."""
        return {"keys": [key.as_dict(private=False) for key in self._keys]}

    def token(
        self,
        resource: str | Iterable[str],
        *,
        subject: str = "alice",
        client: str = "test-client",
        scopes: Iterable[str] = (),
        lifetime: float | None = None,
        headers: Mapping[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """An access token (RFC 9068).

        Args:
            resource: for whom it is good.
            subject: on whose behalf its bearer speaks.
            client: who the bearer is.
            scopes: what it allows.
            lifetime: seconds until it ends; fewer than 0 for one that has expired.
            headers: what else stands in its header; None leaves a member out.
            claims: what else it says; None leaves a claim out.
        """
        now = int(time.time())
        said: dict[str, Any] = {
            "iss": self.issuer,
            "sub": subject,
            "aud": resource if isinstance(resource, str) else list(resource),
            "client_id": client,
            "scope": " ".join([scopes] if isinstance(scopes, str) else scopes),
            "iat": now,
            "exp": now + int(self.lifetime if lifetime is None else lifetime),
            "jti": secrets.token_urlsafe(12),
            **claims,
        }
        payload = msgspec.json.encode({name: value for name, value in said.items() if value is not None})
        key = self._keys[0]
        header = {"alg": self.algorithm, "typ": "at+jwt", "kid": key.kid, **(headers or {})}
        header = {name: value for name, value in header.items() if value is not None}
        return import_jose().jws.serialize_compact(header, payload, key, [self.algorithm])

    def claims_of(self, token: str) -> dict[str, Any] | None:
        """What a token of ours says, if it is one and has not ended."""
        try:
            said = parse_jws(token).claims
        except ValueError:
            return None
        return said if said.get("iss") == self.issuer and said.get("exp", 0) > time.time() else None
