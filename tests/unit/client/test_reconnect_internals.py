"""A client that heals: every transition is told with its cause, and what can do no harm is tried again."""

import asyncio
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest

from endpoint import DISCOVERED, OPENED, WELCOME, Endpoint, client_of
from raw_server import Asked, Clock, RawServer, run
from toolpost import Change, Client, Transition
from toolpost.channel import is_unattended
from toolpost.client.backoff import FIRST, LONGEST
from toolpost.client.retry import MAX_FAILURES
from toolpost.client.supervise import MAX_TRIES
from toolpost.errors import (
    ChannelClosed,
    ConnectFailed,
    MCPError,
    RateLimited,
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
    """Hears of transitions; on the loop, whose clock is not the world's."""

    async def __call__(self, transition: Transition) -> None:
        self.append(transition)


async def broken(it: Endpoint, client: Client) -> None:
    """Break the connection, and return when the client knows."""
    link = client._talk.link
    it.now.end("broken")
    await link.over.wait()


def states(transitions: list[Transition]) -> list[str]:
    return [each.state for each in transitions]


# --------------------------------------------------------------------- transitions


def test_every_transition_is_told_with_its_cause():
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
        assert FIRST <= lost.pause <= 2 * FIRST
        assert lost.tries == 1
        assert client.stats.connections == 2

    run(main())


def test_a_connection_that_never_came_about_is_closed_again():
    async def main() -> None:
        it, heard = server(), Heard()
        it.refuses = ConnectFailed("nobody there")
        client = client_of(it, revision=SESSION, on_state=heard.__call__)
        with pytest.raises(ConnectFailed, match="nobody there"):
            await client.connect()
        await client.close()
        assert states(heard) == ["connecting", "closed"]
        assert "nobody there" in str(heard[1].cause)

    run(main())


def test_a_channel_that_cannot_be_opened_anew_is_closed_with_its_cause():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, again=False, on_state=heard.__call__) as client:
            await broken(it, client)
            with pytest.raises(ChannelClosed, match="broken"):
                await client.call_tool("t")
            assert client.state == "closed"
        assert states(heard) == ["connecting", "ready", "closed"]

    run(main())


def test_a_slow_watcher_keeps_the_newest_and_one_that_has_gone_nothing():
    async def main() -> None:
        it = server()
        client = client_of(it, revision=SESSION)
        events, dropped = client.events(), client.events()
        del dropped
        for _ in range(60):
            async with client:
                pass
        seen = [event async for event in events]
        assert len(seen) == 100
        assert seen[-1].state == "closed"

    run(main())


def test_a_callback_for_states_may_fail_and_may_use_the_client():
    async def main() -> None:
        it, heard = server(), list[str]()

        async def tell(transition: Transition) -> None:
            heard.append(transition.state)
            if transition.state == "ready":
                await client.call_tool("t")
            raise SystemExit(1)

        client = client_of(it, revision=SESSION, on_state=tell)
        async with client:
            await it.until("tools/call")
        assert heard == ["connecting", "ready", "closed"]

    run(main())


