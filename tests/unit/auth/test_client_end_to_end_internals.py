"""End to end: our client logs in at the authorization server for tests, and calls our server."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from fake_authorization_site import browse
from protected_server import place
from toolpost import Client, Http, MemoryTokens, OAuth
from toolpost.testing import AuthorizationServer


def oauth(**options: Any) -> OAuth:
    usual: dict[str, Any] = {"storage": MemoryTokens(), "open_url": browse}
    return OAuth(**(usual | options))


@pytest.mark.parametrize("sse", [False, True])
def test_a_person_may_take_longer_than_a_connection(sse):
    ends: list[float | None] = []

    async def visit() -> None:
        async def think(url: str) -> str:
            dialling = client._session._connect_scope
            assert dialling is not None
            ends.append(dialling.when())
            return await browse(url)

        async with AuthorizationServer.serve() as login, place(login, sse=sse) as url:
            client = Client(Http(url, sse=sse), auth=oauth(open_url=think))
            async with client as mcp:
                await mcp.call_tool("whoami")
        assert ends == [None]

    asyncio.run(visit())


def test_a_token_that_has_ended_is_refreshed():
    async def visit() -> None:
        async with AuthorizationServer.serve(lifetime=2.0) as login, place(login) as url:
            async with Client(url, auth=oauth()) as mcp:
                [account] = mcp_accounts(mcp)
                await mcp.call_tool("whoami")
                account._cache.tokens = replaced(account._cache.tokens)
                await mcp.call_tool("whoami")
            assert login.request_counts["authorize"] == 1
            assert login.request_counts["token"] == 2

    def mcp_accounts(mcp: Client) -> list[Any]:
        auth: Any = mcp._session.dispatcher._channel._http.auth  # pyright: ignore[reportAttributeAccessIssue] - of HTTP
        return [*auth._providers[asyncio.get_running_loop()].values()]

    def replaced(tokens: Any) -> Any:
        return replace(tokens, expires_at=0.0)

    asyncio.run(visit())
