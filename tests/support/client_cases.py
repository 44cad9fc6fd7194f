"""Shared parts of client tests: revisions, responses, and a server with tool schemas."""

from typing import Any

import pytest

from raw_server import Asked, RawServer
from revision_dates import DATES
from toolpost.types import (
    CallToolResult,
    ListToolsResult,
    Result,
    TextContent,
    Tool,
)

__all__ = ["STATELESS", "STRUCTURED", "WRONG", "Schooled", "every_revision", "ids", "said", "sessions"]


every_revision = pytest.mark.parametrize("date", DATES)
sessions = pytest.mark.parametrize("date", DATES[:-1])
STATELESS = DATES[-1]
STRUCTURED = {"n": 1}


async def said(_: Asked) -> Result:
    return CallToolResult(content=[TextContent("one")], structured_content=STRUCTURED)


class Schooled(RawServer):
    """A server with a tool that breaks its own schema."""

    def __init__(self, schema: dict[str, Any], **options: Any) -> None:
        super().__init__({"tools/list": self.tools, "tools/call": said}, **options)
        self.schema = schema

    async def tools(self, _: Asked) -> Result:
        return ListToolsResult(tools=[Tool("t", {"type": "object"}, output_schema=self.schema)])


WRONG = {"type": "object", "properties": {"n": {"type": "string"}}}


# --------------------------------------------------------------------- questions of the server


ids: list[Any] = []
"""The ids of the calls that `asking` received."""
