"""Both halves together: our client logs in at the test authorization server, and calls our server."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from fake_authorization_site import browse, follow
from protected_server import place
from toolpost import AuthError, Client, ClientCredentials, Http, MemoryTokens, OAuth
from toolpost.protocol.methods import DATES
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
        async with AuthorizationServer.listening() as login, place(login, sse=sse) as url:
            auth = oauth(open_url=open_url)
            async with Client(Http(url, sse=sse), auth=auth, revision=revision) as mcp:
                who = await mcp.call_tool("whoami", result_type=dict[str, Any])
                assert who.data["scopes"] == ["read"]
                assert (await mcp.call_tool("cook", {"dish": "soup"})).text == "soup is ready"
                who = await mcp.call_tool("whoami", result_type=dict[str, Any])
                assert who.data["scopes"] == ["read", "write"]
            assert login.asked["authorize"] == 2

    asyncio.run(visit())


@pytest.mark.parametrize("sse", [False, True])
def test_a_person_may_take_longer_than_a_connection(sse):
    ends: list[float | None] = []

    async def visit() -> None:
        async def think(url: str) -> str:
            dialling = client._talk._dialling
            assert dialling is not None
            ends.append(dialling.when())
            return await browse(url)

        async with AuthorizationServer.listening() as login, place(login, sse=sse) as url:
            client = Client(Http(url, sse=sse), auth=oauth(open_url=think))
            async with client as mcp:
                await mcp.call_tool("whoami")
        assert ends == [None]

    asyncio.run(visit())


def test_a_program_logs_in():
    async def visit() -> None:
        async with AuthorizationServer.listening(clients={"job": "s3cret"}) as login, place(login) as url:
            async with Client(url, auth=ClientCredentials("job", "s3cret")) as mcp:
                assert (await mcp.call_tool("whoami")).data["client"] == "job"
            with pytest.raises(AuthError, match="invalid_client"):
                await Client(url, auth=ClientCredentials("job", "wrong")).connect()

    asyncio.run(visit())


def test_tokens_are_bound_to_a_key():
    async def visit() -> None:
        async with AuthorizationServer.listening() as login, place(login, dpop=True, nonce=True) as url:
            async with Client(url, auth=oauth()) as mcp:
                for _ in range(3):
                    assert (await mcp.call_tool("whoami")).data["subject"] == "alice"
            assert login.asked["authorize"] == 1

    asyncio.run(visit())


def test_a_token_that_has_ended_is_refreshed():
    async def visit() -> None:
        async with AuthorizationServer.listening(lifetime=2.0) as login, place(login) as url:
            async with Client(url, auth=oauth()) as mcp:
                [account] = mcp_accounts(mcp)
                await mcp.call_tool("whoami")
                account._purse.tokens = replaced(account._purse.tokens)
                await mcp.call_tool("whoami")
            assert login.asked["authorize"] == 1
            assert login.asked["token"] == 2

    def mcp_accounts(mcp: Client) -> list[Any]:
        auth: Any = mcp._talk.link._channel._http.auth  # pyright: ignore[reportAttributeAccessIssue] - of HTTP
        return [*auth._accounts[asyncio.get_running_loop()].values()]

    def replaced(tokens: Any) -> Any:
        return replace(tokens, expires_at=0.0)

    asyncio.run(visit())
