"""Parameters of tools that HTTP headers mirror: the schema, the checks, and which channels are informed."""

import asyncio
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from msgspec import Meta

from pair import open_pair
from region_server import Region, served
from toolpost import Header, Server, SignatureError
from toolpost.errors import HeaderMismatch
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.revisions import LATEST
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.server.signature.function_schema import BoundFunction
from toolpost.testing import ScriptedChannel
from toolpost.types import Tool


class Side(enum.Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclass
class Place:
    """Where it is."""

    region: Region
    zone: Annotated[int | None, Header("Zone")] = None
    plain: str = ""


class Inner(msgspec.Struct):
    place: Place
    deep: Annotated[bool, Header("Deep")] = False


class Keyed(TypedDict):
    region: Region


class Model(pydantic.BaseModel):
    region: Region
    zone: Annotated[int | None, Header("Zone")] = None
    side: Annotated[Side, Header("Side")] = Side.LEFT


class Outer(pydantic.BaseModel):
    model: Model


@dataclass
class Tree:
    region: Region
    below: list["Tree"] = field(default_factory=list)


@dataclass
class Chain:
    region: Region
    next: "Chain | None" = None


def bound(*kinds: Any, **options: Any) -> Any:
    """A function with parameters a, b … of these types, bound."""

    def fn(a: Any, b: Any = None) -> Any:
        return a, b

    fn.__annotations__ = dict(zip("ab", kinds, strict=False))
    return BoundFunction(fn, **options)


# --------------------------------------------------------------------- what the schema says


@pytest.mark.requirement("HDR-4", "HDR-10")
@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (Region, {"type": "string"}),
        (Annotated[int, Header("Region")], {"type": "integer"}),
        (Annotated[bool, Header("Region")], {"type": "boolean"}),
        (Annotated[int, Header("Region"), Meta(ge=1)], {"type": "integer", "minimum": 1}),
        (Annotated[Literal["a", "b"], Header("Region")], {"type": "string", "enum": ["a", "b"]}),
        (Annotated[Side, Header("Region")], {"type": "string", "enum": ["left", "right"]}),
        (Annotated[str | None, Header("Region")], {"type": "string"}),
        (Region | None, {"type": "string"}),
        (Annotated[Region | None, "where"], {"type": "string", "description": "where"}),
        (
            Annotated[Annotated[str | None, "where"], Header("Region")],
            {"type": "string", "description": "where"},
        ),
        (Annotated[Literal["a", "b"] | None, Header("Region")], {"type": "string", "enum": ["a", "b"]}),
    ],
)
def test_a_parameter_names_its_header(kind, schema):
    it = bound(kind)
    assert it.input_schema["properties"]["a"] == {**schema, "x-mcp-header": "Region"}
    assert it.header_parameters == {"mcp-param-region": ("a",)}


@pytest.mark.parametrize("kind", [Annotated[str | None, Header("Region")], Region | None])
def test_an_optional_parameter_may_be_null_or_absent(kind):
    it = bound(Any, kind)
    assert "b" not in it.input_schema["required"]
    for sent, found in ((b'{"a":1,"b":null}', None), (b'{"a":1}', None), (b'{"a":1,"b":"x"}', "x")):
        assert it.call(it.read(sent)) == (1, found)


@pytest.mark.requirement("HDR-11", "HDR-12")
@pytest.mark.parametrize(
    ("kind", "annotated", "value"),
    [
        (Place, {"region": ("a", "region"), "zone": ("a", "zone")}, {"region": "x"}),
        (
            Inner,
            {
                "region": ("a", "place", "region"),
                "zone": ("a", "place", "zone"),
                "deep": ("a", "deep"),
            },
            {"place": {"region": "x", "zone": None}},
        ),
        (Keyed, {"region": ("a", "region")}, {"region": "x"}),
        (
            Outer,
            {
                "region": ("a", "model", "region"),
                "zone": ("a", "model", "zone"),
                "side": ("a", "model", "side"),
            },
            {"model": {"region": "x", "zone": None, "side": "right"}},
        ),
    ],
)
def test_a_field_of_a_class_may_be_mirrored(kind, annotated, value):
    it = bound(kind)
    assert it.header_parameters == {f"mcp-param-{name}": path for name, path in annotated.items()}
    assert "$ref" not in str(it.input_schema)
    assert "$defs" not in it.input_schema
    made, _ = it.call(it.read(msgspec.json.encode({"a": value})))
    assert type(made) in {kind, dict}


