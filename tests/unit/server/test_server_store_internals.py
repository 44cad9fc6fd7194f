"""The store of a server: given as a URL or as an object, opened when it is first needed."""

import asyncio

import pytest

from toolpost import Handler, Server
from toolpost.stores import MemoryStore


class Own(MemoryStore):
    """A store of the author's."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1
        await super().close()


@pytest.mark.parametrize("kind", [Server, Handler])
def test_a_store_in_memory_unless_one_is_named(kind):
    for server in (kind("s"), kind("s", store="memory://")):
        assert isinstance(server.store, MemoryStore)
        assert server.store is server.store
    assert kind("a").store is not kind("b").store


@pytest.mark.parametrize("kind", [Server, Handler])
def test_a_custom_store_is_never_closed(kind):
    async def main() -> None:
        own = Own()
        server = kind("s", store=own)
        async with server.hold_lifespan():
            assert server.store is own
        assert own.closed == 0

    asyncio.run(main())


def test_a_store_that_was_opened_is_closed_with_the_server():
    async def main() -> None:
        server = Server("s")
        server.store = own = Own()
        async with server.hold_lifespan(), server.hold_lifespan():
            pass
        assert own.closed == 1

    asyncio.run(main())
