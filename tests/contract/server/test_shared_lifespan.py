"""One server with clients in several threads, or one application with several clients."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from toolpost import Client, Context, MCPError, Server, SyncClient
from toolpost.testing import REVISIONS

DATES = [date for date in REVISIONS if date >= "2025-06"]


class Pool:
    """A resource of one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_open = True


def pooled() -> tuple[Server, list[Pool]]:
    """A server whose tools use what its lifespan opens."""
    pools: list[Pool] = []

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[Pool]:
        pools.append(pool := Pool())
        yield pool
        pool.is_open = False

    server = Server("pooled", lifespan=lifespan)

    @server.tool
    async def use(ctx: Context) -> bool:
        return ctx.lifespan.is_open and ctx.lifespan.loop is asyncio.get_running_loop()

    @server.tool
    def thread() -> str:
        return threading.current_thread().name

    return server, pools


def check(client: SyncClient) -> None:
    assert client.call_tool("use").data is True
    assert client.call_tool("thread").text.startswith("toolpost-")


@pytest.mark.parametrize("first", [0, 1])
def test_clients_of_two_threads_do_not_end_the_lifespan_of_each_other(first):
    server, pools = pooled()
    clients = [SyncClient(server), SyncClient(server)]
    for client in clients:
        client.connect()
        check(client)
    clients[first].close()
    check(clients[1 - first])
    assert sorted(pool.is_open for pool in pools) == [False, True]
    clients[1 - first].close()
    assert not any(pool.is_open for pool in pools)


@pytest.mark.parametrize("revision", DATES)
def test_clients_of_one_application_do_not_end_it_for_each_other(revision):
    server, pools = pooled()

    async def main() -> None:
        app = server.asgi()
        first = Client("http://127.0.0.1/mcp", http=app, revision=revision)
        second = Client("http://127.0.0.1/mcp", http=app, revision=revision)
        async with second:
            async with first:
                assert (await first.call_tool("use")).data is True
                assert (await second.call_tool("use")).data is True
            assert (await second.call_tool("use")).data is True
            assert [pool.is_open for pool in pools] == [True]
        assert [pool.is_open for pool in pools] == [False]

    asyncio.run(main())


@pytest.mark.parametrize("shared", ["application", "server"])
@pytest.mark.parametrize("revision", DATES)
def test_one_application_in_two_threads_is_refused_clearly(shared, revision):
    server, _ = pooled()
    app = server.asgi()
    with SyncClient("http://127.0.0.1/mcp", http=app, revision=revision) as first:
        check(first)
        other = app if shared == "application" else server.asgi()
        second = SyncClient("http://127.0.0.1/mcp", http=other, revision=revision)
        with pytest.raises(MCPError, match=r"another event loop.*its own server"):
            second.connect()
        second.close()
        check(first)
