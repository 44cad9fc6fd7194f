# ruff: noqa: T201 - a program that prints
"""Sends numbered messages faster than the client reads, and reports on stderr when it had to wait."""

import argparse
import asyncio
import sys

from blind import BlindLoop

from toolpost.transports.stdio_server import StdioServerChannel

options = argparse.ArgumentParser()
options.add_argument("--count", type=int)
options.add_argument("--size", type=int)
options.add_argument("--senders", type=int, default=1)
options.add_argument("--blind", action="store_true")
given = options.parse_args()


async def main() -> None:
    sent = 0
    async with StdioServerChannel() as channel:

        async def send(sender: int) -> None:
            nonlocal sent
            for number in range(given.count):
                await channel.send((b"%d %d " % (sender, number)).ljust(given.size, b"."))
                sent += 1

        async with asyncio.TaskGroup() as group:
            senders = [group.create_task(send(sender)) for sender in range(given.senders)]
            seen = -1
            while seen != sent:  # until nothing has moved for many turns of a loop that is not blocked
                seen = sent
                for _ in range(200):
                    await asyncio.sleep(0.001)
            finished = all(task.done() for task in senders)
            print(f"{sent} {finished}", file=sys.stderr, flush=True)


with asyncio.Runner(loop_factory=BlindLoop if given.blind else None) as runner:
    runner.run(main())
