"""Output schemas: valid results, invalid results, and unusable schemas."""

import asyncio
import json
import socket
import sys
from typing import Any

import pytest

from toolpost import Client, Server
from toolpost.client.connection.status import Stats
from toolpost.client.output_schemas import MAX_ERROR_TEXT, OutputSchemas
from toolpost.errors import RemoteProtocolError
from toolpost.protocol.methods import DATES
from toolpost.types import CallToolResult, TextContent, Tool

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def outputs(schema: dict[str, Any] | None, *, strict: bool = False) -> OutputSchemas:
    known = OutputSchemas(Stats(), strict=strict)
    known.learn([Tool("t", {"type": "object"}, output_schema=schema), Tool("other", {"type": "object"})])
    return known


def result(value: Any) -> CallToolResult:
    return CallToolResult(content=[], structured_content=value)


@pytest.mark.requirement("TOOL-14")
def test_a_result_is_held_against_its_schema():
    check = outputs(NUMBER).get_check("t")
    assert check is not None
    check(result({"n": 1}))
    with pytest.raises(RemoteProtocolError, match=r"tool 't' returned structured content\['n'\]") as caught:
        check(result({"n": "one"}))
    assert 'is not of type "integer"' in str(caught.value)
    assert "validate=False" in str(caught.value)
    with pytest.raises(
        RemoteProtocolError, match="declares an output schema but returned no structured content"
    ):
        check(CallToolResult(content=[TextContent("1")]))
    check(CallToolResult(content=[TextContent("failed")], is_error=True))


def test_a_long_complaint_is_cut():
    check = outputs({"type": "object"}).get_check("t")
    assert check is not None
    with pytest.raises(RemoteProtocolError) as caught:
        check(result("x" * 10_000))
    assert len(str(caught.value)) < MAX_ERROR_TEXT + 300


@pytest.mark.requirement("JSCH-1", "JSCH-2")
@pytest.mark.parametrize(
    ("dialect", "good"),
    [
        # prefixItems is a keyword from 2020-12 on; before, `items` took a list.
        (None, False),
        ("https://json-schema.org/draft/2020-12/schema", False),
        ("http://json-schema.org/draft-07/schema#", True),
    ],
)
def test_a_schema_is_read_in_its_dialect(dialect, good):
    schema: dict[str, Any] = {"prefixItems": [{"type": "string"}]}
    if dialect:
        schema["$schema"] = dialect
    check = outputs(schema).get_check("t")
    assert check is not None
    if good:
        check(result([1]))
    else:
        with pytest.raises(RemoteProtocolError):
            check(result([1]))


@pytest.mark.requirement("JSCH-7", "JSCH-8", "JSCH-10", "TOOL-21")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "{url}"},
        {"properties": {"a": {"items": {"$ref": "{url}#/$defs/b"}}}},
        {"$id": "{url}", "$ref": "other.json"},
        {"$schema": "{url}"},
    ],
)
def test_a_reference_to_the_network_is_not_even_tried(schema):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/a.json"
        schema = json.loads(json.dumps(schema).replace("{url}", url))
        with pytest.raises(RemoteProtocolError, match="output schema that cannot be used"):
            outputs(schema, strict=True).get_check("t")
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):  # no request was sent
            listening.accept()


@pytest.mark.requirement("JSCH-3", "JSCH-10")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"$schema": "https://schemas.example/unknown"},
        {"$ref": "https://schemas.example/elsewhere.json"},
        {"$ref": "file:///etc/passwd"},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"pattern": "(?=lookahead)"}}},
    ],
)
def test_a_schema_that_cannot_be_used_is_reported_and_strictly_an_error(schema, caplog):
    why = "tool 't' has an output schema that cannot be used"
    with pytest.raises(RemoteProtocolError, match=why) as caught:
        outputs(schema, strict=True).get_check("t")
    assert "validate=False" in str(caught.value)
    check = outputs(schema).get_check("t")
    assert check is not None
    check(result({"a": 1}))
    assert f"results are not validated: {why}" in caplog.text


@pytest.mark.requirement("JSCH-11")
def test_a_pattern_cannot_take_exponential_time():
    check = outputs({"properties": {"a": {"pattern": "^(a+)+$"}}}).get_check("t")
    assert check is not None
    with pytest.raises(RemoteProtocolError):
        check(result({"a": "a" * 5000 + "!"}))


def test_unknown_tools_are_not_checked():
    known = outputs(NUMBER)
    assert known.get_check("other") is None
    assert known.get_check("never heard of") is None
    assert known.get_check("t") is known.get_check("t")
    known.learn([Tool("t", {}, output_schema={"type": "string"})])
    check = known.get_check("t")
    assert check is not None
    check(result("text"))
    known.learn([Tool("t", {})])
    assert known.get_check("t") is None
    known.learn([Tool("t", {}, output_schema=NUMBER)])
    known.clear()
    assert known.get_check("t") is None


@pytest.mark.parametrize(
    ("schema", "wraps"),
    [({**NUMBER, "x-fastmcp-wrap-result": True}, True), ({"x-fastmcp-wrap-result": 1}, False), (None, False)],
)
def test_a_schema_may_say_that_the_value_is_wrapped(schema, wraps):
    known = outputs(schema)
    assert known.is_wrapped("t") is wraps
    known.clear()
    assert not known.is_wrapped("t")


def test_without_the_extra_results_pass_and_are_counted(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    stats = Stats()
    known = OutputSchemas(stats)
    known.learn([Tool("t", {}, output_schema=NUMBER)])
    with caplog.at_level("INFO"):
        check = known.get_check("t")
    assert check is not None
    check(result({"n": "one"}))
    assert stats.unchecked == 1
    assert "toolpost[schema]" in caplog.text
    with pytest.raises(RemoteProtocolError, match="no structured content"):
        check(CallToolResult(content=[]))


def test_a_schema_that_may_be_outdated_is_not_held_against_a_result_but_still_known():
    stats = Stats()
    known = OutputSchemas(stats)
    wrapped = {"type": "object", "x-fastmcp-wrap-result": True}
    known.learn(
        [Tool("t", {"type": "object"}, output_schema=wrapped), Tool("gone", {}, output_schema=NUMBER)]
    )
    known.mark_outdated()
    check = known.get_check("t")
    assert check is not None
    check(result("nonsense"))
    assert stats.unchecked == 1
    assert known.is_wrapped("t")
    known.learn([Tool("t", {"type": "object"}, output_schema=NUMBER)])
    known.keep_only({"t"})
    check = known.get_check("t")
    assert check is not None
    with pytest.raises(RemoteProtocolError):
        check(result("nonsense"))
    assert known.get_check("gone") is None


def test_the_data_of_a_tool_is_the_same_before_and_after_a_change_of_the_list():
    server = Server("s")

    @server.tool
    def numbers() -> list[int]:
        return [1]

    async def main() -> None:
        heard = asyncio.Event()
        async with Client(server, revision=DATES[3], on_notification=lambda *_: heard.set()) as client:
            await client.list_tools()
            assert (await client.call_tool("numbers")).data == [1]
            server.tool(name="more")(lambda: "")
            await heard.wait()
            assert (await client.call_tool("numbers")).data == [1]
            assert client.stats.unchecked == 1

    asyncio.run(main())
