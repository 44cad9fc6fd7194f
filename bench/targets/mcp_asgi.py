"""PyPI's `mcp` as an ASGI application, without a socket."""

import asyncio
from contextlib import AsyncExitStack

from in_process import URL, callers
from mcp_server import make_server
from turns import take_turns
from ways import WAYS


async def main() -> None:
    """Open the applications and take turns."""
    kinds = {(way.mode, way.switch) for way in WAYS.values()}
    async with AsyncExitStack() as stack:
        # Each application needs a server of its own.
        apps = {
            (mode, switch): make_server(URL, switch).streamable_http_app(json_response=mode == "json")
            for mode, switch in kinds
        }
        for app in apps.values():
            await stack.enter_async_context(app.router.lifespan_context(app))
        by_way = await callers(lambda way: apps[way.mode, way.switch])
        await take_turns({name: caller.turn for name, caller in by_way.items()})


asyncio.run(main())
