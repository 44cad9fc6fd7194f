"""`client.listen`: changes as they happen, in both eras, over streams and connections that break."""

import asyncio
import logging
from itertools import pairwise

import pytest

import leak_check
from announcing_server import ERAS, TAG, TOOLS, UPDATED, Telling, both, collect, settled
from endpoint import DISCOVERED, WELCOME, client_of
from expected_limits import RECONNECT_FIRST, RECONNECT_LONGEST
from raw_server import Clock, RawServer, run
from toolpost import Change, Client, SyncClient
from toolpost.errors import CapabilityNotDeclared, ChannelClosed, ConnectFailed, MCPError, MethodNotFound

RESOURCES = "notifications/resources/list_changed"


# --------------------------------------------------------------------- what is received


async def _changes_are_heard_as_they_happen(server: Telling, client: Client) -> None:
    async with client.listen(tools=True, uris=["x://a", "x://a", "x://dir/"]) as changes:
        for method, uri in ((TOOLS, None), (RESOURCES, None), (UPDATED, "x://a"), (UPDATED, "x://b")):
            server.change(method, **({} if uri is None else {"uri": uri}))
        server.change(UPDATED, uri="x://dir/part")
        server.change("notifications/message", level="info", data="x")
        assert await collect(changes, 3) == [
            Change("tools"),
            Change("resource", "x://a"),
            Change("resource", "x://dir/part"),
        ]
    assert client.stats.gaps == 0


test_changes_are_heard_as_they_happen = both(_changes_are_heard_as_they_happen)


@pytest.mark.requirement("SUB-7")
def test_each_listen_has_a_stream_of_its_own():
    async def main() -> None:
        server = Telling()
        told: list[str] = []
        client = client_of(server, on_notification=lambda method, _: told.append(method))
        async with client, client.listen(tools=True) as first, client.listen(resources=True) as second:
            assert [params["notifications"] for params in server.sent("subscriptions/listen")] == [
                {"toolsListChanged": True, "resourcesListChanged": True},
                {"toolsListChanged": True},
                {"resourcesListChanged": True},
            ]
            server.now.say(TOOLS, _meta={TAG: server.listens[1]})
            server.now.say(RESOURCES, _meta={TAG: server.listens[2]})
            assert await collect(first, 1) == [Change("tools")]
            assert await collect(second, 1) == [Change("resources")]
            assert not told

    run(main())


async def _by_default_every_list_is_watched(server: Telling, client: Client) -> None:
    async with client.listen() as changes:
        server.change(TOOLS)
        server.change(RESOURCES)
        assert await collect(changes, 2) == [Change("tools"), Change("resources")]


test_by_default_every_list_is_watched = both(_by_default_every_list_is_watched)


async def _unread_changes_are_merged(server: Telling, client: Client) -> None:
    async with client.listen(tools=True, uris=["x://a"]) as changes:
        for _ in range(1000):
            server.change(TOOLS)
            server.change(UPDATED, uri="x://a")
        await settled(lambda: client.stats.notifications >= 2000)
        assert await collect(changes, 2) == [Change("tools"), Change("resource", "x://a")]


test_unread_changes_are_merged = both(_unread_changes_are_merged)


def test_a_cancelled_listener_leaves_nothing():
    async def main() -> None:
        server = Telling(subscriptions__listen=None)
        async with client_of(server) as client:
            listening = asyncio.create_task(collect(client.listen(tools=True), 1))
            await server.until("subscriptions/listen")
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening
            assert client.pending == {}

    run(main())


def test_a_loop_that_ended_takes_its_listeners_along():
    server = Telling()
    client = client_of(server)
    opened = []

    async def leave() -> None:
        await client.connect()
        opened.append(await client.listen(tools=True).__aenter__())

    async def main() -> None:
        await opened[0].aclose()
        async with client:
            await client.ping()

    asyncio.run(leave())
    leak_check.cut_off.clear()  # that is what it is about
    run(main())


