"""A server whose tools become tasks, over HTTP on a free port; the environment names its store and a folder.

Steps write their effects into a file of the folder that is named as the task. Serves until it is killed.
"""

import asyncio
import os
from pathlib import Path

from toolpost import Context, Server, TaskOptions

FOLDER = Path(os.environ["TASK_FOLDER"])

server = Server("studio", store=os.environ["TASK_STORE"])


def write(name: str, effect: str) -> None:
    """Record an effect."""
    with (FOLDER / name).open("a") as file:
        file.write(f"{effect}\n")


@server.tool(task=TaskOptions(after=None, poll=0.1))
async def asks(name: str, ctx: Context) -> str:
    """Ask a question in the background."""
    await ctx.background()
    answer = await ctx.elicit("Go on?", str)
    return answer.data  # type: ignore[union-attr] - it is accepted


@server.tool(task=TaskOptions(after=0, poll=0.1))
async def waits(name: str) -> str:
    """Wait for ever."""
    write(name, "begun")
    try:
        await asyncio.Event().wait()
    finally:
        write(name, "cancelled")
    return ""


@server.tool(task=TaskOptions(after=0, poll=0.1, attempts=2))
async def goes_on(name: str, ctx: Context) -> str:
    """Do two steps once, and wait until there is a file."""
    write(name, "attempt")
    await ctx.step("first", write, name, "first")
    await ctx.step("second", write, name, "second")
    write(name, "waiting")
    while not (FOLDER / "go").exists():  # noqa: ASYNC110 - the condition has no event
        await asyncio.sleep(0.05)
    attempts = (FOLDER / name).read_text().split().count("attempt")
    return f"done by attempt {attempts}"


if __name__ == "__main__":
    server.tasks.slots = int(os.environ.get("TASK_SLOTS", "32"))
    server.run(http="127.0.0.1:0")
