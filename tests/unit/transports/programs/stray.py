# ruff: noqa: T201 - a program that prints
"""A server whose code writes to stdout and reads from stdin directly."""

import asyncio
import os
import subprocess
import sys
import threading

from toolpost.errors import ChannelClosed, LocalProtocolError
from toolpost.transports.stdio_server import StdioServerChannel

print("stray: before the channel, not flushed yet")


def start_others() -> None:
    subprocess.run(["echo", "stray: another program"], check=True)
    subprocess.run(["cat"], check=True)  # would eat the messages


async def main() -> None:
    async with StdioServerChannel() as channel:
        print("stray: print")
        os.write(1, b"stray: descriptor 1\n")
        start_others()
        threading.Thread(target=print, args=("stray: thread",)).start()
        sys.stdout.write("stray: half a line")
        assert sys.stdin.read() == ""
        try:
            StdioServerChannel()
        except LocalProtocolError as error:
            print(f"second: {error}", file=sys.stderr)
        try:
            while True:
                await channel.send(await channel.receive())
        except ChannelClosed:
            pass


asyncio.run(main())
print("after the channel")
