"""A client that stores its tokens in files, on a disk that is full on request.

Its arguments are a URL and a folder. Each line of stdin is something to do; each gets one line on stdout.
"""

import asyncio
import resource
import sys

import aiohttp

from toolpost import Client, FileTokens, MCPError, OAuth


async def browse(url: str) -> str:
    """Log in, and return the URL of the redirect."""
    print("asks the user", file=sys.stderr, flush=True)  # noqa: T201 - for the test to count
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as response:
        return response.headers["location"]


def disk(room: int) -> str:
    """Limit the size of files."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    return "done"


async def main(url: str, folder: str) -> None:
    async with Client(url, auth=OAuth(storage=FileTokens(folder), open_url=browse)) as mcp:
        print("ready", flush=True)  # noqa: T201 - for the test to wait for
        while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if word == "call":
                try:
                    said = (await mcp.call_tool("whoami")).text
                except MCPError as error:
                    said = f"{type(error).__name__}: {error}"
            else:
                said = disk({"full": 0, "room": resource.RLIM_INFINITY}[word])
            print(said, flush=True)  # noqa: T201 - as above


asyncio.run(main(sys.argv[1], sys.argv[2]))
