"""Recovery from transient failures: a busy server, a lost response, a declined login."""

import msgspec
import pytest

from fake_authorization_site import AuthSites, run
from scripted import answer
from toolpost import Client, ClientGroup, FileTokens, MemoryTokens
from toolpost.errors import (
    AuthError,
    AuthorizationRequired,
    ConnectFailed,
    TokenRejected,
)


@pytest.mark.parametrize(
    ("status", "code"), [(500, "invalid_grant"), (400, "invalid_grant"), (503, "invalid_client")]
)
def test_a_final_error_code_is_final_with_any_status(status, code):
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            sites.valid.clear()
            said = iter([answer(status, msgspec.json.encode({"error": code}))])
            sites.paths["/token"] = lambda heard: next(said, None) or sites.answer_token(heard)
            await mcp.call_tool("anything")
        assert len(sites.authorized) == 2

    run(visit)


@pytest.mark.parametrize("place", ["/.well-known/oauth-protected-resource/mcp", "/register"])
def test_a_busy_response_proves_nothing_about_the_server(place):
    async def visit(sites: AuthSites) -> None:
        sites.paths[place] = lambda _: answer(429)
        with pytest.raises(AuthError, match="429") as caught:
            await sites.client().connect()
        assert caught.value.retry_safe
        assert not sites.authorized

    run(visit)


# --------------------------------------------------------------------- keys


def test_a_refresh_must_not_return_an_unbound_token():
    async def visit(sites: AuthSites) -> None:
        sites.metadata = {"dpop_signing_alg_values_supported": ["ES256"]}
        sites.token = {"token_type": "DPoP"}
        auth = sites.oauth(dpop=True)
        async with sites.client(auth) as mcp:
            sites.token = {"token_type": "Bearer"}
            sites.valid.clear()
            with pytest.raises(AuthError, match="did not issue a DPoP token"):
                await mcp.call_tool("anything")
        assert not any(headers.get("authorization", "").startswith("Bearer") for *_, headers in sites.heard)

    run(visit)


def test_a_refresh_must_not_bind_a_token_to_an_unknown_key():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            sites.token = {"token_type": "DPoP"}
            sites.valid.clear()
            with pytest.raises(AuthError, match="without a proof"):
                await mcp.call_tool("anything")

    run(visit)


def test_unbound_tokens_are_not_used_where_bound_ones_are_required():
    async def visit(sites: AuthSites) -> None:
        sites.metadata, storage = {"dpop_signing_alg_values_supported": ["ES256"]}, MemoryTokens()
        async with sites.client(sites.oauth(storage=storage)):
            pass
        sites.token, before = {"token_type": "DPoP"}, len(sites.heard)
        async with sites.client(sites.oauth(storage=storage, dpop=True)):
            pass
        sent = [
            headers.get("authorization", "DPoP").partition(" ")[0] for *_, headers in sites.heard[before:]
        ]
        assert {*sent} == {"DPoP"}

    run(visit)


# --------------------------------------------------------------------- secrets

LONG = "eyJhbGciOiJFUzI1NiJ9." + "A1b2C3d4E5" * 60


def test_a_description_without_secrets_is_quoted():
    async def visit(sites: AuthSites) -> None:
        sites.paths["/mcp"] = lambda _: answer(400, b"the disk is full", "text/plain")
        with pytest.raises(ConnectFailed, match="the disk is full"):
            await sites.client(LONG).connect()

    run(visit)


def test_a_folder_in_the_home_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert FileTokens("~/tokens").folder == tmp_path / "tokens"


# --------------------------------------------------------------------- reports


def test_missing_metadata_is_reported_before_the_error_of_the_fallback():
    async def visit(sites: AuthSites) -> None:
        sites.resource, sites.challenge = None, "Bearer"
        with pytest.raises(AuthError) as caught:
            await sites.client().connect()
        root = sites.server.removesuffix("/mcp")
        place = "/.well-known/oauth-protected-resource"
        wanted = f"no protected-resource metadata was found at {root}{place}/mcp, {root}{place}, "
        assert wanted in str(caught.value)
        assert "the client could not be registered" in str(caught.value)

    run(visit)


def test_the_error_for_metadata_of_another_url_has_a_hint():
    async def visit(sites: AuthSites) -> None:
        other = f"{sites.server}/other"
        sites.resource = {"resource": other}
        with pytest.raises(AuthError, match=f"connect to {other}, or set public_url= on the server"):
            await sites.client().connect()

    run(visit)


@pytest.mark.parametrize(
    ("auths", "kind"),
    [
        (("wr0ng", "wr0ng"), TokenRejected),
        (("wr0ng", None), AuthError),
        ((None, None), AuthorizationRequired),
        (("wr0ng", "elsewhere"), ConnectFailed),
    ],
)
def test_a_group_reports_that_all_servers_reject_it(auths, kind):
    async def visit(sites: AuthSites) -> None:
        servers = {
            str(number): Client(sites.server, auth=auth)
            if auth != "elsewhere"
            else Client(["no-such-program"])
            for number, auth in enumerate(auths)
        }
        with pytest.raises((AuthError, ConnectFailed)) as caught:
            await ClientGroup(servers).connect()
        assert type(caught.value) is kind

    run(visit)
