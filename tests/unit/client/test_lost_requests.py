"""Channels that lose one request and keep the others, and sessions that are lost with all of them."""

import asyncio
from typing import Any, Self

import pytest

from raw_server import ALL, Clock, run
from toolpost.client.connection.dispatcher import LOST_SESSION_TIMEOUT, Dispatcher
from toolpost.client.connection.pending import NO_LIMITS, CallLimits
from toolpost.client.connection.status import Stats
from toolpost.errors import ChannelClosed, LocalProtocolError, RequestFailed, RequestTimeout, SessionLost
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, Revision
from toolpost.testing import ScriptedChannel
from toolpost.types import ClientCapabilities, Implementation, Result

LIST = {"resultType": "complete", "tools": []}


class Lossy(ScriptedChannel):
    """A channel that can lose one request alone."""

    tell: Any = None

    def on_request_lost(self, tell: Any) -> None:
        self.tell = tell


class Mirroring(Lossy):
    find_header_parameters: Any = None


class Harness:
    """A link over such a channel, in the middle of a conversation."""

    def __init__(self, revision: Revision = LATEST, channel: Any = Lossy, **options: Any) -> None:
        self.channel = channel()
        self.stats = Stats()
        party = LocalPeer(Implementation("me", "1"), ClientCapabilities())
        self.connection = Connection(party, peer=Peer(revision, ALL, Implementation("them", "1")))
        self.link = Dispatcher(
            self.channel,
            self.connection,
            self.stats,
            on_client_request=self._never,
            on_notification=print,
            **options,
        )

    async def _never(self, _: object) -> Result:
        raise AssertionError("nobody asks")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()
        assert not self.link.calls
        assert not self.connection.outgoing

    async def start(self, **limits: Any) -> "asyncio.Task[Result]":
        task = asyncio.create_task(self.link.request(CallLimits(**limits), "tools/list"))
        await self.channel.next_sent()
        return task


# --------------------------------------------------------------------- one request


def test_a_request_that_is_lost_fails_alone_with_its_own_error():
    async def main() -> None:
        async with Harness() as it:
            first, second = await it.start(), await it.start()
            error = RequestFailed("the server answered 502", status=502)
            it.channel.tell(1, error)
            with pytest.raises(RequestFailed, match=r"^them: the server answered 502$") as caught:
                await first
            assert caught.value is error
            it.channel.feed({"jsonrpc": "2.0", "id": 2, "result": LIST})
            await second
            assert it.link.end_reason is None

    run(main())


def test_an_error_that_knows_its_peer_keeps_it():
    async def main() -> None:
        async with Harness() as it:
            call = await it.start()
            it.channel.tell(1, RequestFailed("no", peer="http://host/mcp"))
            with pytest.raises(RequestFailed, match=r"^http://host/mcp: no$"):
                await call

    run(main())


def test_the_loss_of_an_unknown_request_is_ignored():
    async def main() -> None:
        async with Harness() as it:
            call = await it.start()
            it.channel.tell(7, RequestFailed("no"))
            it.channel.tell(1, RequestFailed("yes"))
            it.channel.tell(1, RequestFailed("twice"))
            with pytest.raises(RequestFailed, match="yes"):
                await call

    run(main())


def test_a_late_answer_to_a_lost_request_is_dropped():
    async def main() -> None:
        async with Harness() as it:
            call = await it.start()
            it.channel.tell(1, RequestFailed("no"))
            with pytest.raises(RequestFailed):
                await call
            told = await it.channel.next_sent()  # it may still be at work
            assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", 1)
            it.channel.feed({"jsonrpc": "2.0", "id": 1, "result": LIST})
            call = await it.start()
            it.channel.feed({"jsonrpc": "2.0", "id": 2, "result": LIST})
            await call
            assert it.stats.discarded == {"late response": 1}

    run(main())


def test_a_notification_that_is_not_accepted_is_an_error_and_not_the_end():
    async def main() -> None:
        async with Harness(LATEST_SESSION) as it:
            it.channel.broken = RequestFailed("the server answered 400", status=400)
            with pytest.raises(RequestFailed, match="400"):
                await it.link.notify("notifications/initialized")
            it.channel.broken = LocalProtocolError("no header can carry it")
            with pytest.raises(LocalProtocolError, match="no header"):
                await it.link.request(NO_LIMITS, "tools/list")
            it.channel.broken = None
            assert it.link.end_reason is None
            await it.start()
            assert it.link.cancel(2)  # no caller is notified where the channel reports immediately

    run(main())


