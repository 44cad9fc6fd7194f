"""Stored tokens: which are used again, by scopes and address, and while other programs refresh them."""

import asyncio
import time

import pytest
from msgspec.structs import replace

from fake_authorization_site import AuthSites, run
from toolpost import MemoryTokens
from toolpost.auth.client import grant
from toolpost.auth.client.discovery import ServerRecord
from toolpost.auth.client.grant import Grant, TokenProvider
from toolpost.auth.client.storage import ResilientStorage
from toolpost.auth.client.token_cache import TokenRecords
from toolpost.auth.client.token_endpoint import Tokens


@pytest.mark.parametrize("resource", ["https://a.example", "https://a.example/one"])
def test_tokens_are_kept_for_a_client_and_an_address(resource):
    async def main() -> None:
        vault, known = ResilientStorage(MemoryTokens()), ServerRecord(resource, "https://login.example")
        await TokenRecords(vault, "https://a.example/one", "me").save_tokens(known, Tokens("t0ken"))
        assert await TokenRecords(vault, "https://a.example/one", "me").load_tokens(known) == Tokens("t0ken")
        for server, who in (("https://a.example/one", "you"), ("https://a.example/two", "me")):
            other = TokenRecords(vault, server, who)
            assert await other.load_tokens(known) is None
            assert await other.load_server() is None

    asyncio.run(main())


def account_of(auth: Grant) -> TokenProvider:
    [account] = auth._providers[asyncio.get_running_loop()].values()
    assert isinstance(account, TokenProvider)
    return account


def test_a_valid_token_is_used_while_another_program_refreshes_it(monkeypatch):
    monkeypatch.setattr(grant, "LOCK_TIMEOUT", 0.01)

    async def visit(sites: AuthSites) -> None:
        auth = sites.oauth()
        async with sites.client(auth) as mcp:
            account = account_of(auth)
            tokens, known = account._cache.tokens, account._records.server
            assert tokens is not None
            assert known is not None
            account._cache.tokens = replace(tokens, expires_at=time.time() + 20, early=30.0)
            async with account._records.lock(known):
                for _ in range(3):
                    await mcp.call_tool("anything")
            assert sites.grants == ["authorization_code"]
            account._cache.tokens = account._skip_refresh_of = replace(tokens, expires_at=0.0)
            await mcp.call_tool("anything")
            assert sites.grants == ["authorization_code", "refresh_token"]

    run(visit)
