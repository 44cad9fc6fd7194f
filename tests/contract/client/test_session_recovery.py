"""Sessions that a server forgets: recreated once for all callers, with all subscriptions."""

import asyncio
import logging
from typing import Any

import pytest

import leak_check
from endpoint import DISCOVERED, OPENED, WELCOME, Endpoint, client_of
from expected_limits import LOST_PATIENCE, RECONNECT_LONGEST
from raw_server import Clock, run
from revision_dates import DATES
from toolpost.errors import (
    ChannelClosed,
    ConnectFailed,
    MCPError,
    RequestFailed,
    SessionLost,
)

SESSION = DATES[3]


def server(**table: Any) -> Endpoint:
    return Endpoint(**{"initialize": WELCOME, "tools__call": {"content": []}, **table})


# --------------------------------------------------------------------- once for all callers


@pytest.mark.requirement("HTTPL-28")
def test_a_forgotten_session_is_reopened_and_the_request_is_sent_again():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION) as client:
            it.now.forget()
            await client.call_tool("t")
            assert it.heard == [[*OPENED, "tools/call"], [*OPENED, "tools/call"]]
            it.now.forget()
            await client.call_tool("t")
        assert [channel.closed for channel in it.channels] == [True] * 3

    run(main(), Clock)


@pytest.mark.requirement("HTTPL-28")
def test_it_is_recreated_once_for_all_waiters():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION) as client:
            it.now.forget()
            await asyncio.gather(*(client.call_tool(str(number)) for number in range(50)))
            assert len(it.channels) == 2
            assert it.heard[1] == [*OPENED, *["tools/call"] * 50]
            assert asyncio.get_running_loop().time() == 0.0  # no call was abandoned

    run(main(), Clock)


def test_a_request_that_may_have_been_served_is_not_resent():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION) as client:
            it.table["tools/call"] = None
            slow = asyncio.create_task(client.call_tool("slow"))
            await it.until("tools/call")
            it.table["tools/call"] = {"content": []}
            it.now.forget()
            await client.call_tool("quick")
            with pytest.raises(SessionLost) as caught:
                await slow
            assert caught.value.sent
            assert not caught.value.retry_safe
            assert asyncio.get_running_loop().time() == LOST_PATIENCE
            assert it.heard[1] == [*OPENED, "tools/call"]

    run(main(), Clock)


def test_a_server_that_forgets_every_session_is_an_error():
    async def main() -> None:
        it = server(tools__call=lambda channel, _: channel.lost())
        async with client_of(it, revision=SESSION) as client:
            with pytest.raises(SessionLost):
                await client.call_tool("t")
            assert len(it.channels) == 3  # it was sent once, and twice more

    run(main(), Clock)


def test_a_server_that_does_not_come_back_is_an_error_until_it_does():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION) as client:
            await client.subscribe("x://a")
            it.now.forget()
            it.refuses = ConnectFailed("gone for lunch")
            for _ in range(2):
                with pytest.raises(ConnectFailed, match="gone for lunch"):
                    await client.call_tool("t")
            it.refuses = None
            await asyncio.sleep(2 * RECONNECT_LONGEST)
            await client.call_tool("t")
            assert it.heard[1] == [*OPENED, "resources/subscribe", "tools/call"]  # it was not forgotten

    run(main(), Clock)


def test_waiters_do_not_reopen_a_closed_client():
    async def main() -> None:
        it = server()
        client = await client_of(it, revision=SESSION).connect()
        it.now.forget()
        call = asyncio.create_task(client.call_tool("t"))
        await it.until("tools/call")
        await client.close()
        with pytest.raises(ChannelClosed):
            await call
        with pytest.raises(ChannelClosed, match="not connected"):
            await client.call_tool("t")
        assert len(it.channels) == 1

    run(main(), Clock)


def test_a_lost_request_is_not_a_lost_session():
    async def main() -> None:
        it = server(tools__call=[RequestFailed("cut off"), {"content": []}])
        async with client_of(it, revision=SESSION) as client:
            with pytest.raises(RequestFailed, match="old: cut off"):
                await client.call_tool("t")
            await client.call_tool("t")
            assert len(it.channels) == 1

    run(main())


def test_a_session_is_recreated_at_once_and_the_old_one_ends_later():
    async def main() -> None:
        it = server()
        client = await client_of(it, revision=SESSION).connect()
        it.table["tools/call"] = None
        slow = asyncio.create_task(client.call_tool("slow"))
        await it.until("tools/call")
        it.now.forget()
        await client.ping()
        assert asyncio.get_running_loop().time() == 0.0
        assert not it.channels[0].closed
        await client.close()
        assert it.channels[0].closed
        with pytest.raises(SessionLost):
            await slow
        assert asyncio.get_running_loop().time() == 0.0

    run(main(), Clock)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_callback_may_recreate_the_session(is_async):
    async def main() -> None:
        it = server(tools__list={"tools": []})
        done = asyncio.Event()

        async def refetch(method: str, _: object) -> None:
            if method == "notifications/tools/list_changed":
                await client.list_tools()
                done.set()

        loop = asyncio.get_running_loop()

        def in_thread(method: str, params: object) -> None:
            asyncio.run_coroutine_threadsafe(refetch(method, params), loop).result()

        client = client_of(it, revision=SESSION, on_notification=refetch if is_async else in_thread)
        async with client:
            it.now.forget()
            it.now.say("notifications/tools/list_changed")
            async with asyncio.timeout(60):
                await done.wait()
            assert len(it.channels) == 2

    run(main())


