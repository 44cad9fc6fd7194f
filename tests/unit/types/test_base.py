"""Common behaviour of all structs: names on the wire, absent members, open unions, raw results."""

import json
from copy import copy
from typing import Any

import msgspec
import pytest

from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import ROWS
from toolpost.types import (
    UNSET,
    Annotations,
    CallToolParams,
    CallToolResult,
    Content,
    Icon,
    Implementation,
    ListResourcesResult,
    ListToolsResult,
    LogParams,
    OpenUnion,
    Params,
    ProgressParams,
    Prompt,
    PropertySchema,
    Raw,
    ReadResourceParams,
    Result,
    ServerCapabilities,
    Task,
    TaskResult,
    TextContent,
    Tool,
    UnknownContent,
    UnknownSchema,
)
from toolpost.types.base import dec_hook, enc_hook

CALL = next(row for row in ROWS if row.name == "tools/call")


def again(kind: Any, data: bytes) -> Any:
    """Decode bytes as a type, and return the JSON of the encoded value."""
    return json.loads(jsonrpc.encode(JSONReader[Any](kind)(data)))


# --------------------------------------------------------------------- fields


def test_names_are_camel_case_on_the_wire():
    tool = Tool(name="t", input_schema={}, output_schema={}, meta={"a": 1})
    assert json.loads(jsonrpc.encode(tool)) == {
        "name": "t",
        "inputSchema": {},
        "outputSchema": {},
        "_meta": {"a": 1},
    }


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Annotations(), {}),
        (Icon("s"), {"src": "s"}),
        (Params(), {}),
        (Result(), {}),
        (Implementation(name="n", version="1"), {"name": "n", "version": "1"}),
        (CallToolParams(name="t"), {"name": "t"}),
        (ReadResourceParams(uri="u"), {"uri": "u"}),
        (ServerCapabilities(), {}),
        (TextContent("t"), {"type": "text", "text": "t"}),
        (Prompt(name="p"), {"name": "p"}),
    ],
)
def test_unset_fields_are_not_encoded(value, written):
    assert json.loads(jsonrpc.encode(value)) == written


@pytest.mark.parametrize(
    ("value", "member"),
    [
        (Annotations(priority=0), "priority"),
        (TextContent(""), "text"),
        (Prompt(name="p", description=""), "description"),
        (Prompt(name="p", arguments=[]), "arguments"),
        (Result(meta={}), "_meta"),
        (CallToolResult(content=[], is_error=False), "isError"),
        (ServerCapabilities(logging={}), "logging"),
    ],
)
def test_empty_fields_are_encoded(value, member):
    assert member in json.loads(jsonrpc.encode(value))


@pytest.mark.parametrize("ttl", [None, 0, 60_000])
@pytest.mark.parametrize("kind", [Task, TaskResult])
def test_a_task_without_an_end_says_so(kind, ttl):
    """`ttl` is a required member whose null has a meaning of its own."""
    task = kind(task_id="1", status="working", created_at="c", last_updated_at="u", ttl=ttl)
    written = json.loads(jsonrpc.encode(task))
    assert written["ttl"] == ttl
    assert "pollInterval" not in written


@pytest.mark.parametrize("data", [None, False, 0, "", [], {}])
def test_a_log_message_may_hold_any_json(data):
    written = again(LogParams, json.dumps({"level": "info", "data": data}).encode())
    assert written == {"level": "info", "data": data}


@pytest.mark.parametrize(
    "number", ["1", "0", "-1", "0.5", "1e300", "9007199254740993", "18446744073709551616"]
)
def test_numbers_keep_their_type(number):
    data = b'{"progressToken":1,"progress":%s}' % number.encode()
    written = again(ProgressParams, data)["progress"]
    assert (type(written), written) == (type(json.loads(number)), json.loads(number))


@pytest.mark.parametrize("token", [1, "1", 0, "", -5])
def test_tokens_keep_their_type(token):
    written = again(ProgressParams, json.dumps({"progressToken": token, "progress": 1}).encode())
    assert (type(written["progressToken"]), written["progressToken"]) == (type(token), token)


# --------------------------------------------------------------------- nothing is lost

META = {"com.example/a": {"b": [1, None, {"c": 0.5}]}, "progressToken": 1, "": None}
SCHEMA = {
    "type": "object",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "properties": {"a": {"$ref": "#/$defs/b", "x-mcp-header": "A", "nullable": True}},
    "$defs": {"b": {"anyOf": [{"type": "string", "const": None}, True]}},
    "if": {"required": []},
    "x-nobody-knows": [{"deep": {"er": None}}],
}