def test_an_abandoned_request_may_be_rejected():
    async def main() -> None:
        async with Harness(LATEST_SESSION) as it:
            it.channel.broken = RequestFailed("the server answered 400", status=400)
            it.channel.feed({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})  # refused, and that fails
            it.channel.feed({"jsonrpc": "2.0", "method": "x/y"})
            async with asyncio.timeout(10):
                while not it.stats.notifications:  # noqa: ASYNC110 - until it has been read
                    await asyncio.sleep(0)
            assert it.link.end_reason is None

    run(main())


@pytest.mark.parametrize(("channel", "told"), [(Lossy, 1), (ScriptedChannel, 0)])
def test_a_probe_is_given_up_in_silence_only_where_that_ends_it(channel, told):
    async def main() -> None:
        async with Harness(channel=channel) as it:
            call = await it.start(timeout=2.0, quiet=True)
            with pytest.raises(RequestTimeout):
                await call
            await asyncio.sleep(0)
            assert it.channel.unread == told

    run(main(), Clock)


# --------------------------------------------------------------------- headers


def test_a_mirroring_channel_gets_the_header_parameters():
    async def main() -> None:
        known = {"t": {"mcp-param-x": ("x",)}}
        async with Harness(channel=Mirroring, find_header_parameters=known.get) as it:
            assert it.link.has_parameter_headers
            assert it.channel.find_header_parameters("t") == {"mcp-param-x": ("x",)}
            assert it.channel.find_header_parameters("u") is None
        async with Harness(channel=Mirroring) as it:
            assert it.channel.find_header_parameters is None
        async with Harness() as it:
            assert not it.link.has_parameter_headers

    run(main())


# --------------------------------------------------------------------- sessions


def test_later_requests_report_the_lost_session():
    async def main() -> None:
        async with Harness(LATEST_SESSION) as it:
            it.channel.end(SessionLost("the session is forgotten", hint="try again", peer="them"))
            await it.link.ended_event.wait()
            with pytest.raises(
                SessionLost, match=r"^them: the session is forgotten \(try again\)$"
            ) as caught:
                await it.link.request(NO_LIMITS, "tools/list")
            assert caught.value is not it.link.end_reason
            assert caught.value.sent is False
            assert caught.value.retry_safe

    run(main())


def test_requests_of_a_lost_session_hear_their_own_fate():
    async def main() -> None:
        async with Harness(LATEST_SESSION) as it:
            first, second, third = [await it.start() for _ in range(3)]
            it.channel.tell(1, SessionLost("forgotten", sent=False))
            it.channel.end(SessionLost("forgotten"))
            await it.link.ended_event.wait()
            it.channel.tell(2, SessionLost("forgotten", sent=False))
            await it.link.wait_calls_done()
            await it.link.wait_calls_done()
            assert asyncio.get_running_loop().time() == LOST_SESSION_TIMEOUT
            fates = []
            for call in (first, second, third):
                with pytest.raises(SessionLost) as caught:
                    await call
                fates.append(caught.value.sent)
            assert fates == [False, False, True]  # the third was not notified

    run(main(), Clock)


def test_closing_does_not_wait_for_the_fate_of_requests():
    async def main() -> None:
        async with Harness(LATEST_SESSION) as it:
            call = await it.start()
            it.channel.end(SessionLost("forgotten"))
            await it.link.ended_event.wait()
            await it.link.close()
            with pytest.raises(SessionLost) as caught:
                await call
            assert caught.value.sent
            assert asyncio.get_running_loop().time() == 0.0

    run(main(), Clock)


def test_a_closed_channel_is_not_a_lost_session():
    async def main() -> None:
        async with Harness() as it:
            call = await it.start()
            it.channel.end("gone")
            with pytest.raises(ChannelClosed, match="gone") as caught:
                await call
            assert type(caught.value) is ChannelClosed

    run(main())
