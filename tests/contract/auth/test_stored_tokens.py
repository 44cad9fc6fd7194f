"""Which tokens are found again, and for whom: by scopes, by address, and while others are at them."""

from fake_authorization_site import Town, origin, run
from toolpost import MemoryTokens


def test_scopes_that_were_never_asked_for_are_asked_for_once():
    async def visit(town: Town) -> None:
        storage = MemoryTokens()
        for scopes in (None, ["a"], ["a"], ["a", "b"], ["b"], None):
            async with town.client(town.oauth(storage=storage, scopes=scopes)) as mcp:
                await mcp.call_tool("anything")
        assert [asked.get("scope") for asked in town.authorized] == [None, "a", "a b"]

    run(visit)


def test_scopes_that_were_asked_for_and_not_granted_are_not_asked_for_at_each_start():
    async def visit(town: Town) -> None:
        storage = MemoryTokens()
        town.token = {"scope": "a"}
        for _ in range(3):
            async with town.client(town.oauth(storage=storage, scopes=["a", "b"])):
                pass
        assert len(town.authorized) == 1

    run(visit)


def test_neighbours_that_claim_the_same_resource_share_no_tokens():
    async def visit(town: Town) -> None:
        storage = MemoryTokens()
        town.resource = {"resource": origin(town.server)}
        victim = town.server
        for address in (victim, f"{victim}?neighbour", victim, f"{victim}?neighbour"):
            town.server = address
            async with town.client(town.oauth(storage=storage)):
                pass
        assert len(town.authorized) == 2

    run(visit)
