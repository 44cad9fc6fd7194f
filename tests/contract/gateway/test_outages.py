"""Upstream servers that die, stop, flood or never start: only their own entries suffer."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from kitchen_upstream import URL, Kitchen, open_gateway, wait_for_tools
from toolpost import Client, KeyRing, PausedCall, RPCError, Server
from toolpost.errors import InternalError, InvalidParams
from waiting import until

CHILD = r"""
import os, sys
from pathlib import Path
from toolpost import Server
starts = Path(sys.argv[1])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if len(sys.argv) > 2 and len(starts.read_text()) > int(sys.argv[2]):
    sys.exit("no more")
server = Server("child")

@server.tool
def pid() -> int:
    return os.getpid()

@server.tool
def die() -> None:
    os._exit(1)

server.run()
"""


def child(starts: Path, *most: int) -> list[str]:
    return [sys.executable, "-c", CHILD, str(starts), *map(str, most)]


def count(starts: Path) -> int:
    return len(starts.read_text()) if starts.exists() else 0


def test_a_lazy_server_is_started_by_its_first_use_and_stopped_when_it_is_idle(tmp_path: Path):
    async def main() -> None:
        starts = tmp_path / "starts"
        gateway = Server("gateway")
        gateway.tool(name="own")(lambda: "own")
        mount = gateway.mount(child(starts), "c", start="lazy", idle=0.01)
        async with Client(gateway) as client:
            assert (await client.call_tool("own")).text == "own"
            assert (mount.state, count(starts)) == ("idle", 0)
            results = await asyncio.gather(*(client.call_tool("c_pid") for _ in range(10)))
            assert len({result.data for result in results}) == count(starts) == 1
            await until(lambda: mount.state == "idle")
            assert [tool.name for tool in await client.list_tools()] == ["own", "c_pid", "c_die"]
            assert count(starts) == 1
            again = await client.call_tool("c_pid")
            assert again.data != results[0].data
            assert count(starts) == 2

    asyncio.run(main())


def test_a_server_that_dies_fails_its_own_call_only_and_comes_back(tmp_path: Path):
    async def main() -> None:
        starts = tmp_path / "starts"
        gateway = Server("gateway")
        gateway.tool(name="own")(lambda: "own")
        mount = gateway.mount(child(starts), "c")
        async with Client(gateway) as client:
            with pytest.raises(InternalError, match="c cannot be reached") as caught:
                await client.call_tool("c_die")
            data: Any = caught.value.data
            assert (data["server"], data["sent"]) == ("c", True)
            assert (await client.call_tool("own")).text == "own"
            assert [tool.name for tool in await client.list_tools()] == ["own", "c_pid", "c_die"]
            assert (await client.call_tool("c_pid")).data > 0  # it waits for the next process
            assert count(starts) == 2
            await until(lambda: mount.state == "ready")
            assert mount.error is None

    asyncio.run(main())


def test_entries_of_a_server_that_stays_away_leave_the_lists_after_a_while(tmp_path: Path):
    async def main() -> None:
        gateway = Server("gateway")
        gateway.tool(name="own")(lambda: "own")
        mount = gateway.mount(child(tmp_path / "starts", 1), "c", grace=0.05)
        async with Client(gateway) as client:
            await wait_for_tools(client, "own", "c_pid", "c_die")
            with pytest.raises(InternalError):
                await client.call_tool("c_die")
            await wait_for_tools(client, "own")
            with pytest.raises(InvalidParams, match="Unknown tool"):
                await client.call_tool("c_pid")
            assert mount.state in {"backoff", "connecting"}
            assert mount.error is not None

    asyncio.run(main())


def test_a_server_that_cannot_be_started_does_not_disturb_the_others(tmp_path: Path):
    async def main() -> None:
        gateway = Server("gateway")
        broken = gateway.mount(["/no/such/program"], "broken")
        gateway.mount(child(tmp_path / "starts"), "c")
        async with Client(gateway) as client:
            assert [tool.name for tool in await client.list_tools()] == ["c_pid", "c_die"]
            assert (await client.call_tool("c_pid")).data > 0
            assert "/no/such/program" in str(broken.error)
            assert (broken.state, broken.problems) == ("backoff", [])
            broken.remove()
            assert broken.state == "removed"

    asyncio.run(main())


FLOOD = r"""
import json, sys, threading
count = 0
def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
for line in sys.stdin:
    message = json.loads(line)
    method, number = message["method"], message.get("id")
    if method == "initialize":
        info = {"name": "flood", "version": "1"}
        say(id=number, result={"protocolVersion": "2025-06-18", "serverInfo": info,
                               "capabilities": {"tools": {"listChanged": True}}})
    elif method == "tools/list":
        count += 1
        say(id=number, result={"tools": [{"name": f"t{count}", "inputSchema": {"type": "object"}}]})
        for _ in range(500):
            say(method="notifications/tools/list_changed")
    elif method == "tools/call":
        say(id=number, result={"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": 1}})
    elif number is not None:
        say(id=number, error={"code": -32601, "message": "Method not found"})
    sys.stdout.flush()
