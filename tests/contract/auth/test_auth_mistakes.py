"""Errors of users of authorization: invalid arguments, failing callbacks; each failure is an `AuthError`."""

import asyncio
import json
from typing import Any

import pytest

from fake_authorization_site import AuthSites, run
from scripted import answer
from toolpost import (
    Client,
    ClientCredentials,
    ClientGroup,
    Context,
    EnterpriseManaged,
    OAuth,
    Server,
    WorkloadIdentity,
)
from toolpost.errors import (
    AuthError,
    AuthorizationDenied,
    AuthorizationRequired,
    ConnectFailed,
    InsufficientScope,
    MissingScopes,
    RPCError,
)
from toolpost.testing import memory_pair


class Broken:
    """A storage that does not work."""

    def get(self, _key: str) -> str | None:
        raise OSError("s3cret")

    def put(self, _key: str, _value: str) -> None:
        raise OSError("s3cret")

    def delete(self, _key: str) -> None:
        raise OSError("s3cret")


def fetch_token() -> str:
    raise RuntimeError("s3cret")


async def fetch_token_later() -> str:
    raise RuntimeError("s3cret")


@pytest.mark.parametrize(
    ("auth", "match"),
    [
        (lambda: OAuth(storage=Broken()), "failed: OSError"),
        (lambda: WorkloadIdentity(fetch_token), "auth=WorkloadIdentity failed: RuntimeError"),
        (lambda: fetch_token, r"the token function fetch_token \(auth=\) failed: RuntimeError"),
        (lambda: fetch_token_later, "the token function fetch_token_later .* failed: RuntimeError"),
        (lambda: lambda: None, r"\(auth=\) returned an invalid token: None instead"),
    ],
)
def test_an_exception_of_a_custom_function_is_an_auth_error(auth, match):
    async def visit(sites: AuthSites) -> None:
        with pytest.raises(AuthError, match=match) as caught:
            await sites.client(auth()).connect()
        assert caught.value.peer == sites.server
        assert "s3cret" not in str(caught.value)

    run(visit)


def test_the_error_code_of_an_authorization_server_is_reported():
    async def visit(sites: AuthSites) -> None:
        sites.paths["/token"] = lambda _: answer(400, json.dumps({"error": "unauthorized_client"}).encode())
        with pytest.raises(AuthorizationDenied, match="unauthorized_client") as caught:
            await sites.client(ClientCredentials("job", "s3cret")).connect()
        assert caught.value.code == "unauthorized_client"

    run(visit)


def test_without_credentials_a_401_is_an_auth_error():
    async def visit(sites: AuthSites) -> None:
        for headers in (None, {"Authorization": "Bearer old"}):
            with pytest.raises(AuthorizationRequired, match="401"):
                await Client(sites.server, headers=headers).connect()

    run(visit)


def test_a_late_rejection_belongs_to_both_exception_families():
    error = MissingScopes.for_scopes(["write"])
    assert isinstance(error, InsufficientScope)
    assert isinstance(error, RPCError)
    assert not error.retry_safe
    assert (error.message, error.scopes) == ("Insufficient scope; required: write", ["write"])


@pytest.mark.parametrize(
    ("scope", "match"),
    [
        (
            ', scope="write all"',
            r"lacks a scope for this request \(get a token with these scopes: write all\)",
        ),
        ("", "but the server does not say which"),
        (', scope="t0ken"', "but the server does not say which"),
    ],
)
def test_insufficient_scope_names_the_required_scopes(scope, match):
    async def visit(sites: AuthSites) -> None:
        sites.valid["t0ken"] = ()
        async with sites.client("t0ken") as mcp:
            challenge = f'Bearer error="insufficient_scope"{scope}'
            sites.paths["/mcp"] = lambda _: answer(403, kind=None, WWW_Authenticate=challenge)
            with pytest.raises(InsufficientScope, match=match) as caught:
                await mcp.call_tool("anything")
            assert "t0ken" not in str(caught.value)

    run(visit)


def test_an_invalid_token_in_a_configuration_is_reported_with_its_place():
    with pytest.raises(AuthError, match="server 'notes': the token is malformed"):
        Client({"mcpServers": {"notes": {"url": "http://localhost/mcp", "auth": "Bearer x"}}})


