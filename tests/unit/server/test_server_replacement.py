"""Replacement of a server while clients stay connected."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import hosted
from region_server import served
from toolpost import Client, Context, Extension, Handler, Server
from toolpost.errors import InvalidParams
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, REVISIONS
from toolpost.server.reloading import ReloadableServer
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.types import ClientCapabilities, Params, Result

STATELESS = LATEST.date
SESSION = LATEST_SESSION.date
SESSIONS = [date for date in DATES if not REVISIONS[date].stateless]
PATIENCE = 20.0
WAYS = [
    *(("memory", date) for date in DATES),
    *(("http", date) for date in DATES if date != DATES[0]),
]


def run(main: Any) -> None:
    """Run a test in a new loop, with a timeout."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


class Times:
    """Creates servers, and records their lifespans."""

    def __init__(self) -> None:
        self.lives: list[str] = []
        self.passed: list[str] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    def server(self, name: str, called: str | None = None) -> Server:
        @asynccontextmanager
        async def lifespan(server: Server) -> AsyncGenerator[str]:
            self.lives.append(f"+{name}")
            yield f"life of {name}"
            self.lives.append(f"-{name}")

        async def note(call: Any, next: Any) -> Any:  # noqa: A002 - the word for it
            self.passed.append(f"{name} {call.method}")
            return await next(call)

        server = Server(
            called or name,
            instructions=f"Be {name}.",
            lifespan=lifespan,
            middleware=[note],
            page_size=2,
        )

        @server.tool
        async def who(ctx: Context) -> str:
            return f"{name}, {ctx.server.info.name}, {ctx.lifespan}"

        @server.tool
        async def slow(ctx: Context) -> str:
            self.begun.set()
            await self.go.wait()
            return f"{name}, {ctx.lifespan}"

        server.tool(name=f"only_{name}")(lambda: "")
        return server


@asynccontextmanager
async def reached(server: Handler, way: str, revision: str, **options: Any) -> AsyncGenerator[Client]:
    """A client of a server."""
    if way == "memory":
        async with Client(server, revision=revision, **options) as client:
            yield client
    else:
        app = server.asgi()
        async with (
            app.lifespan(),
            Client("http://127.0.0.1/mcp", http=app, revision=revision, **options) as client,
        ):
            yield client


async def names(client: Client) -> list[str]:
    return [tool.name for tool in await client.list_tools()]


@pytest.mark.parametrize(("way", "revision"), WAYS)
def test_a_client_stays_connected_and_is_notified_of_changes(way: str, revision: str) -> None:
    async def main() -> None:
        times = Times()
        now = ReloadableServer(times.server("one"))
        async with (
            reached(now, way, revision) as client,
            client.listen(tools=True, prompts=True, resources=True) as changes,
        ):
            assert await names(client) == ["who", "slow", "only_one"]
            two = times.server("two")
            two.prompt(name="greet")(lambda: "hello")
            await now.replace(two)
            heard: set[str] = set()
            async for change in changes:
                assert not change.missed
                heard.add(change.kind)
                if heard == {"tools", "prompts"}:
                    break
            assert await names(client) == ["who", "slow", "only_two"]
            assert [prompt.name for prompt in await client.list_prompts()] == ["greet"]
            assert await client.list_resources() == []
            assert (await client.call_tool("who")).text == "two, two, life of two"
            with pytest.raises(InvalidParams, match="only_one"):
                await client.call_tool("only_one")
            assert client.stats.connections == 1
        assert times.lives == ["+one", "+two", "-one", "-two"]

    run(main)


@pytest.mark.parametrize(("way", "revision"), WAYS)
def test_a_call_finishes_on_the_server_that_started_it(way: str, revision: str) -> None:
    async def main() -> None:
        times = Times()
        now = ReloadableServer(times.server("one"))
        async with reached(now, way, revision) as client:
            calling = asyncio.create_task(client.call_tool("slow"))
            await times.begun.wait()
            await now.replace(times.server("two"))
            assert (await client.call_tool("who")).text == "two, two, life of two"
            assert times.lives == ["+one", "+two"]
            times.go.set()
            assert (await calling).text == "one, life of one"
            await now.replace(times.server("three"))
            assert (await client.call_tool("who")).text == "three, three, life of three"
        assert times.lives == ["+one", "+two", "-one", "+three", "-two", "-three"]

    run(main)


@pytest.mark.parametrize(("way", "revision"), WAYS)
def test_changes_of_a_newer_server_are_reported(way: str, revision: str) -> None:
    async def main() -> None:
        times = Times()
        one, two = times.server("one"), times.server("two")
        for server in (one, two):
            server.resource("config://app", name="app")(lambda: "on")
        now = ReloadableServer(one)
        async with (
            reached(now, way, revision) as client,
            client.listen(uris=["config://app"], prompts=True) as changes,
        ):
            await now.replace(two)
            assert now.server is two
            two.notify_resource_updated("config://app")
            async for change in changes:
                if change.kind == "prompts":
                    break
                assert change.uri == "config://app"
                two.prompt(name="greet")(lambda: "hello")

    run(main)


