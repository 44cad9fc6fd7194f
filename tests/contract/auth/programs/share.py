"""A process that shares tokens: calls a tool with the tokens in a folder, and never asks a user."""

import asyncio
import sys

from toolpost import Client, FileTokens, OAuth


def nobody(_url: str) -> None:
    raise AssertionError("nobody is here")


async def main(url: str, folder: str) -> None:
    auth = OAuth(storage=FileTokens(folder), open_url=nobody)
    sys.stdin.readline()  # until all are there
    async with Client(url, auth=auth) as mcp:
        sys.stdout.write((await mcp.call_tool("anything")).text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
