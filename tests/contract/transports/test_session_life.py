"""The lifetime of a session, and the resources that it holds."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from hosted import hosted, kitchen, legacy, message, run, serving
from session_site import listening, text, tool
from toolpost import Server


@pytest.mark.requirement("HTTPL-27")
def test_a_session_ends_after_its_life_however_often_it_is_used():
    async def main():
        async with hosted(kitchen(), session_life=1) as site:
            session = await site.open()
            ping = message("ping", id=1)
            assert (await site.post(legacy(session), ping)).status == 200
            while (status := (await site.post(legacy(session), ping)).status) == 200:
                pass  # until its life is over; the test has a time-out
            assert status == 404
            assert (await site.ask("GET", "/mcp", listening(session))).status == 404

    run(main)


def test_the_server_of_a_client_is_held_once_however_many_requests_come_at_once():
    """A worker that has not seen the session before chooses its server at the first request."""
    held: list[Server] = []

    @asynccontextmanager
    async def life(server: Server):
        await asyncio.sleep(0)  # the other requests come meanwhile
        held.append(server)
        yield
        held.remove(server)

    async def choose(*_: Any) -> Server:
        server = Server("chosen", lifespan=life)
        server.tool(name="hello")(lambda: "hello")
        return server

    async def main():
        factory = Server.factory(choose, "factory")
        async with AsyncExitStack() as stack:
            first, second = [await stack.enter_async_context(serving(factory.asgi())) for _ in range(2)]
            session = await first.open()
            calls = (second.post(legacy(session), tool("hello", number)) for number in range(5))
            assert [text(answer) for answer in await asyncio.gather(*calls)] == ["hello"] * 5
            assert len(held) == 2
            assert (await second.ask("DELETE", "/mcp", legacy(session))).status == 200
        assert held == []

    run(main)