def test_a_loop_that_ends_takes_a_lost_session_along():
    it = server()
    client = client_of(it, revision=SESSION)

    async def leave() -> None:
        await client.connect()
        it.table["tools/call"] = None
        task = asyncio.create_task(client.call_tool("slow"))
        await it.until("tools/call")
        it.now.forget()
        await client.ping()
        task.cancel()

    asyncio.run(leave())
    leak_check.cut_off.clear()  # that is what it is about
    run(client.close())


# --------------------------------------------------------------------- what was wished for


def test_log_level_and_watched_resources_are_restored():
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION) as client:
            await client.set_log_level("warning")
            await client.subscribe("x://a")
            await client.subscribe("x://b")
            await client.unsubscribe("x://b")
            it.now.forget()
            await client.ping()
            assert it.heard[1] == [*OPENED, "resources/subscribe", "logging/setLevel", "ping"]
            assert it.sent("resources/subscribe")[2:] == [{"uri": "x://a"}]
            assert it.sent("logging/setLevel") == [{"level": "warning"}] * 2
            it.now.forget()
            await client.ping()
            assert it.heard[2] == it.heard[1][:-1]

    run(main(), Clock)


def test_a_server_that_does_not_want_to_restore_is_used_all_the_same(caplog):
    async def main() -> None:
        it = server()
        async with client_of(it, revision=SESSION) as client:
            await client.set_log_level("warning")
            await client.subscribe("x://a")
            no = {"code": -32603, "message": "no"}
            it.table |= {"resources/subscribe": no, "logging/setLevel": no}
            it.now.forget()
            await client.ping()

    with caplog.at_level(logging.WARNING):
        run(main(), Clock)
    assert "stopped watching x://a: old: no" in caplog.text
    assert "could not restore the log level warning: old: no" in caplog.text


def test_a_server_that_is_another_one_now_is_asked_in_its_own_way():
    async def main() -> None:
        ack = "notifications/subscriptions/acknowledged"

        def listen(channel: Any, message: Any) -> None:
            tag = {"io.modelcontextprotocol/subscriptionId": message["id"]}
            channel.say(ack, notifications=message["params"]["notifications"], _meta=tag)

        it = server(server__discover=[404, DISCOVERED, DISCOVERED], subscriptions__listen=listen)
        async with client_of(it) as client:
            await client.set_log_level("warning")
            await client.subscribe("x://a")
            it.now.forget()
            await client.ping()
            assert client.era == "stateless"
            (wanted,) = it.sent("subscriptions/listen")
            assert wanted["notifications"] == {"resourceSubscriptions": ["x://a"]}
            meta = it.sent("server/discover")[-1]["_meta"]
            assert meta["io.modelcontextprotocol/logLevel"] == "warning"

    run(main(), Clock)


def test_a_closed_client_has_no_subscriptions_left():
    async def main() -> None:
        it = server()
        client = client_of(it, revision=SESSION)
        async with client:
            await client.set_log_level("warning")
            await client.subscribe("x://a")
        async with client:
            await client.ping()
        assert it.heard[1] == [*OPENED, "ping"]

    run(main())


# --------------------------------------------------------------------- pages


def pages(*cursors: Any) -> list[Any]:
    """Pages of tools, one tool each."""
    return [
        {"tools": [{"name": f"t{number}", "inputSchema": {}}], **({"nextCursor": cursor} if cursor else {})}
        for number, cursor in enumerate(cursors)
    ]


@pytest.mark.requirement("PAGE-6")
def test_a_list_that_a_lost_session_interrupts_is_read_from_the_start():
    async def main() -> None:
        it = server(tools__list=[*pages("a", "b"), *pages("c", None)])
        it.table["tools/list"].insert(2, lambda channel, _: channel.lost())
        async with client_of(it, revision=SESSION) as client:
            assert [tool.name for tool in await client.list_tools()] == ["t0", "t1"]
            cursors = [(params or {}).get("cursor") for params in it.sent("tools/list")]
            assert cursors == [None, "a", "b", None, "c"]
            assert it.heard[1] == [*OPENED, "tools/list", "tools/list"]

    run(main(), Clock)


@pytest.mark.requirement("PAGE-6")
def test_pages_do_not_go_on_over_another_connection():
    async def main() -> None:
        it = server(tools__list=pages("a", "b", None))
        client = client_of(it, revision=SESSION)
        async with client:
            reading = client.list_tools_pages()
            await anext(reading)
        async with client:
            with pytest.raises(
                MCPError, match=r"while the list was being read \(start again from the first page\)"
            ):
                await anext(reading)
        assert len(it.sent("tools/list")) == 1

    run(main())


def test_pages_do_not_go_on_when_the_client_is_closed():
    async def main() -> None:
        it = server(tools__list=pages("a", "b", None))
        async with client_of(it, revision=SESSION) as client:
            reading = client.list_tools_pages()
            await anext(reading)
        with pytest.raises(ChannelClosed, match="closed"):
            await anext(reading)

    run(main())


@pytest.mark.requirement("CACHE-16")
@pytest.mark.parametrize("date", [SESSION, DATES[-1]])
def test_a_rejected_cursor_restarts_the_list_once(date):
    async def main() -> None:
        no = {"code": -32602, "message": "no such cursor"}
        it = server(server__discover=DISCOVERED, tools__list=[*pages("a"), no, *pages("b", None)])
        async with client_of(it, revision=date) as client:
            assert [tool.name for tool in await client.list_tools()] == ["t0", "t1"]
            it.table["tools/list"] = [*pages("a"), no, *pages("b"), no]
            with pytest.raises(MCPError, match="no such cursor"):
                await client.list_tools()
            it.table["tools/list"] = [no]
            with pytest.raises(MCPError, match="no such cursor"):
                await client.list_tools()

    run(main())
