"""Tools that run as tasks, on a server of PyPI's `fastmcp-tasks`. Its argument is stdio or http."""

import sys
from typing import Any

import anyio
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

from port import serve

server = FastMCP("kitchen", version="1.0")
server.add_extension(TasksExtension(url="memory://"))


class Order(BaseModel):
    """What was ordered."""

    dish: str
    portions: int


@server.tool(task=TaskConfig(mode="required"))
async def simmer(portions: int) -> str:
    """Cook for a while."""
    await anyio.sleep(0.2)
    return f"simmered {portions}"


@server.tool(task=True, output_schema=None)
async def order_later(ctx: Context) -> Any:
    """Ask in the task."""
    if ctx.input_responses is None:
        asked = ElicitRequestFormParams(
            message="What to eat?", requested_schema=Order.model_json_schema(by_alias=True)
        )
        return InputRequiredResult(input_requests={"order": ElicitRequest(params=asked)})
    order = Order.model_validate(ctx.input_responses["order"].content)
    return f"{order.portions} {order.dish}"


@server.tool(task=True)
async def wait_for_ever() -> str:
    """Wait until the client cancels the task."""
    await anyio.sleep_forever()
    return ""


@server.tool(task=True)
async def burn() -> str:
    """Fail."""
    raise ToolError("burnt")


@server.tool(task=True)
async def stir() -> str:
    """Need no task."""
    return "stirred"


async def main(over: str) -> None:
    """Serve."""
    if over == "stdio":
        await server.run_stdio_async(show_banner=False, log_level="ERROR")
    else:
        await serve(server.http_app())


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
