"""Single-use proofs and states are accepted once, whichever worker gets them."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from dpop_holder import HTU, Holder
from hosted import call, kitchen, modern, run, serving
from redis_servers import redis_server
from toolpost import Auth, Context, Jwt, MemoryStore, Server
from toolpost.testing import TokenIssuer

FORM = {"elicitation": {"form": {}}}


@pytest.fixture(params=["memory", "redis"])
def store(request, tmp_path):
    """The store that two workers share."""
    if request.param == "memory":
        yield MemoryStore()
        return
    with redis_server(tmp_path) as server:
        yield server.url


def test_a_proof_is_accepted_by_one_worker_once(store):
    mint = TokenIssuer("https://login.example.com")
    holder = Holder(mint)

    async def main():
        async with AsyncExitStack() as stack:
            sites: list[Any] = []
            for _ in range(2):
                guard = Auth(mint.issuer, resource=HTU, verifier=Jwt(mint.issuer, keys=mint.jwks))
                app = kitchen(auth=guard, store=store).asgi()
                sites.append(await stack.enter_async_context(serving(app)))
            headers, body = modern("tools/list")
            for one, other in (sites, sites[::-1]):
                sent = {**headers, **holder.sent()}
                assert (await one.post(sent, body)).status == 200
                for site in (other, one):
                    assert (await site.post(sent, body)).status == 401

    run(main)


def test_a_paused_call_continues_at_another_worker_once(store):
    def make_server() -> Server:
        server = Server("shop", store=store, answer_once=True)

        @server.tool
        async def buy(ctx: Context) -> str:
            answer = await ctx.elicit("How many?", int, key="count")
            return f"{answer.data} bought"  # pyright: ignore[reportAttributeAccessIssue] - it was accepted

        return server

    async def main():
        async with AsyncExitStack() as stack:
            one, other = [await stack.enter_async_context(serving(make_server().asgi())) for _ in range(2)]
            asked = await one.post(*modern("tools/call", call("buy"), capabilities=FORM))
            state = asked.json["result"]["requestState"]
            answers = {"count": {"action": "accept", "content": {"value": 3}}}
            again = {**call("buy"), "requestState": state, "inputResponses": answers}
            done = await other.post(*modern("tools/call", again, capabilities=FORM))
            assert done.json["result"]["content"][0]["text"] == "3 bought"
            for site in (one, other):
                refused = await site.post(*modern("tools/call", again, capabilities=FORM))
                assert "requestState is not valid" in refused.json["error"]["message"]

    run(main)
