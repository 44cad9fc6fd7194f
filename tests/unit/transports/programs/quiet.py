# ruff: noqa: T201 - a program that prints
"""Echoes and prints; only its own output may appear on stderr, however the client ends."""

import asyncio
import contextlib
import sys

from blind import BlindLoop

from toolpost.errors import ChannelClosed
from toolpost.transports.stdio_server import StdioServerChannel


def say(text: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        print(text, file=sys.stderr, flush=True)


async def main() -> None:
    async with StdioServerChannel() as channel:
        with contextlib.suppress(OSError):
            print("stray")
        try:
            while True:
                await channel.send(await channel.receive())
        except ChannelClosed as error:
            say(f"ended: {error}")


with asyncio.Runner(loop_factory=BlindLoop if "--blind" in sys.argv else None) as runner:
    runner.run(main())
print("after the channel")
