"""A client that reconnects: every transition is reported with its cause, and safe requests are retried."""

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from endpoint import DISCOVERED, OPENED, WELCOME, Endpoint, client_of
from expected_limits import MAX_RETRIES, RECONNECT_FIRST
from raw_server import Clock, RawServer, run
from revision_dates import DATES
from toolpost import Client, SyncClient, Transition
from toolpost.errors import (
    ChannelClosed,
    ConnectFailed,
    InternalError,
    MCPError,
    RateLimited,
    RequestFailed,
    RequestTimeout,
)

MORTAL = """
import os, signal
from toolpost import Server

server = Server("mortal", version="1")

@server.tool
def die(code: int) -> int:
    print("the last words", file=__import__("sys").stderr, flush=True)
    os._exit(code)

@server.tool
def add(a: int, b: int) -> int:
    return a + b

@server.tool
def pid() -> int:
    return os.getpid()

if __name__ == "__main__":
    server.run()
"""


@pytest.fixture
def mortal(tmp_path: Path) -> list[str]:
    """A server process that can be killed by a call."""
    path = tmp_path / "mortal.py"
    path.write_text(MORTAL)
    return [sys.executable, str(path)]


def states(transitions: list[Transition]) -> list[str]:
    return [each.state for each in transitions]


def test_without_await_transitions_are_iterated_until_the_client_is_closed():
    with SyncClient(RawServer()) as client:
        assert client.state == "ready"
        seen: list[Transition] = []
        watching = threading.Thread(target=lambda: seen.extend(client.events()))
        watching.start()
    watching.join(10)
    assert not watching.is_alive()
    assert states(seen) in ([], ["closed"])


def test_without_await_transitions_are_those_from_the_call_on_and_not_from_the_first_look():
    with SyncClient(RawServer()) as client:
        events = client.events()
        client.close()
        client.connect()
        assert next(events).state == "closed"


# --------------------------------------------------------------------- processes


@pytest.mark.requirement("STDIO-14")
@pytest.mark.parametrize("date", [DATES[0], DATES[-1]])
def test_a_server_process_that_dies_is_started_again_and_its_last_call_says_why(mortal, date):
    async def main() -> None:
        async with Client(mortal, revision=date) as client:
            before = (await client.call_tool("pid")).data
            with pytest.raises(ChannelClosed) as caught:
                await client.call_tool("die", {"code": 7})
            assert "code 7" in str(caught.value)
            assert "the last words" in str(caught.value)
            assert caught.value.sent
            assert not caught.value.retry_safe
            assert (await client.call_tool("add", {"a": 1, "b": 2}, result_type=int)).data == 3
            assert (await client.call_tool("pid")).data != before
            assert client.stats.connections == 2

    run(main())


def test_a_process_that_was_killed_is_back_for_the_next_call_without_await(mortal):
    with SyncClient(mortal) as client:
        os.kill(client.call_tool("pid", result_type=int).data, signal.SIGKILL)
        assert client.call_tool("add", {"a": 1, "b": 2}, retry=True).data == 3


@pytest.mark.parametrize("retries", [-1, "2", None])
def test_the_number_of_retries_is_checked(retries):
    with pytest.raises(ValueError, match="retries"):
        Client("http://host/mcp", retries=retries)


