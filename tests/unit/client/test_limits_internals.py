"""Messages over the limit are dropped and counted, and no caller waits for them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from raw_server import ALL, run
from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.pending import NO_LIMITS
from toolpost.client.connection.status import Stats
from toolpost.errors import RemoteProtocolError
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.line_framing import LineBuffer, OversizedLine
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, Revision
from toolpost.testing import ScriptedChannel
from toolpost.types import ClientCapabilities, Implementation, Result

LIMIT = 1000
LONG = b'{"text":"%s"}' % (b"x" * LIMIT)
LOST = {"message over the limit": 1}


class BoundedChannel(ScriptedChannel):
    """A scripted channel that drops messages over the limit."""

    def on_oversized(self, tell: Callable[[OversizedLine], object]) -> None:
        self._tell = tell

    def lose(self, line: bytes) -> None:
        (lost,) = LineBuffer(LIMIT).feed(line + b"\n")
        assert isinstance(lost, OversizedLine)
        self._tell(lost)


class Bounded:
    """A link in the middle of a conversation, over a channel that drops messages over the limit."""

    def __init__(self, revision: Revision = LATEST_SESSION) -> None:
        self.channel = BoundedChannel()
        self.stats = Stats()
        party = LocalPeer(Implementation("me", "1"), ClientCapabilities())
        connection = Connection(party, peer=Peer(revision, ALL, Implementation("them", "1")))
        self.link = Dispatcher(
            self.channel, connection, self.stats, on_client_request=_never, on_notification=print
        )

    async def start(self, count: int) -> list[asyncio.Task[Result]]:
        """Send this number of requests; their ids start at 1."""
        calls = [asyncio.create_task(self.link.request(NO_LIMITS, "tools/list")) for _ in range(count)]
        for _ in calls:
            await self.channel.next_sent()
        return calls

    async def finish(self, calls: dict[int, asyncio.Task[Result]]) -> None:
        """Answer these requests; check that they had no answer before, and that nothing else was sent."""
        for number, call in calls.items():
            assert not call.done()
            self.channel.feed({"jsonrpc": "2.0", "id": number, "result": {"tools": []}})
            await call
        assert self.link.calls == {}
        assert self.link.connection.outgoing == {}
        assert self.channel.unread == 0
        await self.link.close()


async def _never(_: object) -> Any:
    raise AssertionError("nobody asked")


# --------------------------------------------------------------------- whose answer it was


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":2,"result":%s}',
        b'{"result":%s,"jsonrpc":"2.0","id":2}',
        b'{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"no","data":%s}}',
    ],
)
def test_the_request_fails_at_once_and_the_others_go_on(line):
    async def main() -> None:
        it = Bounded()
        one, two, three = await it.start(3)
        it.channel.lose(line % LONG)
        with pytest.raises(RemoteProtocolError) as caught:
            await two
        text = str(caught.value)
        size = len(line % LONG)
        assert f"them: the response to tools/list was dropped: message too long: {size} bytes" in text
        assert "(limit: 1000)" in text
        assert "max_line" in text
        assert it.stats.discarded == LOST
        await it.finish({1: one, 3: three})

    run(main())


UNREADABLE = [
    b'{"jsonrpc":"2.0","_":{},"id":1,"result":%s}',  # the id stands between two long members, for all we know
    b'{"jsonrpc":"2.0","result":%s}',
    b"%s",
]


@pytest.mark.parametrize("line", UNREADABLE)
def test_without_an_id_it_was_the_only_request_in_flight(line):
    async def main() -> None:
        it = Bounded()
        (call,) = await it.start(1)
        it.channel.lose(line % LONG)
        with pytest.raises(RemoteProtocolError, match="max_line"):
            await call
        assert it.stats.discarded == LOST
        await it.finish({})

    run(main())


@pytest.mark.parametrize("line", UNREADABLE)
def test_without_an_id_none_of_several_requests_is_blamed(line):
    async def main() -> None:
        it = Bounded()
        one, two = await it.start(2)
        it.channel.lose(line % LONG)
        assert it.stats.discarded == LOST
        await it.finish({1: one, 2: two})

    run(main())


def test_a_subscription_is_not_taken_for_the_request():
    async def main() -> None:
        it = Bounded(LATEST)
        wanted = {"notifications": {"toolsListChanged": True}}
        outgoing = it.link.connection.request("subscriptions/listen", wanted)
        listen = it.link.register_call(outgoing)
        await it.link.start_call(listen)
        await it.channel.next_sent()
        it.channel.lose(LONG)
        assert not listen.answer.done()
        (call,) = await it.start(1)
        it.channel.lose(LONG)
        with pytest.raises(RemoteProtocolError, match="tools/list"):
            await call
        assert not listen.answer.done()
        await it.link.close()

    run(main())


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":%s}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":%s}',
    ],
)
def test_responses_to_unknown_requests_are_only_counted(line):
    async def main() -> None:
        it = Bounded()
        (call,) = await it.start(1)
        it.channel.lose(line % LONG)
        assert it.stats.discarded == LOST
        await it.finish({1: call})

    run(main())


@pytest.mark.parametrize("revision", [LATEST_SESSION, LATEST])
def test_a_request_of_the_servers_is_refused_where_it_may_be_answered(revision):
    async def main() -> None:
        it = Bounded(revision)
        (call,) = await it.start(1)
        # Its id is that of a request of ours, which has nothing to do with it.
        it.channel.lose(b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":%s}' % LONG)
        if not revision.stateless:
            refusal = await it.channel.next_sent()
            assert (refusal["id"], refusal["error"]["code"]) == (1, -32600)
            assert "(limit: 1000)" in refusal["error"]["message"]
        assert it.stats.discarded == LOST
        it.channel.feed({"jsonrpc": "2.0", "id": 1, "result": {"tools": [], "resultType": "complete"}})
        await call
        assert it.channel.unread == 0
        await it.link.close()

    run(main())
