"""The schemas of tools have no references: some clients drop `$defs`, and then fail the whole list."""

from dataclasses import dataclass, field

import msgspec

from toolpost import Server, SyncClient
from toolpost.types import Tool


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Line:
    start: Point
    end: Point


@dataclass
class Tree:
    at: Point
    branches: list["Tree"] = field(default_factory=list)


def list_schemas(server: Server, revision: str | None = None) -> bytes:
    with SyncClient(server, revision=revision) as mcp:
        tools: list[Tool] = mcp.list_tools()
    return msgspec.json.encode([(tool.input_schema, tool.output_schema) for tool in tools])


def make_server(*, inline_refs: bool = True) -> Server:
    server = Server("geometry", inline_refs=inline_refs)

    @server.tool
    def turn(line: Line, around: Point) -> list[Line]:
        """Turn a line."""
        return [Line(line.end, around)]

    return server


def test_schemas_of_tools_have_no_references():
    for revision in (None, "2025-11-25", "2025-06-18"):
        listed = list_schemas(make_server(), revision)
        assert b"$ref" not in listed
        assert b"$defs" not in listed


def test_an_author_can_keep_the_references():
    listed = list_schemas(make_server(inline_refs=False))
    assert b"#/$defs/Point" in listed


def test_only_a_recursive_class_keeps_its_definition():
    server = Server("forest")

    @server.tool
    def plant(tree: Tree) -> Tree:
        """Plant a tree."""
        return tree

    with SyncClient(server) as mcp:
        [tool] = mcp.list_tools()
        assert tool.input_schema["$defs"].keys() == {"Tree"}
        sent = {"at": {"x": 1, "y": 2}, "branches": [{"at": {"x": 3, "y": 4}, "branches": []}]}
        assert mcp.call_tool("plant", {"tree": sent}).data == sent
    assert b"#/$defs/Point" not in msgspec.json.encode(tool.input_schema)