def test_closing_says_nothing_of_a_connection_that_was_opened_meanwhile():
    async def main() -> None:
        for turns in range(30):
            heard = Heard()
            client = await client_of(server(), revision=SESSION, on_state=heard.__call__).connect()
            closing = asyncio.create_task(client.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            await client.connect()
            await closing
            assert client.connected == (client.state == "ready")
            await client.close()
            assert client.state == "closed"

    run(main(), Clock)


# --------------------------------------------------------------------- opening anew


def test_it_is_tried_a_few_times_by_itself_and_then_only_for_who_needs_it():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            it.refuses = ConnectFailed("gone")
            await broken(it, client)
            await asyncio.sleep(1000)
            assert states(heard).count("connecting") == 1 + MAX_TRIES
            pauses = [each.pause for each in heard if each.state == "backoff"]
            assert all(early < late for early, late in pairwise(pauses))
            with pytest.raises(ConnectFailed, match="refused 7 times in a row, the last time because gone"):
                await client.call_tool("t")
            assert states(heard).count("connecting") == 2 + MAX_TRIES
            with pytest.raises(ConnectFailed, match=r"tried again in \d+ s; `connect\(\)` tries it now"):
                await client.call_tool("t")
            assert states(heard).count("connecting") == 2 + MAX_TRIES
            it.refuses = None
            await client.connect()
            await client.call_tool("t")
            assert client.state == "ready"

    run(main(), Clock)


def test_a_server_that_dies_before_it_is_of_use_is_not_started_for_ever():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            for _ in range(MAX_TRIES + 1):
                await broken(it, client)
                await asyncio.sleep(LONGEST)
            assert client.state == "backoff"
            assert client.stats.connections == 1 + MAX_TRIES

    run(main(), Clock)


def test_an_answer_starts_the_pauses_anew():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            for _ in range(3 * MAX_TRIES):
                await client.call_tool("t")
                await broken(it, client)
                await asyncio.sleep(0.1)
            assert {each.tries for each in heard if each.state == "backoff"} == {1}

    run(main(), Clock)


def test_whoever_waits_for_the_connection_waits_no_longer_than_their_time():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION, connect_timeout=None) as client:
            it.table["initialize"] = None
            await broken(it, client)
            with pytest.raises(RequestTimeout, match=r"not there again within 3.0 s: .*broken") as caught:
                await client.call_tool("t", timeout=3)
            assert not caught.value.sent
            assert caught.value.retry_safe
            assert asyncio.get_running_loop().time() == pytest.approx(3)

    run(main(), Clock)


def test_a_server_that_wants_us_no_more_is_not_asked_by_itself():
    async def main() -> None:
        it, heard = server(), Heard()
        async with client_of(it, revision=SESSION, on_state=heard.__call__) as client:
            it.refuses = TokenRejected("who are you?")  # type: ignore[assignment] - as good as any
            await broken(it, client)
            for _ in range(3):
                with pytest.raises(TokenRejected, match="who are you"):
                    await client.call_tool("t")
            assert states(heard).count("connecting") == 3  # by itself, then for the first call

    run(main(), Clock)


def test_a_loop_that_listens_asks_nobody_to_log_in_and_hears_again_when_somebody_has():
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
        client._talk._supervisor._asks = True
        async with client:
            await broken(it, client)
            await begun.wait()
            await use(client)
            assert client.state == "ready"
            assert asyncio.get_running_loop().time() <= 2 * FIRST

    run(main(), Clock)


def test_what_a_server_says_is_heard_as_if_somebody_was_there_whoever_has_connected():
    async def main() -> None:
        it, heard = server(), asyncio.Queue[bool]()

        async def note(*_: object) -> None:
            heard.put_nowait(is_unattended())

        async with client_of(it, revision=SESSION, on_notification=note) as client:
            await broken(it, client)
            await asyncio.sleep(2 * FIRST)
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


# --------------------------------------------------------------------- once more


def test_what_was_not_sent_is_sent_once_more():
    async def main() -> None:
        it = server(tools__call=[RequestFailed("refused", sent=False), {"content": []}])
        async with client_of(it, revision=SESSION) as client:
            await client.call_tool("t")
            assert client.stats.retries == 1
            assert FIRST <= asyncio.get_running_loop().time() <= 2 * FIRST

    run(main(), Clock)


@pytest.mark.parametrize(
    ("tool", "retry", "times"),
    [
        ("plain", None, 1),
        ("plain", True, 2),
        ("reads", None, 2),
        ("idempotent", None, 2),
        ("idempotent", False, 1),
        ("unknown", None, 1),
    ],
)
def test_a_call_is_repeated_only_where_that_does_no_harm(tool, retry, times):
    def named(name: str, **hints: bool) -> dict[str, Any]:
        return {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}

    async def main() -> None:
        it = server(
            tools__list={
                "tools": [
                    named("plain", destructiveHint=False),
                    named("reads", readOnlyHint=True),
                    named("idempotent", idempotentHint=True),
                ]
            },
            tools__call=[RequestFailed("cut off"), {"content": []}],
        )
        async with client_of(it, revision=SESSION) as client:
            await client.list_tools()
            with pytest.raises(RequestFailed, match="cut off") if times == 1 else nullcontext():
                await client.call_tool(tool, retry=retry)
            assert it.heard[0].count("tools/call") == times

    run(main(), Clock)


