"""The lifetime of a client: opened and closed from any task, in any order, any number of times."""

import asyncio

import pytest

import leak_check
from raw_server import Asked, RawServer, run
from toolpost.client.client import Client
from toolpost.errors import ChannelClosed
from toolpost.types import Result


def test_a_closed_client_forgets_the_facts_of_its_connection():
    async def main() -> None:
        levels: list[object] = []

        async def note(asked: Asked) -> Result:
            levels.append(asked.incoming.peer.log_level)
            return asked.server.connection.local_peer.introduce(
                asked.server.connection.incoming[asked.id].peer.revision
            )

        client = Client(RawServer({"server/discover": note}))
        async with client:
            await client.set_log_level("info")
            await client.ping()
        async with client:
            await client.ping()
        assert levels == [None, "info", None, None]

    run(main())


@pytest.mark.parametrize("told", [True, False])
def test_a_connection_of_an_ended_loop_is_not_reused(told):
    def end() -> None:
        asyncio.run(client.connect())
        if not told:  # as with a loop that was closed without cancelling its tasks
            link = client._session.reconnector.current
            assert link is not None
            link.end_reason = None

    client = Client(RawServer())

    async def main() -> None:
        assert not client.connected
        with pytest.raises(ChannelClosed):
            await client.ping()
        await client.connect()
        await client.ping()
        await client.close()

    for _ in range(2):
        end()
        run(main())
    end()
    asyncio.run(client.close())
    assert not client.connected
    leak_check.cut_off.clear()