def test_meta_is_kept_wherever_it_stands():
    block = {"type": "text", "text": "t", "_meta": META}
    value = {"content": [block], "_meta": META}
    assert again(CallToolResult, json.dumps(value).encode()) == value
    params = {"name": "t", "_meta": META, "arguments": {"_meta": META}}
    assert again(CallToolParams, json.dumps(params).encode()) == params
    resources = {"resources": [{"uri": "u", "name": "n", "_meta": META}], "_meta": META}
    assert again(ListResourcesResult, json.dumps(resources).encode()) == resources


def test_schemas_are_kept_with_all_their_keywords():
    value = {"tools": [{"name": "t", "inputSchema": SCHEMA, "outputSchema": SCHEMA}]}
    assert again(ListToolsResult, json.dumps(value).encode()) == value


def test_capabilities_of_extensions_are_kept():
    value = {"extensions": {"com.example/x": SCHEMA}, "experimental": {"y": SCHEMA}}
    assert again(ServerCapabilities, json.dumps(value).encode()) == value


@pytest.mark.parametrize("structured", [b"null", b"{}", b"[]", b'""', b"0", b"false", b'{"a":null}', None])
def test_structured_content_is_any_json_or_absent(structured):
    data = b'{"content":[]}' if structured is None else b'{"content":[],"structuredContent":%s}' % structured
    result = JSONReader(CallToolResult)(data)
    assert (result.structured_content is UNSET) is (structured is None)
    assert json.loads(jsonrpc.encode(result)) == json.loads(data)


@pytest.mark.parametrize("arguments", [b"null", b"{}", b'{ "a" : 1.0, "a" : 2 }', b"[1]"])
def test_arguments_are_kept_byte_for_byte(arguments):
    params = JSONReader(CallToolParams)(b'{"name":"t","arguments":%s}' % arguments)
    assert isinstance(params.arguments, Raw)
    assert bytes(params.arguments) == arguments
    assert arguments in jsonrpc.encode(params)


RESULTS = [
    b'{"content":[]}',
    b'  { "content" : [ ] , "new" : { "a" : 1.0 } }  ',
    b'{"content":[{"type":"text","text":"\\u00e9"}],"structuredContent":1e0,"content":[]}',
]


@pytest.mark.parametrize("data", RESULTS)
def test_a_result_keeps_the_bytes_it_was_read_from(data):
    result = CALL.read_result(Raw(data), "complete")
    assert result.raw == data
    assert isinstance(result, CallToolResult)


def test_a_result_that_was_made_here_has_no_bytes():
    assert CallToolResult(content=[]).raw is None
    assert Result().raw is None


def test_a_copy_of_a_result_has_no_bytes():
    """Code that changes a result changes a copy, and the bytes would still be those of the original."""
    assert copy(CALL.read_result(Raw(RESULTS[0]), "complete")).raw is None


# --------------------------------------------------------------------- hooks


def test_a_foreign_type_cannot_be_read():
    with pytest.raises(NotImplementedError, match="complex is not a protocol type"):
        dec_hook(complex, 1)


class Foreign:
    pass


@pytest.mark.parametrize("value", [Foreign(), Foreign, 1j, object()])
def test_a_foreign_value_cannot_be_written(value):
    with pytest.raises(TypeError, match=f"{type(value).__name__} is not JSON serializable"):
        enc_hook(value)
    with pytest.raises(LocalProtocolError, match="cannot be encoded as JSON"):
        jsonrpc.encode(CallToolResult(content=[], structured_content=value))


def test_an_open_union_has_to_define_how_it_is_read():
    with pytest.raises(TypeError, match="OpenUnion does not implement read"):
        OpenUnion.read({})


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (Content, {"type": "text", "text": "t"}, TextContent("t")),
        (Content, {"type": "new"}, UnknownContent({"type": "new"})),
    ],
)
def test_an_open_kind_is_read_by_its_hook(kind, value, read):
    assert dec_hook(kind, value) == read


def test_an_unknown_kind_is_written_by_its_hook():
    assert enc_hook(UnknownContent({"type": "new", "a": 1})) == {"type": "new", "a": 1}
    assert enc_hook(UnknownSchema({"type": "new"})) == {"type": "new"}


@pytest.mark.parametrize("kind", [Content, PropertySchema])
@pytest.mark.parametrize("value", [None, 1, "text", [], True])
def test_an_open_union_requires_an_object(kind, value):
    with pytest.raises(ValueError, match="Expected"):
        dec_hook(kind, value)


def test_an_error_inside_an_open_kind_gets_its_path():
    """msgspec adds the path to a ValueError only, and takes its own errors for complete."""
    with pytest.raises(ValueError, match="missing required field `text`") as caught:
        dec_hook(Content, {"type": "text"})
    assert type(caught.value) is ValueError
    assert isinstance(caught.value.__cause__, msgspec.ValidationError)
    with pytest.raises(InvalidJSONValue, match=r"missing required field `text` - at `\$.content\[1\]`"):
        JSONReader(CallToolResult)(b'{"content":[{"type":"text","text":"t"},{"type":"text"}]}')