@pytest.mark.parametrize("lost", [RequestFailed("cut off"), RequestFailed("bad gateway", status=502)])
def test_what_only_reads_is_repeated(lost):
    async def main() -> None:
        read: dict[str, Any] = {"contents": []}
        it = server(resources__read=[lost, lost, read], tools__list=[lost, {"tools": []}])
        async with client_of(it, revision=SESSION) as client:
            await client.read_resource("x://a")
            await client.list_tools()
            assert client.stats.retries == 3

    run(main(), Clock)


def test_a_request_of_ones_own_is_repeated_if_one_says_so():
    async def main() -> None:
        it = server(x__y=[RequestFailed("cut off"), {}, RequestFailed("cut off"), {}])
        async with client_of(it, revision=SESSION) as client:
            await client.request("x/y", retry=True)
            with pytest.raises(RequestFailed):
                await client.request("x/y")

    run(main(), Clock)


@pytest.mark.parametrize(
    "final",
    [
        RequestFailed("no such page", status=404),
        RequestFailed("refused", status=403),
        {"code": -32603, "message": "broken"},
    ],
)
def test_an_answer_is_an_answer(final):
    async def main() -> None:
        it = server(tools__list=final)
        async with client_of(it, revision=SESSION) as client:
            with pytest.raises(MCPError):
                await client.list_tools()
            assert client.stats.retries == 0

    run(main(), Clock)


def test_tries_have_an_end_and_can_be_switched_off():
    async def main() -> None:
        it = server(tools__list=RequestFailed("cut off"))
        for retries in (0, 2):
            async with client_of(it, revision=SESSION, retries=retries) as client:
                with pytest.raises(RequestFailed, match="cut off"):
                    await client.list_tools()
                assert client.stats.retries == retries

    run(main(), Clock)


@pytest.mark.parametrize(("status", "retry"), [(429, None), (503, True)])
def test_a_server_that_says_when_is_asked_then(status, retry):
    async def main() -> None:
        busy = RequestFailed("busy", status=status)
        busy.retry_after = 1e9
        it = server(tools__call=busy)
        async with client_of(it, revision=SESSION, timeout=None) as client:
            with pytest.raises(RequestFailed, match="busy"):
                await client.call_tool("t", retry=retry)
        busy.retry_after = 7.0
        it = server(tools__call=[busy, {"content": []}])
        async with client_of(it, revision=SESSION) as client:
            await client.call_tool("t", retry=retry)
            assert asyncio.get_running_loop().time() == 7.0
            it.table["tools/call"] = busy
            with pytest.raises(RequestFailed, match="busy"):
                await client.call_tool("t", timeout=13, retry=retry)  # too little would be left for an answer
            assert asyncio.get_running_loop().time() == 7.0

    run(main(), Clock)


@pytest.mark.parametrize(
    ("failure", "retry", "times"),
    [
        (RequestFailed("busy", status=503), None, 1),  # whoever says so may have served it before
        (RequestFailed("busy", status=503), False, 1),
        (RequestFailed("busy", status=429), None, 2),
        (RequestFailed("busy", status=429), False, 1),
        (RequestFailed("refused", sent=False), False, 1),
        (ChannelClosed("gone", sent=False), False, 1),
    ],
)
def test_no_wish_of_a_server_is_above_that_of_the_caller(failure, retry, times):
    async def main() -> None:
        if isinstance(failure, RequestFailed) and failure.status is not None:
            failure.retry_after = 0.0
        it = server(tools__call=[failure, {"content": []}])
        async with client_of(it, revision=SESSION) as client:
            with pytest.raises(MCPError) if times == 1 else nullcontext():
                await client.call_tool("t", retry=retry)
            assert [method for heard in it.heard for method in heard].count("tools/call") == times

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


