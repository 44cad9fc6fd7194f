"""Makes a fixed number of calls of toolpost without a socket: `core_path.py WAY CALLS [PROFILE]`.

WAY is one of `ways.py`. With PROFILE, writes a profile of the calls alone to that file.
"""

import asyncio
import sys
from cProfile import Profile

from in_process import URL, Caller
from toolpost_server import make_server
from ways import WAYS

PREPARED = 1000
"""Minimum number of requests to create, so that compared runs differ only in the number of calls."""


async def main(way: str, calls: str, profile: str = "") -> None:
    """Open a caller and make the calls."""
    app = make_server(URL, WAYS[way].switch).asgi()
    async with app.lifespan():
        caller = await Caller(app, WAYS[way]).open()
        requests = caller.requests(max(int(calls), PREPARED))[: int(calls)]
        profiler = Profile() if profile else None
        if profiler:
            profiler.enable()
        for request in requests:
            await caller.call(request)
        if profiler:
            profiler.disable()
            profiler.dump_stats(profile)


asyncio.run(main(*sys.argv[1:]))
