"""Serves tools over stdin and stdout; the argument is the longest line to read."""

import sys

from toolpost import Context, Server

server = Server("serving")


@server.tool
def size(text: str) -> int:
    return len(text)


@server.tool
async def ask(ctx: Context) -> str:
    return (await ctx.sample("anything", timeout=60)).model


@server.prompt
def greet() -> str:
    return "hello"


server.run(max_line=int(sys.argv[1]))
