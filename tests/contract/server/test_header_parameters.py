"""Parameters of tools that HTTP headers mirror: the schema, the checks, and which channels are informed."""

import asyncio
from typing import Any

import pytest

from region_server import served
from revision_dates import LATEST
from toolpost import Client, Server
from toolpost.types import Tool


@pytest.mark.requirement("HDR-9", "HDR-10")
@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"a": {"type": "number", "x-mcp-header": "A"}}, "on 'a': the type of the property must be"),
        (
            {"a": {"type": ["string", "null"], "x-mcp-header": "A"}},
            "on 'a': the type of the property must be",
        ),
        ({name: {"type": "string", "x-mcp-header": "A"} for name in "ab"}, "on 'b': 'a' already uses it"),
    ],
)
def test_so_it_is_in_a_schema_of_the_authors_own(properties, said):
    tool = Tool("query", {"type": "object", "properties": properties})
    server = Server("x")
    with pytest.raises(ValueError, match="the input schema of 'query': x-mcp-header") as refused:
        server.add_tool(tool, lambda arguments: "")
    assert said in str(refused.value)
    assert server.find_header_parameters("query") is None


def test_transports_know_the_header_parameters():
    server = served()
    assert server.find_header_parameters("query") == {"mcp-param-region": ("region",)}
    assert server.find_header_parameters("raw") == {"mcp-param-n": ("n",)}
    assert server.find_header_parameters("plain") is None
    assert server.find_header_parameters("nope") is None
    query: Any = server.tools.get("query")
    query.disable()
    assert server.find_header_parameters("query") is None
    query.enable()
    assert server.find_header_parameters("query") == {"mcp-param-region": ("region",)}
    query.remove()
    assert server.find_header_parameters("query") is None


def test_a_selection_knows_the_header_parameters_of_its_tools():
    part = served().select(lambda handle: handle.name != "query")
    assert part.find_header_parameters("query") is None
    assert part.find_header_parameters("raw") == {"mcp-param-n": ("n",)}


def test_clients_see_it_in_the_list():
    async def main() -> dict[str, Any]:
        async with Client(served(), revision=LATEST.date) as client:
            return {tool.name: tool.input_schema["properties"] for tool in await client.list_tools()}

    found = asyncio.run(main())
    assert found["query"] == {"region": {"type": "string", "x-mcp-header": "Region"}}
    assert found["plain"] == {"region": {"type": "string"}}
