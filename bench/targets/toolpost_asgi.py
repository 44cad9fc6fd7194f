"""toolpost as an ASGI application, without a socket."""

import asyncio
from contextlib import AsyncExitStack

from in_process import URL, callers
from toolpost_server import make_server
from turns import take_turns


async def main() -> None:
    """Take turns."""
    async with AsyncExitStack() as stack:
        apps = {switch: make_server(URL, switch).asgi() for switch in ("", "token", "middleware")}
        for app in apps.values():
            await stack.enter_async_context(app.lifespan())
        asked = await callers(lambda way: apps[way.switch])
        await take_turns({name: caller.turn for name, caller in asked.items()})


asyncio.run(main())