@pytest.mark.parametrize("revision", DATES)
def test_a_client_reads_on_where_it_was(revision: str) -> None:
    async def main() -> None:
        times = Times()
        now = ReloadableServer(times.server("one", called="times"))
        async with reached(now, "memory", revision) as client:
            seen: list[list[str]] = []
            async for page in client.list_tools_pages():
                seen.append([tool.name for tool in page.tools])
                await now.replace(times.server("two", called="times"))
            assert seen == [["who", "slow"], ["only_two"]]

    run(main)


@pytest.mark.parametrize("way", ["memory", "http"])
def test_what_was_asked_by_one_is_answered_to_the_next(way: str) -> None:
    def made(name: str) -> Server:
        server = Server(name="asking")

        @server.tool
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit("Sure?", bool)
            return f"{name}: {answer}"

        return server

    async def main() -> None:
        now = ReloadableServer(made("one"))

        async def answer(*_: Any) -> dict[str, bool]:
            await now.replace(made("two"))
            return {"value": True}

        async with reached(now, way, STATELESS, on_elicitation=answer) as client:
            assert (await client.call_tool("ask")).text.startswith("two:")

    run(main)


def test_instructions_and_the_name_tag_are_those_of_now() -> None:
    async def main() -> None:
        times = Times()
        now = ReloadableServer(times.server("one"))
        async with reached(now, "memory", SESSION) as first:
            assert first.instructions == "Be one."
            await now.replace(times.server("two"))
            for revision in DATES:
                async with reached(now, "memory", revision) as later:
                    assert later.server_info is not None
                    assert (later.instructions, later.server_info.name) == ("Be two.", "two")

    run(main)


@pytest.mark.parametrize(("way", "revision"), WAYS)
def test_middleware_is_that_of_now(way: str, revision: str) -> None:
    async def main() -> None:
        times = Times()
        now = ReloadableServer(times.server("one"))
        async with reached(now, way, revision) as client, client.listen(tools=True) as changes:
            await client.call_tool("who")
            await now.replace(times.server("two"))
            async for _ in changes:
                break
            await client.call_tool("who")
        assert "one tools/call" in times.passed
        assert "two notifications/tools/list_changed" in times.passed
        assert times.passed.count("one tools/call") == times.passed.count("two tools/call") == 1
        assert ("one subscriptions/listen" in times.passed) == (revision == STATELESS)

    run(main)


@pytest.mark.parametrize("revision", [DATES[0], SESSION])
def test_a_client_notification_reaches_the_current_server(revision: str) -> None:
    async def main() -> None:
        heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        times = Times()

        def made(name: str) -> Server:
            server = times.server(name)

            @server.on_notification("notifications/roots/list_changed")
            async def changed(ctx: Context) -> None:
                await heard.put((name, ctx.lifespan))

            return server

        now = ReloadableServer(made("one"))
        async with reached(now, "memory", revision, on_roots=["file:///a"]) as client:
            await client.notify_roots_changed()
            assert await heard.get() == ("one", "life of one")
            await now.replace(made("two"))
            await client.notify_roots_changed()
            assert await heard.get() == ("two", "life of two")
            assert "two notifications/roots/list_changed" in times.passed

    run(main)


ECHO = Extension("com.acme/echo", since=DATES[0])


@ECHO.method("acme/echo", Params, Result)
async def echo(ctx: Context, params: Params) -> Result:
    return Result(meta={"example.com/by": ctx.server.info.name})


