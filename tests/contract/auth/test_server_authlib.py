"""Tokens of authlib, an independent authorization server: valid ones are accepted, all others refused."""

import base64
import hmac
import json
import logging
import time
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from authlib_site import Authlib
from joserfc.jwt import encode

from hosted import Site, call, modern, run, serving
from protected_server import bearer, kitchen, listing
from toolpost import Auth

RESOURCE = "https://mcp.example.com/mcp"
BASIC = "Basic " + base64.b64encode(b"app:s3cret").decode()
UNFIT = (
    'Bearer error="invalid_token", scope="read", '
    'resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp", '
    'error_description="The token may have expired or be for another server. See the server log."'
)


@asynccontextmanager
async def both():
    """authlib on its own port, and our server, which trusts it."""
    holder: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await holder[0].app(scope, receive, send)
            return
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async with serving(app) as theirs:
        holder.append(Authlib(f"http://127.0.0.1:{theirs.port}"))
        auth = Auth(holder[0].issuer, scopes=["read"])
        async with serving(kitchen(auth).asgi(public_url="https://mcp.example.com")) as ours:
            yield theirs, holder[0], ours


async def token_of(theirs: Site, **given: str) -> str:
    """Return a token of authlib for a client with valid credentials."""
    said = {"grant_type": "client_credentials", "scope": "read", "resource": RESOURCE, **given}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": BASIC}
    answer = await theirs.ask("POST", "/token", headers, urlencode(said).encode())
    assert answer.status == 200, answer
    return json.loads(answer.body)["access_token"]


@pytest.mark.requirement("AUTH-45")
def test_a_code_with_pkce_becomes_a_token_that_is_good():
    async def main() -> None:
        async with both() as (theirs, _, ours):
            verifier = "v" * 50
            digest = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
            asked = {
                "response_type": "code",
                "client_id": "app",
                "redirect_uri": "http://127.0.0.1:3000/cb",
                "scope": "read",
                "resource": RESOURCE,
                "code_challenge": digest,
                "code_challenge_method": "S256",
            }
            sent = await theirs.ask("GET", f"/authorize?{urlencode(asked)}")
            [code] = parse_qs(urlsplit(sent.headers["location"]).query)["code"]
            back = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
            token = await token_of(theirs, **back, redirect_uri="http://127.0.0.1:3000/cb")
            headers, body = modern("tools/call", call("whoami"))
            answer = await ours.post({**headers, **bearer(token)}, body)
            assert answer.json["result"]["structuredContent"] == {
                "subject": "alice",
                "client": "app",
                "scopes": ["read"],
            }

    run(main)


@pytest.mark.requirement("AUTH-45", "AUTH-48")
def test_its_keys_rotate_and_withdrawn_ones_are_invalid():
    async def main() -> None:
        async with both() as (theirs, authlib, ours):
            before = await token_of(theirs)
            assert (await ours.post(*listing(before))).status == 200
            authlib.rotate()
            assert (await ours.post(*listing(await token_of(theirs)))).status == 200
            assert authlib.fetched == 2
            late = await token_of(theirs)
            authlib.rotate(forget=True)
            assert (await ours.post(*listing(await token_of(theirs)))).status == 200
            assert (await ours.post(*listing(late))).status == 401

    run(main)


def b64(data: Any) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_claims(token: str) -> dict[str, Any]:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))


async def expired(theirs: Site, authlib: Authlib) -> str:
    authlib.tokens.lifetime = -100
    return await token_of(theirs)


async def for_another(theirs: Site, authlib: Authlib) -> str:
    return await token_of(theirs, resource="https://other.example.com/mcp")


async def for_its_client(theirs: Site, authlib: Authlib) -> str:
    """The audience that authlib uses by default."""
    return await token_of(theirs, resource="app")


async def by_another(theirs: Site, authlib: Authlib) -> str:
    authlib.tokens.issuer = "https://login.example.com"
    return await token_of(theirs)


async def not_yet(theirs: Site, authlib: Authlib) -> str:
    authlib.tokens.claims = {"nbf": int(time.time()) + 600}
    return await token_of(theirs)


async def without_an_end(theirs: Site, authlib: Authlib) -> str:
    claims = decode_claims(await token_of(theirs))
    del claims["exp"]
    key = authlib.tokens.keys[0]
    return encode({"alg": "RS256", "typ": "at+jwt", "kid": key.kid}, claims, key)


async def of_another_type(theirs: Site, authlib: Authlib) -> str:
    key = authlib.tokens.keys[0]
    return encode(
        {"alg": "RS256", "typ": "logout+jwt", "kid": key.kid}, decode_claims(await token_of(theirs)), key
    )


async def unsigned(theirs: Site, authlib: Authlib) -> str:
    return f"{b64({'alg': 'none', 'typ': 'at+jwt'})}.{(await token_of(theirs)).split('.')[1]}."


async def with_the_public_key(theirs: Site, authlib: Authlib) -> str:
    key = authlib.tokens.keys[0]
    header = b64({"alg": "HS256", "typ": "at+jwt", "kid": key.kid})
    text = f"{header}.{(await token_of(theirs)).split('.')[1]}"
    return f"{text}.{b64(hmac.digest(key.as_pem(private=False), text.encode(), 'sha256'))}"


async def tampered(theirs: Site, authlib: Authlib) -> str:
    head, payload, signature = (await token_of(theirs)).split(".")
    claims = decode_claims(f"{head}.{payload}.{signature}")
    return f"{head}.{b64({**claims, 'scope': 'read write admin'})}.{signature}"


async def by_a_stranger(theirs: Site, authlib: Authlib) -> str:
    claims, stranger = decode_claims(await token_of(theirs)), Authlib(authlib.issuer)
    header = {"alg": "RS256", "typ": "at+jwt", "kid": authlib.tokens.keys[0].kid}
    return encode(header, claims, stranger.tokens.keys[0])


BAD = [
    expired, for_another, for_its_client, by_another, not_yet, without_an_end, of_another_type, unsigned,
    with_the_public_key, tampered, by_a_stranger,
]  # fmt: skip


@pytest.mark.requirement("AUTH-45", "AUTH-46", "AUTH-48", "AUTH-70", "SEC-2", "AUTH-51")
@pytest.mark.parametrize("bad", BAD)
def test_no_bad_token_is_let_in_and_nothing_is_logged_that_could_be_used(bad, caplog):
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with both() as (theirs, authlib, ours):
            token = await bad(theirs, authlib)
            answer = await ours.post(*listing(token))
            assert (answer.status, answer.headers["www-authenticate"]) == (401, UNFIT)
            # authlib itself publishes all that it issues, if it is asked for that much.
            records = [record for record in caplog.records if not record.name.startswith("authlib")]
            logged = "\n".join(record.getMessage() for record in records)
            assert "rejected: " in logged
            for part in filter(None, [token, *token.split(".")]):
                assert part not in logged

    run(main)
