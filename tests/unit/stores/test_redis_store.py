"""The store on Redis and Valkey keeps the contract of all stores, against real servers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import store_contract

from redis_servers import PROGRAMS, RedisServer, redis_cluster, redis_server, sentinel_group
from toolpost.errors import StoreUnavailable
from toolpost.stores.redis_store import RedisStore


@pytest.fixture(scope="module", params=[*PROGRAMS, "sentinel", "cluster"])
def url(request, tmp_path_factory):
    """The URL of each kind of server."""
    folder = tmp_path_factory.mktemp("redis")
    if request.param == "cluster":
        with redis_cluster(folder) as cluster:
            yield cluster.url
    elif request.param == "sentinel":
        with sentinel_group(folder) as group:
            yield group.url
    else:
        with redis_server(folder, request.param) as server:
            yield server.url


@asynccontextmanager
async def views(url: str, prefix: str) -> AsyncGenerator[store_contract.Views]:
    """Two workers' connections to the same, empty store."""
    url = f"{url}?prefix={prefix}:&timeout=60"
    limits: dict[str, Any] = {"entries": store_contract.ENTRIES, "size": store_contract.SIZE}
    here, there = RedisStore(url, **limits), RedisStore(url, **limits)
    try:
        yield store_contract.Views(here, there, asyncio.sleep)
    finally:
        await here.close()
        await there.close()


@pytest.mark.parametrize("case", store_contract.CASES, ids=lambda case: case.__name__)
def test_redis_keeps_the_contract(url, case):
    async def main() -> None:
        async with views(url, case.__name__) as both:
            await case(both)

    asyncio.run(asyncio.wait_for(main(), 100))


async def deliver(store: RedisStore, number: int, data: bytes) -> bool:
    """Send a message as soon as the store is available."""
    while True:
        try:
            return await store.send(number, data)
        except StoreUnavailable:
            await asyncio.sleep(0.01)  # the store has no event for this


def test_a_message_reaches_its_worker_after_redis_has_lost_all_leases(tmp_path):
    async def main(server: RedisServer) -> None:
        here, there = RedisStore(server.url), RedisStore(server.url)
        received: asyncio.Queue[bytes] = asyncio.Queue()
        async with here.join(received.put_nowait) as number, there.join(lambda _: None):
            assert await there.send(number, b"before")
            assert await received.get() == b"before"
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            assert await deliver(there, number, b"after")
            while (message := await received.get()) != b"after":
                assert message == b""  # messages to all workers may be lost
        await here.close()
        await there.close()

    with redis_server(tmp_path) as server:
        asyncio.run(asyncio.wait_for(main(server), 100))
