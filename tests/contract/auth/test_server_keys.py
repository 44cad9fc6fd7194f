"""The keys of an issuer: found by its metadata, fetched once for all requests, and again on rotation."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosted import run, serving
from protected_server import RESOURCE, kitchen, listing
from toolpost import Auth, Introspection, Jwt
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.testing import AuthorizationServer, TokenIssuer


@asynccontextmanager
async def both(path: str = "", **jwt: Any):
    """A server and its issuer, each on a port of its own."""
    async with AuthorizationServer.serve(path) as issuer:
        auth = Auth(issuer.issuer, resource=RESOURCE, verifier=Jwt(issuer.issuer, **jwt) if jwt else None)
        async with serving(kitchen(auth).asgi()) as site:
            yield site, issuer


@pytest.mark.requirement("AUTH-45")
@pytest.mark.parametrize("path", ["", "/tenant"])
def test_an_issuer_is_the_only_required_setting(path):
    async def main() -> None:
        async with both(path) as (site, issuer):
            for _ in range(3):
                assert (await site.post(*listing(issuer.token(RESOURCE)))).status == 200
            assert issuer.request_counts == {"metadata": 1, "jwks": 1}

    run(main)


def test_parallel_requests_fetch_the_keys_once():
    async def main() -> None:
        async with both() as (site, issuer):
            answers = await asyncio.gather(*(site.post(*listing(issuer.token(RESOURCE))) for _ in range(8)))
            assert {answer.status for answer in answers} == {200}
            assert issuer.request_counts == {"metadata": 1, "jwks": 1}

    run(main)


def test_keys_that_rotate():
    async def main() -> None:
        async with both() as (site, issuer):
            old = issuer.token(RESOURCE)
            assert (await site.post(*listing(old))).status == 200
            issuer.rotate()
            before = issuer.token(RESOURCE)
            assert (await site.post(*listing(issuer.token(RESOURCE)))).status == 200
            assert issuer.request_counts["jwks"] == 2
            issuer.rotate(forget=True)
            # One that was withdrawn is good no longer once the set is fetched again, but for tokens that
            # were seen before: those for a while.
            assert (await site.post(*listing(issuer.token(RESOURCE)))).status == 200
            assert (await site.post(*listing(before))).status == 401
            assert (await site.post(*listing(old))).status == 200

    run(main)


def test_an_issuer_that_cannot_be_reached_makes_no_token_bad(caplog):
    async def main() -> None:
        auth = Auth("http://127.0.0.1:9", resource=RESOURCE)  # no server is listening
        async with serving(kitchen(auth).asgi()) as site:
            token = TokenIssuer("http://127.0.0.1:9").token(RESOURCE)
            for _ in range(2):
                answer = await site.post(*listing(token))
                assert (answer.status, answer.headers["retry-after"]) == (503, "5")
                assert "www-authenticate" not in answer.headers
            assert token not in caplog.text
        # The second one did not try again at once.
        assert caplog.text.count("could not fetch the keys") == 1

    run(main)


def scripted(answers: dict[str, tuple[int, bytes]]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        status, body = answers.get(scope["path"], (404, b""))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app


ISSUER = "https://login.example.com"
META = "/.well-known/oauth-authorization-server"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, "publishes no metadata"),
        (
            {META: (200, b'{"issuer": "https://evil.example.com", "jwks_uri": "https://a"}')},
            ", but issuer= is",
        ),
        ({META: (200, b'{"issuer": "https://login.example.com"}')}, "jwks_uri must be a URL"),
        (
            {META: (200, b'{"issuer": "https://login.example.com", "jwks_uri": "http://a.example/k"}')},
            "must be an https URL",
        ),
        (
            {META: (200, b'{"issuer": "https://login.example.com", "jwks_uri": "file:///etc/passwd"}')},
            "jwks_uri must be a URL",
        ),
        (
            {
                META: (
                    200,
                    b'{"issuer": "https://login.example.com", "jwks_uri": "https://login.example.com/k"}',
                )
            },
            "responded with 404",
        ),
        (
            {
                META: (
                    200,
                    b'{"issuer": "https://login.example.com", "jwks_uri": "https://login.example.com/k"}',
                ),
                "/k": (200, b'{"keys": [{"kty": "oct", "k": "AAAA"}]}'),
            },
            "could not fetch",
        ),
        ({META: (200, b"x" * (256 * 1024 + 1))}, "limit of 262144 bytes"),
        ({META: (302, b"")}, "publishes no metadata"),
    ],
)
def test_the_metadata_of_an_issuer_is_validated(answers, says, caplog):
    async def main() -> None:
        verifier = Jwt(ISSUER, http=scripted(answers))
        with pytest.raises(RequestFailed, match="cannot be fetched"):
            await verifier.verify(TokenIssuer(ISSUER).token(RESOURCE), RESOURCE)
        assert says in caplog.text

    run(main)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"keys": {}, "jwks_uri": "https://a.example"}, "not both"),
        ({"algorithms": ["none"]}, "none"),
        ({"algorithms": []}, r"not \[\]"),
        ({"algorithms": ["HS256"]}, "require keys="),
        ({"leeway": -1}, "leeway"),
        ({"jwks_uri": "http://a.example/k"}, "https"),
        ({"keys": "no key"}, "no key can verify"),
        ({"keys": TokenIssuer(ISSUER).jwks, "algorithms": ["RS256"]}, "no key for any of algorithms="),
    ],
)
def test_an_invalid_verifier_is_refused_at_once(wrong, says):
    with pytest.raises(ValueError, match=says):
        Jwt(ISSUER, **wrong)


def test_without_joserfc_the_error_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "joserfc.jwk", None)
    with pytest.raises(MCPError, match=r"toolpost\[auth\]"):
        Auth(ISSUER)
    Auth(ISSUER, verifier=lambda _: "ann")  # a custom verifier does not need it


# --------------------------------------------------------------------- asking


@asynccontextmanager
async def asking(issuer: AuthorizationServer, **more: Any):
    verifier = Introspection(f"{issuer.issuer}/introspect", "mcp", "s3cret:&", **more)
    assert "s3cret" not in repr(verifier)
    auth = Auth(issuer.issuer, resource=RESOURCE, verifier=verifier)
    async with serving(kitchen(auth).asgi()) as site:
        yield site


@pytest.mark.requirement("AUTH-45", "AUTH-70")
def test_an_issuer_is_asked_whose_a_token_is():
    async def main() -> None:
        async with (
            AuthorizationServer.serve(clients={"mcp": "s3cret:&"}) as issuer,
            asking(issuer) as site,
        ):
            token = issuer.token(RESOURCE, jti="one")
            for _ in range(3):
                assert (await site.post(*listing(token))).status == 200
            assert issuer.request_counts["introspect"] == 1
            bad = [issuer.token("https://other"), issuer.token(RESOURCE, lifetime=-1), "opaque"]
            bad += [issuer.token(RESOURCE, aud=None), issuer.token(RESOURCE, nbf=10**11)]
            for each in bad:
                assert (await site.post(*listing(each))).status == 401

    run(main)


def test_a_token_that_is_revoked_is_soon_refused():
    async def main() -> None:
        async with (
            AuthorizationServer.serve(clients={"mcp": "s3cret:&"}) as issuer,
            asking(issuer, cache_ttl=0) as site,
        ):
            token = issuer.token(RESOURCE, jti="one")
            assert (await site.post(*listing(token))).status == 200
            issuer.revoked.add("one")
            assert (await site.post(*listing(token))).status == 401

    run(main)


def test_an_issuer_that_does_not_answer_the_question():
    async def main() -> None:
        async with AuthorizationServer.serve() as issuer, asking(issuer) as site:  # it does not know us
            assert (await site.post(*listing(issuer.token(RESOURCE)))).status == 503

    run(main)


def test_the_answers_of_an_issuer_are_looked_at():
    async def main() -> None:
        for told, says in [
            ({"active": True, "aud": RESOURCE, "sub": "a", "iss": "https://evil"}, "wrong token issuer"),
            ({"active": True, "aud": RESOURCE, "sub": "a", "exp": "x"}, "exp"),
            ({"active": "yes", "aud": RESOURCE, "sub": "a"}, "not active"),
            ({"active": True, "aud": RESOURCE}, "names no subject and no client"),
        ]:
            http = scripted({"/i": (200, json.dumps(told).encode())})
            verifier = Introspection(f"{ISSUER}/i", "a", "b", issuer=ISSUER, http=http)
            with pytest.raises(TokenRejected, match=says):
                await verifier.verify("t", RESOURCE)

    run(main)
    with pytest.raises(ValueError, match="cache_ttl"):
        Introspection(ISSUER, "a", "b", cache_ttl=-1)
