"""toolpost as an ASGI application, without a socket."""

import asyncio
from contextlib import AsyncExitStack

from in_process import URL, callers
from toolpost_server import make_server
from turns import take_turns


async def main() -> None:
    """Open the applications and take turns."""
    async with AsyncExitStack() as stack:
        apps = {switch: make_server(URL, switch).asgi() for switch in ("", "token", "middleware")}
        for app in apps.values():
            await stack.enter_async_context(app.lifespan())
        by_way = await callers(lambda way: apps[way.switch])
        await take_turns({name: caller.turn for name, caller in by_way.items()})


asyncio.run(main())
