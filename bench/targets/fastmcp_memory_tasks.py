"""PyPI's `fastmcp-tasks` with a tool that runs as a task, in memory."""

import asyncio

from fastmcp import FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from tasks_in_process import EmptyTasks


async def main() -> None:
    """Measure."""
    tasks, server = EmptyTasks(), FastMCP("bench")
    server.add_extension(TasksExtension(url="memory://"))
    server.tool(task=TaskConfig(mode="required"))(tasks.nothing)
    app = server.http_app(stateless_http=True, json_response=True)
    async with app.router.lifespan_context(app):
        await tasks.measure(app)


asyncio.run(main())
