"""`ctx.state` of a session: the maximum number of keys, and no traces of a rejected one."""

from typing import Any

from hosted import OLD, hosted, legacy, run
from session_site import text, tool
from toolpost import Client, Context, Server, SyncContext
from toolpost.server.state import MAX_KEYS


def make_server() -> Server:
    server = Server("state")

    @server.tool
    async def fill(first: int, last: int, ctx: Context) -> str:
        for number in range(first, last):
            await ctx.state.set(f"key {number}", number)
        return "filled"

    @server.tool
    async def drop(number: int, ctx: Context) -> str:
        await ctx.state.delete(f"key {number}")
        return "dropped"

    @server.tool
    async def odd(ctx: Context) -> str:
        said: list[str] = []
        odd_pairs = [("\ud800", 1), ("a", "\ud800"), ("a", {"\ud800": 1}), ("k" * 300, 1)]
        for key, value in odd_pairs:
            try:
                await ctx.state.set(key, value)
            except Exception as error:  # noqa: BLE001 - any of them
                said.append(type(error).__name__)
            said.append(str(await ctx.state.get(key)))
        return " ".join(said)

    @server.tool
    def sync(ctx: SyncContext) -> int:
        ctx.state.set("key 0", 7)
        return ctx.state.get("key 0")

    return server


ODD = "LocalProtocolError None LocalProtocolError None LocalProtocolError None ValueError None"


def count_state(server: Server) -> int:
    records: Any = server.store.records
    return sum(key.startswith("state/") for key in records._values._items)


def test_a_session_has_a_limited_number_of_keys():
    async def main():
        server = make_server()
        async with hosted(server) as site:
            session = await site.open()
            post = site.post
            assert text(await post(legacy(session), tool("fill", 1, first=0, last=MAX_KEYS))) == "filled"
            assert text(await post(legacy(session), tool("fill", 2, first=0, last=MAX_KEYS))) == "filled"
            refused = await post(legacy(session), tool("fill", 3, first=MAX_KEYS, last=MAX_KEYS + 1))
            assert refused.json["result"]["isError"]
            assert count_state(server) == MAX_KEYS
            assert text(await post(legacy(session), tool("drop", 4, number=3))) == "dropped"
            more = tool("fill", 5, first=MAX_KEYS, last=MAX_KEYS + 1)
            assert text(await post(legacy(session), more)) == "filled"
            other = await site.open()
            assert text(await post(legacy(other), tool("sync", 1))) == "7"
            assert (await site.ask("DELETE", "/mcp", legacy(session))).status == 200
            assert count_state(server) == 1

    run(main)


def test_a_key_or_value_that_cannot_be_stored_leaves_nothing_behind():
    async def main():
        server = make_server()
        async with hosted(server) as site:
            session = await site.open()
            assert text(await site.post(legacy(session), tool("odd", 1))) == ODD
            assert count_state(server) == 0
            assert text(await site.post(legacy(session), tool("sync", 2))) == "7"

    run(main)


def test_a_session_without_http_has_the_same_limits():
    async def main():
        async with Client(make_server(), revision=OLD) as client:
            await client.call_tool("fill", {"first": 0, "last": MAX_KEYS})
            refused = await client.call_tool("fill", {"first": 0, "last": MAX_KEYS + 1}, raise_on_error=False)
            assert refused.is_error
            await client.call_tool("drop", {"number": 0})
            await client.call_tool("fill", {"first": MAX_KEYS, "last": MAX_KEYS + 1})
        async with Client(make_server(), revision=OLD) as client:
            assert (await client.call_tool("odd")).text == ODD

    run(main)
