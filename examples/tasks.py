"""A job that goes on after the response: the client starts it, looks at it, and gets the result later."""

import asyncio

from toolpost import Client, Context, Server, TaskOptions

server = Server("lab")


@server.tool(task=TaskOptions(after=0, poll=0.2))
async def count_stars(ctx: Context) -> int:
    """Count the stars of a galaxy."""
    for share in range(1, 4):
        await ctx.progress(share, 3, f"{share} of 3 photos")
        await asyncio.sleep(0.3)
    return 100_000_000_000


async def main() -> None:
    """Start the job, and show its messages until it has ended."""
    async with Client(server) as client:
        task = await client.start_task("count_stars")
        async for state in task:
            print(state.status, "–", state.message)
        print((await task.result()).data, "stars")


if __name__ == "__main__":
    asyncio.run(main())
