"""The lifetime of a client: opened and closed from any task, in any order, any number of times."""

import asyncio

import pytest

from expected_limits import RECONNECT_FIRST
from raw_server import Asked, Clock, RawServer, run
from toolpost import Channel, Client
from toolpost.errors import ChannelClosed, ConnectFailed, LocalProtocolError
from toolpost.types import Result


class Slow(RawServer):
    """A server that does not respond until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()

    async def serve(self, channel: Channel) -> None:
        self.begun.set()
        await self.gate.wait()
        await super().serve(channel)


async def hang(_: Asked) -> Result:
    return await asyncio.Event().wait()  # type: ignore[return-value] - it never returns


@pytest.mark.requirement("STATE-4")
def test_a_client_is_opened_in_one_task_used_in_another_and_closed_in_a_third():
    async def main() -> None:
        server = RawServer()
        client = Client(server)
        assert await asyncio.create_task(client.connect()) is client
        await asyncio.create_task(client.ping())
        await asyncio.create_task(client.close())
        assert not client.connected

    run(main())


def test_a_client_can_be_used_again_and_again():
    async def main() -> None:
        server = RawServer()
        client = Client(server)
        for number in range(1, 4):
            async with client as itself:
                assert itself is client
                await client.ping()
            assert server.served == number

    run(main())


def test_a_client_can_be_used_in_one_loop_after_the_other():
    client = Client(RawServer())

    async def main() -> None:
        async with client:
            await client.ping()

    for _ in range(2):
        run(main())


def test_connecting_and_closing_twice_is_fine():
    async def main() -> None:
        server = RawServer()
        client = Client(server)
        await client.close()
        await client.connect()
        await client.connect()
        assert server.served == 1
        await client.close()
        await client.close()

    run(main())


def test_server_facts_are_none_before_the_first_connection_and_kept_afterwards():
    async def main() -> None:
        client = Client(RawServer())
        for attribute in (
            "revision",
            "era",
            "capabilities",
            "server_info",
            "instructions",
            "discover_result",
        ):
            with pytest.raises(LocalProtocolError, match="has not connected yet"):
                getattr(client, attribute)
        assert not client.connected
        async with client:
            known = client.revision, client.server_info
        assert (client.revision, client.server_info) == known

    run(main())


def test_a_client_that_is_not_connected_says_so():
    async def main() -> None:
        client = Client(RawServer())
        for call in (client.ping(), client.list_tools(), client.subscribe("x://a"), client.cancel(1)):
            with pytest.raises(ChannelClosed, match="the client is not connected") as caught:
                await call
            assert caught.value.sent is False
            assert "async with" in str(caught.value)
        with pytest.raises(ChannelClosed):
            _ = client.pending

    run(main())


def test_several_tasks_may_wait_for_the_same_connection():
    async def main() -> None:
        server = Slow()
        client = Client(server)
        waiters = [asyncio.create_task(client.connect()) for _ in range(3)]
        await server.begun.wait()
        waiters[1].cancel()  # one of them does not want it any more; the others do
        server.gate.set()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert results[0] is results[2] is client
        assert isinstance(results[1], asyncio.CancelledError)
        assert server.served == 1
        await client.close()

    run(main())


def test_a_connection_without_waiters_is_given_up():
    async def main() -> None:
        server = Slow()
        client = Client(server)
        waiter = asyncio.create_task(client.connect())
        await server.begun.wait()
        waiter.cancel()
        server.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert not client.connected

    run(main())


def test_closing_while_another_task_connects_ends_the_attempt():
    async def main() -> None:
        server = Slow()
        client = Client(server)
        waiter = asyncio.create_task(client.connect())
        await server.begun.wait()
        closing = asyncio.create_task(client.close())
        server.gate.set()
        await closing
        with pytest.raises(ChannelClosed, match="closed while it connected"):
            await waiter

    run(main())


def test_every_waiter_learns_that_it_failed():
    async def main() -> None:
        client = Client(["no-such-program-anywhere"])
        errors = await asyncio.gather(client.connect(), client.connect(), return_exceptions=True)
        assert all(isinstance(error, ConnectFailed) for error in errors)
        with pytest.raises(ConnectFailed):
            await client.connect()  # and may try again

    run(main())


def test_closing_while_requests_are_in_flight_ends_them():
    async def main() -> None:
        server = RawServer({"tools/call": hang})
        client = await Client(server).connect()
        calls = [asyncio.create_task(client.call_tool("t")) for _ in range(3)]
        await server.until(lambda: server.methods.count("tools/call") == 3)
        await asyncio.gather(client.close(), client.close())
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ChannelClosed)

    run(main())


def test_a_server_that_has_gone_is_waited_for_and_connecting_does_not_wait():
    async def main() -> None:
        server = RawServer()
        async with Client(server) as client:
            loop = asyncio.get_running_loop()
            await server.channel.close()
            await client.ping()
            assert server.served == 2
            assert RECONNECT_FIRST <= loop.time() <= 2 * RECONNECT_FIRST
            await server.channel.close()
            while client.connected:  # noqa: ASYNC110 - until the reader has received it as well
                await asyncio.sleep(0)
            before = loop.time()
            await client.connect()
            assert loop.time() == before
            await client.ping()
            assert server.served == 3

    run(main(), Clock)


def test_connecting_while_another_task_closes_gives_a_new_connection():
    async def main() -> None:
        server = RawServer()
        client = await Client(server).connect()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        await client.connect()
        await closing
        await client.ping()
        assert server.served == 2
        await client.close()

    run(main())


def test_an_attempt_that_is_closed_before_it_began_is_not_the_last():
    async def main() -> None:
        client = Client(RawServer())
        attempt = asyncio.create_task(client.connect())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ChannelClosed, match="closed while it connected"):
            await attempt
        for _ in range(2):
            await client.connect()
            await client.ping()
            await client.close()

    run(main())
