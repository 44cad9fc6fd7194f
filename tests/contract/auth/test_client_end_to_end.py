"""End to end: our client logs in at the authorization server for tests, and calls our server."""

import asyncio
from typing import Any

import pytest

from fake_authorization_site import browse, follow
from protected_server import place
from revision_dates import DATES
from toolpost import AuthError, Client, ClientCredentials, Http, MemoryTokens, OAuth
from toolpost.testing import AuthorizationServer


def oauth(**options: Any) -> OAuth:
    usual: dict[str, Any] = {"storage": MemoryTokens(), "open_url": browse}
    return OAuth(**(usual | options))


@pytest.mark.requirement("AUTH-1", "AUTH-43", "AUTH-56")
@pytest.mark.parametrize(
    ("revision", "sse"), [*((date, False) for date in DATES), (None, False), (None, True)]
)
@pytest.mark.parametrize("open_url", [browse, follow])
def test_a_person_logs_in_and_is_asked_for_more_when_more_is_needed(revision, sse, open_url):
    async def visit() -> None:
        async with AuthorizationServer.serve() as login, place(login, sse=sse) as url:
            auth = oauth(open_url=open_url)
            async with Client(Http(url, sse=sse), auth=auth, revision=revision) as mcp:
                who = await mcp.call_tool("whoami", result_type=dict[str, Any])
                assert who.data["scopes"] == ["read"]
                assert (await mcp.call_tool("cook", {"dish": "soup"})).text == "soup is ready"
                who = await mcp.call_tool("whoami", result_type=dict[str, Any])
                assert who.data["scopes"] == ["read", "write"]
            assert login.request_counts["authorize"] == 2

    asyncio.run(visit())


def test_a_program_logs_in():
    async def visit() -> None:
        async with AuthorizationServer.serve(clients={"job": "s3cret"}) as login, place(login) as url:
            async with Client(url, auth=ClientCredentials("job", "s3cret")) as mcp:
                assert (await mcp.call_tool("whoami")).data["client"] == "job"
            with pytest.raises(AuthError, match="invalid_client"):
                await Client(url, auth=ClientCredentials("job", "wrong")).connect()

    asyncio.run(visit())


def test_tokens_are_bound_to_a_key():
    async def visit() -> None:
        async with AuthorizationServer.serve() as login, place(login, dpop=True, nonce=True) as url:
            async with Client(url, auth=oauth()) as mcp:
                for _ in range(3):
                    assert (await mcp.call_tool("whoami")).data["subject"] == "alice"
            assert login.request_counts["authorize"] == 1

    asyncio.run(visit())
