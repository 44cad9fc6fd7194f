"""Ownership of tokens, and the limit of prompts."""

import asyncio

import pytest

from toolpost import Client, ClientCredentials, EnterpriseManaged, MemoryTokens, OAuth, WorkloadIdentity
from toolpost.errors import AuthError


def test_grants_that_share_a_storage_share_no_tokens():
    storage = MemoryTokens()
    people = [
        EnterpriseManaged(
            id_token, idp_issuer="https://idp.example", idp_client_id="a", client_id="b", storage=storage
        )
        for id_token in ("ann", "bob")
    ]
    machines = [WorkloadIdentity(assertion, storage=storage) for assertion in ("one", "two")]
    same_name = [OAuth(client_id="app", storage=storage), ClientCredentials("app", client_secret="s")]
    owners = [grant.client_key for grant in (*people, *machines, *same_name)]
    assert len(set(owners)) == len(owners)
    assert not any("ann" in who or "one" in who.split() for who in owners)


@pytest.mark.parametrize("storage", [None, MemoryTokens()])
def test_a_token_function_cannot_have_a_storage(storage):
    if storage is None:
        assert WorkloadIdentity(lambda: "x", storage=storage).client_key
        return
    with pytest.raises(ValueError, match="a different identity each time"):
        WorkloadIdentity(lambda: "x", storage=storage)


@pytest.mark.requirement("AUTH-68")
@pytest.mark.parametrize("auth", ["token", lambda: "token"])
@pytest.mark.parametrize("url", ["http://mcp.example.com/mcp", "http://10.0.0.5/mcp"])
def test_a_token_is_not_sent_in_the_clear(auth, url):
    async def main() -> None:
        await Client(url, auth=auth).connect()

    with pytest.raises(AuthError, match="without encryption"):
        asyncio.run(main())
