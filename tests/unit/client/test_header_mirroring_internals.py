"""Tool parameters that HTTP mirrors in headers: taken from the list, and refreshed after a mismatch."""

from typing import Any, cast

from toolpost.client.connection.status import Stats
from toolpost.client.listing import ServerReader
from toolpost.types import Tool

REGION = {"mcp-param-region": ("region",)}


def schema(header: Any, kind: str = "string") -> dict[str, Any]:
    return {"type": "object", "properties": {"region": {"type": kind, "x-mcp-header": header}}}


def test_a_tool_that_becomes_invalid_is_forgotten():
    stats = Stats()
    reader = ServerReader(cast("Any", None), stats, strict=False, cache=False)
    assert reader._learn_header_parameters(Tool("a", schema("Region")))
    assert reader.header_parameters == {"a": REGION}
    assert not reader._learn_header_parameters(Tool("a", schema("")))
    assert reader.header_parameters == {}
    assert stats.skipped == 1
