"""`Server` beyond the decorators: custom schemas, names, `Handler`."""

import asyncio
from typing import Any

from toolpost import Client, Context, Extension, Handler
from toolpost.errors import InvalidParams
from toolpost.types import CallToolResult, Params, Result, TextContent, Tool

OBJECT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


# --------------------------------------------------------------------- the explicit form


class Plain(Handler):
    """Tools only."""

    async def list_tools(self, cursor: str | None) -> list[Tool]:
        return [Tool("echo", OBJECT)]

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> CallToolResult:
        if name != "echo":
            raise InvalidParams(f"Unknown tool: {name}")
        return CallToolResult(content=[TextContent(str(arguments["n"]))])


def test_custom_methods_are_served():
    extension = Extension("com.example/double", since="2025-11-25")

    @extension.method("example/double", Params, Result)
    def double(ctx: Context, params: Params) -> Result:
        return Result(meta={"com.example/answer": 2})

    async def main() -> Any:
        own = Plain(extensions=[extension])
        async with Client(own, revision="2025-11-25", extensions=[extension]) as client:
            return await client.request("example/double", {"n": 1})

    assert asyncio.run(main()).meta == {"com.example/answer": 2}
