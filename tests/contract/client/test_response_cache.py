"""Cached responses: for as long as the server allows, and until it reports a change."""

import asyncio
from typing import Any

import pytest

from endpoint import DISCOVERED, WELCOME, Endpoint, client_of
from raw_server import Clock, run
from revision_dates import DATES
from toolpost.errors import RPCError

LISTS = {
    "list_tools": ("tools/list", "tools", "notifications/tools/list_changed"),
    "list_prompts": ("prompts/list", "prompts", "notifications/prompts/list_changed"),
    "list_resources": ("resources/list", "resources", "notifications/resources/list_changed"),
    "list_resource_templates": (
        "resources/templates/list",
        "resourceTemplates",
        "notifications/resources/list_changed",
    ),
}
TTL = 60_000
COMPLETE = {"resultType": "complete", "cacheScope": "private"}


def server(**table: Any) -> Endpoint:
    fresh = {
        method.replace("/", "__"): {**COMPLETE, "ttlMs": TTL, member: []}
        for method, member, _ in LISTS.values()
    }
    read = {**COMPLETE, "ttlMs": TTL, "contents": [{"uri": "x://a", "text": "one"}]}
    return Endpoint(
        **{
            "server__discover": {**DISCOVERED, "ttlMs": TTL},
            "initialize": WELCOME,
            "resources__read": read,
            **fresh,
            **table,
        }
    )


