"""A client with a key, a token bound to it, and valid and invalid proofs."""

import base64
import json
import secrets
import time
from hashlib import sha256
from typing import Any

from joserfc.jwk import ECKey
from joserfc.jws import serialize_compact

from protected_server import RESOURCE
from toolpost.testing import TokenIssuer

__all__ = ["HTU", "Holder", "another_key", "b64"]


HTU = RESOURCE


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Holder:
    """A client with a key, and a token bound to it."""

    def __init__(self, mint: TokenIssuer, key: Any = None, **token: Any) -> None:
        self.key = ECKey.generate_key("P-256") if key is None else key
        self.algorithm = {"EC": "ES256", "RSA": "PS256", "OKP": "Ed25519"}[self.key.key_type]
        made: dict[str, Any] = {"scopes": ["read"], "cnf": {"jkt": self.key.thumbprint()}, **token}
        self.token = mint.token(RESOURCE, **made)

    def proof(
        self,
        method: str = "POST",
        url: str = HTU,
        *,
        header: Any = None,
        key: Any = None,
        without: str = "",
        **claims: Any,
    ) -> str:
        claims = {
            "jti": secrets.token_hex(8),
            "htm": method,
            "htu": url,
            "iat": int(time.time()),
            "ath": b64(sha256(self.token.encode()).digest()),
            **claims,
        }
        claims.pop(without, None)
        head: dict[str, Any] = {
            "typ": "dpop+jwt",
            "alg": self.algorithm,
            "jwk": self.key.as_dict(private=False),
        }
        head = {**head, **(header or {})}
        return serialize_compact(head, json.dumps(claims), key or self.key, [head["alg"]])

    def sent(self, proof: str | None = None, scheme: str = "DPoP") -> dict[str, str]:
        return {"Authorization": f"{scheme} {self.token}", "DPoP": self.proof() if proof is None else proof}


def another_key(holder: Holder) -> str:
    key = ECKey.generate_key("P-256")
    return holder.proof(header={"jwk": key.as_dict(private=False)}, key=key)
