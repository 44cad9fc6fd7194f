"""Subscriptions: a request for each resource in a session, one listen for all in the stateless era."""

import asyncio
from typing import Any

import pytest

from listening_server import ACKNOWLEDGED, TOOLS_CHANGED, UPDATED, Heard, Listened, watching
from raw_server import RawServer, run
from toolpost.client.client import Client
from toolpost.protocol.jsonrpc import encode_notification
from toolpost.protocol.methods import DATES
from toolpost.types import (
    SUBSCRIPTION_ID,
    AcknowledgedParams,
    ResourceUpdatedParams,
)

# --------------------------------------------------------------------- sessions


@pytest.mark.parametrize("date", DATES[:-1])
def test_in_a_session_each_resource_is_a_request(date):
    async def main() -> None:
        server = RawServer()
        heard = Heard()
        async with Client(server, revision=date, on_notification=heard) as client:
            await client.subscribe("x://a")
            await server.channel.send(server.connection.notify(UPDATED, ResourceUpdatedParams(uri="x://a")))
            await server.channel.send(server.connection.notify(TOOLS_CHANGED))
            assert await heard.queue.get() == (UPDATED, "x://a")
            assert await heard.queue.get() == (TOOLS_CHANGED, None)
            await client.unsubscribe("x://a")
            assert server.methods == ["initialize", "resources/subscribe", "resources/unsubscribe"]

    run(main())


def _late(method: str, listen: Any, **params: Any) -> bytes:
    """Send a message on a listen that has ended, as a nonconforming server would."""
    return encode_notification(method, {**params, "_meta": {SUBSCRIPTION_ID: listen}})


def test_notifications_of_an_unknown_listen_are_dropped_and_untagged_ones_received():
    async def main() -> None:
        server = Listened()
        heard = Heard()
        async with Client(server, on_notification=heard) as client:
            await client.subscribe("x://a")
            # The first listen was replaced; a server that has not noticed yet speaks on both.
            await server.channel.send(_late(TOOLS_CHANGED, server.listens[0].id))
            await server.listens[1].say(TOOLS_CHANGED)
            await server.channel.send(b'{"jsonrpc":"2.0","method":"x/untagged","params":{"uri":1}}')
            assert await heard.queue.get() == (TOOLS_CHANGED, None)
            assert await heard.queue.get() == ("x/untagged", None)
            assert heard.queue.empty()

    run(main())


def test_a_subscriber_that_is_cancelled_gives_its_listen_up():
    async def main() -> None:
        server = Listened()
        server.silent = True
        async with Client(server) as client:
            subscribing = asyncio.create_task(client.subscribe("x://a"))
            await server.until(lambda: server.listens)
            subscribing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await subscribing
            await server.until(lambda: server.cancelled)
            # A late acknowledgement has no waiter.
            await server.channel.send(_late(ACKNOWLEDGED, server.listens[0].id, notifications={}))
            await client.ping()

    run(main())


def test_a_second_acknowledgement_is_ignored():
    async def main() -> None:
        server = Listened()
        async with Client(server) as client:
            subscribing = asyncio.create_task(client.subscribe("x://a"))
            server.silent = True
            await server.until(lambda: server.listens)
            honoured = AcknowledgedParams(notifications=watching("x://a", lists=False))
            notice = server.connection.notify(ACKNOWLEDGED, honoured, to=server.listens[0].incoming)
            await server.channel.send(notice)
            await server.channel.send(notice)
            await subscribing

    run(main())