async def quiet(it: Endpoint) -> None:
    """Return when all messages have been read."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert it.channels


# --------------------------------------------------------------------- what is kept


@pytest.mark.requirement("CACHE-10", "CACHE-12", "CACHE-13")
@pytest.mark.parametrize("method", LISTS)
def test_a_list_is_kept_as_long_as_it_is_fresh_and_not_asked_for_after(method):
    async def main() -> None:
        it = server()
        async with client_of(it) as client:
            ask, name = getattr(client, method), LISTS[method][0]
            for _ in range(3):
                assert await ask() == []
            assert it.now.heard.count(name) == 1
            assert client.stats.cached == 2
            await asyncio.sleep(TTL / 1000 - 1)
            await ask()
            assert it.now.heard.count(name) == 1
            await asyncio.sleep(1)
            await quiet(it)
            assert it.now.heard.count(name) == 1  # time alone asks for nothing
            await ask()
            assert it.now.heard.count(name) == 2

    run(main(), Clock)


@pytest.mark.requirement("CACHE-7", "CACHE-10")
def test_a_resource_is_kept_by_its_uri():
    async def main() -> None:
        it = server()
        async with client_of(it) as client:
            for uri in ("x://a", "x://b", "x://a", "x://b"):
                assert (await client.read_resource(uri)).contents[0].text == "one"  # type: ignore[union-attr] - it is a text
            assert [params["uri"] for params in it.sent("resources/read")] == ["x://a", "x://b"]
            first = await client.read_resource("x://a")
            first.contents.clear()  # a caller that modifies a result affects no other caller
            assert (await client.read_resource("x://a")).contents

    run(main())


@pytest.mark.requirement("CACHE-10", "CACHE-11")
@pytest.mark.parametrize("ttl", [None, 0, -5])
def test_results_without_a_ttl_are_not_cached(ttl):
    async def main() -> None:
        page = {**COMPLETE, "tools": []} if ttl is None else {**COMPLETE, "tools": [], "ttlMs": ttl}
        it = server(tools__list=page)
        async with client_of(it) as client:
            await client.list_tools()
            await client.list_tools()
            assert it.now.heard.count("tools/list") == 2
            assert client.stats.cached == 0

    run(main())


@pytest.mark.requirement("CACHE-7", "CACHE-15")
def test_each_page_is_kept_by_its_cursor_for_its_own_time():
    async def main() -> None:
        def page(_: object, message: Any) -> Any:
            if message["params"].get("cursor") is None:
                return {**COMPLETE, "tools": [], "ttlMs": TTL, "nextCursor": "two"}
            return {**COMPLETE, "tools": [], "ttlMs": TTL // 2}

        it = server(tools__list=page)
        async with client_of(it) as client:
            await client.list_tools()
            await client.list_tools()
            await asyncio.sleep(TTL / 2000)
            await client.list_tools()
            cursors = [params.get("cursor") for params in it.sent("tools/list")]
            assert cursors == [None, "two", "two"]

    run(main(), Clock)


def test_kept_tools_are_known_like_others():
    async def main() -> None:
        tool = {"name": "a", "inputSchema": {"properties": {"r": {"type": "string", "x-mcp-header": "R"}}}}
        it = server(tools__list={**COMPLETE, "tools": [tool], "ttlMs": TTL}, tools__call={"content": []})
        async with client_of(it) as client:
            assert await client.list_tools() == await client.list_tools()
            await client.call_tool("a")
            assert it.now.mirrored == [{"mcp-param-r": ("r",)}]

    run(main())


# --------------------------------------------------------------------- what is not


@pytest.mark.parametrize("options", [{"revision": DATES[3]}, {"cache": False}])
def test_nothing_is_kept_in_a_session_or_where_the_user_does_not_want_it(options):
    async def main() -> None:
        it = server()
        async with client_of(it, **options) as client:
            for _ in range(2):
                await client.list_tools()
                await client.read_resource("x://a")
            assert it.now.heard.count("tools/list") == it.now.heard.count("resources/read") == 2
            it.now.say("notifications/tools/list_changed")
            await quiet(it)

    run(main())


@pytest.mark.requirement("CACHE-8")
def test_a_result_that_took_answers_is_not_kept():
    async def main() -> None:
        read = {**COMPLETE, "ttlMs": TTL, "contents": []}
        wants = {"resultType": "input_required", "requestState": "s"}
        it = server(resources__read=[wants, read, wants, read])
        async with client_of(it) as client:
            for _ in range(2):
                await client.read_resource("x://a")
            assert it.now.heard.count("resources/read") == 4

    run(main(), Clock)


def test_a_read_with_its_own_options_is_not_cached():
    async def main() -> None:
        it = server()
        async with client_of(it) as client:
            await client.read_resource("x://a")
            await client.read_resource("x://a", meta={"com.example/a": 1})
            await client.read_resource("x://a", progress=print)
            await client.request("resources/read", {"uri": "x://a"})
            assert it.now.heard.count("resources/read") == 4
            await client.ping()
            await client.ping()
            assert it.now.heard.count("server/discover") == 3
            assert client.stats.cached == 0

    run(main())


def test_an_error_is_not_kept():
    async def main() -> None:
        it = server(tools__list=[{"code": -32603, "message": "no"}, {**COMPLETE, "tools": [], "ttlMs": TTL}])
        async with client_of(it) as client:
            with pytest.raises(RPCError):
                await client.list_tools()
            await client.list_tools()
            await client.list_tools()
            assert it.now.heard.count("tools/list") == 2

    run(main())


# --------------------------------------------------------------------- what makes it stale


@pytest.mark.requirement("CACHE-17")
@pytest.mark.parametrize("method", LISTS)
def test_a_notification_makes_its_own_list_stale_at_once(method):
    async def main() -> None:
        it = server()
        async with client_of(it) as client:
            for ask in LISTS:
                await getattr(client, ask)()
            it.now.say(LISTS[method][2])
            await quiet(it)
            for ask in LISTS:
                await getattr(client, ask)()
            stale = {name for name, _, notice in LISTS.values() if notice == LISTS[method][2]}
            assert {name for name in it.now.heard if it.now.heard.count(name) == 2} == stale

    run(main())


@pytest.mark.requirement("CACHE-17")
@pytest.mark.parametrize(("changed", "reads"), [("x://a/part", 2), ("x://ab", 1), ("x://", 1)])
def test_a_resource_is_read_again_when_a_part_of_it_was_updated(changed, reads):
    async def main() -> None:
        it = server()
        async with client_of(it) as client:
            await client.read_resource("x://a")
            it.now.say("notifications/resources/updated", uri=changed)
            await quiet(it)
            await client.read_resource("x://a")
        assert len(it.sent("resources/read")) == reads

    run(main(), Clock)


@pytest.mark.requirement("CACHE-17")
def test_a_resource_that_was_updated_is_read_again():
    async def main() -> None:
        it = server()
        async with client_of(it) as client:
            for uri in ("x://a", "x://b"):
                await client.read_resource(uri)
            it.now.say("notifications/resources/updated", uri="x://a")
            await quiet(it)
            for uri in ("x://a", "x://b"):
                await client.read_resource(uri)
            assert [params["uri"] for params in it.sent("resources/read")] == ["x://a", "x://b", "x://a"]

    run(main())


@pytest.mark.requirement("CACHE-17")
def test_an_answer_that_was_overtaken_by_a_change_is_not_kept():
    async def main() -> None:
        def overtaken(channel: Any, _: object) -> Any:
            channel.say("notifications/tools/list_changed")
            return {**COMPLETE, "tools": [], "ttlMs": TTL}

        it = server(tools__list=overtaken)
        async with client_of(it) as client:
            await client.list_tools()
            await client.list_tools()
            assert it.now.heard.count("tools/list") == 2

    run(main())


@pytest.mark.requirement("CACHE-16")
def test_a_refused_cursor_drops_all_pages():
    async def main() -> None:
        first = {**COMPLETE, "tools": [], "ttlMs": TTL, "nextCursor": "two"}
        last = {**COMPLETE, "tools": [], "ttlMs": 0}
        it = server(tools__list=[first, last, {"code": -32602, "message": "no"}, first, last])
        async with client_of(it) as client:
            await client.list_tools()
            await client.list_tools()  # the first page from what was kept, whose cursor is refused now
            cursors = [params.get("cursor") for params in it.sent("tools/list")]
            assert cursors == [None, "two", "two", None, "two"]

    run(main())


@pytest.mark.requirement("CACHE-9")
def test_a_new_connection_and_another_client_start_with_nothing():
    async def main() -> None:
        it = server()
        client = client_of(it)
        for each in (client, client, client_of(it)):
            async with each:
                await each.list_tools()
                assert it.now.heard == ["server/discover", "tools/list"]

    run(main())
