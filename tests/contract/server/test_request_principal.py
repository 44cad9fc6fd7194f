"""The principal of a request is set when it begins, and stays the same after its end."""

from typing import Any

from hosted import call, hosted, legacy, message, run
from toolpost import Context, Principal, Server


def find_principal(scope: Any) -> Principal:
    """The principal ann, with the scopes that a header names."""
    scopes = dict(scope["headers"]).get(b"x-scopes", b"").decode().split()
    return Principal("ann", scopes=frozenset(scopes))


def test_a_request_that_has_ended_has_no_more_scopes_than_before():
    server, kept = Server("s"), list[Context]()

    @server.tool
    async def keep(ctx: Context) -> None:
        kept.append(ctx)

    async def main() -> None:
        async with hosted(server, principal=find_principal) as site:
            session = await site.open(headers={"X-Scopes": "admin"})
            said = message("tools/call", call("keep"), 1)
            assert (await site.post({**legacy(session), "X-Scopes": "read"}, said)).status == 200
            assert kept[0].cancelled
            assert kept[0].principal == Principal("ann", scopes=frozenset({"read"}))

    run(main)
