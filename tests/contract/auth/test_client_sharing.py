"""Calls, clients and processes that share a token: calls stay parallel, and log in or refresh only once."""

import asyncio
import sys
from pathlib import Path

import pytest

from fake_authorization_site import AuthSites, browse, run
from scripted import scripted
from toolpost import AuthError, FileTokens, MemoryTokens

SHARE = Path(__file__).with_name("programs") / "share.py"


def test_six_calls_are_in_flight_at_once():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            sites.on_call = asyncio.Barrier(6).wait  # pyright: ignore[reportAttributeAccessIssue] - what it returns
            async with asyncio.timeout(20):
                await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))

    run(visit)


@pytest.mark.parametrize("expires_in", [0, 3600])
def test_six_calls_with_a_token_that_has_ended_refresh_it_once(expires_in):
    async def visit(sites: AuthSites) -> None:
        sites.token = {"expires_in": expires_in}
        async with sites.client() as mcp:
            sites.token = {}
            sites.valid.clear()
            before = len(sites.forms)
            await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))
            assert [form["grant_type"] for form, _ in sites.forms[before:]] == ["refresh_token"]
        assert len(sites.authorized) == 1

    run(visit)


def test_six_calls_open_one_window():
    async def visit(sites: AuthSites) -> None:
        async with sites.client() as mcp:
            sites.valid.clear()
            sites.refresh.clear()
            await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))
        assert len(sites.authorized) == 2

    run(visit)


def test_six_calls_that_need_more_open_one_window():
    async def visit(sites: AuthSites) -> None:
        sites.needs = ("write",)
        async with sites.client() as mcp:
            await asyncio.gather(*(mcp.call_tool("anything") for _ in range(6)))
        assert [asked.get("scope") for asked in sites.authorized] == [None, "write"]

    run(visit)


def test_all_waiting_requests_fail_with_the_login():
    async def visit(sites: AuthSites) -> None:
        windows = 0

        async def decline(url: str) -> str:
            nonlocal windows
            windows += 1
            return await browse(url)

        async with sites.client(sites.oauth(open_url=decline)) as mcp:
            sites.valid.clear()
            sites.refresh.clear()
            sites.redirect = lambda said: {"error": "access_denied", "state": said["state"]}
            barrier = asyncio.Barrier(6)
            inner = sites.answer_mcp

            async def together(heard):
                await barrier.wait()
                return await inner(heard)

            sites.answer_mcp = together
            said = await asyncio.gather(
                *(mcp.call_tool("anything") for _ in range(6)), return_exceptions=True
            )
            assert all(isinstance(error, AuthError) for error in said), said
            assert windows == 2
            # A later caller may try again.
            sites.answer_mcp = inner
            sites.redirect = lambda said: said
            await mcp.call_tool("anything")
            assert windows == 3

    run(visit)


def test_a_cancelled_caller_does_not_break_the_login_of_others():
    async def visit(sites: AuthSites) -> None:
        thinking, go_on = asyncio.Event(), asyncio.Event()

        async def think(url: str) -> str:
            thinking.set()
            await go_on.wait()
            return await browse(url)

        auth = sites.oauth(open_url=think)
        go_on.set()
        async with sites.client(auth) as mcp:
            go_on.clear()
            thinking.clear()
            sites.valid.clear()
            sites.refresh.clear()
            first, second = (asyncio.create_task(mcp.call_tool("anything")) for _ in range(2))
            await thinking.wait()
            first.cancel()
            await asyncio.wait([first])
            go_on.set()
            assert (await second).text == "done"
        assert len(sites.authorized) == 2

    run(visit)


def test_a_login_without_waiters_is_cancelled():
    async def visit(sites: AuthSites) -> None:
        thinking, cancelled = asyncio.Event(), asyncio.Event()

        async def think(_url: str) -> None:
            thinking.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        connecting = asyncio.create_task(sites.client(sites.oauth(open_url=think)).connect())
        await thinking.wait()
        connecting.cancel()
        await asyncio.wait([connecting])
        await cancelled.wait()

    run(visit)


def test_servers_of_one_issuer_open_one_window_at_a_time():
    async def visit(sites: AuthSites) -> None:
        other = AuthSites()
        async with scripted(other.serve_mcp) as second:
            other.server, other.issuer, other.valid = second.url, sites.issuer, sites.valid
            open_now = most = 0

            async def count(url: str) -> str:
                nonlocal open_now, most
                open_now += 1
                most = max(most, open_now)
                await asyncio.sleep(0)
                back = await browse(url)
                open_now -= 1
                return back

            auth = sites.oauth(open_url=count)
            async with sites.client(auth) as one, other.client(auth) as two:
                sites.valid.clear()
                sites.refresh.clear()
                await asyncio.gather(one.call_tool("anything"), two.call_tool("anything"))
            assert most == 1
            assert len(sites.registered) == 1
            assert {asked["resource"] for asked in sites.authorized} == {sites.server, other.server}

    run(visit)


def test_two_clients_with_one_storage_log_in_once():
    async def visit(sites: AuthSites) -> None:
        storage = MemoryTokens()

        async def use() -> None:
            async with sites.client(sites.oauth(storage=storage)) as mcp:
                await mcp.call_tool("anything")

        await asyncio.gather(*(use() for _ in range(5)))
        assert len(sites.authorized) == 1

    run(visit)


def test_ten_processes_refresh_a_token_once(tmp_path):
    async def visit(sites: AuthSites) -> None:
        sites.token = {"expires_in": 0}
        auth = sites.oauth(storage=FileTokens(tmp_path))
        async with sites.client(auth):
            pass
        sites.token = {}
        sites.valid.clear()
        before = len(sites.forms)
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(SHARE),
                sites.server,
                str(tmp_path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            for _ in range(10)
        ]
        said = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
        assert [out.strip() for out, _ in said] == [b"done"] * 10, [err.decode() for _, err in said if err]
        assert [form["grant_type"] for form, _ in sites.forms[before:]] == ["refresh_token"]
        assert len(sites.authorized) == 1

    run(visit)