async def _a_resource_that_others_watch_stays_watched(server: Telling, client: Client) -> None:
    if client.era == "stateless":
        return
    async with client.listen(uris=["x://a"]), client.listen(uris=["x://a", "x://b"]):
        await client.subscribe("x://b")
        assert [params["uri"] for params in server.sent("resources/subscribe")] == ["x://a", "x://b", "x://b"]
    await client.subscribe("x://c")
    async with client.listen(uris=["x://c"]):
        await client.unsubscribe("x://c")
    assert [params["uri"] for params in server.sent("resources/unsubscribe")] == ["x://a", "x://c"]


test_a_resource_that_others_watch_stays_watched = both(_a_resource_that_others_watch_stays_watched)


# --------------------------------------------------------------------- what cannot be received


@pytest.mark.parametrize("date", ERAS)
@pytest.mark.parametrize(
    ("wanted", "capability"),
    [
        ({"tools": True}, "tools.list_changed"),
        ({"prompts": True}, "prompts.list_changed"),
        ({"uris": ["x://a"]}, "resources.subscribe"),
        ({}, "list_changed"),
    ],
)
def test_a_server_without_change_notifications_is_an_error_at_once(date, wanted, capability):
    async def main() -> None:
        poor = {"capabilities": {"tools": {}, "resources": {}}}
        server = Telling(server__discover={**DISCOVERED, **poor}, initialize={**WELCOME, **poor})
        async with client_of(server, revision=date) as client:
            for _ in range(2):
                with pytest.raises(CapabilityNotDeclared) as caught:
                    await collect(client.listen(**wanted), 1)
                assert caught.value.capability == capability
            with pytest.raises(CapabilityNotDeclared):
                await client.listen(**wanted).__aenter__()

    run(main())


def test_one_string_is_not_a_list_of_resources():
    with pytest.raises(TypeError, match=r"uris must be a list of URIs, such as \['x://a'\]"):
        Client(RawServer()).listen(uris="x://a")


@pytest.mark.parametrize("date", ERAS)
def test_a_client_that_is_not_connected_receives_nothing(date):
    async def main() -> None:
        with pytest.raises(ChannelClosed, match="not connected"):
            await collect(client_of(Telling(), revision=date).listen(), 1)

    run(main())


@pytest.mark.requirement("SUB-5")
def test_a_resource_that_the_server_does_not_watch_is_an_error_in_the_stateless_era():
    async def main() -> None:
        server = Telling()
        server.refuse = ("x://b",)
        async with client_of(server) as client:
            with pytest.raises(MCPError, match="new: the server refused to watch x://b"):
                await collect(client.listen(uris=["x://a", "x://b"]), 1)
            await server.until("notifications/cancelled")

    run(main())


# --------------------------------------------------------------------- what breaks


MISSED = [Change("tools", missed=True), Change("resource", "x://a", missed=True)]


@pytest.mark.requirement("HTTPM-13")
def test_a_stream_that_is_cut_is_opened_again_and_says_so():
    async def main() -> None:
        server = Telling()
        async with client_of(server) as client, client.listen(tools=True, uris=["x://a"]) as changes:
            await client.list_tools()
            for number in (1, 2):
                server.cut()
                assert await collect(changes, 2) == MISSED
                assert client.stats.gaps == number
                assert len(server.channels) == 1
            assert len(set(server.listens)) == 3  # a lost request is repeated under another id
            server.change(TOOLS)
            assert await collect(changes, 1) == [Change("tools")]
            await client.list_tools()
            assert server.now.heard.count("tools/list") == 2  # what was kept may be old

    run(main(), Clock)


def test_a_change_that_is_sure_outweighs_one_that_was_maybe_missed():
    async def main() -> None:
        server = Telling()
        async with client_of(server) as client, client.listen(tools=True, uris=["x://a"]) as changes:
            server.change(UPDATED, uri="x://a")
            await settled(lambda: client.stats.notifications == 2)
            server.cut()
            await asyncio.sleep(2 * RECONNECT_FIRST)
            assert client.stats.gaps == 1
            server.change(TOOLS)
            await settled(lambda: client.stats.notifications == 4)
            assert await collect(changes, 2) == [Change("resource", "x://a"), Change("tools")]

    run(main(), Clock)