@pytest.mark.parametrize(
    ("status", "later", "code", "kind"),
    [
        (503, "1", -32600, RequestFailed),  # whatever it says in JSON-RPC, it says when
        (429, "1", -32603, RequestFailed),
        (503, None, -32603, InternalError),
        (400, "1", -32603, InternalError),
        (429, "1", RateLimited.code, RateLimited),  # says so itself
    ],
)
def test_a_busy_server_that_speaks_json_rpc_is_understood(status, later, code, kind):
    async def main() -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            message = await receive()
            if scope["type"] != "http":
                return
            asked = json.loads(message["body"])
            found = asked["method"] == "server/discover"
            told = {"result": DISCOVERED} if found else {"error": {"code": code, "message": "busy"}}
            fields = [(b"content-type", b"application/json")]
            if later is not None and not found:
                fields.append((b"retry-after", later.encode()))
            body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}).encode()
            await send({"type": "http.response.start", "status": 200 if found else status, "headers": fields})
            await send({"type": "http.response.body", "body": body})

        async with Client("http://host/mcp", http=app, revision=DATES[-1], retries=0) as client:
            with pytest.raises(kind, match="busy") as caught:
                await client.call_tool("t")
            if kind is RequestFailed:
                assert caught.value.retry_after == 1.0

    run(main())


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        ("9" * 5000, 999_999_999.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("١", None),
        ("Wed, 99 Oct 9999999 07:28:00 GMT", None),
        (None, None),
    ],
)
def test_when_to_come_again_is_read_from_the_response(wait, seconds):
    async def main() -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            fields = [] if wait is None else [(b"retry-after", wait.encode("latin-1", "ignore"))]
            await send({"type": "http.response.start", "status": 503, "headers": fields})
            await send({"type": "http.response.body", "body": b""})

        client = Client("http://host/mcp", http=app, revision=DATES[-1], retries=0)
        with pytest.raises(ConnectFailed) as caught:
            await client.connect()
        assert isinstance(caught.value.__cause__, RequestFailed)
        assert caught.value.__cause__.retry_after == seconds

    run(main())


SESSION = DATES[3]


def server(**table: Any) -> Endpoint:
    return Endpoint(**{"initialize": WELCOME, "tools__call": {"content": []}, **table})


class Heard(list[Transition]):
    """A callback that records transitions in the event loop."""

    async def __call__(self, transition: Transition) -> None:
        self.append(transition)


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


# --------------------------------------------------------------------- once more


def test_an_unsent_request_is_sent_again():
    async def main() -> None:
        it = server(tools__call=[RequestFailed("refused", sent=False), {"content": []}])
        async with client_of(it, revision=SESSION) as client:
            await client.call_tool("t")
            assert client.stats.retries == 1
            assert RECONNECT_FIRST <= asyncio.get_running_loop().time() <= 2 * RECONNECT_FIRST

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
def test_read_only_requests_are_repeated(lost):
    async def main() -> None:
        read: dict[str, Any] = {"contents": []}
        it = server(resources__read=[lost, lost, read], tools__list=[lost, {"tools": []}])
        async with client_of(it, revision=SESSION) as client:
            await client.read_resource("x://a")
            await client.list_tools()
            assert client.stats.retries == 3

    run(main(), Clock)


def test_a_custom_request_is_retried_with_retry():
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
        (RequestFailed("busy", status=503), None, 1),  # the sender of this status may have served it before
        (RequestFailed("busy", status=503), False, 1),
        (RequestFailed("busy", status=429), None, 2),
        (RequestFailed("busy", status=429), False, 1),
        (RequestFailed("refused", sent=False), False, 1),
        (ChannelClosed("gone", sent=False), False, 1),
    ],
)
def test_no_retry_after_exceeds_the_timeout_of_the_caller(failure, retry, times):
    async def main() -> None:
        if isinstance(failure, RequestFailed) and failure.status is not None:
            failure.retry_after = 0.0
        it = server(tools__call=[failure, {"content": []}])
        async with client_of(it, revision=SESSION) as client:
            with pytest.raises(MCPError) if times == 1 else nullcontext():
                await client.call_tool("t", retry=retry)
            assert [method for heard in it.heard for method in heard].count("tools/call") == times

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


def test_connecting_ends_the_time_for_which_a_server_is_left_alone():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION, retries=0) as client:
            it.table["tools/call"] = RequestFailed("refused", sent=False)
            for _ in range(MAX_RETRIES):
                await asyncio.sleep(0.001)
                with pytest.raises(RequestFailed, match="refused"):
                    await client.call_tool("t")
            it.table["tools/call"] = {"content": []}
            with pytest.raises(RequestFailed, match="requests are paused"):
                await client.call_tool("t")
            await client.connect()
            await client.call_tool("t")
            assert client.state == "ready"

    run(main(), Clock)


def test_a_refusal_is_a_sign_of_life():
    async def main() -> None:
        it = server(ping={"code": -32601, "message": "what?"})
        async with client_of(it, revision=SESSION, heartbeat=1) as client:
            await asyncio.sleep(100)
            assert client.stats.connections == 1
            assert it.heard[0][: len(OPENED)] == OPENED

    run(main(), Clock)
