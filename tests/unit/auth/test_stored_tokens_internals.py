"""Which tokens are found again, and for whom: by scopes, by address, and while others are at them."""

import asyncio
import time

import pytest
from msgspec.structs import replace

from fake_authorization_site import Town, run
from toolpost import MemoryTokens
from toolpost.auth import account as accounts
from toolpost.auth.grant import Grant
from toolpost.auth.ledger import Ledger
from toolpost.auth.tokens import Known, Tokens
from toolpost.auth.vault import Vault


@pytest.mark.parametrize("resource", ["https://a.example", "https://a.example/one"])
def test_tokens_are_kept_for_a_client_and_an_address(resource):
    async def main() -> None:
        vault, known = Vault(MemoryTokens()), Known(resource, "https://login.example")
        await Ledger(vault, "https://a.example/one", "me").keep(known, Tokens("t0ken"))
        assert await Ledger(vault, "https://a.example/one", "me").tokens(known) == Tokens("t0ken")
        for server, who in (("https://a.example/one", "you"), ("https://a.example/two", "me")):
            other = Ledger(vault, server, who)
            assert await other.tokens(known) is None
            assert await other.known() is None

    asyncio.run(main())


def account_of(auth: Grant) -> accounts.ServerAccount:
    [account] = auth._accounts[asyncio.get_running_loop()].values()
    assert isinstance(account, accounts.ServerAccount)
    return account


def test_a_token_that_is_still_good_is_used_while_somebody_else_is_at_it(monkeypatch):
    monkeypatch.setattr(accounts, "LOCK_WAIT", 0.01)

    async def visit(town: Town) -> None:
        auth = town.oauth()
        async with town.client(auth) as mcp:
            account = account_of(auth)
            tokens, known = account._purse.tokens, account._known
            assert tokens is not None
            assert known is not None
            account._purse.tokens = replace(tokens, expires_at=time.time() + 20, early=30.0)
            async with account._ledger.lock(known):
                for _ in range(3):
                    await mcp.call_tool("anything")
            assert town.grants == ["authorization_code"]
            account._purse.tokens = account._left = replace(tokens, expires_at=0.0)
            await mcp.call_tool("anything")
            assert town.grants == ["authorization_code", "refresh_token"]

    run(visit)