def test_no_reference_comes_before_a_header():
    it = bound(Annotated[Place, "here"], Tool)
    assert it.input_schema["properties"]["a"]["description"] == "here"
    assert it.input_schema["properties"]["a"]["type"] == "object"
    assert "$defs" not in it.input_schema
    assert "$defs" in bound(Tool).input_schema


# --------------------------------------------------------------------- what is refused


@pytest.mark.requirement("HDR-6", "HDR-7", "HDR-8", "HDR-9", "HDR-10", "HDR-11", "HDR-12")
@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ([Annotated[str, Header("")]], ["parameter `a`", "it must be a non-empty string"]),
        ([Annotated[str, Header("a b")]], ["parameter `a`", "cannot be part of a header name"]),
        ([Annotated[str, Header("a\n")]], ["parameter `a`", "cannot be part of a header name"]),
        ([str, Annotated[float, Header("A")]], ["parameter `b`", "must be exactly one of string, integer"]),
        ([Annotated[list[str], Header("A")]], ["parameter `a`", "must be exactly one of"]),
        ([Annotated[int | str | None, Header("A")]], ["parameter `a`", "must be exactly one of"]),
        ([Annotated[Place, Header("A")]], ["parameter `a`", "must be exactly one of"]),
        ([Region, Annotated[str, Header("REGION")]], ["x-mcp-header on 'b': 'a' already uses it"]),
        ([Place, Place], ["x-mcp-header on 'b.region': 'a.region' already uses it"]),
        ([Place, Region], ["x-mcp-header on 'a.region': 'b' already uses it"]),
        ([str, list[Place]], ["parameter `b`", "it is under `items`", "not in a list"]),
        ([str, Place | None], ["parameter `b`", "it is under `anyOf`"]),
        ([Place, list[Place]], ["parameter `b`", "it is under `items`"]),
        ([str, dict[str, Region]], ["parameter `b`", "it is under `additionalProperties`"]),
        ([Tree], ["parameter `a`", "it is under `$defs`"]),
        ([Chain], ["parameter `a`", "it is under `$defs`"]),
    ],
)
def test_parameters_that_headers_cannot_mirror_are_rejected(kinds, said):
    with pytest.raises(SignatureError) as refused:
        bound(*kinds, name="query")
    for words in ("`query`: ", *said):
        assert words in str(refused.value)


@pytest.mark.requirement("HDR-23", "HDR-25")
@pytest.mark.parametrize(
    ("tool", "headers", "said"),
    [
        ("query", {"mcp-param-region": "north"}, None),
        (
            "query",
            {"mcp-param-region": "south"},
            "the header is 'south', but the argument 'region' is 'north'",
        ),
        ("query", {"mcp-method": "tools/call"}, "the header is missing"),
        ("query", {}, None),
        ("plain", {"mcp-param-region": "south"}, None),
    ],
    ids=["same", "other", "missing", "not over HTTP", "not mirrored"],
)
def test_a_factory_checks_the_client_it_chose_for(tool, headers, said):
    class Web(ServerConversation):
        def headers_of(self, incoming: InboundRequest | None) -> dict[str, str]:
            return headers

    async def main() -> dict[str, Any]:
        server = served()

        async def choose(*facts: Any) -> Server:
            return server

        channel = ScriptedChannel()
        factory = Server.factory(choose)
        assert factory.find_header_parameters("query") is None  # no server is chosen yet
        request = {"name": tool, "arguments": {"region": "north"}}
        channel.feed(open_pair(LATEST.date).client.request("tools/call", request).data)
        async with factory.hold_lifespan() as lifespan:
            serving = asyncio.create_task(Web(factory, channel, lifespan).run())
            answer = await channel.next_sent()
            channel.end()
            await serving
        return answer

    answer = asyncio.run(main())
    if said is None:
        assert answer["result"]["content"][0]["text"] == "north"
    else:
        assert answer["error"]["code"] == HeaderMismatch.code
        assert said in answer["error"]["message"]
