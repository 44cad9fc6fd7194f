"""Functions with a custom JSON Schema (`add_tool`)."""

import asyncio
import json
import socket
import sys
from typing import Any

import pytest

from toolpost.errors import InvalidParams, MCPError
from toolpost.json_schema import MAX_ISSUES
from toolpost.server.signature.errors import ArgumentError, SignatureError
from toolpost.server.signature.function_schema import MAX_VALIDATOR_MESSAGE, RawSchemaFunction
from toolpost.server.signature.results import ResultConverter
from toolpost.types.base import UNSET, Raw


class Context:
    pass


NUMBERS: dict[str, Any] = {
    "type": "object",
    "properties": {"ns": {"type": "array", "items": {"type": "integer"}}, "of": {"maxLength": 3}},
    "required": ["ns"],
    "additionalProperties": False,
}


def same(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


def behind(schema: dict[str, Any], fn: Any = same) -> RawSchemaFunction:
    return RawSchemaFunction(fn, schema, context_types=(Context,), name="same")


def output(schema: dict[str, Any]) -> ResultConverter:
    return ResultConverter.for_schema(schema, "same")


def problems(raw: Any, schema: dict[str, Any] = NUMBERS) -> list[str]:
    with pytest.raises(ArgumentError) as refused:
        behind(schema).read(raw)
    return [str(problem) for problem in refused.value.issues]


@pytest.mark.requirement("TOOL-16")
def test_the_schema_decides():
    function = behind(NUMBERS)
    assert function.read(Raw(b'{"ns": [1, 2]}')) == {"ns": [1, 2]}
    assert problems(b"{}") == ['"ns" is a required property']
    assert problems(b'{"ns":[1,"2",3,null]}') == [
        'ns[1]: the value is not of type "integer"',
        'ns[3]: the value is not of type "integer"',
    ]
    assert "'x' was unexpected" in problems(b'{"ns":[],"x":1}')[0]


@pytest.mark.parametrize("raw", [UNSET, Raw(b"null"), Raw(b"{}")])
def test_arguments_may_be_left_out(raw):
    assert behind({"type": "object"}).read(raw) == {}


@pytest.mark.requirement("TOOL-17")
@pytest.mark.parametrize("raw", [b"[]", b'"{}"', b"1", b"{", b'{"ns":'])
def test_params_that_are_not_an_object_are_not_a_call(raw):
    with pytest.raises(InvalidParams, match="must be an object"):
        behind(NUMBERS).read(Raw(raw))


def test_input_of_a_caller_is_not_echoed_in_full():
    assert problems(b'{"ns":[],"of":"%s"}' % (b"x" * 100_000)) == [
        "of: the value is longer than 3 characters"
    ]
    assert len(problems(b'{"ns":[%s]}' % b",".join([b"null"] * 1000))) == MAX_ISSUES
    [told] = problems(b'{"ns":[],"%s":1}' % (b"x" * 100_000))
    assert len(told) == MAX_VALIDATOR_MESSAGE


# --------------------------------------------------------------------- calling


class Doubler:
    async def __call__(self, arguments: dict[str, Any]) -> int:
        return 2 * arguments["n"]


def test_the_function_gets_the_dict_and_a_context_if_it_asks_for_one():
    def with_context(given: dict[str, Any], ctx: Context) -> Any:
        return given, ctx

    def context_first(ctx: Context, /, given: dict[str, Any]) -> Any:
        return given, ctx

    def by_place(given, /) -> Any:
        return given

    context = Context()
    arguments = {"n": 1}
    assert behind({"type": "object"}).call(arguments) is arguments
    assert behind({"type": "object"}, by_place).call(arguments, context) is arguments
    for fn in (with_context, context_first):
        assert behind({"type": "object"}, fn).call(arguments, context) == (arguments, context)
    late = behind({"type": "object"}, Doubler())
    assert late.is_async
    assert asyncio.run(late.call({"n": 2})) == 4
    assert not behind({"type": "object"}).is_async


# --------------------------------------------------------------------- registration


@pytest.mark.parametrize(("fn", "taken"), [(lambda: 1, 0), (lambda a, b: 1, 2)], ids=["none", "two"])
def test_a_function_takes_one_dict(fn, taken):
    with pytest.raises(SignatureError, match=f"must take one dict, not {taken} arguments") as refused:
        behind({"type": "object"}, fn)
    assert "ctx: Context" in str(refused.value)


@pytest.mark.requirement("TOOL-5", "JSCH-5")
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "the input schema of 'same' must have"),
        ({"type": "array"}, "the input schema of 'same' must have"),
        ({"type": ["object", "null"]}, "the input schema of 'same' must have"),
        (
            {"type": "object", "properties": {"a": {"type": "nonsense"}}},
            "'same' is not valid: .*, at properties/a/type",
        ),
        ({"type": "object", "properties": {"a": {"pattern": "(?=ahead)"}}}, 'not a "regex"'),
        ({"type": "object", "$ref": "#/$defs/a"}, "'same' is not valid: Pointer '/.defs/a' does not exist"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema, said):
    with pytest.raises(ValueError, match=said):
        behind(schema)


@pytest.mark.requirement("JSCH-7", "JSCH-8", "JSCH-10")
@pytest.mark.parametrize("register", [behind, output], ids=["input", "output"])
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "{url}"},
        {"properties": {"a": {"items": {"$ref": "{url}#/$defs/b"}}}},
        {"$id": "{url}", "$ref": "other.json"},
        {"$schema": "{url}"},
    ],
)
def test_a_reference_to_the_network_is_refused_and_not_even_tried(register, schema):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/a.json"
        schema = json.loads(json.dumps({"type": "object", **schema}).replace("{url}", url))
        with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
            register(schema)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):  # no request was sent
            listening.accept()


def test_without_a_validator_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(
        MCPError, match=r"the input schema of 'same' .* jsonschema-rs, which is not installed \(pip"
    ):
        behind(NUMBERS)