@pytest.mark.parametrize("date", ERAS)
def test_a_connection_that_is_lost_is_opened_again_and_says_so(date):
    async def main() -> None:
        server = Telling()
        client = client_of(server, revision=date)
        async with client, client.listen(tools=True, uris=["x://a"]) as changes:
            server.now.end("the network has gone")
            server.refuses = ConnectFailed("still gone")
            await asyncio.sleep(100)
            server.refuses = None
            assert await collect(changes, 2) == MISSED
            assert len(server.channels) == 2
            assert client.connected
            server.change(TOOLS)
            assert await collect(changes, 1) == [Change("tools")]

    run(main(), Clock)


def test_a_recreated_session_is_watched_again():
    async def main() -> None:
        server = Telling()
        client = client_of(server, revision=ERAS[0])
        async with client, client.listen(tools=True, uris=["x://a"]) as changes:
            server.now.forget()
            await client.ping()
            assert await collect(changes, 2) == MISSED
            assert len(server.channels) == 2
            assert server.now.heard.count("resources/subscribe") == 1

    run(main(), Clock)


@pytest.mark.parametrize("date", ERAS)
def test_a_connection_that_cannot_be_opened_again_ends_the_loop_with_an_error(date):
    async def main() -> None:
        server = Telling()
        async with client_of(server, revision=date, can_reopen=False) as client:
            changes = client.listen(tools=True)
            async with changes:
                server.change(TOOLS)
                server.now.end("the process has gone")
                assert await collect(changes, 1) == [Change("tools")]
                with pytest.raises(ChannelClosed, match="the process has gone"):
                    await collect(changes, 1)

    run(main(), Clock)


def test_a_server_that_refuses_listeners_ends_the_loop_with_an_error():
    async def main() -> None:
        server = Telling()
        async with client_of(server) as client, client.listen(tools=True) as changes:
            server.table["subscriptions/listen"] = {"code": -32601, "message": "no such method"}
            server.cut()
            with pytest.raises(MethodNotFound):
                await collect(changes, 1)

    run(main(), Clock)


def test_a_resource_that_is_not_watched_any_more_is_logged(caplog):
    async def main() -> None:
        server = Telling()
        async with client_of(server) as client, client.listen(tools=True, uris=["x://a"]) as changes:
            server.refuse = ("x://a",)
            server.cut()
            assert await collect(changes, 2) == MISSED

    with caplog.at_level(logging.WARNING):
        run(main(), Clock)
    assert "the server no longer watches x://a" in caplog.text


def test_a_loop_may_begin_on_a_session_that_the_server_has_forgotten():
    async def main() -> None:
        server = Telling()
        async with client_of(server, revision=ERAS[0]) as client:
            server.now.forget()
            async with client.listen(uris=["x://a"]) as changes:
                server.change(UPDATED, uri="x://a")
                assert await collect(changes, 1) == [Change("resource", "x://a")]
            assert len(server.channels) == 2

    run(main(), Clock)


def test_tries_get_rarer_but_do_not_end():
    async def main() -> None:
        server = Telling()
        async with client_of(server) as client, client.listen(tools=True) as changes:
            times: list[float] = []

            def refuse(*_: object) -> int:
                times.append(asyncio.get_running_loop().time())
                return 503

            server.table["subscriptions/listen"] = refuse
            server.cut()
            await asyncio.sleep(600)
            pauses = [late - early for early, late in pairwise(times)]
            assert all(RECONNECT_FIRST <= pause <= RECONNECT_LONGEST * 1.5 for pause in pauses)
            assert len(times) < 60
            assert min(pauses[7:]) >= RECONNECT_LONGEST
            server.table["subscriptions/listen"] = server.listen
            assert await collect(changes, 1) == [Change("tools", missed=True)]

    run(main(), Clock)


def test_a_client_without_await_listens_only_while_it_is_connected():
    client = SyncClient(RawServer())
    with pytest.raises(ChannelClosed, match="not connected"):
        client.listen(tools=True)
