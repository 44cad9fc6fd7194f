"""Server files for `toolpost run`."""

__all__ = ["NEIGHBOUR", "WEATHER"]


WEATHER = """
import os
import sys

import neighbour
from toolpost import Context, Server

server = Server("weather")
os.write(1, b"written by hand\\n")
print("printed", flush=True)
print("printed and kept")
read = sys.stdin.read()


@server.tool
def forecast(city: str) -> str:
    return neighbour.sky(city)


@server.tool
def facts() -> list[str]:
    return [__name__, read, sys.path[0], *sys.argv]


@server.tool
def pid() -> int:
    return os.getpid()


@server.tool
async def two(ctx: Context) -> bool:
    # Whether one process has asked, and another one got the answer
    first = await ctx.step("first", os.getpid)
    await ctx.elicit("Sure?", bool)
    return first != os.getpid()


if __name__ == "__main__":
    raise AssertionError("it is not run")
"""
NEIGHBOUR = """
def sky(city: str) -> str:
    return f"sunshine in {city}"
"""
