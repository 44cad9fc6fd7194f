"""Diagnostics for operators of a protected server: why tokens are refused, and how to fix it."""

import json
import re
import sys
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from expected_limits import WELL_KNOWN
from hosted import modern, run, serving
from protected_server import RESOURCE, guarded, kitchen, listing
from toolpost import Auth, Client, Context, Introspection, Jwt
from toolpost.errors import ConnectFailed, MCPError
from toolpost.testing import AuthorizationServer, TokenIssuer

ISSUER = "https://login.example.com"


def own(**more: Any) -> Auth:
    return Auth(ISSUER, verifier=lambda _: "ann", **more)


# --------------------------------------------------------------------- in the log


def test_the_reason_for_rejecting_a_token_is_logged_at_intervals(caplog):
    """Without configuration, Python prints warnings."""
    caplog.set_level("WARNING")

    async def main() -> None:
        async with guarded() as (site, mint, _):
            slash = TokenIssuer(f"{ISSUER}/")
            for token in (
                slash.token(RESOURCE),
                slash.token(RESOURCE),
                mint.token("https://other.example.com/mcp"),
                mint.token("https://another.example.com/mcp"),
                mint.token(RESOURCE, lifetime=-60),
                mint.token(RESOURCE, lifetime=-90),
            ):
                assert (await site.post(*listing(token))).status == 401
                assert not any(part in caplog.text for part in token.split("."))
            assert (await site.post(*listing())).status == 401  # a client that has no token yet

    run(main)
    told = [record.getMessage() for record in caplog.records if record.name == "toolpost.auth"]
    refused, other = "POST /mcp rejected:", "https://other.example.com/mcp"
    assert told[:2] == [
        f"{refused} wrong token issuer: iss is '{ISSUER}/', expected '{ISSUER}'",
        f"{refused} wrong token audience: aud is '{other}', expected '{RESOURCE}'",
    ]
    assert told[2].startswith("POST /mcp rejected: the token has expired: 6")
    assert len(told) == 3


def test_a_failure_to_fetch_keys_is_logged_and_sent_to_the_client_once(caplog):
    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def main() -> None:
        verifier = Jwt(ISSUER, jwks_uri=f"{ISSUER}/no-keys", http=nothing)
        app = kitchen(Auth(ISSUER, resource=RESOURCE, verifier=verifier)).asgi()
        token = TokenIssuer(ISSUER).token(RESOURCE)
        with pytest.raises(ConnectFailed) as caught:
            await Client(RESOURCE, http=app, auth=token).connect()
        assert str(caught.value).count("The token cannot be verified at the moment.") == 1
        await app.stop()

    run(main)
    assert f"{ISSUER}/no-keys responded with 404" in caplog.text
    assert "rejected: could not verify a token: the keys of the" in caplog.text


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [(401, {}, "check client_id= and client_secret="), (500, {}, "responded to introspection with 500")],
)
def test_a_failed_introspection_is_logged(status, body, says, caplog):
    async def issuer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async def main() -> None:
        async with guarded(verifier=Introspection(f"{ISSUER}/i", "a", "b", http=issuer)) as (site, _, _):
            assert (await site.post(*listing("t"))).status == 503

    run(main)
    assert f"{ISSUER}/i responded" in caplog.text
    assert says in caplog.text


# --------------------------------------------------------------------- mounted


