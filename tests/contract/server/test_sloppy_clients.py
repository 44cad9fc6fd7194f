"""Clients that break a rule harmlessly: the server accepts their messages."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Server
from toolpost.testing import memory_pair
from toolpost.types import Content, TextContent

SESSION, STATELESS = DATES[-2], DATES[-1]
HELLO = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "sloppy", "version": "1"}}


def shop(**options: Any) -> Server:
    """A server with a tool whose parameters are of every kind."""
    server = Server("shop", **options)

    @server.tool
    def order(title: str, copies: int = 1, note: str | None = "none", user_id: int = 0) -> str:
        """Order a book."""
        return f"{title} {copies} {note} {user_id}"

    @server.prompt
    def ask(title: str, tone: str = "kind") -> str:
        """Ask for a book."""
        return f"{title} {tone}"

    @server.tool
    def forget() -> None:
        """Return nothing."""

    @server.tool
    def none() -> list[Content]:
        """Return no blocks."""
        return []

    return server


Ask = Callable[..., Awaitable[dict[str, Any]]]


def talk(body: Callable[[Ask], Awaitable[None]], server: Server | None = None) -> None:
    """Run a test with a function that sends a message, and returns the answer to a request."""

    async def main() -> None:
        ours, theirs = memory_pair()
        serving = asyncio.create_task((server or shop()).serve(theirs))
        numbers = iter(range(1, 1000))

        async def ask(method: str, **params: Any) -> dict[str, Any]:
            number = next(numbers)
            await ours.send(
                json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
            )
            answer = json.loads(await ours.receive())
            assert answer["id"] == number
            return answer

        assert "result" in await ask("initialize", **HELLO)
        await ours.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        async with asyncio.timeout(20):
            await body(ask)
        await ours.close()
        await serving

    asyncio.run(main())


def text(answer: dict[str, Any]) -> str:
    """The text of a result, or of an error."""
    return answer["result"]["content"][0]["text"] if "result" in answer else answer["error"]["message"]


# --------------------------------------------------------------------- arguments


def test_an_argument_that_hosts_add_is_dropped_with_one_warning(caplog):
    extra = {"title": "Emma", "toolCallId": "x", "sessionId": "y", "_sessionID": 1, "action": "sendMessage"}

    async def body(ask: Ask) -> None:
        for _ in range(3):
            answer = await ask("tools/call", name="order", arguments=extra)
            assert (text(answer), answer["result"].get("isError", False)) == ("Emma 1 none 0", False)

    talk(body)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "order: ignored unknown arguments 'toolCallId', 'sessionId'" in warnings[0]
    assert "strict_arguments=True" in warnings[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"titel": "Emma"},
        {"name": "Emma"},  # the required one is missing
        {"title": "Emma", "copys": 2},
        {"title": "Emma", "userId": 2},
        {"title": "Emma", "user-id": 2},
        {"title": "Emma", "copies": "many", "sessionId": "y"},
    ],
)
def test_a_typo_of_a_model_is_told(arguments):
    async def body(ask: Ask) -> None:
        answer = await ask("tools/call", name="order", arguments=arguments)
        assert answer["result"]["isError"]
        assert "unknown argument '" in text(answer)
        assert "(expected: title, copies, note, user_id)" in text(answer)

    talk(body)


def test_what_resembles_an_argument_that_was_given_is_no_typo():
    async def body(ask: Ask) -> None:
        answer = await ask("tools/call", name="order", arguments={"title": "Emma", "user_id": 7, "userId": 8})
        assert text(answer) == "Emma 1 none 7"

    talk(body)


def test_a_strict_server_refuses_every_unknown_argument():
    async def body(ask: Ask) -> None:
        answer = await ask("tools/call", name="order", arguments={"title": "Emma", "toolCallId": "x"})
        assert answer["result"]["isError"]
        assert "unknown argument 'toolCallId'" in text(answer)

    talk(body, shop(strict_arguments=True))


def test_null_means_not_given_where_the_default_is_not_nullable():
    async def body(ask: Ask) -> None:
        arguments = {"title": "Emma", "copies": None, "note": None, "user_id": None}
        assert text(await ask("tools/call", name="order", arguments=arguments)) == "Emma 1 None 0"
        answer = await ask("tools/call", name="order", arguments={"title": None})
        assert answer["result"]["isError"]
        assert "title" in text(answer)

    talk(body)


# --------------------------------------------------------------------- sessions


def test_initialize_again_in_a_session_is_answered():
    async def body(ask: Ask) -> None:
        for revision in (SESSION, DATES[0], SESSION):
            answer = await ask("initialize", **{**HELLO, "protocolVersion": revision})
            assert answer["result"]["protocolVersion"] == revision
            assert text(await ask("tools/call", name="order", arguments={"title": "Emma"})) == "Emma 1 none 0"

    talk(body)


def test_initialize_again_does_not_disturb_a_call_that_runs():
    async def main() -> None:
        server, begun, go = Server("shop"), asyncio.Event(), asyncio.Event()

        @server.tool
        async def wait() -> str:
            begun.set()
            await go.wait()
            return "waited"

        ours, theirs = memory_pair()
        serving = asyncio.create_task(server.serve(theirs))
        messages = [("initialize", HELLO), ("tools/call", {"name": "wait"}), ("initialize", HELLO)]
        for number, (method, params) in enumerate(messages):
            data = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            await ours.send(json.dumps(data).encode())
            if method == "initialize":
                assert json.loads(await ours.receive())["id"] == number
                await ours.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            else:
                await begun.wait()
        go.set()
        answer = json.loads(await ours.receive())
        assert (answer["id"], text(answer)) == (1, "waited")
        await ours.close()
        await serving

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("revision", DATES)
@pytest.mark.parametrize("name", ["forget", "none"])
def test_a_result_without_a_value_has_a_block_in_the_session_era(name, revision):
    async def main() -> None:
        async with Client(shop(), revision=revision) as client:
            result = await client.call_tool(name)
            assert result.content == ([] if revision == STATELESS else [TextContent("")])
            assert result.data is None

    asyncio.run(main())


# --------------------------------------------------------------------- pipes

SLOW = """
import asyncio, time
from toolpost import Server

server = Server("s")


@server.tool
async def slow(n: int) -> int:
    await asyncio.sleep(0.2)
    return n


@server.tool
def blocking(n: int) -> int:
    time.sleep(0.2)
    return n


server.run()
"""


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_requests_that_are_piped_in_are_all_answered(kind, end, tmp_path: Path):
    program, requests = tmp_path / "server.py", tmp_path / "requests.jsonl"
    program.write_text(SLOW)
    calls = [
        {"name": name, "arguments": {"n": number}} for number, name in enumerate(["slow", "blocking"] * 3, 1)
    ]
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    messages += [
        {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
        for number, call in enumerate(calls, 1)
    ]
    requests.write_text("\n".join(map(json.dumps, messages)) + end)
    way: dict[str, Any] = {"input": requests.read_bytes()}
    with requests.open("rb") as file:
        if kind == "file":
            way = {"stdin": file}
        done = subprocess.run(
            [sys.executable, program], stdout=subprocess.PIPE, check=True, timeout=60, **way
        )
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert sorted(answers) == list(range(7))
    assert [text(answers[number]) for number in range(1, 7)] == list("123456")
