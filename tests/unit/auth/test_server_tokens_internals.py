"""Valid tokens and all kinds of invalid ones: the status, the challenge, and the log."""

import base64
import hmac
import json
import logging
import time
from typing import Any

import pytest
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import serialize_compact

from hosted import run
from protected_server import RESOURCE, guarded, listing
from toolpost import Jwt
from toolpost.testing import TokenIssuer

ASKED = 'Bearer scope="read", resource_metadata="http://127.0.0.1/.well-known/oauth-protected-resource/mcp"'
UNFIT = (
    ASKED.replace("Bearer ", 'Bearer error="invalid_token", ')
    + ', error_description="The token may have expired or be for another server. See the server log."'
)


def good(mint: TokenIssuer, **changes: Any) -> str:
    made: dict[str, Any] = {"scopes": ["read"], **changes}
    return mint.token(RESOURCE, **made)


def b64(data: Any) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def claims(mint: TokenIssuer, **changes: Any) -> dict[str, Any]:
    now = int(time.time())
    return {
        "iss": mint.issuer, "sub": "alice", "aud": RESOURCE, "client_id": "c", "scope": "read",
        "iat": now, "exp": now + 300, **changes,
    }  # fmt: skip


def unsigned(mint: TokenIssuer) -> str:
    return f"{b64({'alg': 'none', 'typ': 'at+jwt'})}.{b64(claims(mint))}."


def unsigned_in_disguise(mint: TokenIssuer) -> str:
    return f"{b64({'alg': 'nOnE', 'typ': 'at+jwt'})}.{b64(claims(mint))}."


def public_key_as_secret(mint: TokenIssuer) -> str:
    """Return a token that is signed by HS256, with the public key as the secret."""
    public = mint._keys[0].as_pem(private=False)
    header = {"alg": "HS256", "typ": "at+jwt", "kid": mint._keys[0].kid}
    text = f"{b64(header)}.{b64(claims(mint))}"
    return f"{text}.{b64(hmac.digest(public, text.encode(), 'sha256'))}"


def key_of_its_own(mint: TokenIssuer) -> str:
    """Return a token that is signed with a key in its own header."""
    key = ECKey.generate_key("P-256")
    header = {"alg": "ES256", "typ": "at+jwt", "jwk": key.as_dict(private=False)}
    return serialize_compact(header, json.dumps(claims(mint)), key, ["ES256"])


def known_kid_other_key(mint: TokenIssuer) -> str:
    key = ECKey.generate_key("P-256")
    header = {"alg": "ES256", "typ": "at+jwt", "kid": mint._keys[0].kid}
    return serialize_compact(header, json.dumps(claims(mint)), key, ["ES256"])


def other_kind_of_key(mint: TokenIssuer) -> str:
    key = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "typ": "at+jwt", "kid": mint._keys[0].kid}
    return serialize_compact(header, json.dumps(claims(mint)), key, ["RS256"])


def tampered(mint: TokenIssuer) -> str:
    head, payload, signature = good(mint).split(".")
    said = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return f"{head}.{b64({**said, 'sub': 'mallory'})}.{signature}"


def cut(mint: TokenIssuer) -> str:
    return good(mint)[:-8]


