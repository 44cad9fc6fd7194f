"""Many calls, clients and processes that share a token: calls stay parallel, a login or a refresh is one."""

import asyncio
import sys
from pathlib import Path

import pytest

from fake_authorization_site import Town, browse, run
from scripted import scripted
from toolpost import AuthError, FileTokens, MemoryTokens

SHARE = Path(__file__).with_name("programs") / "share.py"


def test_six_calls_are_in_flight_at_once():
    async def visit(town: Town) -> None:
        async with town.client() as mcp:
            town.on_call = asyncio.Barrier(6).wait  # pyright: ignore[reportAttributeAccessIssue] - what it returns
            async with asyncio.timeout(20):
                await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))

    run(visit)


@pytest.mark.parametrize("expires_in", [0, 3600])
def test_six_calls_with_a_token_that_has_ended_refresh_it_once(expires_in):
    async def visit(town: Town) -> None:
        town.token = {"expires_in": expires_in}
        async with town.client() as mcp:
            town.token = {}
            town.valid.clear()
            before = len(town.forms)
            await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))
            assert [form["grant_type"] for form, _ in town.forms[before:]] == ["refresh_token"]
        assert len(town.authorized) == 1

    run(visit)


def test_six_calls_open_one_window():
    async def visit(town: Town) -> None:
        async with town.client() as mcp:
            town.valid.clear()
            town.refresh.clear()
            await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))
        assert len(town.authorized) == 2

    run(visit)


def test_six_calls_that_need_more_open_one_window():
    async def visit(town: Town) -> None:
        town.needs = ("write",)
        async with town.client() as mcp:
            await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))
        assert [asked.get("scope") for asked in town.authorized] == [None, "write"]

    run(visit)


def test_all_who_were_on_their_way_hear_that_nobody_logged_in():
    async def visit(town: Town) -> None:
        windows = 0

        async def decline(url: str) -> str:
            nonlocal windows
            windows += 1
            return await browse(url)

        async with town.client(town.oauth(open_url=decline)) as mcp:
            town.valid.clear()
            town.refresh.clear()
            town.redirect = lambda said: {"error": "access_denied", "state": said["state"]}
            barrier = asyncio.Barrier(6)
            inner = town.answer_mcp

            async def together(heard):
                await barrier.wait()
                return await inner(heard)

            town.answer_mcp = together
            said = await asyncio.gather(
                *(mcp.call_tool("anything") for _ in range(6)), return_exceptions=True
            )
            assert all(isinstance(error, AuthError) for error in said), said
            assert windows == 2
            # Whoever comes later may try again.
            town.answer_mcp = inner
            town.redirect = lambda said: said
            await mcp.call_tool("anything")
            assert windows == 3

    run(visit)


def test_a_caller_who_is_cancelled_does_not_break_the_login_of_others():
    async def visit(town: Town) -> None:
        thinking, go_on = asyncio.Event(), asyncio.Event()

        async def think(url: str) -> str:
            thinking.set()
            await go_on.wait()
            return await browse(url)

        auth = town.oauth(open_url=think)
        go_on.set()
        async with town.client(auth) as mcp:
            go_on.clear()
            thinking.clear()
            town.valid.clear()
            town.refresh.clear()
            first, second = (asyncio.create_task(mcp.call_tool("anything")) for _ in range(2))
            await thinking.wait()
            first.cancel()
            await asyncio.wait([first])
            go_on.set()
            assert (await second).text == "done"
        assert len(town.authorized) == 2

    run(visit)


def test_a_login_that_nobody_waits_for_is_given_up():
    async def visit(town: Town) -> None:
        thinking, cancelled = asyncio.Event(), asyncio.Event()

        async def think(_url: str) -> None:
            thinking.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        connecting = asyncio.create_task(town.client(town.oauth(open_url=think)).connect())
        await thinking.wait()
        connecting.cancel()
        await asyncio.wait([connecting])
        await cancelled.wait()

    run(visit)


def test_servers_of_one_issuer_open_one_window_at_a_time():
    async def visit(town: Town) -> None:
        other = Town()
        async with scripted(other.serve_mcp) as second:
            other.server, other.issuer, other.valid = second.url, town.issuer, town.valid
            open_now = most = 0

            async def count(url: str) -> str:
                nonlocal open_now, most
                open_now += 1
                most = max(most, open_now)
                await asyncio.sleep(0)
                back = await browse(url)
                open_now -= 1
                return back

            auth = town.oauth(open_url=count)
            async with town.client(auth) as one, other.client(auth) as two:
                town.valid.clear()
                town.refresh.clear()
                await asyncio.gather(one.call_tool("anything"), two.call_tool("anything"))
            assert most == 1
            assert len(town.registered) == 1
            assert {asked["resource"] for asked in town.authorized} == {town.server, other.server}

    run(visit)


def test_two_clients_with_one_storage_log_in_once():
    async def visit(town: Town) -> None:
        storage = MemoryTokens()

        async def use() -> None:
            async with town.client(town.oauth(storage=storage)) as mcp:
                await mcp.call_tool("anything")

        await asyncio.gather(*(use() for _ in range(5)))
        assert len(town.authorized) == 1

    run(visit)


def test_ten_processes_refresh_a_token_once(tmp_path):
    async def visit(town: Town) -> None:
        town.token = {"expires_in": 0}
        auth = town.oauth(storage=FileTokens(tmp_path))
        async with town.client(auth):
            pass
        town.token = {}
        town.valid.clear()
        before = len(town.forms)
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(SHARE),
                town.server,
                str(tmp_path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            for _ in range(10)
        ]
        said = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
        assert [out.strip() for out, _ in said] == [b"done"] * 10, [err.decode() for _, err in said if err]
        assert [form["grant_type"] for form, _ in town.forms[before:]] == ["refresh_token"]
        assert len(town.authorized) == 1

    run(visit)