class Hand(Handler):
    """A low-level server that records its subscriptions."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.watched: list[str] = []

    async def subscribe(self, uri: str, ctx: Context) -> None:
        self.watched.append(f"+{uri}")

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        self.watched.append(f"-{uri}")

    async def read_resource(self, uri: str, ctx: Context) -> Any:
        raise AssertionError("it is there to be watched, and nobody reads it")


@pytest.mark.parametrize("revision", [SESSION, STATELESS])
def test_a_server_by_hand_takes_over_what_is_watched(revision: str) -> None:
    async def main() -> None:
        echoes = ClientCapabilities(extensions={ECHO.name: {}})
        one, two = Hand("one"), Hand("two", extensions=[ECHO], max_in_flight=7)
        now = ReloadableServer(one)
        async with (
            reached(now, "memory", revision, capabilities=echoes) as client,
            client.listen(uris=["a://b"]) as changes,
        ):
            await now.replace(two)
            two.notify_resource_updated("a://b")
            async for change in changes:
                assert change.uri == "a://b"
                break
            assert await client.list_tools() == []
            result = await client.request("acme/echo")
            assert (result.meta or {})["example.com/by"] == "two"
            everybody = now.broadcaster.get_subscribers()
            limits = [each.connection.limit for each in everybody if isinstance(each, ServerConversation)]
            assert limits == [7]
        assert one.watched == ["+a://b"]
        assert two.watched == ["-a://b"]

    run(main)


def test_a_server_whose_lifespan_fails_does_not_replace_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def broken(server: Server) -> AsyncGenerator[None]:
        raise OSError("no database")
        yield

    @asynccontextmanager
    async def cancelled(server: Server) -> AsyncGenerator[None]:
        raise asyncio.CancelledError
        yield

    @asynccontextmanager
    async def untidy(server: Server) -> AsyncGenerator[None]:
        yield
        raise OSError("no end")

    async def main() -> None:
        times = Times()
        now = ReloadableServer(times.server("one"))
        async with reached(now, "memory", SESSION) as client:
            with pytest.raises(OSError, match="no database"):
                await now.replace(Server("two", lifespan=broken))
            with pytest.raises(Exception, match="the lifespan was cancelled"):
                await now.replace(Server("two", lifespan=cancelled))
            assert (await client.call_tool("who")).text == "one, one, life of one"
            await now.replace(Server("three", lifespan=untidy))
            await now.replace(times.server("four"))
            assert (await client.call_tool("who")).text == "four, four, life of four"

    run(main)
    assert "the lifespan of three failed on exit" in caplog.text


def test_a_server_that_fails_to_start_is_reported() -> None:
    @asynccontextmanager
    async def broken(server: Server) -> AsyncGenerator[None]:
        raise OSError("no database")
        yield

    async def main() -> None:
        now = ReloadableServer(Server("one", lifespan=broken))
        with pytest.raises(OSError, match="no database"):
            async with now.hold_lifespan():
                pass

    run(main)


def test_a_replacement_that_is_given_up_leaves_nothing() -> None:
    begun = asyncio.Event()

    @asynccontextmanager
    async def endless(server: Server) -> AsyncGenerator[None]:
        begun.set()
        await asyncio.Event().wait()
        yield

    async def main() -> None:
        times = Times()
        now = ReloadableServer(times.server("one"))
        async with reached(now, "memory", STATELESS) as client:
            replacing = asyncio.create_task(now.replace(Server("two", lifespan=endless)))
            await begun.wait()
            replacing.cancel()
            await asyncio.wait([replacing])
            assert replacing.cancelled()
            assert (await client.call_tool("who")).text == "one, one, life of one"

    run(main)


def test_the_outer_lifespan_is_entered_once() -> None:
    lives: list[Any] = []

    @asynccontextmanager
    async def whole(generations: ReloadableServer) -> AsyncGenerator[None]:
        lives.append(generations)
        yield
        lives.append("over")

    async def main() -> None:
        times = Times()
        now = ReloadableServer(times.server("one"), lifespan=whole)
        with pytest.raises(RuntimeError, match="only while it is running"):
            await now.replace(times.server("two"))
        async with reached(now, "memory", STATELESS):
            await now.replace(times.server("two"))
        assert lives == [now, "over"]
        async with reached(now, "memory", STATELESS) as client:  # and once more
            assert (await client.call_tool("who")).text == "two, two, life of two"

    run(main)


def test_a_server_that_chooses_others_cannot_be_replaced() -> None:
    async def choose(*_: Any) -> Server:
        raise AssertionError("nobody comes")

    factory = Server.factory(choose, "house")
    with pytest.raises(TypeError, match="house selects a server per client"):
        ReloadableServer(factory)

    async def main() -> None:
        now = ReloadableServer(Times().server("one"))
        async with reached(now, "memory", STATELESS) as client:
            with pytest.raises(TypeError, match="house selects"):
                await now.replace(factory)
            assert (await client.call_tool("who")).text.startswith("one")

    run(main)


def test_capabilities_and_scopes_are_those_of_now() -> None:
    one = Server("one")
    one.tool(scopes=["admin"], name="rule")(lambda: "")
    now = ReloadableServer(one)
    assert now.get_required_scopes("tools/call", "rule") == {"admin"}
    assert now.find_header_parameters("rule") is None
    assert now.local_peer.has_capability("prompts")
    assert now.local_peer is one.local_peer


def test_headers_have_to_mirror_the_arguments() -> None:
    async def main() -> None:
        headers, body = hosted.modern("tools/call", hosted.call("query", region="north"))
        now: Any = ReloadableServer(served())
        async with hosted.hosted(now) as site:
            for region, status in (("north", 200), ("south", 400)):
                answer = await site.post({**headers, "Mcp-Param-Region": region}, body)
                assert answer.status == status

    run(main)
