"""Channels that send immediately or deliver by callback: the dispatcher needs no task for either."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Self

import pytest

from raw_server import ALL, Clock, run
from toolpost.client.client import Client
from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.status import Stats
from toolpost.errors import ChannelClosed, RequestTimeout
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest, NotificationReceived, OutboundRequest
from toolpost.protocol.jsonrpc import JSONRPCMessage, decode
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import LATEST_SESSION
from toolpost.server.server import Server
from toolpost.testing import ScriptedChannel
from toolpost.types import (
    ClientCapabilities,
    Implementation,
    ListCapability,
    ListRootsResult,
    Result,
)

REPLY = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}'
ASK = b'{"jsonrpc":"2.0","id":"r","method":"roots/list"}'

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class QuickChannel(ScriptedChannel):
    """Sends at once while there is room, and delivers by callback."""

    def __init__(self) -> None:
        super().__init__()
        self.room = True
        self.taken: list[bytes] = []
        self.tell: Callable[[bytes | JSONRPCMessage], object] = print

    def send_request(self, outgoing: OutboundRequest) -> bool:
        if self.room:
            self.taken.append(outgoing.data)
        return self.room

    def on_message(self, tell: Callable[[bytes | JSONRPCMessage], object]) -> None:
        self.tell = tell


class Harness:
    """A link over such a channel, in the middle of a session."""

    def __init__(self, channel: QuickChannel | None = None) -> None:
        party = LocalPeer(Implementation("me", "1"), ClientCapabilities(roots=ListCapability()))
        self.channel = channel or QuickChannel()
        self.stats = Stats()
        self.notices: list[NotificationReceived] = []
        self.asked_by: list[str] = []
        self.connection = Connection(party, peer=Peer(LATEST_SESSION, ALL, Implementation("them", "1")))
        self.link = Dispatcher(
            self.channel,
            self.connection,
            self.stats,
            on_client_request=self._ask,
            on_notification=self.notices.append,
        )

    async def _ask(self, _: InboundRequest) -> Result:
        self.asked_by.append(WHO.get())
        return ListRootsResult(roots=[])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()
        assert not self.link.calls
        assert not self.connection.outgoing

    def start(self, **limits: Any) -> asyncio.Task[Result]:
        return asyncio.create_task(self.link.request(CallLimits(**limits), "tools/list"))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_optional_features_of_a_channel_are_detected_by_their_methods():
    channel = QuickChannel()
    assert hasattr(channel, "send_request")
    assert hasattr(channel, "on_message")
    assert not hasattr(ScriptedChannel(), "send_request")
    assert not hasattr(ScriptedChannel(), "on_message")


@pytest.mark.parametrize("read", [bytes, decode])
def test_a_request_is_taken_and_answered_at_once(read):
    async def main() -> None:
        async with Harness() as it:
            call = it.start(timeout=10)
            await turns()
            assert len(it.channel.taken) == 1
            assert it.channel.raw == []
            it.channel.tell(read(REPLY))
            assert (await call).raw == b'{"tools":[]}'

    run(main())


def test_without_room_it_is_sent_as_usual():
    async def main() -> None:
        async with Harness() as it:
            it.channel.room = False
            call = it.start(timeout=10)
            assert (await it.channel.next_sent())["method"] == "tools/list"
            it.channel.tell(REPLY)
            await call

    run(main())


def test_what_was_there_before_is_received_as_always():
    async def main() -> None:
        async with Harness() as it:
            call = it.start()
            await turns()
            it.channel.feed(REPLY)
            await call

    run(main())


def test_a_request_that_was_taken_is_late_all_the_same():
    async def main() -> None:
        async with Harness() as it:
            call = it.start(timeout=10)
            with pytest.raises(RequestTimeout, match=r"no response to tools/list within 10 s") as late:
                await call
            assert late.value.sent
            assert it.stats.timeouts == 1
            assert (await it.channel.next_sent())["method"] == "notifications/cancelled"

    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(main())


def test_a_sender_that_waits_for_room_may_time_out_unsent():
    async def main() -> None:
        async with Harness() as it:
            it.channel.room = False
            it.channel.writable.clear()
            call = it.start(timeout=10)
            await turns()
            (waiting,) = it.link.calls.values()
            loop = asyncio.get_running_loop()
            waiting.pause_deadline(loop.time())
            await asyncio.sleep(100)
            waiting.resume_deadline(loop.time())
            with pytest.raises(RequestTimeout) as late:
                await call
            assert not late.value.sent

    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(main())


def test_a_callback_does_not_see_the_context_of_an_unrelated_call():
    """It may arrive while a response is being delivered: the context of that call is not for callbacks."""

    async def main() -> None:
        async with Harness() as it:
            WHO.set("a caller")
            it.channel.tell(ASK)
            sent = await it.channel.next_sent()
            assert sent == {"jsonrpc": "2.0", "id": "r", "result": {"roots": []}}
            assert it.asked_by == ["nobody"]

    run(main())


def test_messages_after_closing_are_dropped():
    async def main() -> None:
        it = Harness()
        async with it:
            pass
        it.channel.tell(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        assert it.notices == []

    run(main())


def test_a_message_that_raises_ends_the_connection_and_not_the_sender(caplog, monkeypatch):
    async def main() -> None:
        async with Harness() as it:
            call = it.start()
            await turns()

            def broken(*_: object) -> None:
                raise ZeroDivisionError("a fault of ours")

            monkeypatch.setattr(Connection, "receive", broken)
            it.channel.tell(REPLY)
            with pytest.raises(ChannelClosed, match="the channel failed: a fault of ours"):
                await call
            monkeypatch.undo()

    with caplog.at_level(logging.CRITICAL, "toolpost.client"):
        run(main())


def test_a_server_in_this_process_needs_no_task_of_the_client():
    """The sender delivers a response; the reader task of the client does not wake up."""
    server = Server("s")

    @server.tool
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    async def main() -> None:
        async with Client(server) as client:
            woken = 0
            channel: Any = client._session.dispatcher._channel
            receive = channel.receive

            async def count() -> bytes:
                nonlocal woken
                woken += 1
                return await receive()

            channel.receive = count
            results = await asyncio.gather(*(client.call_tool("double", {"n": n}) for n in range(50)))
            assert [result.data for result in results] == [2 * n for n in range(50)]
            assert woken == 0

    run(main())
