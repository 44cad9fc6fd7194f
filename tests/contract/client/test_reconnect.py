"""A client that heals: every transition is told with its cause, and what can do no harm is tried again."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from endpoint import DISCOVERED
from raw_server import RawServer, run
from revision_dates import DATES
from toolpost import Client, SyncClient, Transition
from toolpost.errors import (
    ChannelClosed,
    ConnectFailed,
    InternalError,
    RateLimited,
    RequestFailed,
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
