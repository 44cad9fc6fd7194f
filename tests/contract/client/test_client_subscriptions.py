"""Subscriptions: a request for each resource in a session, one listen for all in the stateless era."""

import asyncio
import logging
from typing import Any

import pytest

from endpoint import DISCOVERED, Endpoint, HttpLike, client_of
from expected_limits import RECONNECT_FIRST
from listening_server import ACKNOWLEDGED, TOOLS_CHANGED, UPDATED, Heard, Listened, watching
from raw_server import Asked, Clock, RawServer, run
from toolpost import Channel, Client
from toolpost.errors import (
    CapabilityNotDeclared,
    ChannelClosed,
    InternalError,
    InvalidParams,
    MCPError,
    MethodNotFound,
    RemoteProtocolError,
    RequestTimeout,
)
from toolpost.types import (
    SUBSCRIPTION_ID,
    ListCapability,
    ResourcesCapability,
    ResourceUpdatedParams,
    Result,
    ServerCapabilities,
)

# --------------------------------------------------------------------- the stateless era


@pytest.mark.requirement("SUB-5", "SUB-7", "STDIO-8")
def test_in_the_stateless_era_one_listen_carries_all_subscriptions():
    async def main() -> None:
        server = Listened()
        heard = Heard()
        async with Client(server, on_notification=heard) as client:
            await client.subscribe("x://a")
            await client.subscribe("x://b")
            await server.until(lambda: len(server.cancelled) == 2)
            assert server.filters == [watching(), watching("x://a"), watching("x://a", "x://b")]
            assert server.cancelled == [("subscriptions/listen", "replaced by a new subscription")] * 2

            await server.listens[-1].say(UPDATED, ResourceUpdatedParams(uri="x://b"))
            assert await heard.queue.get() == (UPDATED, "x://b")

            await client.unsubscribe("x://never")  # nothing changes
            await client.unsubscribe("x://a")
            assert server.filters[3:] == [watching("x://b")]

    run(main())


def test_without_on_notification_lists_are_not_subscribed():
    async def main() -> None:
        server = Listened()
        async with Client(server) as client:
            assert server.listens == []
            await client.subscribe("x://a")
            await client.unsubscribe("x://a")
            await server.until(lambda: server.cancelled)
            assert server.filters == [watching("x://a", lists=False)]
            assert server.cancelled == [("subscriptions/listen", "no subscriptions are left")]
            await client.subscribe("x://b")
            assert server.filters[1:] == [watching("x://b", lists=False)]

    run(main())


def test_a_server_without_list_changes_gets_no_listen():
    async def main() -> None:
        server = Listened(
            capabilities=ServerCapabilities(tools=ListCapability(), resources=ResourcesCapability())
        )
        async with Client(server, on_notification=Heard()) as client:
            for change in (client.subscribe, client.unsubscribe):
                with pytest.raises(CapabilityNotDeclared) as caught:
                    await change("x://a")
                assert caught.value.capability == "resources.subscribe"
        assert server.methods == ["server/discover"]

    run(main())


@pytest.mark.requirement("SUB-5")
def test_a_resource_that_the_server_does_not_watch_is_an_error():
    async def main() -> None:
        server = Listened(refuse=("x://b",))
        async with Client(server) as client:
            await client.subscribe("x://a")
            with pytest.raises(MCPError, match="raw: the server refused to watch x://b"):
                await client.subscribe("x://b")
            await client.subscribe("x://c")
            assert server.filters[-1] == watching("x://a", "x://c", lists=False)

    run(main())


def test_a_rejected_listen_changes_nothing():
    async def main() -> None:
        async def refuse(_: Asked) -> Result:
            raise InvalidParams("not today")

        server = Listened()
        async with Client(server) as client:
            await client.subscribe("x://a")
            server.functions["subscriptions/listen"] = refuse
            with pytest.raises(InvalidParams, match="not today"):
                await client.subscribe("x://b")
            server.functions["subscriptions/listen"] = server.listen
            await client.subscribe("x://c")
            assert server.filters[-1] == watching("x://a", "x://c", lists=False)

    run(main())


def test_a_listen_that_ends_at_once_is_a_protocol_error():
    async def main() -> None:
        async with Client(RawServer()) as client:
            with pytest.raises(RemoteProtocolError, match="ended the subscription immediately"):
                await client.subscribe("x://a")

    run(main())


def test_a_listen_without_acknowledgement_times_out():
    async def main() -> None:
        server = Listened()
        server.silent = True
        async with Client(server) as client:
            with pytest.raises(RequestTimeout, match="was not acknowledged within"):
                await client.subscribe("x://a", timeout=3.0)
            await server.until(lambda: server.cancelled)
            assert client.pending == {}

    run(main(), Clock)


def test_a_listen_that_the_server_ends_is_logged_and_can_be_reopened(caplog):
    async def main() -> None:
        server = Listened()
        async with Client(server) as client:
            await client.subscribe("x://a")
            server.ends[0].set()
            await client.ping()
            await client.subscribe("x://b")
            assert server.filters[-1] == watching("x://a", "x://b", lists=False)

    run(main())
    assert "subscriptions/listen ended" in caplog.text


