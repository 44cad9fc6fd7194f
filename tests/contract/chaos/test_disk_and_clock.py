"""A full disk and a clock that jumps: tokens in memory stay in use."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hosted import hosted, serving
from server_processes import NEW, OLD, PROGRAMS, run
from toolpost import Auth, Client, Context, MemoryTokens, OAuth, PausedCall, Server
from toolpost.errors import InvalidParams
from toolpost.testing import AuthorizationServer


class Later:
    """An application that is created once its port is known."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    async def stop(self) -> None:
        await self.app.stop()


@asynccontextmanager
async def guarded(**options: Any) -> AsyncGenerator[tuple[str, AuthorizationServer]]:
    """The URL of a server that requires tokens, and the issuer."""
    later = Later()
    async with AuthorizationServer.serve(**options) as login, serving(later, lifespan="off") as site:
        url = f"http://127.0.0.1:{site.port}"
        server = Server("guarded", auth=Auth(login.issuer, scopes=["read"]))

        @server.tool
        async def whoami(ctx: Context) -> str:
            assert ctx.principal is not None
            return ctx.principal.subject

        later.app = server.asgi(public_url=url)
        yield f"{url}/mcp", login


# --------------------------------------------------------------------- the disk


class Spender:
    """A client in a separate process, whose disk may be full."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def told(self, word: str) -> str:
        """Send a command; return the line that answers it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n".encode())
        return (await self._process.stdout.readline()).decode().strip()


@asynccontextmanager
async def spender(url: str, folder: Path) -> AsyncGenerator[Spender]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAMS / "spender.py"), url, str(folder), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    yield Spender(process)
    _, said = await process.communicate(b"\n")
    assert process.returncode == 0, said


def kept(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, without the locks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


class Clock:
    """A wall clock that a test can move; the monotonic clock is not affected."""

    def __init__(self) -> None:
        self._real = time.time
        self.ahead = 0.0

    def __call__(self) -> float:
        return self._real() + self.ahead


@pytest.fixture
def clock(monkeypatch) -> Clock:
    it = Clock()
    monkeypatch.setattr(time, "time", it)
    return it


def test_a_full_disk_hurts_neither_the_tokens_in_memory_nor_those_in_files(tmp_path, clock):
    async def main():
        async with guarded() as (url, login), spender(url, tmp_path) as client:
            assert await client.told("call") == "alice"
            before = kept(tmp_path)
            await client.told("full")
            assert await client.told("call") == "alice"
            for _ in range(3):
                clock.ahead += 400  # the token is too old for the server, and the next one cannot be kept
                assert await client.told("call") == "alice"
                assert kept(tmp_path) == before
            await client.told("room")
            clock.ahead += 400
            assert await client.told("call") == "alice"
            assert kept(tmp_path).keys() == before.keys()
            assert kept(tmp_path) != before
            assert login.request_counts["authorize"] == 1

    run(main)


# --------------------------------------------------------------------- the clock

DECADE = 10 * 365 * 86400.0
JUMPS = pytest.mark.parametrize("jump", [3600.0, -3600.0, DECADE, -DECADE])


@JUMPS
@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_clock_that_jumps_costs_a_refresh_at_most(jump, revision, clock):
    async def main():
        asked: list[str] = []

        async def browse(url: str) -> str:
            asked.append(url)
            async with (
                aiohttp.ClientSession() as session,
                session.get(url, allow_redirects=False) as response,
            ):
                return response.headers["location"]

        auth = OAuth(storage=MemoryTokens(), open_url=browse)
        async with guarded() as (url, _), Client(url, auth=auth, revision=revision) as mcp:
            assert (await mcp.call_tool("whoami")).text == "alice"
            for ahead in (jump, 0.0, jump):
                clock.ahead = ahead
                assert (await mcp.call_tool("whoami")).text == "alice"
            assert len(asked) == 1

    run(main)


@JUMPS
def test_a_clock_that_jumps_ends_no_session(jump, clock):
    async def main():
        server = Server("counter")

        @server.tool
        async def count(ctx: Context) -> int:
            count = await ctx.state.get("count", 0) + 1
            await ctx.state.set("count", count)
            return count

        async with (
            hosted(server, idle=60) as site,
            Client(f"http://127.0.0.1:{site.port}/mcp", revision=OLD) as mcp,
        ):
            for number, ahead in enumerate((0.0, jump, 0.0), 1):
                clock.ahead = ahead
                assert (await mcp.call_tool("count")).data == number

    run(main)


@pytest.mark.requirement("MRTR-10")
@JUMPS
def test_a_clock_that_jumps_refuses_old_states_and_no_others(jump, clock):
    async def main():
        server = Server("desk")

        @server.tool
        async def lend(ctx: Context) -> str:
            return repr(await ctx.elicit("How many days?", int))

        async with Client(server, revision=NEW) as mcp:

            async def ask() -> PausedCall:
                outcome = await mcp.begin_call("lend")
                assert isinstance(outcome, PausedCall)
                return outcome

            async def answer(paused: PausedCall) -> str:
                outcome = await mcp.resume(paused, {key: {"value": 7} for key in paused.questions})
                assert not isinstance(outcome, PausedCall)
                return outcome.text

            first = await ask()
            clock.ahead = jump
            if jump > 0:
                with pytest.raises(InvalidParams, match="not valid for this request"):
                    await answer(first)
            else:
                assert "7" in await answer(first)
            second = await ask()
            assert "7" in await answer(second)
            clock.ahead = 0.0
            assert "7" in await answer(first)
            if jump < 0:
                with pytest.raises(InvalidParams, match="not valid for this request"):
                    await answer(second)

    run(main)
