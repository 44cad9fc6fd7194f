"""Tools, from the list to the result."""

import asyncio

import pytest

from features import lacks, needs, record
from toolpost import RPCError, ToolError
from toolpost.errors import InvalidParams, RequestFailed
from toolpost.types import UNSET, AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent


async def text_error(client, name, arguments=None) -> str:
    """Return the text of a tool error."""
    with pytest.raises(ToolError) as caught:
        await client.call_tool(name, arguments)
    return str(caught.value)


# --------------------------------------------------------------------- the list


@pytest.mark.requirement("TOOL-1", "TOOL-2", "TOOL-3")
async def test_tools_are_declared_and_listed_in_order(link):
    client = await link()
    assert client.capabilities.tools is not None
    tools = await client.list_tools()
    assert [tool.name for tool in tools[:4]] == ["add", "shout", "order", "names"]
    assert tools == await client.list_tools()


@pytest.mark.requirement("TOOL-5")
async def test_a_signature_becomes_a_schema(link):
    client = await link()
    tools = {tool.name: tool for tool in await client.list_tools()}
    assert all(tool.input_schema["type"] == "object" for tool in tools.values())
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].input_schema["properties"]["a"] == {"type": "integer", "description": "the one"}
    assert tools["add"].input_schema["required"] == ["a", "b"]
    assert tools["shout"].description == "Says it louder."
    assert tools["order"].input_schema["properties"]["portions"]["maximum"] == 9
    assert tools["times"].input_schema["required"] == ["n"]
    assert "ctx" not in tools["who"].input_schema.get("properties", {})


async def test_titles_icons_and_annotations_arrive(link):
    client = await link()
    tool = {tool.name: tool for tool in await client.list_tools()}["shout"]
    assert tool.title == "Shout it"
    assert tool.icons is not None
    assert tool.icons[0].src == "https://example.com/shout.png"
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint is True
    assert tool.meta == {"com.example/cost": 3}


# --------------------------------------------------------------------- results


@pytest.mark.parametrize("times", [1, 2])
async def test_functions_are_called_and_stay_callable(link, times):
    client = await link()
    assert (await client.call_tool("add", {"a": times, "b": 2})).text == str(times + 2)
    assert (await client.call_tool("shout", {"text": "ho"})).text == "HO"
    assert (await client.call_tool("times", {"n": times})).text == str(3 * times)


@needs("structured output")
@pytest.mark.requirement("TOOL-12", "TOOL-13", "TOOL-14")
async def test_typed_results_are_structured(link):
    client = await link()
    tools = {tool.name: tool for tool in await client.list_tools()}
    result = await client.call_tool("order", {"dish": "soup", "portions": 2, "size": "large"})
    assert result.data == {"dish": "large soup", "portions": 2}
    assert result.text == '{"dish":"large soup","portions":2}'
    assert tools["order"].output_schema["type"] == "object"
    assert (await client.call_tool("table")).data == {"legs": 4}


@needs("structured output")
@pytest.mark.requirement("TOOL-13", "TOOL-14")
async def test_non_object_results_are_wrapped(link):
    client = await link()
    tools = {tool.name: tool for tool in await client.list_tools()}
    for name, arguments, value in (
        ("add", {"a": 1, "b": 2}, 3),
        ("names", {}, ["ann", "bob"]),
        ("maybe", {"there": False}, None),
        ("shout", {"text": "ho"}, "HO"),
    ):
        result = await client.call_tool(name, arguments)
        assert (result.data, result.structured_content) == (value, {"result": value})
        assert tools[name].output_schema["type"] == "object"
        assert tools[name].output_schema["x-fastmcp-wrap-result"] is True


@lacks("structured output")
async def test_old_peers_get_the_same_data_as_text(link):
    client = await link()
    assert all(tool.output_schema is None for tool in await client.list_tools())
    result = await client.call_tool("order", {"dish": "soup"})
    assert result.structured_content is UNSET
    assert result.data == result.text == '{"dish":"small soup","portions":1}'


async def test_text_stays_text(link):
    client = await link()
    result = await client.call_tool("shout", {"text": "ho"})
    assert result.content == [TextContent("HO")]
    assert result.data == "HO"
    assert (await client.call_tool("nothing")).is_error is False
    assert (await client.call_tool("untyped", {"kind": "text"})).text == "plain"
    assert (await client.call_tool("untyped", {"kind": "list"})).text == "[1,2]"


async def test_pictures_sounds_and_files(link, revision):
    client = await link()
    [image] = (await client.call_tool("picture")).content
    assert isinstance(image, ImageContent)
    assert image.mime_type == "image/png"
    [sound] = (await client.call_tool("sound")).content
    assert type(sound) is (AudioContent if "audio" in record(revision).content else TextContent)
    kinds = [type(block) for block in (await client.call_tool("several")).content]
    assert kinds == [TextContent, ImageContent, EmbeddedResource]
    linked = ResourceLink if "resource_link" in record(revision).content else TextContent
    kinds = [type(block) for block in (await client.call_tool("blocks")).content]
    assert kinds == [ImageContent, linked, EmbeddedResource]
    [data] = (await client.call_tool("raw_bytes")).content
    assert isinstance(data, EmbeddedResource)
    assert data.resource.blob == "AAE="


async def test_a_complete_result_is_sent_unchanged(link):
    client = await link()
    result = await client.call_tool("whole")
    assert result.text == "whole"
    assert result.meta is not None
    assert result.meta["com.example/x"] == 1


