"""The synchronous client: scripts, threads, callbacks that use it, and a close without leaks."""

import asyncio
import inspect
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from raw_server import Asked, RawServer
from revision_dates import DATES
from toolpost import Channel, Client, Server, SyncClient
from toolpost.errors import ChannelClosed, LocalProtocolError, MCPError, ToolError
from toolpost.types import (
    CallToolResult,
    CreateMessageParams,
    InputRequest,
    InputRequiredResult,
    ListToolsResult,
    ProgressParams,
    Raw,
    Result,
    TextContent,
    Tool,
)

SESSION = DATES[3]


@pytest.fixture(autouse=True)
def no_thread_left():
    """Check that no toolpost thread outlives its test."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("toolpost"):
            thread.join(10)
            assert not thread.is_alive(), thread.name


async def said(_: Asked) -> Result:
    return CallToolResult(content=[TextContent("one")], structured_content={"n": 1})


@pytest.mark.parametrize("date", DATES)
def test_the_same_methods_without_await(date):
    server = RawServer({"tools/call": said}, instructions="be kind")
    with SyncClient(server, revision=date) as client:
        assert client.connected
        assert client.call_tool("t", {"a": 1}).text == "one"
        client.ping()
        assert client.revision == date
        assert client.era == ("stateless" if date == DATES[-1] else "session")
        assert client.capabilities.tools is not None
        assert client.server_info is not None
        assert client.instructions == "be kind"
        assert (client.discover_result is None) is (client.era == "session")
        assert client.pending == {}
        assert client.stats.requests == 3
    assert not client.connected


def test_every_method_of_a_client_exists():
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    assert public(Client) | {"stats"} == public(SyncClient)
    assert SyncClient.list_tools.__doc__ == Client.list_tools.__doc__


def test_pages_are_iterated():
    pages = iter(
        [ListToolsResult(tools=[Tool("a", {})], next_cursor="x"), ListToolsResult(tools=[Tool("b", {})])]
    )

    async def turn(_: Asked) -> Result:
        return next(pages)

    with SyncClient(RawServer({"tools/list": turn})) as client:
        assert [[tool.name for tool in page.tools] for page in client.list_tools_pages()] == [["a"], ["b"]]


def test_errors_are_raised_in_the_caller():
    async def fail(_: Asked) -> Result:
        return CallToolResult(content=[TextContent("no")], is_error=True)

    with SyncClient(RawServer({"tools/call": fail})) as client, pytest.raises(ToolError, match="no"):
        client.call_tool("t")


def test_a_client_can_be_used_again_and_closed_twice():
    server = RawServer()
    client = SyncClient(server)
    client.close()
    for _ in range(2):
        assert client.connect() is client
        client.connect()
        client.ping()
        client.close()
        client.close()
    assert server.served == 2
    with pytest.raises(ChannelClosed, match=r"not connected \(use `with client:`"):
        client.ping()


def test_several_threads_share_a_client():
    with SyncClient(RawServer({"tools/call": said})) as client, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: client.call_tool("t").text, range(64)))
    assert results == ["one"] * 64


def test_a_callback_may_use_the_client():
    heard: list[Any] = []

    async def call(asked: Asked) -> Result:
        await asked.progress(1)
        answer = await asked.ask("sampling/createMessage", CreateMessageParams(messages=[], max_tokens=1))
        assert answer.raw is not None
        return CallToolResult(content=[TextContent(answer.raw.decode())])

    def on_sampling(_: CreateMessageParams) -> str:
        client.ping()
        return f"asked in {threading.current_thread().name}"

    def on_progress(params: ProgressParams) -> None:
        client.ping()
        heard.append(params.progress)

    server = RawServer({"tools/call": call})
    with SyncClient(server, revision=SESSION, on_sampling=on_sampling, on_progress=on_progress) as client:
        assert "asked in toolpost-" in client.call_tool("t").text
    assert heard == [1]


def test_an_async_callback_cannot_wait_for_its_own_thread(caplog):
    async def call(asked: Asked) -> Result:
        await asked.ask("roots/list")
        return Result()

    async def on_roots() -> list[str]:
        client.ping()
        return []

    client = SyncClient(RawServer({"tools/call": call}), revision=SESSION, on_roots=on_roots)
    with client, pytest.raises(MCPError):
        client.call_tool("t")
    assert LocalProtocolError.__name__ in caplog.text
    assert "would deadlock" in caplog.text


def test_a_callback_may_close_the_client():
    closed = threading.Event()

    async def call(asked: Asked) -> Result:
        await asked.ask("roots/list")
        return Result()

    def on_roots() -> list[str]:
        client.close()
        closed.set()
        return []

    client = SyncClient(RawServer({"tools/call": call}), revision=SESSION, on_roots=on_roots).connect()
    with pytest.raises(ChannelClosed):
        client.call_tool("t")
    assert closed.wait(10)


def test_two_threads_may_close_at_once():
    class Slow(RawServer):
        async def serve(self, channel: Channel) -> None:
            await super().serve(channel)
            await asyncio.sleep(0)

    client = SyncClient(Slow()).connect()
    with ThreadPoolExecutor(4) as pool:
        for closing in [pool.submit(client.close) for _ in range(4)]:
            closing.result(10)
    assert not client.connected


async def asks(asked: Asked) -> Result:
    await asked.log("info", "hello")
    await asked.ask("sampling/createMessage", CreateMessageParams(messages=[], max_tokens=1))
    raise AssertionError


def exits(_: object) -> None:
    sys.exit(3)


async def exits_on_the_loop(_: object) -> None:
    sys.exit(3)


@pytest.mark.parametrize("callback", [exits, exits_on_the_loop])
def test_a_callback_that_exits_loses_one_answer_and_not_the_client(callback, caplog):
    server = RawServer({"tools/call": asks})
    with SyncClient(server, revision=SESSION, timeout=10, on_sampling=callback, on_log=callback) as client:
        for _ in range(2):
            with pytest.raises(MCPError, match="failed to answer"):
                client.call_tool("t")
        client.ping()
    assert "a callback failed" in caplog.text


@pytest.mark.parametrize("callback", [exits, exits_on_the_loop])
def test_a_callback_that_answers_inside_a_call_exits_from_the_call(callback):
    async def wants(_: Asked) -> Result:
        params = Raw(b'{"messages":[],"maxTokens":1}')
        return InputRequiredResult(input_requests={"a": InputRequest("sampling/createMessage", params)})

    with SyncClient(RawServer({"tools/call": wants}), on_sampling=callback) as client:
        for _ in range(2):
            with pytest.raises(SystemExit):
                client.call_tool("t")
        client.ping()


def test_threads_may_connect_and_close_concurrently():
    client = SyncClient(RawServer())
    failures: list[BaseException] = []

    def again_and_again(act: Any) -> None:
        for _ in range(50):
            try:
                act()
            except ChannelClosed:
                pass  # another thread has closed it
            except BaseException as error:  # noqa: BLE001 - to be looked at in the test's own thread
                failures.append(error)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(again_and_again, [client.connect, client.close, client.connect, client.ping]))
    assert failures == []
    for _ in range(2):
        client.close()
        client.connect()
        client.ping()
    client.close()


@pytest.mark.parametrize("date", DATES)
def test_changes_are_listened_to_as_soon_as_listen_returns(date):
    server = Server("s")
    first = server.tool(name="first")(lambda: 1)
    with SyncClient(server, revision=date) as client:
        changes = client.listen(tools=True)
        first.remove()
        assert next(changes).kind == "tools"
        with client.listen(tools=True) as inside:
            server.tool(name="second")(lambda: 2)
            assert next(inside).kind == next(changes).kind == "tools"
        assert list(inside) == []
        changes.close()
        changes.close()
        assert list(changes) == []


@pytest.mark.parametrize("is_read", [False, True])
def test_a_loop_over_changes_ends_with_the_client(is_read):
    server = Server("s")
    server.tool(name="first")(lambda: 1)
    with SyncClient(server) as client:
        changes = client.listen(tools=True)
        server.tool(name="second")(lambda: 2)
        if is_read:
            next(changes)
    assert list(changes) == []
    with changes:
        pass
