# ruff: noqa: T201 - a program that prints
"""Echoes every message over a `StdioServerChannel`, and prints on stderr why it ended."""

import argparse
import asyncio
import logging
import sys

from blind import BlindLoop

from toolpost.errors import ChannelClosed, ConnectFailed
from toolpost.protocol.line_framing import OversizedLine
from toolpost.transports.stdio_server import StdioServerChannel

options = argparse.ArgumentParser()
options.add_argument("--limit", type=int, default=4 * 1024 * 1024)
options.add_argument("--parent-check", type=float, default=None)
options.add_argument("--tell", action="store_true")
options.add_argument("--blind", action="store_true")
given = options.parse_args()


def tell(line: OversizedLine) -> None:
    print(f"dropped {line.size}", file=sys.stderr, flush=True)


async def main() -> None:
    try:
        channel = StdioServerChannel(given.limit, parent_check=given.parent_check)
    except ConnectFailed as error:
        print("refused:", error, file=sys.stderr)
        return
    if given.tell:
        channel.on_oversized(tell)
    async with channel:
        try:
            while True:
                await channel.send(await channel.receive())
        except ChannelClosed as error:
            print("ended:", error, file=sys.stderr)


logging.basicConfig(level=logging.INFO, stream=sys.stderr)
with asyncio.Runner(loop_factory=BlindLoop if given.blind else None) as runner:
    runner.run(main())
