"""toolpost over HTTP on one or several workers: `toolpost_fleet.py PORT STORE WORKERS`."""

import sys
from itertools import count

from toolpost_server import add, wait

from toolpost import Context, Server

numbers = count()


async def ask(ctx: Context) -> str:
    """Ask the client's model."""
    answer = await ctx.sample("Who are you?")
    return answer.text


def main(port: str, store: str, workers: str, *_: str) -> None:
    """Serve."""
    server = Server("bench", version="1", store=store)
    for function in (add, wait, ask):
        server.tool(function)

    @server.tool
    async def grow() -> str:
        """Change the list of tools."""
        server.tool(name=f"tool_{next(numbers)}")(add)
        return "grown"

    server.run(http=f"127.0.0.1:{port}", workers=int(workers))


main(*sys.argv[1:])