def test_an_unsubscribe_after_the_listen_has_ended_sends_no_other():
    async def main() -> None:
        server = Listened()
        async with Client(server) as client:
            await client.subscribe("x://a")
            server.ends[0].set()
            await client.ping()
            await client.unsubscribe("x://a")
            assert len(server.listens) == 1

    run(main())


def test_a_client_works_although_its_listen_is_rejected(caplog):
    async def main() -> None:
        server = RawServer()  # it answers the listen at once
        async with Client(server, on_notification=Heard()) as client:
            await client.ping()

    run(main())
    assert "could not subscribe to list changes" in caplog.text


def test_closing_a_client_that_starts_to_listen_leaves_nothing():
    async def main() -> None:
        server = Listened()
        server.silent = True
        client = Client(server, on_notification=Heard())
        connecting = asyncio.create_task(client.connect())
        await server.until(lambda: "subscriptions/listen" in server.methods)
        await client.close()
        with pytest.raises(ChannelClosed):
            await connecting

    run(main())


# --------------------------------------------------------------------- listens that end too early


def test_a_lost_listen_is_reopened_with_all_subscriptions(caplog):
    async def main() -> None:
        server = Listened()
        heard = Heard()
        async with Client(server, on_notification=heard) as client:
            await client.subscribe("x://a")
            server.ends[1].set()
            await server.until(lambda: len(server.listens) == 3)
            assert server.filters[2] == watching("x://a")
            assert RECONNECT_FIRST <= asyncio.get_running_loop().time() <= 2 * RECONNECT_FIRST
            await server.listens[2].say(TOOLS_CHANGED)
            assert await heard.queue.get() == (TOOLS_CHANGED, None)
            assert client.stats.gaps == 1

    run(main(), Clock)
    assert "subscribing again" in caplog.text


def test_a_listen_is_retried_until_the_server_accepts_it(caplog):
    async def main() -> None:
        server = Listened()
        refused = 0

        async def refuse(_: Asked) -> Result:
            nonlocal refused
            refused += 1
            raise InternalError("not today")

        async with Client(server) as client:
            await client.subscribe("x://a")
            server.functions["subscriptions/listen"] = refuse
            server.ends[0].set()
            await server.until(lambda: refused == 5)
            server.functions["subscriptions/listen"] = server.listen
            await server.until(lambda: len(server.listens) == 2)
            await client.ping()
            assert client.stats.gaps == 1

    with caplog.at_level(logging.INFO):
        run(main(), Clock)
    assert "could not subscribe to changes yet: raw: not today" in caplog.text


def test_a_server_that_no_longer_supports_listen_is_not_asked_again(caplog):
    async def main() -> None:
        server = Listened()

        async def refuse(_: Asked) -> Result:
            raise MethodNotFound("no such method")

        async with Client(server) as client:
            await client.subscribe("x://a")
            server.functions["subscriptions/listen"] = refuse
            server.ends[0].set()
            await server.until(lambda: server.methods.count("subscriptions/listen") == 2)
            await asyncio.sleep(1000)
            assert server.methods.count("subscriptions/listen") == 2

    run(main(), Clock)
    assert "change notifications have stopped: raw: no such method" in caplog.text


def test_a_new_subscription_replaces_the_retry():
    async def main() -> None:
        server = Listened()
        async with Client(server) as client:
            await client.subscribe("x://a")
            for _ in range(2):
                server.ends[-1].set()
                await client.ping()
            await client.subscribe("x://b")
            await asyncio.sleep(1000)
            assert server.filters[1:] == [watching("x://a", "x://b", lists=False)]
            assert client.stats.gaps == 1

    run(main(), Clock)


def test_a_connection_that_ends_during_a_listen_passes_the_subscription_on():
    async def main() -> None:
        server = Listened()
        async with Client(server) as client:
            await client.subscribe("x://a")
            server.ends[0].set()
            await client.ping()
            await server.channel.close()
            await asyncio.sleep(1000)
            assert server.filters == [watching("x://a", lists=False)] * 2

    run(main(), Clock)


@pytest.mark.parametrize("ends", [False, True])
def test_a_listen_may_be_acknowledged_while_it_is_still_being_sent(ends):
    class Slow(HttpLike):
        async def send(self, data: bytes, related: int | str | None = None) -> None:
            await super().send(data, related)
            for _ in range(5):
                await asyncio.sleep(0)

    class Server(Endpoint):
        async def open(self) -> Channel:
            self.channels.append(Slow(self))
            return self.channels[-1]

    def listen(channel: HttpLike, message: Any) -> dict[str, Any] | None:
        meta = {SUBSCRIPTION_ID: message["id"]}
        channel.say(ACKNOWLEDGED, notifications=message["params"]["notifications"], _meta=meta)
        channel.say(TOOLS_CHANGED, _meta=meta)
        return {"resultType": "complete", "_meta": meta} if ends else None

    async def main() -> None:
        it = Server(server__discover=DISCOVERED, subscriptions__listen=listen)
        async with client_of(it) as client, client.listen(tools=True) as changes:
            assert (await anext(aiter(changes))).kind == "tools"

    run(main(), Clock)
