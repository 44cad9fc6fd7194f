"""Other ASGI servers, and frameworks that mount the application under a prefix."""

import asyncio
import contextlib
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from hosted import Site, call, kitchen, legacy, message, modern, opening, run, serving
from raw_http import wired

PROGRAM = str(Path(__file__).parents[2] / "support" / "programs" / "other_hosts.py")
GET = {"Accept": "text/event-stream"}
TOKEN = {"progressToken": 1}


# --------------------------------------------------------------------- other servers


@asynccontextmanager
async def other(name: str):
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, name, stdout=pipe, stderr=pipe)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        await _connects(port)
        yield process.stdout, Site(None, port)
        process.send_signal(signal.SIGTERM)
        _, said = await process.communicate()
        assert b"Traceback" not in said, said.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _connects(port: int) -> None:
    """Return as soon as a process listens there."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            async with wired(port):
                return
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", ["hypercorn", "granian"])
def test_other_servers(name):
    async def main():
        async with other(name) as (heard, site):
            answer = await site.post(*modern("tools/call", call("echo", text="hi")))
            assert answer.json["result"]["content"][0]["text"] == "hi"
            async with wired(site.port) as wire:
                await wire.ask("POST", "/mcp", *modern("tools/call", call("steps"), meta=TOKEN))
                head = await wire.head()
                assert head.headers["content-type"] == "text/event-stream"
                assert len(await wire.events()) == 3
            session = await site.open()
            echoed = await site.post(legacy(session), message("tools/call", call("echo", text="yo"), 1))
            assert echoed.json["result"]["content"][0]["text"] == "yo"
            async with wired(site.port) as wire:
                params = {**call("steps"), "_meta": TOKEN}
                await wire.ask("POST", "/mcp", legacy(session), message("tools/call", params, 2))
                await wire.head()
                assert [bool(event.data) for event in await wire.events()] == [False, True, True, True]
            async with wired(site.port) as old:
                await old.ask("GET", "/sse", GET)
                await old.head()
                endpoint = (await old.event()).data
                posted = await site.ask("POST", endpoint, {"Content-Type": "application/json"}, opening())
                assert posted.status == 202
                assert (await old.event()).json["id"] == 0
            assert (await site.ask("DELETE", "/mcp", legacy(session))).status == 200
            refused = await site.ask("POST", "/mcp", *modern("tools/list"), host="evil.example")
            assert refused.status == 403
            # A disconnect cancels.
            async with wired(site.port) as wire:
                await wire.ask("POST", "/mcp", *modern("tools/call", call("wait")))
                assert await heard.readline() == b"begun\n"
            assert await heard.readline() == b"cancelled\n"

    run(main)


def in_starlette(mcp: Any, wired_up: bool) -> Any:
    return Starlette(routes=[Mount("/api", mcp)], lifespan=mcp.lifespan if wired_up else None)


def in_fastapi(mcp: Any, wired_up: bool) -> Any:
    app = FastAPI(lifespan=mcp.lifespan if wired_up else None)
    app.mount("/api", mcp)
    return app


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi])
def test_mounted_at_the_prefix_itself(mount):
    async def main():
        mcp: Any = kitchen().asgi("/")
        async with serving(mount(mcp, True)) as site:
            answer = await site.post(*modern("tools/call", call("echo", text="hi")), target="/api/")
            assert answer.json["result"]["content"][0]["text"] == "hi"

    run(main)
