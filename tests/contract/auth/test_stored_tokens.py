"""Stored tokens: which are used again, by scopes and address, and while other programs refresh them."""

from fake_authorization_site import AuthSites, origin, run
from toolpost import MemoryTokens


def test_scopes_that_were_never_asked_for_are_asked_for_once():
    async def visit(sites: AuthSites) -> None:
        storage = MemoryTokens()
        for scopes in (None, ["a"], ["a"], ["a", "b"], ["b"], None):
            async with sites.client(sites.oauth(storage=storage, scopes=scopes)) as mcp:
                await mcp.call_tool("anything")
        assert [asked.get("scope") for asked in sites.authorized] == [None, "a", "a b"]

    run(visit)


def test_scopes_that_were_asked_for_and_not_granted_are_not_asked_for_at_each_start():
    async def visit(sites: AuthSites) -> None:
        storage = MemoryTokens()
        sites.token = {"scope": "a"}
        for _ in range(3):
            async with sites.client(sites.oauth(storage=storage, scopes=["a", "b"])):
                pass
        assert len(sites.authorized) == 1

    run(visit)


def test_neighbours_that_claim_the_same_resource_share_no_tokens():
    async def visit(sites: AuthSites) -> None:
        storage = MemoryTokens()
        sites.resource = {"resource": origin(sites.server)}
        victim = sites.server
        for address in (victim, f"{victim}?neighbour", victim, f"{victim}?neighbour"):
            sites.server = address
            async with sites.client(sites.oauth(storage=storage)):
                pass
        assert len(sites.authorized) == 2

    run(visit)
