"""The token cache of a server: digests, a bounded size; and session ids that cannot be guessed."""

import logging
import time

import pytest

from protected_server import RESOURCE
from toolpost import Auth, Jwt, Principal
from toolpost.auth.jose import parse_jws
from toolpost.auth.server import introspection as verifying
from toolpost.auth.server import jwt as keeping
from toolpost.auth.server.auth import make_verifier
from toolpost.auth.server.introspection import VerificationCache
from toolpost.auth.server.jwt import read_keys
from toolpost.testing import TokenIssuer

ISSUER = "https://login.example.com"


@pytest.mark.requirement("AUTH-68")
def test_tokens_are_remembered_as_digests_and_only_so_many(monkeypatch):
    monkeypatch.setattr(verifying, "MAX_CACHED_TOKENS", 3)
    memory = VerificationCache()
    ann = Principal("ann")
    for token in ("t0", "t1", "t2", "t3"):
        memory.put(token, ann, 60)
    assert [memory.get(token) for token in ("t0", "t1", "t2", "t3")] == [None, ann, ann, ann]
    assert not any(b"t1" in key or len(key) != 32 for key in memory._entries)


def test_expired_entries_are_forgotten():
    memory = VerificationCache()
    memory.put("gone", Principal("ann", claims={"exp": time.time() - 1}), 60)
    memory.put("never", Principal("ann"), -1)
    assert memory._entries == {}
    memory.put("odd", Principal("ann", claims={"exp": "soon"}), 60)
    assert memory.get("odd") == Principal("ann", claims={"exp": "soon"})


def test_nothing_shows_a_secret():
    mint = TokenIssuer(ISSUER)
    verifier = Jwt(ISSUER, keys=mint.jwks)
    assert repr(verifier) == f"Jwt({ISSUER!r})"
    assert repr(Auth(ISSUER, verifier=verifier)) == f"Auth({ISSUER!r})"
    assert repr(mint) == f"<TokenIssuer {ISSUER}>"
    assert make_verifier(verifier) is verifier


def test_a_signature_that_cannot_be_read_is_none(caplog):
    caplog.set_level(logging.DEBUG)
    mint = TokenIssuer(ISSUER, algorithm="RS256")
    [key] = read_keys(mint.jwks)
    token = parse_jws(mint.token(RESOURCE))
    assert key.has_signed(token)
    assert not key.has_signed(token._replace(signature=b""))
    assert not key._replace(material=None).has_signed(token)
    assert "could not verify" in caplog.text


def test_a_key_that_is_too_short_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(keeping, "MIN_RSA_BITS", 4096)
    with pytest.raises(ValueError, match="no key can verify"):
        read_keys(TokenIssuer(ISSUER, algorithm="RS256").jwks)
    assert "fewer than 4096 bits" in caplog.text


def test_a_key_may_declare_its_use():
    [key] = read_keys({**TokenIssuer(ISSUER).jwks["keys"][0], "alg": "ES256"})
    assert key.can_verify("ES256", key.kid)
    assert not key._replace(algorithm="ES384").can_verify("ES256", key.kid)
    assert not key.can_verify("ES256", "another")