"""


def test_a_server_that_changes_its_list_all_the_time_does_not_disturb_the_others():
    async def main() -> None:
        gateway = Server("gateway")
        gateway.tool(name="own")(lambda: "own")
        gateway.mount([sys.executable, "-c", FLOOD], "f")
        async with Client(gateway) as client, client.listen(tools=True) as changes:
            seen: set[str] = set()
            async for _ in changes:
                assert (await client.call_tool("own")).text == "own"
                seen |= {name for name in (tool.name for tool in await client.list_tools()) if name != "own"}
                if len(seen) >= 3:
                    break
            assert client.stats.notifications < 50

    asyncio.run(main())


def answer(_: Any) -> dict[str, Any]:
    return {"value": 3}


def test_a_parked_call_takes_each_answer_once_and_is_never_called_again():
    async def main() -> None:
        kitchen = Kitchen(revisions=["2025-11-25"])
        async with open_gateway(kitchen) as gateway, Client(gateway) as client:
            await client.list_tools()
            paused = await client.begin_call("k_ask", {"name": "eggs"})
            assert isinstance(paused, PausedCall)
            (key,) = paused.questions
            again = await client.resume(paused, {key: {"value": 3}})
            assert isinstance(again, PausedCall)
            with pytest.raises(RPCError, match="already used"):
                await client.resume(paused, {key: {"value": 4}})
            (key,) = again.questions
            result = await client.resume(again, {key: {"value": True}})
            assert not isinstance(result, PausedCall)
            assert result.text == "3 eggs True"
            assert kitchen.runs == 1

    asyncio.run(main())


def test_a_parked_call_whose_worker_is_gone_may_have_run_in_part():
    async def main() -> None:
        kitchen, keys = Kitchen(revisions=["2025-11-25"]), KeyRing([b"k" * 32])
        app = kitchen.asgi()
        async with app.lifespan():

            def make_gateway() -> Server:
                gateway = Server("gateway", keys=keys)
                gateway.mount(URL, "k", http=app)
                return gateway

            async with Client(make_gateway()) as client:
                paused = await client.begin_call("k_ask", {"name": "eggs"})
            assert isinstance(paused, PausedCall)
            async with Client(make_gateway()) as client:
                await client.list_tools()
                with pytest.raises(InternalError, match="may have run in part"):
                    await client.resume(paused, {key: {"value": 3} for key in paused.questions})
            assert kitchen.runs == 1

    asyncio.run(main())


def test_an_idle_connection_of_a_session_ends_with_it():
    async def main() -> None:
        kitchen = Kitchen(revisions=["2025-11-25"])
        async with open_gateway(kitchen) as gateway, Client(gateway) as other:
            app = gateway.asgi()
            async with app.lifespan():
                async with Client(URL, http=app, revision="2025-11-25", on_elicitation=answer) as client:
                    await client.list_tools()
                    assert (await client.call_tool("k_remember", {"word": "a"})).text == "None"
                async with Client(URL, http=app, revision="2025-11-25") as client:
                    await client.list_tools()
                    assert (await client.call_tool("k_remember", {"word": "b"})).text == "None"
            assert (await other.call_tool("k_add", {"a": 1, "b": 1})).data == 2

    asyncio.run(main())
