"""`client.listen`: changes as they happen, in both eras, over streams and connections that break."""

import asyncio
import threading

import pytest

from announcing_server import ERAS, TOOLS, UPDATED, Telling, both, collect, settled
from endpoint import client_of
from raw_server import Asked, Clock, RawServer, run
from toolpost.client import changes as module
from toolpost.client.changes import Change
from toolpost.client.client import Client
from toolpost.client.connection.reconnect import MAX_BACKOFF, MIN_BACKOFF, Backoff
from toolpost.client.sync import SyncClient
from toolpost.errors import MCPError
from toolpost.types import ResourceUpdatedParams, Result


def test_too_many_parts_become_one_change_of_everything(monkeypatch):
    async def main() -> None:
        monkeypatch.setattr(module, "MAX_PENDING_CHANGES", 3)
        server = Telling()
        async with client_of(server) as client, client.listen(uris=["x://a"]) as changes:
            for number in range(100):
                server.change(UPDATED, uri=f"x://a/{number}")
            await settled(lambda: client.stats.notifications >= 100)
            assert [change.uri for change in await collect(changes, 4)] == [
                "x://a/0",
                "x://a/1",
                "x://a/2",
                "x://a",
            ]

    run(main())


# --------------------------------------------------------------------- leaving


async def _leaving_the_loop_ends_the_subscription(server: Telling, client: Client) -> None:
    listening = asyncio.create_task(collect(client.listen(uris=["x://a"]), 1))
    await settled(lambda: client._session.change_streams)
    server.change(UPDATED, uri="x://a")
    assert await listening == [Change("resource", "x://a")]
    await settled(lambda: not client._session.change_streams)
    ended = "resources/unsubscribe" if client.era == "session" else "notifications/cancelled"
    await server.until(ended)


test_leaving_the_loop_ends_the_subscription = both(_leaving_the_loop_ends_the_subscription)


@pytest.mark.parametrize("date", ERAS)
@pytest.mark.parametrize("held", [True, False])
def test_closing_the_client_ends_the_loop(date, held):
    async def main() -> None:
        server = Telling()
        client = await client_of(server, revision=date).connect()
        changes = client.listen(tools=True)

        async def loop() -> list[Change]:
            if held:
                async with changes:
                    return [change async for change in changes]
            return [change async for change in changes]

        listening = asyncio.create_task(loop())
        await settled(lambda: client._session.change_streams)
        server.change(TOOLS)
        await settled(lambda: client.stats.notifications >= (1 if date == ERAS[0] else 2))
        await client.close()
        assert await listening == [Change("tools")]
        assert [change async for change in changes] == []  # it has ended
        assert "notifications/cancelled" not in server.now.heard

    run(main())


def test_a_resource_that_the_server_does_not_watch_is_an_error_in_a_session():
    async def main() -> None:
        server = Telling(resources__subscribe=[{}, {"code": -32602, "message": "not that one"}])
        async with client_of(server, revision=ERAS[0]) as client:
            with pytest.raises(MCPError, match="not that one"):
                await collect(client.listen(uris=["x://a", "x://b"]), 1)
            assert not client._session.listener.observers

    run(main())


def test_closing_during_a_reconnect_ends_the_loop():
    async def main() -> None:
        server = Telling()
        async with client_of(server) as client:
            listening = asyncio.create_task(collect(client.listen(tools=True), 1))
            await settled(lambda: client._session.change_streams)
            server.table["subscriptions/listen"] = None  # it no longer responds
            server.cut()
            await server.until("subscriptions/listen", 2)
            await client.close()
            assert await listening == []

    run(main(), Clock)


# --------------------------------------------------------------------- pauses


def test_delays_grow_to_a_limit_and_restart_after_a_success():
    backoff = Backoff()
    pauses = [backoff.next_delay(0.0) for _ in range(20)]
    bounds = [min(MIN_BACKOFF * 2**number, MAX_BACKOFF) for number in range(20)]
    assert all(bound <= pause <= bound * 1.5 for pause, bound in zip(pauses, bounds, strict=True))
    backoff.mark_working(0.0)
    assert backoff.next_delay(MAX_BACKOFF / 2) >= MAX_BACKOFF / 2  # the connection was short
    backoff.mark_working(0.0)
    assert backoff.next_delay(MAX_BACKOFF) <= MIN_BACKOFF * 1.5


# --------------------------------------------------------------------- without await


def test_changes_without_await():
    subscribed = threading.Event()

    async def subscribe(asked: Asked) -> Result:
        notice = ResourceUpdatedParams(uri=asked.params.uri)
        await asked.server.channel.send(asked.server.connection.notify(UPDATED, notice))
        subscribed.set()
        return Result()

    server = RawServer({"resources/subscribe": subscribe})
    with SyncClient(server, revision=ERAS[0]) as client:
        loop = client.listen(uris=["x://a"])
        assert next(loop) == Change("resource", "x://a")
        del loop
        assert not client._client._session.change_streams
        assert server.methods[-1] == "resources/unsubscribe"
        subscribed.clear()
        closing = threading.Thread(target=lambda: subscribed.wait() and client.close())
        closing.start()
        assert len(list(client.listen(uris=["x://a"]))) <= 1  # then it is closed
        closing.join()
