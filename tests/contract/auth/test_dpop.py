"""DPoP on the server: each request needs a fresh proof of the key (RFC 9449)."""

import json
import logging
import time
from hashlib import sha256
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from dpop_holder import Holder, another_key, b64
from hosted import legacy, modern, opening, run, serving
from protected_server import RESOURCE, guarded, kitchen, listing
from toolpost import Auth, Jwt
from toolpost.testing import TokenIssuer

KEYS = {
    "ES256": lambda: ECKey.generate_key("P-256"),
    "PS256": lambda: RSAKey.generate_key(2048),
    "Ed25519": lambda: OKPKey.generate_key("Ed25519"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_proven_token_is_good_in_both_eras_on_every_verb_and_path(kind):
    async def main() -> None:
        async with guarded() as (site, mint, _):
            holder = Holder(mint, KEYS[kind]())
            headers, body = modern("tools/list")
            for _ in range(2):
                assert (await site.post({**headers, **holder.sent()}, body)).status == 200
            opened = await site.post({**legacy(revision=None), **holder.sent()}, opening())
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
            deleted = holder.sent(holder.proof("DELETE"))
            assert (await site.ask("DELETE", "/mcp", {**session, **deleted})).status == 200
            stream = holder.sent(holder.proof("GET", "http://127.0.0.1/sse"))
            wire, head = await site.begin("GET", {"Accept": "text/event-stream", **stream}, target="/sse")
            assert head.status == 200
            endpoint = (await wire.event()).data
            posted = holder.sent(holder.proof("POST", "http://127.0.0.1/messages"))
            answer = await site.post({"Content-Type": "application/json", **posted}, opening(), endpoint)
            assert answer.status == 202

    run(main)


@pytest.mark.parametrize(
    "url", ["HTTP://127.0.0.1/mcp", "http://127.0.0.1:80/mcp", "http://127.0.0.1/mcp?a=b#c"]
)
def test_a_url_may_be_written_in_other_ways(url):
    async def main() -> None:
        async with guarded() as (site, mint, _):
            holder = Holder(mint)
            headers, body = modern("tools/list")
            assert (await site.post({**headers, **holder.sent(holder.proof(url=url))}, body)).status == 200

    run(main)


def with_a_secret(holder: Holder) -> str:
    key = OctKey.generate_key(256)
    return holder.proof(header={"alg": "HS256", "jwk": key.as_dict(private=True)}, key=key)


def forged(holder: Holder, **jwk: Any) -> str:
    """Return a correctly signed proof with an unusual key header, which no library would create."""
    proof = holder.proof()
    head = {"typ": "dpop+jwt", "alg": "ES256", "jwk": jwk}
    signed = f"{b64(json.dumps(head).encode())}.{proof.split('.')[1]}"
    signature = JWSRegistry.algorithms["ES256"].sign(signed.encode(), holder.key)
    return f"{signed}.{b64(signature)}"


def rewritten(proof: str) -> str:
    """Return other text for the same bytes: the unused bits of the last letter differ."""
    return proof[:-1] + "BRhx"["AQgw".index(proof[-1])]


BAD = {
    "another method": lambda h: h.proof("GET"),
    "method in another case": lambda h: h.proof("post"),
    "another url": lambda h: h.proof(url="http://127.0.0.1/other"),
    "another host": lambda h: h.proof(url="http://evil.example.com/mcp"),
    "another port": lambda h: h.proof(url="http://127.0.0.1:81/mcp"),
    "another scheme": lambda h: h.proof(url="https://127.0.0.1/mcp"),
    "a url that is none": lambda h: h.proof(url="http://[::1"),
    "a url that is a number": lambda h: h.proof(htu=5),
    "too old": lambda h: h.proof(iat=int(time.time()) - 400),
    "of the future": lambda h: h.proof(iat=int(time.time()) + 400),
    "a time that is true": lambda h: h.proof(iat=True),
    "for another token": lambda h: h.proof(ath=b64(sha256(b"other").digest())),
    "by another key": another_key,
    "with a secret": with_a_secret,
    "with the private key in it": lambda h: h.proof(header={"jwk": h.key.as_dict(private=True)}),
    "with the private key in a set": lambda h: forged(h, keys=[h.key.as_dict(private=True)]),
    "with a set of keys": lambda h: forged(h, keys=[h.key.as_dict(private=False)]),
    "a key for a list of algorithms": lambda h: forged(h, **h.key.as_dict(private=False), alg=["ES256"]),
    "a key for an object": lambda h: forged(h, **h.key.as_dict(private=False), alg={}),
    "a key whose name is a list": lambda h: forged(h, **{**h.key.as_dict(private=False), "kid": ["a"]}),
    "written in another way": lambda h: rewritten(h.proof()),
    "signed by another than it shows": lambda h: h.proof(key=ECKey.generate_key("P-256")),
    "of another type": lambda h: h.proof(header={"typ": "JWT"}),
    "without a key": lambda h: h.proof(header={"jwk": {}}),
    "a key that cannot be read": lambda h: h.proof(header={"jwk": {"kty": "EC", "crv": "P-256", "x": "AA"}}),
    "a name that is too long": lambda h: h.proof(jti="x" * 1000),
    "a name that is none": lambda h: h.proof(jti=""),
    "no JWT": lambda h: "abc",
    "two proofs": lambda h: f"{h.proof()}, {h.proof()}",
    "endless": lambda h: "x" * 10_000,
    "without jti": lambda h: h.proof(without="jti"),
    "without htm": lambda h: h.proof(without="htm"),
    "without htu": lambda h: h.proof(without="htu"),
    "without iat": lambda h: h.proof(without="iat"),
    "without ath": lambda h: h.proof(without="ath"),
}  # fmt: skip


@pytest.mark.requirement("AUTH-45", "SEC-5")
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_proof_is_refused(kind, caplog):
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with guarded() as (site, mint, _):
            holder = Holder(mint)
            proof = BAD[kind](holder)
            headers, body = modern("tools/list")
            answer = await site.post({**headers, **holder.sent(proof)}, body)
            told = answer.headers["www-authenticate"]
            assert answer.status == 401
            assert told.startswith('DPoP error="invalid_dpop_proof", scope="read", ')
            assert 'algs="' in told
            assert holder.token not in caplog.text
            assert len(proof) < 10 or proof not in caplog.text

    run(main)


def test_a_proof_is_good_once():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            holder = Holder(mint)
            headers, body = modern("tools/list")
            sent = {**headers, **holder.sent(holder.proof())}
            assert [(await site.post(sent, body)).status for _ in range(2)] == [200, 401]

    run(main)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_a_bound_token_is_not_a_bearer_token(scheme):
    async def main() -> None:
        async with guarded() as (site, mint, _):
            holder = Holder(mint)
            headers, body = modern("tools/list")
            for sent in (holder.sent(scheme=scheme), {"Authorization": f"{scheme} {holder.token}"}):
                answer = await site.post({**headers, **sent}, body)
                assert answer.status == 401
                assert answer.headers["www-authenticate"].startswith('DPoP error="invalid_token"')
            # A second use is rejected too.
            assert (await site.post({**headers, **holder.sent()}, body)).status == 200
            assert (await site.post({**headers, **holder.sent(scheme=scheme)}, body)).status == 401
            without = {"Authorization": f"DPoP {holder.token}"}
            assert (await site.post({**headers, **without}, body)).status == 401

    run(main)


@pytest.mark.parametrize("cnf", [None, {}, {"x5t#S256": "abc"}, {"jkt": 5}, "jkt"])
def test_a_token_that_is_bound_to_something_else_or_to_nothing_cannot_be_proven(cnf):
    async def main() -> None:
        async with guarded() as (site, mint, _):
            holder = Holder(mint, cnf=cnf)
            headers, body = modern("tools/list")
            assert (await site.post({**headers, **holder.sent()}, body)).status == 401
            plain = await site.post({**headers, "Authorization": f"Bearer {holder.token}"}, body)
            assert plain.status == (200 if cnf is None else 401)

    run(main)


def test_a_server_may_insist_on_proofs():
    async def main() -> None:
        async with guarded(dpop=True) as (site, mint, _):
            answer = await site.post(*listing(mint.token(RESOURCE, scopes=["read"])))
            assert (answer.status, answer.headers["www-authenticate"][:4]) == (401, "DPoP")
            holder = Holder(mint)
            headers, body = modern("tools/list")
            assert (await site.post({**headers, **holder.sent()}, body)).status == 200

    run(main)


def test_step_up_for_a_bound_token_is_asked_for_in_its_own_words():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            holder = Holder(mint)
            headers, body = modern("tools/call", {"name": "cook", "arguments": {"dish": "egg"}})
            answer = await site.post({**headers, **holder.sent()}, body)
            assert answer.status == 403
            assert answer.headers["www-authenticate"].startswith('DPoP error="insufficient_scope"')

    run(main)


@pytest.mark.parametrize(
    ("resource", "path", "target", "url"),
    [
        ("https://mcp.example.com/api/mcp", "/mcp", "/mcp", "https://mcp.example.com/api/mcp"),
        ("https://mcp.example.com/api/mcp", "/mcp", "/sse", "https://mcp.example.com/api/sse"),
        ("https://mcp.example.com/api", "/", "/", "https://mcp.example.com/api"),
        ("https://mcp.example.com", "/", "/", "https://mcp.example.com/"),
        ("https://mcp.example.com", "/mcp", "/mcp", "https://mcp.example.com/mcp"),
    ],
)
def test_behind_another_name_a_proof_is_for_that_name(resource, path, target, url):
    async def main() -> None:
        mint = TokenIssuer("https://login.example.com")
        auth = Auth(mint.issuer, resource=resource, verifier=Jwt(mint.issuer, keys=mint.jwks))
        more: dict[str, Any] = {} if path == "/mcp" else {"sse": None}
        async with serving(kitchen(auth).asgi(path=path, **more)) as site:
            key = ECKey.generate_key("P-256")
            holder = Holder(mint, key)
            holder.token = mint.token(resource, cnf={"jkt": key.thumbprint()})
            method = "GET" if target == "/sse" else "POST"
            headers, body = modern("tools/list")
            sent = holder.sent(holder.proof(method, url))
            if method == "GET":
                _, head = await site.begin("GET", {"Accept": "text/event-stream", **sent}, target=target)
                assert head.status == 200
            else:
                assert (await site.post({**headers, **sent}, body, target)).status == 200

    run(main)
