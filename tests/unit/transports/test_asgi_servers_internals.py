"""Other ASGI servers, and frameworks that mount the application under a prefix."""

from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount

from hosted import Stage, call, kitchen, legacy, message, modern, opening, run, serving
from waiting import until

GET = {"Accept": "text/event-stream"}
TOKEN = {"progressToken": 1}


# --------------------------------------------------------------------- frameworks


async def passes(request, call_next):
    return await call_next(request)


def in_starlette(mcp: Any, wired_up: bool) -> Any:
    return Starlette(routes=[Mount("/api", mcp)], lifespan=mcp.lifespan if wired_up else None)


def behind_middleware(mcp: Any, wired_up: bool) -> Any:
    return Starlette(
        routes=[Mount("/api", mcp)],
        lifespan=mcp.lifespan if wired_up else None,
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=passes)],
    )


def in_fastapi(mcp: Any, wired_up: bool) -> Any:
    app = FastAPI(lifespan=mcp.lifespan if wired_up else None)
    app.mount("/api", mcp)
    return app


def in_litestar(mcp: Any, wired_up: bool) -> Any:
    mounted = asgi("/api", is_mount=True, copy_scope=True)(mcp)
    return Litestar([mounted], lifespan=[mcp.lifespan] if wired_up else [], logging_config=None)


@pytest.mark.requirement("SUB-2", "HTTP-9")
@pytest.mark.parametrize("wired_up", [True, False], ids=["lifespan", "no lifespan"])
@pytest.mark.parametrize("mount", [in_starlette, behind_middleware, in_fastapi, in_litestar])
def test_mounted(mount, wired_up):
    async def main():
        stage = Stage()
        mcp: Any = kitchen(stage).asgi()
        async with serving(mount(mcp, wired_up)) as site:
            assert (mcp._worker is not None) is wired_up
            for target in ("/api/mcp", "/api/mcp/"):
                answer = await site.post(*modern("tools/call", call("echo", text="hi")), target=target)
                assert answer.json["result"]["content"][0]["text"] == "hi"
            lost = await site.post(*modern("tools/list"), target="/api/none")
            assert lost.status == 404
            assert "/api/mcp" in lost.text
            welcome = await site.post(legacy(), opening(), target="/api/mcp")
            session = welcome.headers["mcp-session-id"]
            ready = await site.post(legacy(session), message("notifications/initialized"), target="/api/mcp")
            assert ready.status == 202
            params = {**call("steps", count=2), "_meta": TOKEN}
            wire, _ = await site.begin(
                "POST", legacy(session), message("tools/call", params, 1), target="/api/mcp"
            )
            assert len(await wire.events()) == 4
            old, _ = await site.begin("GET", GET, target="/api/sse")
            endpoint = (await old.event()).data
            assert endpoint.startswith("/api/messages?session_id=")
            posted = await site.ask("POST", endpoint, {"Content-Type": "application/json"}, opening())
            assert posted.status == 202
            assert (await old.event()).json["id"] == 0
            # A disconnect cancels, through all middleware.
            leaving = await site.wire()
            await leaving.ask("POST", "/api/mcp", *modern("tools/call", call("wait")))
            await stage.begun.wait()
            await leaving.abort()
            await stage.ended.wait()
            await old.abort()
            await until(lambda: not (mcp._worker.running or mcp._worker.listening))
            if not wired_up:
                await mcp.stop()

    run(main)
