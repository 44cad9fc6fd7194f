# ruff: noqa: T201 - a program that prints
"""Closes its channel in every way: with a pending response, cancelled, twice, concurrently."""

import asyncio
import sys
from pathlib import Path

from toolpost.errors import ChannelClosed
from toolpost.transports import stdio_server
from toolpost.transports.stdio_server import StdioServerChannel


def held() -> tuple[object, ...]:
    """Return the targets of stdin and stdout, and the number of descriptors."""
    folder = Path("/proc/self/fd")
    return (folder / "0").readlink(), (folder / "1").readlink(), len(list(folder.iterdir()))


async def closed(coroutine) -> str:
    try:
        await coroutine
    except ChannelClosed as error:
        return f"{error} (sent: {error.sent})"
    return "nothing"


async def main() -> None:
    before = held()

    channel = StdioServerChannel()
    receiving = asyncio.create_task(closed(channel.receive()))
    await asyncio.sleep(0)
    await channel.send(b"last words")
    await asyncio.gather(channel.close(), channel.close())
    await channel.close()
    print(
        await receiving,
        await closed(channel.receive()),
        await closed(channel.send(b"x")),
        sep="\n",
        file=sys.stderr,
    )

    # More than a pipe holds, and the client reads only after the end: the wait is cut off.
    for cut in ("cancel", "time out"):
        stdio_server.LAST_WRITE_TIMEOUT = 60 if cut == "cancel" else 0.05
        channel = StdioServerChannel()
        await channel.send(bytes(1024 * 1024))
        closing = asyncio.create_task(channel.close())
        second = asyncio.create_task(channel.close())
        await asyncio.sleep(0)
        if cut == "cancel":
            closing.cancel()
        await asyncio.gather(closing, second, return_exceptions=True)
        print(cut, closing.cancelled(), file=sys.stderr)

    after = held()
    print(before == after, file=sys.stderr)


asyncio.run(main())
