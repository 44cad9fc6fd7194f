"""Set-up of a protected server: invalid settings are reported at once or in the log, by name."""

from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from dpop_holder import Holder
from expected_limits import WELL_KNOWN
from hosted import modern, run, serving
from protected_server import RESOURCE, guarded, kitchen, listing
from toolpost import Auth, Introspection, Jwt, KeyRing
from toolpost.errors import RequestFailed
from toolpost.testing import AuthorizationServer, TokenIssuer

ISSUER = "https://login.example.com"
OTHER = "https://other.example.com"


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Auth(cast("Any", 5)), TypeError, "issuer must be the URL"),
        (lambda: Auth([]), ValueError, "issuer is empty"),
        (lambda: Auth(f"{ISSUER}/?x"), ValueError, "query"),
        (lambda: Auth(ISSUER, verifier=Jwt(OTHER)), ValueError, r"verifier= is for .*other"),
        (lambda: Auth(f"{ISSUER}/", verifier=Jwt(ISSUER)), ValueError, "verifier= is for"),
        (lambda: Auth(ISSUER, verifier=Introspection(ISSUER, "a", "b", issuer=OTHER)), ValueError, "other"),
        (lambda: Auth(ISSUER, dpop=cast("Any", "yes")), TypeError, "dpop must be True or False"),
        (lambda: Auth(ISSUER, nonce=cast("Any", 1)), TypeError, "nonce must be True or False"),
        (lambda: Jwt(ISSUER, audience=cast("Any", ["a"])), TypeError, "audience must be a string"),
        (lambda: Jwt(ISSUER, audience=""), TypeError, "audience must be a string"),
        (lambda: Introspection(ISSUER, "a", "b", audience=cast("Any", 5)), TypeError, "audience must be"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_reported_at_once(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_an_issuer_with_another_name_is_logged(caplog):
    async def main() -> None:
        issuer = AuthorizationServer(ISSUER)
        verifier = Jwt(f"{ISSUER}/", http=issuer)
        with pytest.raises(RequestFailed):
            await verifier.verify(TokenIssuer(f"{ISSUER}/").token(RESOURCE), RESOURCE)
        assert f"has issuer {ISSUER!r}, but issuer= is {ISSUER + '/'!r}" in caplog.text

    run(main)


def test_a_mounted_server_warns_once_about_missing_settings(caplog):
    caplog.set_level("INFO")

    async def main() -> None:
        for public_url, status, says in [
            ("https://mcp.example.com", 500, "mounted at /api, but expects tokens for"),
            ("https://mcp.example.com/api/mcp", 401, f"clients find no metadata at {WELL_KNOWN}/api/mcp;"),
        ]:
            app = kitchen(Auth(ISSUER, verifier=lambda _: "ann")).asgi(public_url=public_url)
            async with serving(Starlette(routes=[Mount("/api", app)], lifespan=app.lifespan)) as site:
                headers, body = listing()
                for _ in range(3):
                    assert (await site.post(headers, body, "/api/mcp")).status == status
            assert caplog.text.count(says) == 1
            assert "Traceback" not in caplog.text

    run(main)


def test_required_scopes_without_a_principal_are_logged(caplog):
    async def main() -> None:
        headers, body = modern("tools/call", {"name": "cook", "arguments": {"dish": "egg"}})
        async with serving(kitchen(None).asgi()) as site:
            assert (await site.post(headers, body)).status == 403
        assert "an operation requires the scopes write, but HTTP requests have no principal" in caplog.text
        caplog.clear()
        async with serving(kitchen(None).asgi(principal=lambda _: "ann")) as site:
            assert (await site.post(headers, body)).status == 403
        assert "no principal" not in caplog.text

    run(main)


# --------------------------------------------------------------------- two URLs


@pytest.mark.requirement("AUTH-3", "AUTH-5", "AUTH-45")
def test_the_metadata_at_each_url_describe_that_url():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            for path in ("/mcp", "/sse"):
                told = (await site.ask("GET", f"{WELL_KNOWN}{path}")).json
                assert told["resource"] == RESOURCE.replace("/mcp", path)
            sse = mint.token(RESOURCE.replace("/mcp", "/sse"), scopes=["read"])
            messages = mint.token(RESOURCE.replace("/mcp", "/messages"), scopes=["read"])
            mcp = mint.token(RESOURCE, scopes=["read"])
            for token, path, status in [
                (sse, "/messages", 400),  # let in, where it lacks a session
                (sse, "/mcp", 401),
                (sse, "/mcp", 401),
                (mcp, "/mcp", 200),
                (mcp, "/messages", 400),
                (messages, "/messages", 401),
                (messages, "/mcp", 401),
            ]:
                headers, body = listing(token)
                assert (await site.post(headers, body, path)).status == status

    run(main)


def test_a_nonce_is_good_with_every_worker():
    async def main() -> None:
        mint, keys = TokenIssuer(ISSUER), KeyRing.random()
        auth = Auth(ISSUER, resource=RESOURCE, verifier=Jwt(ISSUER, keys=mint.jwks), nonce=True)
        one, two = (kitchen(auth, keys=keys).asgi() for _ in range(2))  # with a store each
        headers, body = modern("tools/list")
        holder = Holder(mint)
        async with serving(one) as here, serving(two) as there:
            nonce = (await here.post({**headers, **holder.sent()}, body)).headers["dpop-nonce"]
            proven = holder.sent(holder.proof(nonce=nonce))
            assert (await there.post({**headers, **proven}, body)).status == 200

    run(main)


def test_the_error_of_a_proof_is_only_a_hint():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            headers, body = modern("tools/list")
            holder = Holder(mint)
            bare = {"Authorization": f"Bearer {holder.token}"}
            for sent, hint in [
                (
                    bare,
                    "The token must be bound to a key of the client and sent with a DPoP proof (RFC 9449).",
                ),
                (holder.sent(holder.proof(iat=5)), "Check the clock."),
                (holder.sent(holder.proof("GET")), "Check the clock."),
            ]:
                told = (await site.post({**headers, **sent}, body)).headers["www-authenticate"]
                assert told.endswith(f'{hint}"')

    run(main)
