"""A server with parameters that HTTP repeats in headers."""

from typing import Annotated, Any

from toolpost import Header, Server
from toolpost.types import Tool

__all__ = ["Region", "served", "show"]


Region = Annotated[str, Header("Region")]


# --------------------------------------------------------------------- which client is notified


def show(arguments: dict[str, Any]) -> str:
    return str(arguments)


def served() -> Server:
    """A server with tools of both kinds."""
    server = Server("x")

    @server.tool
    def query(region: Region) -> str:
        return region

    @server.tool
    def plain(region: str) -> str:
        return region

    schema = {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}
    server.add_tool(Tool("raw", schema), show)
    return server
