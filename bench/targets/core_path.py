"""A fixed number of calls of toolpost without a socket, to be counted: `core_path.py WAY CALLS [PROFILE]`.

WAY is stateless, session-json or session-sse. With PROFILE, a profile of the calls alone goes to that file.
"""

import asyncio
import sys
from cProfile import Profile

from adder import server
from in_process import ways


async def main(way: str, calls: str, profile: str = "") -> None:
    """Call."""
    app = server.asgi()
    async with app.lifespan():
        call = (await ways(app, app, app))[way]
        await call()
        profiler = Profile() if profile else None
        if profiler:
            profiler.enable()
        for _ in range(int(calls)):
            await call()
        if profiler:
            profiler.disable()
            profiler.dump_stats(profile)


asyncio.run(main(*sys.argv[1:]))
