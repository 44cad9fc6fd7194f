"""Additional cases for our client with servers at a URL.

`WEB` needs the names of the kitchen, `EVERYTHING_WEB` those of npm's `server-everything`. `ALONE` is for
servers that give clients of the session era no session, `SPOILED` for one with an invalid tool.
"""

import asyncio
import contextlib
from typing import Any, Final

from cases import Suite, eventually
from ours import Guest
from relay import Relay
from toolpost import MCPError, RequestTimeout
from toolpost.errors import RemoteProtocolError

__all__ = ["ALONE", "EVERYTHING_WEB", "SPOILED", "WEB"]

WEB: Final = Suite[Guest]()
SPOILED: Final = Suite[Guest]()
ALONE: Final = Suite[Guest]()
EVERYTHING_WEB: Final = Suite[Guest]()

BY_URL: Final = ("http", "sse")
RESUMABLE: Final = "2025-03-26"
CHANGED: Final = "notifications/tools/list_changed"


def _relay(guest: Guest) -> Relay:
    assert guest.relay is not None
    return guest.relay


async def _add(client: Any) -> None:
    calls = (client.call_tool("add", {"a": n, "b": 1}) for n in range(20))
    assert [result.text for result in await asyncio.gather(*calls)] == [str(n + 1) for n in range(20)]


@WEB.case("two clients at once", over=BY_URL)
async def two(guest: Guest) -> None:
    assert guest.another is not None
    async with guest.another() as other:
        assert other.revision == guest.client.revision
        await asyncio.gather(_add(guest.client), _add(other))
    await _add(guest.client)


@WEB.case("a stream that the server interrupts is resumed", since="2025-11-25", era="session", over=("http",))
async def interrupted(guest: Guest) -> None:
    before = _relay(guest).resumed
    assert (await guest.client.call_tool("pause", {"key": "pause"})).text == "run 1"
    assert _relay(guest).resumed > before


@WEB.case("a stream that is cut is resumed", since=RESUMABLE, era="session", over=("http",))
async def cut(guest: Guest) -> None:
    before = _relay(guest).resumed
    seen: list[float] = []
    result = await guest.client.call_tool("hold", {"key": "hold"}, progress=_cutting(guest, seen))
    assert result.text == "run 1"
    assert seen == [1, 2], seen
    assert _relay(guest).resumed > before


@WEB.case("a stream that is cut fails one call alone", era="stateless", over=("http",))
async def failed(guest: Guest) -> None:
    seen: list[float] = []
    try:
        result = await guest.client.call_tool("hold", {"key": "hold"}, progress=_cutting(guest, seen))
    except MCPError:
        pass
    else:
        raise AssertionError(f"it did not fail: {result}")
    assert (await guest.client.call_tool("add", {"a": 1, "b": 2})).text == "3"


@WEB.case("changes are heard after all connections were cut", over=("http",))
async def heard_again(guest: Guest) -> None:
    _relay(guest).cut()
    guest.notices.clear()
    for _ in range(100):  # in the stateless era, changes without a listener are lost
        with contextlib.suppress(MCPError):  # it may have used a dead connection
            await guest.client.call_tool("touch_tools")
        if guest.heard(CHANGED):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("no change was received")


@WEB.case("a loop hears changes after all connections were cut", over=("http",))
async def listened_again(guest: Guest) -> None:
    heard = asyncio.Event()

    async def touch() -> None:
        while not heard.is_set():
            with contextlib.suppress(MCPError):
                await guest.client.call_tool("touch_tools")
            await asyncio.sleep(0.1)

    async with guest.client.listen(tools=True) as changes:
        _relay(guest).cut()
        touching = asyncio.create_task(touch())
        try:
            coming = aiter(changes)
            assert (await anext(coming)).kind == "tools"
            assert (await anext(coming)).kind == "tools"
        finally:
            # Not cancelled: mcp 1.30.0 silently closes a connection if a session ends while it handles a
            # notification, and the next request on that connection is lost.
            heard.set()
            await touching


@WEB.case("tools: mirrored parameters", era="stateless", over=("http",))
async def mirrored(guest: Guest) -> None:
    for place in ("Bern", "Zürich 世界", " spaces ", ""):
        arguments = {"place": place, "floor": 3, "fragile": True}
        assert (await guest.client.call_tool("deliver", arguments)).text == f"{place} 3"


