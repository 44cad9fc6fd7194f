"""A long job: it reports progress, and stops when the client cancels it.

    toolpost call examples/long_job.py bake --loaves 8      shows a progress bar; Ctrl-C cancels

A cancelled async function gets `asyncio.CancelledError` at its next await: clean up and let it propagate. A
plain function runs in a thread, which cannot be stopped, so it has to check `ctx.cancelled`.
"""

import asyncio
from typing import Annotated

from msgspec import Meta

from toolpost import Context, Server, SyncContext

server = Server("bakery", version="1.0")

diary: list[str] = []


@server.tool
async def bake(loaves: Annotated[int, Meta(ge=1, le=1000)], ctx: Context) -> str:
    """Bake bread: one loaf every 0.25 seconds."""
    await ctx.info("the oven is hot")
    done = 0
    try:
        while done < loaves:
            await asyncio.sleep(0.25)
            done += 1
            await ctx.progress(done, loaves, f"loaf {done} of {loaves}")
    except asyncio.CancelledError:
        diary.append(f"gave up after {done} of {loaves} loaves")
        raise
    finally:
        diary.append("the oven is off")
    return f"{loaves} loaves"


@server.tool
def largest_prime(below: Annotated[int, Meta(ge=3, le=2_000_000)], ctx: SyncContext) -> int:
    """Find the largest prime below a number, by slow trial division."""
    largest = 2
    for number in range(3, below, 2):
        if number % 1001 == 0:
            if ctx.cancelled:
                diary.append(f"stopped at {number}")
                break
            ctx.progress(number, below)
        if all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2)):
            largest = number
    return largest


@server.resource("bakery://diary", mime_type="application/json")
def read_diary() -> list[str]:
    """Return how each job ended."""
    return diary


if __name__ == "__main__":
    server.run()
