"""Grants without a login, and tokens that are bound to a key."""

import asyncio

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey, import_key

from dpop_site import bound
from fake_authorization_site import AuthSites, run
from toolpost.auth.jose import DpopProver, hash_s256, load_key


def test_rsa_keys_sign_as_well():
    key = RSAKey.generate_key(2048)
    assertion = load_key(key.as_pem(private=True), "RS256").sign_assertion("me", "you")
    assert jwt.decode(assertion, key, algorithms=["RS256"]).claims["aud"] == "you"
    assert "RS256" in repr(load_key(key.as_pem(private=True), "RS256"))


@pytest.mark.parametrize("dpop", ["auto", True])
@pytest.mark.parametrize("nonces", [False, True])
def test_every_request_has_a_proof_of_its_own(dpop, nonces):
    async def visit(sites: AuthSites) -> None:
        seen = bound(sites, nonces=nonces)
        async with sites.client(sites.oauth(dpop=dpop)) as mcp:
            await mcp.call_tool("anything")
            await mcp.call_tool("anything")
        assert {header["typ"] for _, header, _ in seen} == {"dpop+jwt"}
        assert all("d" not in header["jwk"] for _, header, _ in seen)
        assert len({claims["jti"] for *_, claims in seen}) == len(seen)
        assert {claims["htu"] for where, _, claims in seen if where == "mcp"} == {sites.server}
        assert {claims["htu"] for where, _, claims in seen if where == "token"} == {f"{sites.issuer}/token"}
        assert {claims["ath"] for where, _, claims in seen if where == "mcp"} == {
            hash_s256("access-1-secret")
        }
        assert all("ath" not in claims for where, _, claims in seen if where == "token")
        assert {headers.get("authorization") for _, _, headers in sites.heard} == {
            None,
            "DPoP access-1-secret",
        }
        if nonces:
            assert [where for where, *_ in seen] == ["token", "token", *["mcp"] * 4]
            assert (dpop is True) is bool(sites.registered[0].get("dpop_bound_access_tokens"))

    run(visit)


def test_nonces_are_kept_apart():
    proofs = DpopProver()
    assert proofs.store_nonce("https://a.example/x?y", {"dpop-nonce": "1"})
    assert not proofs.store_nonce("https://a.example/z", {"dpop-nonce": "1"})
    for bad in ("", "x" * 2000, "a\r\nb", "ü"):
        assert not proofs.store_nonce("https://a.example/x", {"dpop-nonce": bad})
    assert (
        jwt.decode(
            proofs.build_header("GET", "https://b.example/?q=1")["dpop"], import_key({**proofs.jwk})
        ).claims["htu"]
        == "https://b.example/"
    )
    assert "…" in repr(proofs)


def test_nothing_blocks_the_loop_for_a_key():
    async def make() -> None:
        assert DpopProver().jwk["kty"] == "EC"

    asyncio.run(make())
