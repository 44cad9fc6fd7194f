"""The end of conversations, and leftovers of requests: races that a peer can cause."""

import asyncio
import gc
import json
import threading
import weakref
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Handler, Server
from toolpost.testing import ScriptedChannel
from toolpost.types import Resource, ResourceContents

ABOUT = {"protocolVersion": DATES[3], "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


HELLO = message(id=1, method="initialize", params=ABOUT)
READY = message(method="notifications/initialized")


def test_the_end_of_a_client_is_noticed_while_its_handshake_is_pending():
    began, ended = asyncio.Event(), asyncio.Event()

    class Slow(Handler):
        async def init(self, ctx: Context) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async def main() -> None:
        channel = ScriptedChannel()
        serving = asyncio.ensure_future(Slow("slow").serve(channel))
        channel.feed(HELLO, READY)
        await began.wait()
        channel.end()
        await asyncio.wait_for(serving, 10)
        assert ended.is_set()

    asyncio.run(main())


def test_messages_after_a_pending_handshake_are_queued_in_order_and_bounded():
    go_on = asyncio.Event()

    class Slow(Handler):
        async def init(self, ctx: Context) -> None:
            await go_on.wait()

    async def main() -> None:
        channel = ScriptedChannel()
        serving = asyncio.ensure_future(Slow("slow").serve(channel))
        channel.feed(HELLO, READY, *(message(id=number, method="ping") for number in range(2, 9)))
        await asyncio.sleep(0)
        go_on.set()
        assert [(await channel.next_sent())["id"] for _ in range(8)] == list(range(1, 9))
        channel.end()
        await serving
        go_on.clear()
        flood = ScriptedChannel()
        serving = asyncio.ensure_future(Slow("slow", max_in_flight=5).serve(flood))
        flood.feed(HELLO, *(message(id=number, method="ping") for number in range(2, 9)))
        await asyncio.wait_for(serving, 10)
        assert flood.raw == []

    asyncio.run(main())


def test_an_id_that_is_used_again_after_a_cancel_has_its_own_answer():
    server = Server("s")
    began: asyncio.Queue[str] = asyncio.Queue()
    let_go = asyncio.Event()

    @server.tool
    async def say(word: str) -> str:
        began.put_nowait(word)
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return word

    async def main() -> None:
        channel = ScriptedChannel()
        serving = asyncio.ensure_future(server.serve(channel))
        channel.feed(HELLO, READY)
        await channel.next_sent()
        call = {"id": 7, "method": "tools/call"}
        channel.feed(message(**call, params={"name": "say", "arguments": {"word": "old"}}))
        assert await began.get() == "old"
        channel.feed(
            message(method="notifications/cancelled", params={"requestId": 7}),
            message(**call, params={"name": "say", "arguments": {"word": "new"}}),
        )
        assert await began.get() == "new"
        let_go.set()
        answer = await channel.next_sent()
        assert answer["result"]["content"][0]["text"] == "new"
        channel.end()
        await serving
        assert channel.unread == 0

    asyncio.run(main())


class Watched(Handler):
    """Counts the watched resources of each client."""

    def __init__(self) -> None:
        super().__init__("watched")
        self.log: list[str] = []

    async def list_resources(self, cursor: str | None) -> list[Resource]:
        return []

    async def read_resource(self, uri: str, ctx: Context) -> list[ResourceContents]:
        return []

    async def subscribe(self, uri: str, ctx: Context) -> None:
        if uri == "bad://x":
            raise ValueError(uri)
        self.log.append(f"+{uri}")

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        self.log.append(f"-{uri}")


@pytest.mark.parametrize("revision", DATES[:4])
def test_a_disconnected_client_watches_nothing(revision):
    async def main() -> None:
        server = Watched()
        async with Client(server, revision=revision) as client:
            await client.subscribe("a://1")
            await client.subscribe("a://2")
            await client.unsubscribe("a://1")
        assert server.log == ["+a://1", "+a://2", "-a://1", "-a://2"]

    asyncio.run(main())


def test_a_listen_that_fails_half_way_watches_nothing():
    async def main() -> None:
        server = Watched()
        channel = ScriptedChannel()
        serving = asyncio.ensure_future(server.serve(channel))
        key = "io.modelcontextprotocol/"
        meta = {f"{key}protocolVersion": DATES[4], f"{key}clientCapabilities": {}}
        wishes = {"resourceSubscriptions": ["a://1", "bad://x"]}
        channel.feed(
            message(id=1, method="subscriptions/listen", params={"notifications": wishes, "_meta": meta})
        )
        assert (await channel.next_sent())["error"]["code"] == -32603
        assert server.log == ["+a://1", "-a://1"]
        channel.end()
        await serving

    asyncio.run(main())


def test_news_for_a_client_that_does_not_read_do_not_pile_up():
    server = Server("s")

    @server.resource("a://1", name="one")
    def one() -> str:
        return ""

    async def main() -> None:
        channel = ScriptedChannel()
        serving = asyncio.ensure_future(server.serve(channel))
        channel.feed(HELLO, READY, message(id=2, method="resources/subscribe", params={"uri": "a://1"}))
        await channel.next_sent()
        await channel.next_sent()
        channel.writable.clear()
        before = len(asyncio.all_tasks())
        for _ in range(100):
            server.notify_resource_updated("a://1")
            server.broadcaster.broadcast_list_changed("resources")
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= before + 1
        channel.writable.set()
        heard = [(await channel.next_sent())["method"] for _ in range(3)]
        assert set(heard) == {"notifications/resources/updated", "notifications/resources/list_changed"}
        channel.end()
        await serving
        assert channel.unread <= 1

    asyncio.run(main())


def test_clients_in_two_loops_hear_of_every_change():
    server = Server("s")
    server.tool(name="first")(lambda: "")
    heard: list[str] = []

    def one(name: str, ready: threading.Barrier) -> None:
        async def main() -> None:
            changed = asyncio.Event()

            def note(*_: object) -> None:
                heard.append(name)
                changed.set()

            async with Client(server, revision=DATES[3], on_notification=note):
                await asyncio.to_thread(ready.wait)
                await changed.wait()

        asyncio.run(main())

    ready = threading.Barrier(3)
    threads = [threading.Thread(target=one, args=(name, ready)) for name in "ab"]
    for thread in threads:
        thread.start()
    ready.wait()
    server.tool(name="second")(lambda: "")
    for thread in threads:
        thread.join(20)
    assert sorted(set(heard)) == ["a", "b"]


def test_a_server_that_was_chosen_for_a_session_goes_with_it():
    made: list[weakref.ref[Server]] = []

    async def choose(*_: object) -> Server:
        server = Server("chosen")
        made.append(weakref.ref(server))
        return server

    async def main() -> None:
        factory = Server.factory(choose)
        async with factory.hold_lifespan():
            for _ in range(5):
                async with Client(factory, revision=DATES[3]) as client:
                    await client.ping()
            gc.collect()
            assert [ref() for ref in made] == [None] * 5

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_entries_for_which_a_selection_fails_are_left_out(revision, caplog):
    server = Server("s")
    server.tool(name="fine")(lambda: "")
    server.tool(name="odd")(lambda: "")

    def keep(handle: Any) -> bool:
        if handle.name == "odd":
            raise ValueError("who knows")
        return True

    async def main() -> None:
        async with Client(server.select(keep), revision=revision) as client:
            assert [tool.name for tool in await client.list_tools()] == ["fine"]

    with caplog.at_level("ERROR", "toolpost.server"):
        asyncio.run(main())
    assert "is left out" in caplog.text
