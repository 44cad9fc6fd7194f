"""The store on Redis and Valkey keeps the contract of all stores, against real servers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import store_contract

from redis_servers import PROGRAMS, redis_cluster, redis_server, sentinel_group
from toolpost.stores.redis_store import RedisStore


@pytest.fixture(scope="module", params=[*PROGRAMS, "sentinel", "cluster"])
def url(request, tmp_path_factory):
    """The URL of each kind of server."""
    folder = tmp_path_factory.mktemp("redis")
    if request.param == "cluster":
        with redis_cluster(folder) as url:
            yield url
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