@pytest.mark.parametrize(
    ("public", "placed", "says"),
    [
        ("/api/mcp", True, ""),
        ("/api", True, ""),
        ("/prefix/api/mcp", True, ""),
        (
            "/api/mcp",
            False,
            f'clients find no metadata at {WELL_KNOWN}/api/mcp; .*Mount."{WELL_KNOWN}", app.metadata',
        ),
        ("/mcp", True, "its path is /api/mcp, but it expects tokens for https://mcp.example.com/mcp: unless"),
        (
            "/mcp",
            False,
            "its path is /api/mcp, but it expects tokens for https://mcp.example.com/mcp: unless",
        ),
    ],
)
def test_a_mounted_server_warns_only_if_something_is_amiss(public, placed, says, caplog):
    caplog.set_level("INFO")

    async def main() -> None:
        app = kitchen(own()).asgi(public_url=f"https://mcp.example.com{public}")
        routes = [Mount(WELL_KNOWN, app.metadata)] if placed else []
        async with serving(Starlette(routes=[*routes, Mount("/api", app)], lifespan=app.lifespan)) as site:
            headers, body = listing("t")
            for _ in range(2):
                assert (await site.post(headers, body, "/api/mcp")).status == 200

    run(main)
    told = [record for record in caplog.records if record.name == "toolpost.auth"]
    assert [record.levelname for record in told] == (["WARNING"] if says else [])
    if says:
        assert re.search(says, told[0].getMessage())


def test_a_parent_resource_is_accepted(caplog):
    async def main() -> None:
        app = kitchen(own(resource="https://mcp.example.com")).asgi(public_url="https://mcp.example.com/api")
        routes = [Mount(WELL_KNOWN, app.metadata), Mount("/api", app)]
        async with serving(Starlette(routes=routes, lifespan=app.lifespan)) as site:
            headers, body = listing("t")
            assert (await site.post(headers, body, "/api/mcp")).status == 200

    run(main)
    assert "mounted" not in caplog.text


def test_two_protected_servers_in_one_application(caplog):
    async def main() -> None:
        one, two = (
            kitchen(own()).asgi(public_url=f"https://mcp.example.com/{name}") for name in ("one", "two")
        )
        mounts = [Mount("/one", one), Mount("/two", two)]
        apart = [Mount(f"{WELL_KNOWN}/{name}", app.metadata) for name, app in (("one", one), ("two", two))]
        async with serving(Starlette(routes=[*apart, *mounts])) as site:
            for name in ("one", "two"):
                told = (await site.ask("GET", f"{WELL_KNOWN}/{name}/mcp")).json
                assert told["resource"] == f"https://mcp.example.com/{name}/mcp"
        assert "another server" not in caplog.text
        shadowed = [Mount(WELL_KNOWN, one.metadata), Mount(WELL_KNOWN, two.metadata)]
        async with serving(Starlette(routes=[*shadowed, *mounts])) as site:
            for _ in range(2):
                assert (await site.ask("GET", f"{WELL_KNOWN}/two/mcp")).status == 404
        assert caplog.text.count("with several servers, mount the metadata of each at") == 1

    run(main)


# --------------------------------------------------------------------- at once

A, B = ISSUER, "https://other.example.com"


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Introspection(A, "a", cast("Any", None)), TypeError, "client_secret must be a string"),
        (lambda: Introspection(A, "a", ""), ValueError, "client_secret is empty"),
        (lambda: Introspection(A, cast("Any", 3), "b"), TypeError, "client_id must be a string, not int"),
        (lambda: Introspection(A, "a", "b", cache_ttl=cast("Any", "30")), ValueError, "cache_ttl must be"),
        (lambda: Introspection(A, "a", "b", http=3), ValueError, "http=a int cannot send requests"),
        (lambda: Introspection("login", "a", "b"), ValueError, "/introspect, not 'login'"),
        (lambda: Jwt(A, leeway=cast("Any", "30")), ValueError, "leeway must be .* not '30'"),
        (lambda: Jwt(A, leeway=float("nan")), ValueError, "leeway must be .* not nan"),
        (lambda: Jwt(A, http=3), ValueError, "http=a int cannot send requests"),
        (lambda: Jwt(A, http="requests"), ValueError, "'requests' is not a known HTTP library"),
        (lambda: Jwt(A, jwks_uri="keys.json"), ValueError, "such as .*/jwks, not 'keys.json'"),
        (lambda: Auth("login.example.com"), ValueError, "such as https://login.example.com, not 'login.ex"),
        (lambda: Auth("me:secret@login"), ValueError, "such as https://login.example.com$"),
        (lambda: Auth(f"{A}/.well-known/openid-configuration"), ValueError, "pass the `issuer` in"),
        (lambda: Jwt(f"{A}/.well-known/openid-configuration"), ValueError, "pass the `issuer` in"),
        (lambda: Auth(A, resource="mcp"), ValueError, "such as https://mcp.example.com/mcp, not 'mcp'"),
        (lambda: Auth(A, implies=cast("Any", {"a": 3})), TypeError, r"implies\['a'\]: .* not 3"),
        (lambda: Auth(A, implies={"a": ['"']}), ValueError, r"implies\['a'\]: .* is not a valid scope"),
        (lambda: Auth(A, verifier=cast("Any", lambda: "ann")), TypeError, r"must take one argument"),
        (lambda: Auth([A, B], verifier=Jwt(A)), ValueError, "2 issuers, but verifier= only accepts"),
    ],
)  # fmt: skip
def test_an_invalid_argument_is_named(make, error, says):
    with pytest.raises(error, match=says) as caught:
        make()
    assert "secret@" not in str(caught.value)