def test_a_command_does_not_accept_auth():
    with pytest.raises(ConnectFailed, match='"auth" requires a "url"'):
        Client({"command": "true", "auth": "oauth"})


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ({"url": "http://localhost/${N7_NONE}"}, '"url"'),
        ({"url": "http://localhost/mcp", "headers": {"X-Key": "s3cret ${N7_NONE}"}}, "\"headers\", 'X-Key'"),
        ({"url": "http://localhost/mcp", "auth": "${N7_NONE}"}, '"auth"'),
        ({"command": "true", "env": {"KEY": "${N7_NONE}"}}, "\"env\", 'KEY'"),
    ],
)
def test_an_unset_variable_is_reported_with_its_place(tmp_path, monkeypatch, entry, where):
    monkeypatch.delenv("N7_NONE", raising=False)
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"notes": entry}}))

    async def main() -> None:
        for client in (Client(path), ClientGroup(path)):
            with pytest.raises(ConnectFailed) as caught:
                await client.connect()
            said = str(caught.value)
            assert f"{path}, server 'notes': {where} requires the environment variable N7_NONE" in said
            assert "s3cret" not in said

    asyncio.run(main())


# --------------------------------------------------------------------- grants

oauth: Any = OAuth
credentials: Any = ClientCredentials
workload: Any = WorkloadIdentity
enterprise: Any = EnterpriseManaged
"""The classes without types, for invalid arguments."""


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (lambda: oauth(scopes=5), TypeError, "scopes must be a list of strings, not 5"),
        (lambda: oauth(scopes=[5]), TypeError, "scopes must be a list of strings"),
        (lambda: oauth(scopes=["a b"]), ValueError, "is not a valid scope"),
        (lambda: oauth(redirect_uri="http://127.0.0.1:99999/x"), ValueError, "redirect_uri"),
        (lambda: oauth(redirect_uri=8080), TypeError, "redirect_uri must be a string, not int"),
        (
            lambda: oauth(redirect_uri="http://example.com/x"),
            ValueError,
            "redirect_uri must be on this machine",
        ),
        (lambda: oauth(open_url="firefox"), TypeError, "open_url must be a function, not str"),
        (lambda: oauth(timeout=0), ValueError, "timeout must be more than 0 seconds"),
        (lambda: oauth(timeout=float("nan")), ValueError, "timeout must be more than 0 seconds"),
        (lambda: oauth(timeout="5"), TypeError, "timeout must be a number of seconds, not str"),
        (lambda: oauth(client_secret="s3cret"), ValueError, "client_secret= requires client_id="),
        (lambda: oauth(client_id=""), ValueError, "client_id is empty"),
        (
            lambda: oauth(client_id="me", client_secret=b"s3cret"),
            TypeError,
            "client_secret must be a string, not b",
        ),
        (lambda: oauth(dpop="yes"), TypeError, "dpop must be True, False or 'auto', not 'yes'"),
        (lambda: oauth(allow_http="no"), TypeError, "allow_http must be True or False"),
        (lambda: oauth(storage="folder"), TypeError, r"storage must be FileTokens\(folder\)"),
        (lambda: oauth(storage=Broken), TypeError, r"is a class; pass an instance: Broken\(…\)"),
        (lambda: oauth(client_id="me", issuer="login.example.com"), ValueError, "example: https://login"),
        (lambda: credentials(None, "s3cret"), TypeError, "client_id must be a string, not NoneType"),
        (lambda: credentials("", "s3cret"), ValueError, "client_id is empty"),
        (lambda: credentials("me", "s3cret", dpop=1), TypeError, "dpop must be"),
        (lambda: credentials("me", "", issuer="https://x"), ValueError, "client_secret is empty"),
        (lambda: workload(None), TypeError, "assertion must be a string, not NoneType"),
        (lambda: workload(""), ValueError, "assertion is empty"),
        (
            lambda: enterprise(5, idp_issuer="https://x.example", idp_client_id="a", client_id="b"),
            TypeError,
            "id_token must be a string, not int",
        ),
    ],
)
def test_invalid_arguments_are_rejected_at_once(make: Any, kind, match):
    with pytest.raises(kind, match=match) as caught:
        make()
    assert "s3cret" not in str(caught.value)


# --------------------------------------------------------------------- custom channels


class Network:
    """A custom channel with an unknown peer."""

    def __init__(self, inner: Any) -> None:
        self.receive, self.send, self.close = inner.receive, inner.send, inner.close


@pytest.mark.parametrize(
    ("network", "principal", "may"),
    [(True, None, False), (True, "ann", False), (False, None, True)],
)
def test_a_client_over_a_custom_channel_has_no_scopes_by_default(network, principal, may):
    server = Server("guarded")

    @server.tool
    async def burn(ctx: Context) -> str:
        ctx.require("burn")
        return "burnt"

    async def main() -> None:
        ours, theirs = memory_pair()
        serving = asyncio.create_task(
            server.serve(Network(theirs) if network else theirs, principal=principal)
        )
        async with Client(ours) as mcp:
            if may:
                assert (await mcp.call_tool("burn")).text == "burnt"
            else:
                with pytest.raises(MissingScopes):
                    await mcp.call_tool("burn")
        await serving

    asyncio.run(main())