@WEB.case("a session that has ended is opened again", era="session", over=("http",))
async def renewed(guest: Guest) -> None:
    relay = _relay(guest)
    before = relay.handshakes  # the client may notice and reconnect first
    for session in tuple(relay.sessions):
        await relay.end(session)
    # Not a call: a 404 does not prove that it did not run, so only safe requests are repeated.
    assert (await guest.client.read_resource("config://app")).contents
    await _add(guest.client)
    assert relay.handshakes == before + 1, relay.handshakes - before


def _cutting(guest: Guest, seen: list[float]) -> Any:
    """Return a progress callback; its first call cuts all connections."""

    def step(update: Any) -> None:
        seen.append(update.progress)
        if len(seen) == 1:
            _relay(guest).cut()

    return step


@SPOILED.case("tools: one with an unusable header is left out", era="stateless", over=("http",))
async def left_out(guest: Guest) -> None:
    await guest.client.call_tool("spoil")
    assert guest.another is not None
    async with guest.another() as lenient:
        names = {tool.name for tool in await lenient.list_tools()}
        assert "deliver" in names
        assert "misdeliver" not in names
    try:
        await guest.client.list_tools()
    except RemoteProtocolError:
        return
    raise AssertionError("a strict client did not report it")


# --------------------------------------------------------------------- old clients without sessions


@ALONE.case("tools, resources, prompts", over=("alone",))
async def alone(guest: Guest) -> None:
    client = guest.client
    assert "add" in {tool.name for tool in await client.list_tools()}
    await _add(client)
    assert (await client.read_resource("config://app")).contents[0].text == '{"heat": 3}'
    assert (await client.get_prompt("greet", {"name": "Ann"})).messages
    await client.ping()


@ALONE.case("what needs a way back fails at once", over=("alone",))
async def no_way_back(guest: Guest) -> None:
    failure: MCPError | None = None
    try:
        await guest.client.call_tool("ask_model", timeout=3)
    except MCPError as error:
        failure = error
    assert failure is not None
    # mcp 1.x sends the request anyway and never stops waiting; its own client times out too.
    assert isinstance(failure, RequestTimeout) == (guest.peer == "mcp-1.30.0"), failure
    await _add(guest.client)


@ALONE.case("there is no session", over=("alone",))
async def no_session(guest: Guest) -> None:
    assert not _relay(guest).sessions


# --------------------------------------------------------------------- npm's server-everything


@EVERYTHING_WEB.case("two clients at once", over=BY_URL)
async def two_of_everything(guest: Guest) -> None:
    assert guest.another is not None
    async with guest.another() as other:
        calls = [client.call_tool("echo", {"message": "soup"}) for client in (guest.client, other) * 10]
        assert {result.text for result in await asyncio.gather(*calls)} == {"Echo: soup"}
    await guest.client.ping()


@EVERYTHING_WEB.case("a stream that is cut is resumed", since=RESUMABLE, over=("http",))
async def cut_everything(guest: Guest) -> None:
    before = _relay(guest).resumed
    seen: list[float] = []
    arguments = {"duration": 1, "steps": 4}
    result = await guest.client.call_tool(
        "trigger-long-running-operation", arguments, progress=_cutting(guest, seen)
    )
    assert "completed" in result.text
    assert seen == [1, 2, 3, 4], seen
    assert _relay(guest).resumed > before


@EVERYTHING_WEB.case(
    "messages sent while all connections were cut are replayed", since="2025-11-25", over=("http",)
)
async def replayed(guest: Guest) -> None:
    # Later messages do not arrive: the store of this peer names an event instead of a stream, so that a
    # resumed stream gets no new messages. Its own client does not get them either.
    await guest.client.subscribe("demo://resource/dynamic/text/2")
    relay = _relay(guest)
    before = relay.streams
    relay.cut()
    await eventually(lambda: relay.streams > before, "stream")
    await guest.client.ping()
    relay.cut()
    with contextlib.suppress(MCPError):  # it may use a dead connection
        await guest.client.ping()
    guest.notices.clear()
    await guest.client.call_tool("toggle-subscriber-updates")
    await eventually(lambda: guest.heard("notifications/resources/updated"), "update")
    await guest.client.call_tool("toggle-subscriber-updates")