BAD = {
    "expired": lambda mint: good(mint, lifetime=-60),
    "no end": lambda mint: good(mint, exp=None),
    "an end that is no time": lambda mint: good(mint, exp="tomorrow"),
    "an end that is true": lambda mint: good(mint, exp=True),
    "an end beyond all times": lambda mint: good(mint, exp=10**15),
    "not yet": lambda mint: good(mint, nbf=int(time.time()) + 600),
    "nbf that is no time": lambda mint: good(mint, nbf=[]),
    "issued in the future": lambda mint: good(mint, iat=int(time.time()) + 600),
    "another issuer": lambda mint: good(mint, iss="https://evil.example.com"),
    "issuer with a slash": lambda mint: good(mint, iss=f"{mint.issuer}/"),
    "no issuer": lambda mint: good(mint, iss=None),
    "another audience": lambda mint: mint.token("https://other.example.com/mcp", scopes=["read"]),
    "audience with a slash": lambda mint: mint.token(f"{RESOURCE}/", scopes=["read"]),
    "audience of the origin": lambda mint: mint.token("http://127.0.0.1", scopes=["read"]),
    "path in another case": lambda mint: mint.token("http://127.0.0.1/MCP", scopes=["read"]),
    "no audience": lambda mint: good(mint, aud=None),
    "audience that is no text": lambda mint: good(mint, aud=[{"a": RESOURCE}, 5]),
    "audience is the issuer": lambda mint: mint.token(mint.issuer, scopes=["read"]),
    "alg none": unsigned,
    "alg nOnE": unsigned_in_disguise,
    "public key as secret": public_key_as_secret,
    "a key of its own": key_of_its_own,
    "another key under a known name": known_kid_other_key,
    "another kind of key": other_kind_of_key,
    "tampered": tampered,
    "cut": cut,
    "another type": lambda mint: good(mint, headers={"typ": "dpop+jwt"}),
    "a type that is no text": lambda mint: f"{b64({'alg': 'ES256', 'typ': 5})}.{b64(claims(mint))}.AA",
    "of an identity provider's own": lambda mint: good(mint, headers={"typ": "oauth-id-jag+jwt"}),
    "critical extensions": lambda mint: f"{b64({'alg': 'ES256', 'crit': ['x']})}.{b64(claims(mint))}.AA",
    "nobody": lambda mint: good(mint, sub=None, client_id=None),
    "opaque": lambda mint: "abcdef",
    "two parts": lambda mint: "abc.def",
    "no JSON": lambda mint: f"{b64(b'no')}.{b64(b'no')}.AA",
    "a list": lambda mint: f"{b64([])}.{b64([])}.AA",
    "deep": lambda mint: f"{b64(b'[' * 4000)}.e30.AA",
    "claims that are a list": lambda mint: serialize_compact(
        {"alg": "ES256", "kid": mint._keys[0].kid}, b"[]", mint._keys[0], ["ES256"]
    ),
}  # fmt: skip


@pytest.mark.requirement(
    "AUTH-45", "AUTH-46", "AUTH-48", "AUTH-49", "AUTH-50", "AUTH-70", "SEC-2", "SEC-5", "AUTH-8"
)
@pytest.mark.requirement("ELIC-41")
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_is_refused_alike_and_nothing_of_it_is_logged(kind, caplog):
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with guarded() as (site, mint, _):
            token = BAD[kind](mint)
            answer = await site.post(*listing(token))
            assert (answer.status, answer.headers["www-authenticate"]) == (401, UNFIT)
            assert answer.text == "The token is not valid for this server."
            # The log says why, and has nothing that could be used.
            assert "rejected: " in caplog.text
            for part in (token, *(part for part in token.split(".") if len(part) > 7)):
                assert part not in caplog.text
                assert part.encode() not in answer.body

    run(main)


def test_a_valid_token_is_cached_until_it_expires(monkeypatch):
    """The server looked the token up once: its keys are gone, and the token is still accepted."""

    async def main() -> None:
        async with guarded() as (site, mint, server):
            token = good(mint)
            assert (await site.post(*listing(token))).status == 200
            assert server.auth is not None
            verifier = server.auth.verifier
            assert isinstance(verifier, Jwt)
            verifier._keys = []
            assert (await site.post(*listing(token))).status == 200
            assert (await site.post(*listing(good(mint)))).status == 401
            from toolpost.auth.server import introspection as module  # noqa: PLC0415 - to set its clock

            clock = time.time
            monkeypatch.setattr(module.time, "time", lambda: clock() + 301)
            assert (await site.post(*listing(token))).status == 401

    run(main)
