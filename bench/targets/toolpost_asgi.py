"""toolpost as an ASGI application, without a socket."""

import asyncio

from adder import server
from in_process import ways
from turns import take_turns


async def main() -> None:
    """Take turns."""
    app = server.asgi()
    async with app.lifespan():
        await take_turns(await ways(app, app, app))


asyncio.run(main())
