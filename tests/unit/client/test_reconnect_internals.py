"""A client that reconnects: every transition is reported with its cause, and safe requests are retried."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from endpoint import DISCOVERED, WELCOME, Endpoint, client_of
from raw_server import Asked, Clock, RawServer, run
from toolpost import Change, Client, Transition
from toolpost.channel import is_unattended
from toolpost.client.connection.reconnect import MAX_AUTO_RECONNECTS, MAX_BACKOFF, MIN_BACKOFF
from toolpost.client.connection.retry import MAX_FAILURES
from toolpost.errors import (
    ChannelClosed,
    ConnectFailed,
    RequestFailed,
    RequestTimeout,
    TokenRejected,
)
from toolpost.protocol.methods import DATES
from toolpost.types import Result

SESSION = DATES[3]


def server(**table: Any) -> Endpoint:
    return Endpoint(**{"initialize": WELCOME, "tools__call": {"content": []}, **table})


class Heard(list[Transition]):
    """A callback that records transitions in the event loop."""

    async def __call__(self, transition: Transition) -> None:
        self.append(transition)


async def broken(it: Endpoint, client: Client) -> None:
    """Break the connection, and return when the client knows."""
    link = client._session.dispatcher
    it.now.end("broken")
    await link.ended_event.wait()


def states(transitions: list[Transition]) -> list[str]:
    return [each.state for each in transitions]


# --------------------------------------------------------------------- transitions


def test_every_transition_is_reported_with_its_cause():
    async def main() -> None:
        it, heard = server(), Heard()
        client = client_of(it, revision=SESSION, on_state=heard.__call__)
        events = client.events()
        assert client.state == "closed"
        async with client:
            assert client.state == "ready"
            await broken(it, client)
            await client.call_tool("t")
        expected = ["connecting", "ready", "backoff", "connecting", "ready", "closed"]
        assert states(heard) == states([event async for event in events]) == expected
        lost = heard[2]
        assert isinstance(lost.cause, ChannelClosed)
        assert "broken" in str(lost.cause)
        assert MIN_BACKOFF <= lost.delay <= 2 * MIN_BACKOFF
        assert lost.attempts == 1
        assert client.stats.connections == 2

    run(main())


def test_a_channel_that_cannot_be_reopened_is_closed_with_its_cause():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, can_reopen=False, on_state=heard.__call__) as client:
            await broken(it, client)
            with pytest.raises(ChannelClosed, match="broken"):
                await client.call_tool("t")
            assert client.state == "closed"
        assert states(heard) == ["connecting", "ready", "closed"]

    run(main())


# --------------------------------------------------------------------- reopening


def test_it_reconnects_a_few_times_in_the_background_and_then_on_demand():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            it.refuses = ConnectFailed("gone")
            await broken(it, client)
            await asyncio.sleep(1000)
            assert states(heard).count("connecting") == 1 + MAX_AUTO_RECONNECTS
            pauses = [each.delay for each in heard if each.state == "backoff"]
            assert all(early < late for early, late in pairwise(pauses))
            with pytest.raises(ConnectFailed, match="failed 7 times in a row; last error: gone"):
                await client.call_tool("t")
            assert states(heard).count("connecting") == 2 + MAX_AUTO_RECONNECTS
            with pytest.raises(
                ConnectFailed, match=r"next attempt in \d+ s; call `connect\(\)` to retry now"
            ):
                await client.call_tool("t")
            assert states(heard).count("connecting") == 2 + MAX_AUTO_RECONNECTS
            it.refuses = None
            await client.connect()
            await client.call_tool("t")
            assert client.state == "ready"

    run(main(), Clock)


def test_a_server_that_dies_before_it_is_of_use_is_not_started_for_ever():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            for _ in range(MAX_AUTO_RECONNECTS + 1):
                await broken(it, client)
                await asyncio.sleep(MAX_BACKOFF)
            assert client.state == "backoff"
            assert client.stats.connections == 1 + MAX_AUTO_RECONNECTS

    run(main(), Clock)


def test_a_response_resets_the_backoff():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            for _ in range(3 * MAX_AUTO_RECONNECTS):
                await client.call_tool("t")
                await broken(it, client)
                await asyncio.sleep(0.1)
            assert {each.attempts for each in heard if each.state == "backoff"} == {1}

    run(main(), Clock)


def test_a_request_waits_for_the_connection_within_its_timeout():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION, connect_timeout=None) as client:
            it.table["initialize"] = None
            await broken(it, client)
            with pytest.raises(RequestTimeout, match=r"not restored within 3 s: .*broken") as caught:
                await client.call_tool("t", timeout=3)
            assert not caught.value.sent
            assert caught.value.retry_safe
            assert asyncio.get_running_loop().time() == pytest.approx(3)

    run(main(), Clock)


def test_a_server_that_rejects_the_client_is_not_reconnected_in_the_background():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            it.refuses = TokenRejected("who are you?")  # type: ignore[assignment] - as good as any
            await broken(it, client)
            for _ in range(3):
                with pytest.raises(TokenRejected, match="who are you"):
                    await client.call_tool("t")
            assert states(heard).count("connecting") == 3  # in the background, then for the first call

    run(main(), Clock)


def test_a_listening_loop_prompts_no_user_and_resumes_after_a_login():
    async def main() -> None:
        ack = "notifications/subscriptions/acknowledged"

        def listen(channel: Any, message: Any) -> None:
            tag = {"io.modelcontextprotocol/subscriptionId": message["id"]}
            channel.say(ack, notifications=message["params"]["notifications"], _meta=tag)

        it, alone = server(server__discover=DISCOVERED, subscriptions__listen=listen), list[bool]()

        class Asks(Endpoint):
            async def open(self) -> Any:
                alone.append(is_unattended())
                if is_unattended():
                    raise TokenRejected("log in")
                return await super().open()

        it.__class__ = Asks
        async with client_of(it) as client, client.listen(tools=True) as changes:
            await broken(it, client)
            await asyncio.sleep(1000)
            assert alone[0] is False
            assert 1 < len(alone) < 60
            assert all(alone[1:])
            await client.ping()
            assert alone[-1] is False
            async with asyncio.timeout(100):
                assert await anext(aiter(changes)) == Change("tools", missed=True)

    run(main(), Clock)


@pytest.mark.parametrize("use", [lambda client: client.call_tool("t"), lambda client: client.connect()])
def test_an_attempt_that_waits_for_a_login_makes_way_for_one_that_may_ask_for_it(use):
    async def main() -> None:
        begun = asyncio.Event()

        class Asks(Endpoint):
            async def open(self) -> Any:
                if is_unattended():
                    begun.set()
                    await asyncio.Event().wait()
                return await super().open()

        it = server()
        it.__class__ = Asks
        client = client_of(it, revision=SESSION)
        reconnector = client._session.reconnector
        reconnector._connector = reconnector._connector._replace(may_need_login=True)
        async with client:
            await broken(it, client)
            await begun.wait()
            await use(client)
            assert client.state == "ready"
            assert asyncio.get_running_loop().time() <= 2 * MIN_BACKOFF

    run(main(), Clock)


def test_notifications_are_not_unattended_after_a_reconnect():
    async def main() -> None:
        it, heard = server(), asyncio.Queue[bool]()

        async def note(*_: object) -> None:
            heard.put_nowait(is_unattended())

        async with client_of(it, revision=SESSION, on_notification=note) as client:
            await broken(it, client)
            await asyncio.sleep(2 * MIN_BACKOFF)
            it.now.say("notifications/tools/list_changed")
            assert await heard.get() is False

    run(main(), Clock)


def test_a_server_that_says_when_it_is_back_is_not_bothered_before():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            busy = RequestFailed("busy", status=503)
            busy.retry_after = 100.0
            it.table["initialize"] = busy
            await broken(it, client)
            await asyncio.sleep(99)
            assert states(heard).count("connecting") == 2
            it.table["initialize"] = WELCOME
            await asyncio.sleep(2)
            assert client.state == "ready"

    run(main(), Clock)


def test_a_client_may_be_closed_while_it_backs_off():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION) as client:
            it.refuses = ConnectFailed("gone")
            await broken(it, client)
            call = asyncio.create_task(client.call_tool("t"))
            await asyncio.sleep(5)
            await client.close()
            with pytest.raises(ChannelClosed):
                await call
        assert client.state == "closed"
        await asyncio.sleep(100)
        assert client.state == "closed"

    run(main(), Clock)


def test_the_wait_for_a_connection_counts_as_well():
    async def main() -> None:
        it = server(tools__call=None)
        async with client_of(it, revision=SESSION) as client:
            await broken(it, client)
            with pytest.raises(RequestTimeout):
                await client.call_tool("t", timeout=3)
            assert asyncio.get_running_loop().time() == pytest.approx(3)

    run(main(), Clock)


def test_retry_hints_survive_a_reconnect():
    async def main() -> None:
        tool = {"name": "t", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": True}}
        it = server(tools__list={"tools": [tool]})
        async with client_of(it, revision=SESSION) as client:
            await client.list_tools()
            for _ in range(3):
                it.table["tools/call"] = [RequestFailed("cut off"), {"content": []}]
                await client.call_tool("t")
                await broken(it, client)
            assert client.stats.retries == 3

    run(main(), Clock)


# --------------------------------------------------------------------- the breaker


def test_a_server_that_cannot_be_reached_is_left_alone_for_a_while():
    async def main() -> None:
        it, heard = server(), Heard()
        client = client_of(it, revision=SESSION, retries=0, on_state=heard.__call__)
        async with client:
            it.table["tools/call"] = RequestFailed("refused", sent=False)
            calls = [client.call_tool("t") for _ in range(50)]
            await asyncio.gather(*calls, return_exceptions=True)  # at once, they are one
            assert client.state == "ready"
            for _ in range(MAX_FAILURES - 1):
                await asyncio.sleep(0.001)
                with pytest.raises(RequestFailed, match="refused"):
                    await client.call_tool("t")
            assert client.state == "backoff"
            tried = it.heard[0].count("tools/call")
            before = asyncio.get_running_loop().time()
            client._session._options = replace(client._session._options, retries=2)  # which are of no use now
            for _ in range(20):
                with pytest.raises(RequestFailed, match="requests are paused for") as caught:
                    await client.call_tool("t")
                assert not caught.value.sent
            assert asyncio.get_running_loop().time() == before
            assert it.heard[0].count("tools/call") == tried
            it.table["tools/call"] = {"content": []}
            await asyncio.sleep(2 * MIN_BACKOFF)
            await client.call_tool("t")
            assert client.state == "ready"
        assert states(heard) == ["connecting", "ready", "backoff", "ready", "closed"]

    run(main(), Clock)


# --------------------------------------------------------------------- signs of life


@pytest.mark.requirement("PING-2", "PING-3")
@pytest.mark.parametrize("date", [SESSION, DATES[-1]])
def test_a_server_that_gives_no_sign_of_life_is_left_for_a_new_connection(date, caplog):
    async def main() -> None:
        answers = True

        async def answer(asked: Asked) -> Result:
            if not answers and it.served == 1:
                await asyncio.Event().wait()
            return Result()

        async def discover(asked: Asked) -> Result:
            await answer(asked)
            connection = asked.server.connection
            return connection.local_peer.introduce(connection.incoming[asked.id].peer.revision)

        it = RawServer({"ping": answer, "server/discover": discover})
        heard = Heard()
        async with Client(it, revision=date, heartbeat=10, on_state=heard.__call__) as client:
            await asyncio.sleep(100)
            assert states(heard) == ["connecting", "ready"]
            answers = False
            await asyncio.sleep(21)
            await client.ping()
            assert it.served == 2
            assert "does not respond" in str(heard[2].cause)
            assert "does not respond" in caplog.text

    run(main(), Clock)
