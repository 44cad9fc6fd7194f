"""The fake authorization site with tokens bound to a key, and an optional nonce."""

import base64
import json
from typing import Any

from joserfc import jwt
from joserfc.jwk import import_key

from fake_authorization_site import AuthSites
from scripted import answer

__all__ = ["bound", "jwk_of"]


# --------------------------------------------------------------------- DPoP


def bound(sites: AuthSites, *, nonces: bool = False) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Create sites that bind tokens and record the proofs: place, header, claims."""
    seen: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    sites.challenge = 'DPoP algs="ES256"'
    sites.metadata = {"dpop_signing_alg_values_supported": ["ES256"]}
    sites.token = {"token_type": "DPoP"}

    def proof(where: str, heard) -> dict[str, Any]:
        value = heard.headers["dpop"]
        head = jwt.decode(value, import_key(jwk_of(value)), algorithms=["ES256"])
        seen.append((where, head.header, head.claims))
        return head.claims

    token, mcp = sites.answer_token, sites.answer_mcp

    def at_token(heard) -> bytes:
        if proof("token", heard).get("nonce") != "of-issuer" and nonces:
            return answer(400, b'{"error": "use_dpop_nonce"}', DPoP_Nonce="of-issuer")
        return token(heard)

    async def at_mcp(heard) -> bytes:
        if "dpop" in heard.headers and proof("mcp", heard).get("nonce") != "of-server" and nonces:
            return answer(
                401, kind=None, WWW_Authenticate='DPoP error="use_dpop_nonce"', DPoP_Nonce="of-server"
            )
        return await mcp(heard)

    sites.answer_token, sites.answer_mcp = at_token, at_mcp
    return seen


def jwk_of(value: str) -> dict[str, Any]:
    part = value.split(".", maxsplit=1)[0]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["jwk"]
