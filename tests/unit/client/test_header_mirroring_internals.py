"""Parameters of tools that HTTP repeats in headers: learnt from the list, refreshed when they prove wrong."""

from typing import Any

from toolpost.client.listing import HeaderParameterCache
from toolpost.types import Tool

REGION = {"mcp-param-region": ("region",)}


def schema(header: Any, kind: str = "string") -> dict[str, Any]:
    return {"type": "object", "properties": {"region": {"type": kind, "x-mcp-header": header}}}


def test_a_tool_that_becomes_invalid_is_forgotten():
    mirrors, reported = HeaderParameterCache(), []
    assert len(mirrors.learn([Tool("a", schema("Region"))], reported.append)) == 1
    assert mirrors.find("a") == REGION
    assert mirrors.learn([Tool("a", schema(""))], reported.append) == []
    assert mirrors.find("a") is None
    assert len(reported) == 1
