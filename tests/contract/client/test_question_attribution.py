"""Callbacks for questions of the server run in the context of the call that the question belongs to."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from toolpost import Accepted, Client, Context, Server
from toolpost.types import ElicitParams

SESSION, STATELESS = "2025-11-25", "2026-07-28"
CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


def make_server() -> Server:
    server = Server("shop")
    both = asyncio.Barrier(2)

    @server.tool
    async def buy(item: str, together: bool, ctx: Context) -> str:
        if together and ctx.revision == SESSION:
            await both.wait()
        answer = await ctx.elicit(f"How many {item}?", str)
        assert isinstance(answer, Accepted)
        return f"{item}: {answer.data}"

    return server


async def answer(asked: ElicitParams) -> dict[str, Any]:
    return {"value": CALLER.get()}


async def call(client: Client, who: str, *, together: bool) -> str:
    CALLER.set(who)
    return (await client.call_tool("buy", {"item": who, "together": together})).text


async def call_both(client: Client) -> list[str]:
    return await asyncio.gather(*(call(client, who, together=True) for who in ("ann", "bob")))


@pytest.mark.parametrize("revision", [SESSION, STATELESS])
@pytest.mark.parametrize("way", ["memory", "http"])
def test_a_callback_runs_in_the_context_of_the_call_that_it_belongs_to(way: str, revision: str):
    async def main() -> None:
        server = make_server()
        app = server.asgi()
        async with app.lifespan():
            target: Any = server if way == "memory" else "http://127.0.0.1/mcp"
            http = None if way == "memory" else app
            async with Client(target, http=http, revision=revision, on_elicitation=answer) as client:
                assert await asyncio.create_task(call(client, "eve", together=False)) == "eve: eve"
                assert await asyncio.create_task(call(client, "kim", together=False)) == "kim: kim"
                assert CALLER.get() == "nobody"

    asyncio.run(main())


@pytest.mark.parametrize("revision", [SESSION, STATELESS])
def test_over_http_the_calls_of_several_callers_are_distinguished(revision: str):
    async def main() -> None:
        app = make_server().asgi()
        url = "http://127.0.0.1/mcp"
        async with (
            app.lifespan(),
            Client(url, http=app, revision=revision, on_elicitation=answer) as client,
        ):
            assert await call_both(client) == ["ann: ann", "bob: bob"]

    asyncio.run(main())


def test_where_a_question_may_belong_to_several_calls_it_runs_in_the_name_of_none():
    async def main() -> None:
        async with Client(make_server(), revision=SESSION, on_elicitation=answer) as client:
            assert (await call_both(client))[0] == "ann: nobody"

    asyncio.run(main())