async def test_a_context_knows_its_client(link, revision, transport):
    client = await link()
    told = await client.call_tool("who", meta={"com.example/trace": "1"}, result_type=dict)
    assert told.data["client"] == "toolpost"
    assert told.data["revision"] == revision
    assert told.data["method"] == "tools/call"
    assert "com.example/trace" in told.data["meta"]
    carried = told.data["headers"].get("content-type")
    assert carried == (None if transport in {"memory", "stdio"} else "application/json")


@needs("sessions")
async def test_state_belongs_to_the_session(link):
    one, two = await link.fresh("kitchen"), await link.fresh("kitchen")
    assert [(await one.call_tool("counter")).text for _ in range(2)] == ["1", "2"]
    assert (await two.call_tool("counter")).text == "1"


@lacks("sessions")
async def test_state_lives_as_long_as_the_request_without_a_session(link):
    client = await link.fresh("kitchen")
    assert [(await client.call_tool("counter")).text for _ in range(2)] == ["1", "1"]


# --------------------------------------------------------------------- arguments


@pytest.mark.requirement("TOOL-16")
@pytest.mark.parametrize(
    ("name", "arguments", "names"),
    [
        ("add", {"a": "x", "b": 1}, "a"),
        ("add", {"a": 1}, "b"),
        ("add", {"a": 1, "c": 3}, "c"),
        ("order", {"dish": "soup", "portions": 10}, "portions"),
        ("order", {"dish": "soup", "size": "huge"}, "size"),
        ("shout", {"text": 1}, "text"),
    ],
)
async def test_invalid_arguments_are_reported_to_the_model(link, name, arguments, names):
    client = await link()
    assert names in await text_error(client, name, arguments)


async def test_json_in_a_string_is_parsed_if_the_type_is_not_a_string(link):
    client = await link()
    assert (await client.call_tool("add", {"a": "1", "b": 2})).text == "3"
    assert (await client.call_tool("shout", {"text": "1"})).text == "1"


@pytest.mark.requirement("TOOL-17")
async def test_unknown_tools_and_malformed_calls_are_errors(link, revision, transport):
    client = await link()
    with pytest.raises(InvalidParams, match="nope"):
        await client.call_tool("nope")
    for params in ({"name": "add", "arguments": [1, 2]}, {"name": "add", "arguments": "x"}):
        with pytest.raises(InvalidParams):
            await client.request("tools/call", params)
    # The client does not send a name that cannot be in a header.
    mirrors = transport in {"http", "asgi"} and record(revision).stateless
    for params in ({"name": 1}, {"arguments": {}}, {}):
        with pytest.raises(RequestFailed if mirrors else InvalidParams):
            await client.request("tools/call", params)


async def test_arguments_may_be_left_out(link):
    client = await link()
    for arguments in ({}, {"arguments": None}, {"arguments": {}}):
        answer = await client.request("tools/call", {"name": "table", **arguments})
        assert answer.content[0].text == '{"legs":4}'


# --------------------------------------------------------------------- failures

BROKEN = """
    ValueError KeyError TimeoutError StopIteration StopAsyncIteration ExceptionGroup SystemExit
    KeyboardInterrupt CancelledError GeneratorExit MemoryError Custom
"""


@pytest.mark.requirement("TOOL-15")
@pytest.mark.parametrize("tool", ["raises", "raises_sync"])
async def test_an_exception_of_a_tool_affects_only_its_call(link, tool):
    client = await link()
    assert await text_error(client, tool, {"what": "ToolError"}) == "the oven is cold"
    for what in BROKEN.split():
        told = await text_error(client, tool, {"what": what})
        assert told == f"Tool {tool!r} failed unexpectedly; see the server log."
    assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"


@pytest.mark.requirement("TOOL-18")
async def test_errors_can_be_returned_instead_of_raised(link):
    client = await link()
    result = await client.call_tool("raises", {"what": "ToolError"}, raise_on_error=False)
    assert result.is_error is True
    assert result.text == "the oven is cold"


async def test_an_rpc_error_is_that_error(link):
    client = await link()
    with pytest.raises(RPCError, match="not like this") as caught:
        await client.call_tool("refuses", {"code": 4711})
    assert caught.value.code == 4711
    assert caught.value.data == {"why": "because"}
    with pytest.raises(InvalidParams, match="no such thing"):
        await client.call_tool("refuses_params")


@pytest.mark.requirement("TOOL-13")
@pytest.mark.parametrize("tool", ["lies", "unwritable", "endless", "recursion", "surrogate"])
async def test_an_unencodable_result_is_an_error_of_the_tool(link, tool):
    client = await link()
    assert "failed" in await text_error(client, tool)
    assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"


@pytest.mark.parametrize("tool", ["late", "late_sync"])
async def test_a_tool_that_takes_too_long_is_cancelled(link, tool):
    client = await link()
    assert "timed out after 0.05 seconds" in await text_error(client, tool)


async def test_a_timeout_inside_the_function_is_not_ours(link):
    client = await link()
    assert "timed out" not in await text_error(client, "own_timeout")


async def test_many_calls_in_flight(link):
    client = await link()
    calls = [client.call_tool("add", {"a": n, "b": 0}) for n in range(64)]
    assert [result.text for result in await asyncio.gather(*calls)] == [str(n) for n in range(64)]