def test_what_is_known_to_do_no_harm_is_known_on_the_next_connection_too():
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


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_a_sign_of_life(status):
    async def main() -> None:
        it = server(ping=RequestFailed("busy", status=status))
        async with client_of(it, revision=SESSION, heartbeat=1) as client:
            await asyncio.sleep(100)
            assert client.stats.connections == 1

    run(main(), Clock)


def test_a_caller_that_no_longer_waits_leaves_no_connection():
    async def main() -> None:
        for turns in range(40):
            it = server()
            client = client_of(it, revision=SESSION)

            async def use(client: Client = client) -> None:
                async with client:
                    await asyncio.Event().wait()

            task = asyncio.create_task(use())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert client.state == "closed"
            assert not client.connected

    run(main(), Clock)


@pytest.mark.parametrize(
    ("data", "times"),
    [
        ({"retryAfter": 3}, 2),
        ({"retryAfter": 10**400}, 1),
        ({"retryAfter": -1}, 1),
        ({"retryAfter": "x"}, 1),
        (None, 1),
        ([], 1),
    ],
)
def test_a_server_that_limits_the_rate_and_says_when_is_asked_then(data, times):
    async def main() -> None:
        busy = {"code": RateLimited.code, "message": "slowly", **({} if data is None else {"data": data})}
        it = server(tools__call=[busy, {"content": []}])
        async with client_of(it, revision=SESSION) as client:
            with pytest.raises(RateLimited) if times == 1 else nullcontext():
                await client.call_tool("t")
            assert it.heard[0].count("tools/call") == times
            assert asyncio.get_running_loop().time() == (3.0 if times == 2 else 0.0)

    run(main(), Clock)


def test_all_tries_together_take_no_longer_than_the_time_out():
    async def main() -> None:
        it = server(tools__list=[RequestFailed("cut off"), None])
        async with client_of(it, revision=SESSION) as client:
            with pytest.raises(RequestTimeout):
                await client.list_tools(timeout=3)
            assert asyncio.get_running_loop().time() == pytest.approx(3)

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
            client._talk.attempts._retries = 2  # which are of no use now
            for _ in range(20):
                with pytest.raises(RequestFailed, match="left alone for") as caught:
                    await client.call_tool("t")
                assert not caught.value.sent
            assert asyncio.get_running_loop().time() == before
            assert it.heard[0].count("tools/call") == tried
            it.table["tools/call"] = {"content": []}
            await asyncio.sleep(2 * FIRST)
            await client.call_tool("t")
            assert client.state == "ready"
        assert states(heard) == ["connecting", "ready", "backoff", "ready", "closed"]

    run(main(), Clock)


def test_connecting_ends_the_time_for_which_a_server_is_left_alone():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION, retries=0) as client:
            it.table["tools/call"] = RequestFailed("refused", sent=False)
            for _ in range(MAX_FAILURES):
                await asyncio.sleep(0.001)
                with pytest.raises(RequestFailed, match="refused"):
                    await client.call_tool("t")
            it.table["tools/call"] = {"content": []}
            with pytest.raises(RequestFailed, match="left alone"):
                await client.call_tool("t")
            await client.connect()
            await client.call_tool("t")
            assert client.state == "ready"

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
            return connection.party.introduce(connection.incoming[asked.id].peer.revision)

        it = RawServer({"ping": answer, "server/discover": discover})
        heard = Heard()
        async with Client(it, revision=date, heartbeat=10, on_state=heard.__call__) as client:
            await asyncio.sleep(100)
            assert states(heard) == ["connecting", "ready"]
            answers = False
            await asyncio.sleep(21)
            await client.ping()
            assert it.served == 2
            assert "no sign of life" in str(heard[2].cause)
            assert "no sign of life" in caplog.text

    run(main(), Clock)


def test_a_refusal_is_a_sign_of_life():
    async def main() -> None:
        it = server(ping={"code": -32601, "message": "what?"})
        async with client_of(it, revision=SESSION, heartbeat=1) as client:
            await asyncio.sleep(100)
            assert client.stats.connections == 1
            assert it.heard[0][: len(OPENED)] == OPENED

    run(main(), Clock)
