"""Sessions that a server forgets: recreated once for all callers, with all subscriptions."""

import asyncio
from typing import Any

import pytest

from endpoint import OPENED, WELCOME, Endpoint, client_of
from raw_server import Clock, run
from toolpost.client.connection.pending import NO_LIMITS
from toolpost.client.connection.reconnect import MIN_BACKOFF
from toolpost.errors import (
    ChannelClosed,
    SessionLost,
)
from toolpost.protocol.methods import DATES

SESSION = DATES[3]


def server(**table: Any) -> Endpoint:
    return Endpoint(**{"initialize": WELCOME, "tools__call": {"content": []}, **table})


def test_a_client_that_is_closed_before_it_could_be_opened_again_stays_closed():
    async def main() -> None:
        client = await client_of(server(), revision=SESSION).connect()
        await client.close()
        with pytest.raises(ChannelClosed, match="not connected"):
            await client._session.wait_connected(NO_LIMITS)

    run(main())


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.ping(),
        lambda client: client.notify("x/y"),
        lambda client: client.list_tools(),
        lambda client: client.read_resource("x://a"),
        lambda client: client.set_log_level("debug"),
        lambda client: client.subscribe("x://a"),
        lambda client: client.unsubscribe("x://a"),
        lambda client: client.request("x/y"),
        lambda client: client.notify_roots_changed(),
    ],
)
def test_every_method_finds_its_way_back(use):
    async def main() -> None:
        it = server(tools__list={"tools": []}, resources__read={"contents": []})
        async with client_of(it, revision=SESSION, on_roots=[]) as client:
            it.now.end(SessionLost("forgotten"))
            await client._session.dispatcher.ended_event.wait()
            await use(client)
            assert len(it.channels) == 2

    run(main(), Clock)


@pytest.mark.requirement("SUB-9")
def test_watched_resources_are_watched_again_after_a_reconnect():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION) as client:
            await client.subscribe("x://a")
            it.now.end("broken")
            await client._session.dispatcher.ended_event.wait()
            await client.ping()
            assert it.heard[1] == [*OPENED, "resources/subscribe", "ping"]
            assert MIN_BACKOFF <= asyncio.get_running_loop().time() <= 2 * MIN_BACKOFF

    run(main(), Clock)
