"""Grants without a person, and tokens that are bound to a key."""

import asyncio
import base64
import json
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey, import_key

from fake_authorization_site import Town, run
from scripted import answer
from toolpost.auth.dpop import Proofs
from toolpost.auth.signing import load, s256


def test_rsa_keys_sign_as_well():
    key = RSAKey.generate_key(2048)
    assertion = load(key.as_pem(private=True), "RS256").assertion("me", "you")
    assert jwt.decode(assertion, key, algorithms=["RS256"]).claims["aud"] == "you"
    assert "RS256" in repr(load(key.as_pem(private=True), "RS256"))


# --------------------------------------------------------------------- DPoP


def bound(town: Town, *, nonces: bool = False) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Make a town that binds tokens, and looks at the proofs: where, header, claims."""
    seen: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    town.challenge = 'DPoP algs="ES256"'
    town.metadata = {"dpop_signing_alg_values_supported": ["ES256"]}
    town.token = {"token_type": "DPoP"}

    def proof(where: str, heard) -> dict[str, Any]:
        value = heard.headers["dpop"]
        head = jwt.decode(value, import_key(_jwk(value)), algorithms=["ES256"])
        seen.append((where, head.header, head.claims))
        return head.claims

    token, mcp = town.answer_token, town.answer_mcp

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

    town.answer_token, town.answer_mcp = at_token, at_mcp
    return seen


def _jwk(value: str) -> dict[str, Any]:
    part = value.split(".", maxsplit=1)[0]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["jwk"]


@pytest.mark.parametrize("dpop", ["auto", True])
@pytest.mark.parametrize("nonces", [False, True])
def test_every_request_has_a_proof_of_its_own(dpop, nonces):
    async def visit(town: Town) -> None:
        seen = bound(town, nonces=nonces)
        async with town.client(town.oauth(dpop=dpop)) as mcp:
            await mcp.call_tool("anything")
            await mcp.call_tool("anything")
        assert {header["typ"] for _, header, _ in seen} == {"dpop+jwt"}
        assert all("d" not in header["jwk"] for _, header, _ in seen)
        assert len({claims["jti"] for *_, claims in seen}) == len(seen)
        assert {claims["htu"] for where, _, claims in seen if where == "mcp"} == {town.server}
        assert {claims["htu"] for where, _, claims in seen if where == "token"} == {f"{town.issuer}/token"}
        assert {claims["ath"] for where, _, claims in seen if where == "mcp"} == {s256("access-1-secret")}
        assert all("ath" not in claims for where, _, claims in seen if where == "token")
        assert {headers.get("authorization") for _, _, headers in town.heard} == {
            None,
            "DPoP access-1-secret",
        }
        if nonces:
            assert [where for where, *_ in seen] == ["token", "token", *["mcp"] * 4]
            assert (dpop is True) is bool(town.registered[0].get("dpop_bound_access_tokens"))

    run(visit)


def test_nonces_are_kept_apart_and_bounded():
    proofs = Proofs()
    assert proofs.note("https://a.example/x?y", {"dpop-nonce": "1"})
    assert not proofs.note("https://a.example/z", {"dpop-nonce": "1"})
    for bad in ("", "x" * 2000, "a\r\nb", "ü"):
        assert not proofs.note("https://a.example/x", {"dpop-nonce": bad})
    assert (
        jwt.decode(proofs.header("GET", "https://b.example/?q=1")["dpop"], import_key({**proofs.jwk})).claims[
            "htu"
        ]
        == "https://b.example/"
    )
    for number in range(100):
        proofs.note(f"https://{number}.example/", {"dpop-nonce": "1"})
    assert len(proofs._nonces) == 64
    assert "…" in repr(proofs)


def test_nothing_blocks_the_loop_for_a_key():
    async def make() -> None:
        assert Proofs().jwk["kty"] == "EC"

    asyncio.run(make())