def test_valid_arguments_are_accepted():
    assert Jwt(A, http="httpx2", leeway=0).issuer == A
    assert Auth(A, verifier=print).issuers == [A]
    auth = Auth(A, verifier=AuthorizationServer(A).token, implies={"a": "b c"})
    assert auth.expand_scopes(frozenset("a")) == {
        "a", "b", "c",
    }  # fmt: skip


@pytest.mark.parametrize("asked", [{"dpop": True}, {"nonce": True}])
def test_proofs_need_joserfc_at_once(asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "joserfc.jwk", None)
    assert own().dpop is False
    with pytest.raises(MCPError, match="joserfc"):
        own(**asked)


# --------------------------------------------------------------------- scopes


@pytest.mark.parametrize(
    ("web", "says"),
    [
        ({}, "the server has no auth=, and the request is not authenticated"),
        ({"principal": lambda _: "ann"}, "the server has no auth=, and principal= has no scopes"),
    ],
)
def test_without_auth_no_token_is_spoken_of(web, says):
    async def main() -> None:
        headers, body = modern("tools/call", {"name": "cook", "arguments": {"dish": "egg"}})
        async with serving(kitchen(None).asgi(**web)) as site:
            answer = await site.post(headers, body)
            assert answer.status == 403
            assert answer.json["error"]["message"] == f"Insufficient scope; required: write ({says})"
            assert answer.json["error"]["data"] == {"scope": "write"}

    run(main)


@pytest.mark.parametrize(
    ("scopes", "status", "says"),
    [
        ((["read"],), 200, "fine"),
        (("read", frozenset({"read"})), 200, "fine"),
        ((["read", "write"], "burn"), 403, "required: burn read write"),
        (("read write",), 200, "is not a valid scope"),
        (('re"ad',), 200, "is not a valid scope"),
        ((5,), 200, "scopes must be a list of strings, not 5"),
    ],
)
def test_the_arguments_of_require_are_validated(scopes, status, says):
    async def main() -> None:
        async with guarded() as (site, mint, server):

            @server.tool
            async def asks(ctx: Context) -> str:
                try:
                    ctx.require(*scopes)
                except (TypeError, ValueError) as error:
                    return str(error)
                return "fine"

            headers, body = modern("tools/call", {"name": "asks", "arguments": {}})
            token = mint.token(RESOURCE, scopes=["read"])
            answer = await site.post({**headers, "Authorization": f"Bearer {token}"}, body)
            assert (answer.status, says in json.dumps(answer.json)) == (status, True)

    run(main)


@pytest.mark.parametrize("path", ["/sse", "/messages"])
def test_without_sessions_http_sse_clients_get_the_reason(path):
    async def main() -> None:
        cases: list[tuple[Any, str]] = [
            ({"stateless": True}, "HTTP+SSE needs sessions, which stateless=True disables"),
            ({"sse": None}, "Not found"),
        ]
        for web, says in cases:
            async with serving(kitchen(None).asgi(**web)) as site:
                answer = await site.ask("GET", path)
                assert (answer.status, says in answer.text) == (404, True)

    run(main)
