"""toolpost with a tool that runs as a task."""

import asyncio

from tasks_in_process import EmptyTasks

from toolpost import Context, Server, TaskOptions


async def main() -> None:
    """Measure."""
    tasks, server = EmptyTasks(), Server("bench")

    @server.tool(task=TaskOptions(after=None))
    async def nothing(ctx: Context) -> str:
        await ctx.background()  # else its result would be the answer
        return await tasks.nothing()

    app = server.asgi()
    async with app.lifespan():
        await tasks.measure(app)


asyncio.run(main())
