# ruff: noqa: T201 - a program that prints
"""Sends every message back over `own_stdio`, and says on stderr why it ended."""

import argparse
import asyncio
import logging
import sys

from blind import BlindLoop

from toolpost.errors import ChannelClosed, ConnectFailed
from toolpost.transports.stdio import own_stdio

options = argparse.ArgumentParser()
options.add_argument("--limit", type=int, default=4 * 1024 * 1024)
options.add_argument("--parent-check", type=float, default=None)
options.add_argument("--hook", choices=["log", "tell", "raise"], default="log")
options.add_argument("--blind", action="store_true")
given = options.parse_args()


def tell(size: int) -> None:
    print(f"dropped {size}", file=sys.stderr, flush=True)


HOOKS = {"log": None, "tell": tell, "raise": lambda size: 1 / 0}


async def main() -> None:
    try:
        channel = own_stdio(given.limit, oversized=HOOKS[given.hook], parent_check=given.parent_check)
    except ConnectFailed as error:
        print("refused:", error, file=sys.stderr)
        return
    async with channel:
        try:
            while True:
                await channel.send(await channel.receive())
        except ChannelClosed as error:
            print("ended:", error, file=sys.stderr)


logging.basicConfig(level=logging.INFO, stream=sys.stderr)
with asyncio.Runner(loop_factory=BlindLoop if given.blind else None) as runner:
    runner.run(main())
