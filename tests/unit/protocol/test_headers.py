import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.errors import HeaderMismatch
from toolpost.protocol import headers
from toolpost.protocol.headers import (
    accepts,
    check_name,
    decode_value,
    encode_value,
    find_annotations,
    is_json,
    is_valid_session_id,
    mirror_arguments,
    verify_arguments,
)

BEYOND = 2**53
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


# --------------------------------------------------------------------- values


@pytest.mark.requirement("HDR-27")
def test_header_names_are_in_lower_case():
    names = [
        headers.VERSION,
        headers.SESSION,
        headers.METHOD,
        headers.NAME,
        headers.LAST_EVENT,
        headers.PARAM_PREFIX,
    ]
    assert names == [name.lower() for name in names]


@pytest.mark.requirement("HDR-16", "HDR-17", "HDR-18")
@pytest.mark.parametrize(
    ("value", "wire"),
    [
        pytest.param("us-west1", "us-west1", id="plain text as it is"),
        pytest.param("us west 1", "us west 1", id="spaces inside as they are"),
        pytest.param("", "", id="empty stays empty"),
        pytest.param("file:///a/b%20c.txt?x=1", "file:///a/b%20c.txt?x=1", id="a URI as it is"),
        pytest.param(42, "42", id="integer"),
        pytest.param(-7, "-7", id="negative integer"),
        pytest.param(2**53 - 1, "9007199254740991", id="largest integer"),
        pytest.param(42.0, "42", id="a whole float is an integer in JSON"),
        pytest.param(-0.0, "0", id="minus zero is zero"),
        pytest.param(True, "true", id="true is not 1"),
        pytest.param(False, "false", id="false is not 0"),
        pytest.param("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?=", id="not ASCII"),
        pytest.param(" padded ", "=?base64?IHBhZGRlZCA=?=", id="spaces around"),
        pytest.param(" us-west1", "=?base64?IHVzLXdlc3Qx?=", id="space before"),
        pytest.param("us-west1 ", "=?base64?dXMtd2VzdDEg?=", id="space behind"),
        pytest.param("line1\nline2", "=?base64?bGluZTEKbGluZTI=?=", id="line feed"),
        pytest.param("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?=", id="carriage return"),
        pytest.param("\tindented", "=?base64?CWluZGVudGVk?=", id="tab before"),
        pytest.param("a\tb", "=?base64?YQli?=", id="tab inside"),
        pytest.param("\x7f", "=?base64?fw==?=", id="delete"),
        pytest.param("\x00", "=?base64?AA==?=", id="null character"),
        pytest.param(
            "=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", id="looks like the sentinel"
        ),
        pytest.param("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?=", id="looks like it with shared markers"),
        pytest.param("=?base64?open", "=?base64?open", id="only the opening marker"),
        pytest.param("shut?=", "shut?=", id="only the closing marker"),
        pytest.param("=?BASE64?x?=", "=?BASE64?x?=", id="markers in upper case are none"),
    ],
)
def test_a_value_is_encoded(value, wire):
    assert encode_value(value) == wire
    if isinstance(value, str):
        assert decode_value(wire) == value


@pytest.mark.requirement("HDR-10")
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(BEYOND, id="integer too large"),
        pytest.param(-BEYOND, id="integer too small"),
        pytest.param(10**5000, id="integer too long to print"),
        pytest.param(float(BEYOND), id="whole float too large"),
        pytest.param(4.2, id="fraction"),
        pytest.param(math.inf, id="infinity"),
        pytest.param(math.nan, id="not a number"),
        pytest.param("\ud800", id="lone surrogate"),
        pytest.param(None, id="null"),
        pytest.param([], id="list"),
        pytest.param({}, id="object"),
        pytest.param(b"x", id="bytes"),
    ],
)
def test_values_that_headers_cannot_carry_are_not_encoded(value: Any):
    with pytest.raises(ValueError, match=r"header value must be|surrogates not allowed"):
        encode_value(value)


@pytest.mark.requirement("HDR-19", "HDR-20")
@pytest.mark.parametrize(
    ("wire", "text"),
    [
        pytest.param("=?base64?SGVsbG8=?=", "Hello", id="wrapped without need"),
        pytest.param("=?base64??=", "", id="wrapped nothing"),
        pytest.param(" \tfoo\t ", "foo", id="white space around"),
        pytest.param("  =?base64?SGVsbG8=?= ", "Hello", id="white space around the sentinel"),
        pytest.param("a\tb", "a\tb", id="tab inside is legal in HTTP"),
        pytest.param("SGVsbG8=", "SGVsbG8=", id="no markers"),
        pytest.param("SGVsbG8=?=", "SGVsbG8=?=", id="no opening marker"),
        pytest.param("=?base64?SGVsbG8=", "=?base64?SGVsbG8=", id="no closing marker"),
        pytest.param("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?=", id="marker in upper case"),
        pytest.param("=?base64?=", "=?base64?=", id="no room for both markers"),
        pytest.param("", "", id="empty"),
    ],
)
def test_a_value_is_decoded(wire, text):
    assert decode_value(wire) == text


@pytest.mark.requirement("HDR-20", "HDR-24")
@pytest.mark.parametrize(
    "wire",
    [
        pytest.param("=?base64?SGVsbG8?=", id="padding missing"),
        pytest.param("=?base64?SGVsbG8==?=", id="padding too long"),
        pytest.param("=?base64?SGVs!!!bG8=?=", id="not the alphabet"),
        pytest.param("=?base64?SGVs bG8=?=", id="space within"),
        pytest.param("=?base64?__-_?=", id="alphabet for URLs"),
        pytest.param("=?base64?SGVsbG9=?=", id="stray bits at the end"),
        pytest.param("=?base64?=?=", id="only padding"),
        pytest.param("=?base64?SA==SA==?=", id="padding inside"),
        pytest.param("=?base64?/w==?=", id="not UTF-8"),
        pytest.param("=?base64?7aCA?=", id="surrogate in UTF-8"),
        pytest.param("a\nb", id="line feed"),
        pytest.param("a\x00b", id="null character"),
        pytest.param("a\x7fb", id="delete"),
        pytest.param("caf\xe9", id="latin letter"),
        pytest.param("foo\xa0", id="white space that is not optional white space"),
        pytest.param("\udcff", id="lone surrogate"),
    ],
)
def test_a_malformed_value_is_refused_by_name(wire):
    with pytest.raises(HeaderMismatch, match=r"^mcp-param-x: ") as caught:
        decode_value(wire, "mcp-param-x")
    assert caught.value.code == -32020
    assert "\n" not in str(caught.value)


def test_a_message_repeats_only_the_beginning_of_a_value():
    with pytest.raises(HeaderMismatch) as caught:
        decode_value("é" * 1_000_000)
    assert len(str(caught.value)) < 200


@pytest.mark.requirement("HDR-17", "HDR-18", "HDR-20")
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("=?base64 \tA\n"))
def test_every_text_survives_the_header(text):
    wire = encode_value(text)
    assert all(0x20 <= ord(letter) <= 0x7E for letter in wire)
    assert wire == wire.strip()
    assert decode_value(wire) == text


@given(st.text() | st.text("=?base64 Aw/+").map("=?base64?{}?=".format))
def test_a_junk_value_decodes_or_is_refused(wire):
    try:
        text = decode_value(wire)
    except HeaderMismatch:
        return
    assert decode_value(encode_value(text)) == text


@pytest.mark.requirement("HDR-20")
@pytest.mark.parametrize(
    ("header", "body"),
    [
        pytest.param("get_weather", "get_weather", id="a name"),
        pytest.param("  foo ", "foo", id="white space around"),
        pytest.param("file:///a?b=1", "file:///a?b=1", id="a URI"),
        pytest.param(encode_value("Wetter für Köln"), "Wetter für Köln", id="a name that needs Base64"),
    ],
)
def test_a_name_that_agrees_passes(header, body):
    check_name(header.encode(), body)


@pytest.mark.requirement("HDR-25", "HDR-27")
@pytest.mark.parametrize(
    ("header", "message"),
    [
        pytest.param(None, "mcp-name: the header is missing, but the body has 'bar'", id="missing"),
        pytest.param("foo", "mcp-name: the header is 'foo', but the body has 'bar'", id="another name"),
        pytest.param(
            "BAR", "mcp-name: the header is 'BAR', but the body has 'bar'", id="values keep their case"
        ),
        pytest.param("", "mcp-name: the header is '', but the body has 'bar'", id="empty"),
        pytest.param("=?base64?!?=", "mcp-name: '=?base64?!?=' is not Base64 of UTF-8 text", id="malformed"),
    ],
)
def test_a_name_that_differs_is_refused(header, message):
    with pytest.raises(HeaderMismatch) as caught:
        check_name(None if header is None else header.encode(), "bar")
    assert str(caught.value) == message


@pytest.mark.requirement("HTTPL-23")
@pytest.mark.parametrize(
    ("value", "ok"),
    [
        pytest.param("1f3a4b5c-6d7e", True, id="hexadecimal"),
        pytest.param("!~", True, id="the ends of visible ASCII"),
        pytest.param("x" * 4096, True, id="as long as a token"),
        pytest.param("x" * 4097, False, id="too long"),
        pytest.param("", False, id="empty"),
        pytest.param("a b", False, id="space"),
        pytest.param("a\tb", False, id="tab"),
        pytest.param("a\x7f", False, id="delete"),
        pytest.param("a\n", False, id="line feed at the end"),
        pytest.param("é", False, id="not ASCII"),
    ],
)
def test_a_session_id_is_visible_ascii(value, ok):
    assert is_valid_session_id(value) is ok


# --------------------------------------------------------------------- annotations


def prop(name: Any = "Region", kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": name, **more}


CHAIN = "it must be reachable through `properties` alone; it is"


def properties(**each: Any) -> dict[str, Any]:
    return {"type": "object", "properties": each}


@pytest.mark.requirement("HDR-11")
@pytest.mark.parametrize(
    ("schema", "found"),
    [
        pytest.param({}, {}, id="empty schema"),
        pytest.param(properties(a={"type": "string"}), {}, id="no annotation"),
        pytest.param(properties(a=prop()), {"mcp-param-region": ("a",)}, id="string"),
        pytest.param(properties(a=prop(kind="integer")), {"mcp-param-region": ("a",)}, id="integer"),
        pytest.param(properties(a=prop(kind="boolean")), {"mcp-param-region": ("a",)}, id="boolean"),
        pytest.param(
            properties(a=prop("Method")), {"mcp-param-method": ("a",)}, id="Method is a name like any other"
        ),
        pytest.param(
            properties(a=prop("!#$%&'*+-.^_`|~0Az")), {"mcp-param-!#$%&'*+-.^_`|~0az": ("a",)}, id="token"
        ),
        pytest.param(
            properties(a=properties(b=properties(c=prop())), d=prop("D")),
            {"mcp-param-d": ("d",), "mcp-param-region": ("a", "b", "c")},
            id="nested objects",
        ),
        pytest.param(
            properties(a=prop(**{"$ref": "#/$defs/x"})),
            {"mcp-param-region": ("a",)},
            id="a reference beside it",
        ),
        pytest.param(
            {"properties": {"x-mcp-header": {"type": "string"}}}, {}, id="a property that is called like it"
        ),
        pytest.param(
            {"properties": {"properties": prop(), "items": prop("I")}},
            {"mcp-param-region": ("properties",), "mcp-param-i": ("items",)},
            id="properties that are called like keywords",
        ),
        pytest.param(
            {name: {"x-mcp-header": True} for name in ("$defs", "patternProperties", "dependentRequired")},
            {},
            id="other names that are called like it",
        ),
        pytest.param(
            properties(a={"default": prop(), "const": prop(), "enum": [prop()], "examples": [prop()]}),
            {},
            id="data is not schema",
        ),
        pytest.param(
            {"properties": True, "items": False, "$defs": 7, "allOf": [True, None, "x"]}, {}, id="junk"
        ),
        pytest.param(properties(a=True, b=None, c=[1, [2]], d="x"), {}, id="junk for properties"),
    ],
)
def test_annotations_are_found(schema, found):
    assert find_annotations(schema) == found


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        pytest.param(
            properties(a=prop("")),
            "on 'a': it must be a non-empty string",
            id="empty",
            marks=pytest.mark.requirement("HDR-6"),
        ),
        *(
            pytest.param(
                properties(a=prop(name)),
                "on 'a': it must be a non-empty string",
                id=f"{type(name).__name__} for a name",
                marks=pytest.mark.requirement("HDR-7"),
            )
            for name in (None, 7, True, ["Region"], {"x-mcp-header": "Region"}, 10**5000)
        ),
        *(
            pytest.param(
                properties(a=prop(name)),
                f"on 'a': {name!r} cannot be part of a header name",
                id=f"{name!a} for a name",
                marks=pytest.mark.requirement("HDR-7", "HDR-8"),
            )
            for name in (
                "My Region",
                "Region:Primary",
                "Région",
                "Region\t1",
                "Region\r\n",
                "Region\n",
                "a/b",
                "\u212a",
            )
        ),
        *(
            pytest.param(
                properties(a=prop(kind=kind)),
                "on 'a': the type of the property must be exactly one of string, integer, boolean",
                id=f"type {kind}",
                marks=pytest.mark.requirement("HDR-10"),
            )
            for kind in (
                "number",
                "object",
                "array",
                "null",
                None,
                ["string"],
                ["string", "null"],
                {},
                "String",
            )
        ),
        pytest.param(
            properties(a={"x-mcp-header": "Region"}),
            "on 'a': the type of the property must be",
            id="no type",
            marks=pytest.mark.requirement("HDR-10"),
        ),
        pytest.param(
            properties(a={"x-mcp-header": "Region", "anyOf": [{"type": "string"}, {"type": "null"}]}),
            "on 'a': the type of the property must be",
            id="type in a union",
            marks=pytest.mark.requirement("HDR-10"),
        ),
        pytest.param(
            properties(a=prop(), b=prop()),
            "on 'b': 'a' already uses it",
            id="twice the same",
            marks=pytest.mark.requirement("HDR-9"),
        ),
        pytest.param(
            properties(a=prop("Region"), b=properties(c=prop("REGION"))),
            "on 'b.c': 'a' already uses it",
            id="twice the same but for case",
            marks=pytest.mark.requirement("HDR-9"),
        ),
        pytest.param(
            prop(),
            f"on the schema: {CHAIN} on the root",
            id="root",
            marks=pytest.mark.requirement("HDR-11"),
        ),
        *(
            pytest.param(
                properties(a={keyword: prop()}),
                f"on 'a': {CHAIN} under `{keyword}`",
                id=f"under {keyword}",
                marks=pytest.mark.requirement("HDR-11", "HDR-12"),
            )
            for keyword in (
                "items",
                "additionalItems",
                "unevaluatedItems",
                "contains",
                "not",
                "if",
                "then",
                "else",
                "additionalProperties",
                "unevaluatedProperties",
                "propertyNames",
                "contentSchema",
                "x-unknown",
            )
        ),
        *(
            pytest.param(
                properties(a={keyword: [True, prop()]}),
                f"on 'a': {CHAIN} under `{keyword}`",
                id=f"in the list {keyword}",
                marks=pytest.mark.requirement("HDR-11", "HDR-12"),
            )
            for keyword in ("items", "prefixItems", "oneOf", "anyOf", "allOf", "properties")
        ),
        *(
            pytest.param(
                {keyword: {"x": prop()}, **properties(a={"$ref": f"#/{keyword}/x"})},
                f"on the schema: {CHAIN} under `{keyword}`",
                id=f"by name in {keyword}",
                marks=pytest.mark.requirement("HDR-11", "HDR-12"),
            )
            for keyword in (
                "$defs",
                "definitions",
                "patternProperties",
                "dependentSchemas",
                "dependencies",
                "components",
            )
        ),
        pytest.param(
            properties(a={"items": properties(b=prop())}),
            f"on 'a': {CHAIN} under `items`",
            id="through properties again, but under items",
            marks=pytest.mark.requirement("HDR-11", "HDR-12"),
        ),
    ],
)
def test_a_wrong_annotation_is_named(schema, message):
    with pytest.raises(ValueError, match="x-mcp-header") as caught:
        find_annotations(schema)
    assert str(caught.value).startswith(f"x-mcp-header {message}")


def nested(depth: int, inner: dict[str, Any]) -> dict[str, Any]:
    for _ in range(depth):
        inner = properties(p=inner)
    return inner


def test_the_depth_of_an_annotation_is_bounded():
    assert find_annotations(nested(headers.MAX_ANNOTATION_DEPTH, prop())) == {
        "mcp-param-region": ("p",) * headers.MAX_ANNOTATION_DEPTH
    }
    with pytest.raises(ValueError, match="more than 32 levels deep"):
        find_annotations(nested(headers.MAX_ANNOTATION_DEPTH + 1, prop()))


def test_a_schema_may_be_deep_where_nothing_is_annotated():
    assert find_annotations(nested(headers.MAX_SCHEMA_NODES // 2, {})) == {}


def test_the_size_of_a_schema_is_bounded():
    wide = {str(number): {} for number in range(headers.MAX_SCHEMA_NODES)}
    itself: dict[str, Any] = {}
    itself["items"] = [itself, itself]
    for schema in (properties(**wide), itself):
        with pytest.raises(ValueError, match="more than 100000 parts"):
            find_annotations(schema)


SCHEMAS = st.recursive(
    st.booleans()
    | st.text("A b", max_size=2)
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "number", ["string"]])},
        optional={"x-mcp-header": st.sampled_from(["A", "a", "B", "", "b c", None])},
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["properties", "items", "anyOf", "$defs", "default", "x-mcp-header", "a", "b"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["properties", "items", "$defs"]), SCHEMAS | JSON))
def test_a_junk_schema_has_annotations_or_a_fault(schema):
    try:
        found = find_annotations(schema)
    except ValueError:
        return
    for path in found.values():
        node = schema
        for name in path:
            node = node["properties"][name]
        assert node["type"] in {"string", "integer", "boolean"}


# --------------------------------------------------------------------- mirror and verify

ANNOTATED = {"mcp-param-a": ("a",), "mcp-param-c": ("b", "c")}


@pytest.mark.requirement("HDR-5", "HDR-16", "HDR-21", "HDR-22")
@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        pytest.param({"a": "x", "b": {"c": 1}}, {"mcp-param-a": "x", "mcp-param-c": "1"}, id="both"),
        pytest.param({"a": True}, {"mcp-param-a": "true"}, id="boolean"),
        pytest.param({"a": ""}, {"mcp-param-a": ""}, id="empty text has a header"),
        pytest.param({"a": 42.0}, {"mcp-param-a": "42"}, id="whole float"),
        pytest.param({"a": "ö"}, {"mcp-param-a": "=?base64?w7Y=?="}, id="not ASCII"),
        pytest.param({}, {}, id="absent"),
        pytest.param({"a": None, "b": {"c": None}}, {}, id="null"),
        pytest.param({"b": None}, {}, id="null on the way"),
        pytest.param({"b": "c"}, {}, id="text on the way"),
        pytest.param({"b": ["c"]}, {}, id="list on the way"),
        pytest.param({"z": 4.2, "c": "x"}, {}, id="arguments that are not annotated"),
    ],
)
def test_arguments_are_mirrored_and_verified(arguments, sent):
    assert mirror_arguments(ANNOTATED, arguments) == sent
    verify_arguments(ANNOTATED, arguments, sent)


UNFIT = [
    pytest.param(4.2, id="fraction"),
    pytest.param(math.inf, id="infinity"),
    pytest.param(BEYOND, id="integer too large"),
    pytest.param(10**5000, id="integer too long to print"),
    pytest.param([1], id="list"),
    pytest.param({"c": 1}, id="object"),
]


@pytest.mark.requirement("HDR-10")
@pytest.mark.parametrize("value", UNFIT)
def test_an_argument_that_cannot_be_mirrored_is_named(value):
    with pytest.raises(
        ValueError, match=r"^the argument 'b\.c' cannot be sent as mcp-param-c: a header value must be"
    ):
        mirror_arguments(ANNOTATED, {"b": {"c": value}})


@pytest.mark.requirement("HDR-10", "HDR-23", "HDR-25")
@pytest.mark.parametrize("sent", [{}, {"mcp-param-c": "1"}, {"mcp-param-c": str(BEYOND)}])
@pytest.mark.parametrize("value", UNFIT)
def test_an_argument_that_cannot_be_mirrored_agrees_with_nothing(value, sent):
    with pytest.raises(HeaderMismatch, match=r"^mcp-param-c: .* of type \w+, which cannot be a header value"):
        verify_arguments(ANNOTATED, {"b": {"c": value}}, sent)


@pytest.mark.requirement("HDR-20", "HDR-26")
@pytest.mark.parametrize(
    ("value", "header"),
    [
        pytest.param("x", " x\t", id="white space around"),
        pytest.param("Hello", "=?base64?SGVsbG8=?=", id="Base64 without need"),
        pytest.param(42, "42.0", id="a whole decimal equals its integer"),
        pytest.param(42, "42.000", id="as many zeros as one likes"),
        pytest.param(42.0, "42", id="a whole float in the body"),
        pytest.param(-7, "-7", id="negative"),
        pytest.param(0, "-0", id="minus zero is zero"),
        pytest.param(42, "=?base64?NDI=?=", id="an integer in Base64"),
        pytest.param(2**53 - 1, "9007199254740991", id="largest integer"),
        pytest.param(-(2**53 - 1), "-9007199254740991.0", id="smallest integer"),
        pytest.param(False, "false", id="boolean"),
    ],
)
def test_a_header_that_says_the_same_passes(value, header):
    verify_arguments(
        {"mcp-param-a": ("a",)},
        {"a": value},
        {"mcp-param-a": header, "mcp-param-unknown": "\x00", "host": "h"},
    )


@pytest.mark.requirement("HDR-25", "HDR-26", "HDR-27")
@pytest.mark.parametrize(
    ("value", "header"),
    [
        pytest.param("us-west1", "us-east1", id="another text"),
        pytest.param("us-west1", "US-WEST1", id="values keep their case"),
        pytest.param("x", "", id="empty header"),
        pytest.param("42", "42.0", id="text that looks like a number is compared as text"),
        pytest.param(True, "1", id="true is not 1"),
        pytest.param(True, "True", id="true is in lower case"),
        pytest.param(1, "true", id="1 is not true"),
        pytest.param(0, "", id="nothing is not 0"),
        pytest.param(42, "43", id="another integer"),
        pytest.param(42, "42.5", id="fraction"),
        pytest.param(42, "42.", id="point without digits"),
        pytest.param(42, "+42", id="plus sign"),
        pytest.param(42, "042", id="leading zero"),
        pytest.param(42, "4.2e1", id="exponent"),
        pytest.param(42, "0x2a", id="hexadecimal"),
        pytest.param(42, "4_2", id="Python's own spelling"),
        pytest.param(42, "=?base64?2aTZog==?=", id="digits of another script"),
        pytest.param(42, "42" + "0" * 100_000, id="very many digits"),
        pytest.param(2**53 - 1, "9007199254740990", id="large integers are not compared as floats"),
    ],
)
def test_a_header_that_says_something_else_is_refused(value, header):
    with pytest.raises(HeaderMismatch, match=r"^mcp-param-a: the header is '.*', but the argument 'a' is "):
        verify_arguments(ANNOTATED, {"a": value}, {"mcp-param-a": header})


@pytest.mark.parametrize(
    ("arguments", "sent", "message"),
    [
        pytest.param(
            {"a": "x"},
            {},
            "mcp-param-a: the header is missing; the argument 'a' is 'x'",
            id="the header is missing",
            marks=pytest.mark.requirement("HDR-23"),
        ),
        pytest.param(
            {"a": ""},
            {},
            "mcp-param-a: the header is missing; the argument 'a' is ''",
            id="an empty text needs a header too",
            marks=pytest.mark.requirement("HDR-23"),
        ),
        pytest.param(
            {"b": {"c": 7}},
            {},
            "mcp-param-c: the header is missing; the argument 'b.c' is 7",
            id="the header of a nested argument is missing",
            marks=pytest.mark.requirement("HDR-23"),
        ),
        pytest.param(
            {},
            {"mcp-param-a": "x"},
            "mcp-param-a: the header is present, but the body has no argument 'a'",
            id="the argument is missing",
            marks=pytest.mark.requirement("HDR-25"),
        ),
        pytest.param(
            {"a": None},
            {"mcp-param-a": ""},
            "mcp-param-a: the header is present, but the body has no argument 'a'",
            id="the argument is null",
            marks=pytest.mark.requirement("HDR-25"),
        ),
        pytest.param(
            {"a": "x"},
            {"mcp-param-a": "x\x00"},
            "mcp-param-a: 'x\\x00' has characters that a header does not allow",
            id="a character is not legal",
            marks=pytest.mark.requirement("HDR-24"),
        ),
        pytest.param(
            {"a": "Hello"},
            {"mcp-param-a": "=?base64?SGVsbG8?="},
            "mcp-param-a: '=?base64?SGVsbG8?=' is not Base64 of UTF-8 text",
            id="the Base64 is wrong",
            marks=pytest.mark.requirement("HDR-20", "HDR-25"),
        ),
    ],
)
def test_a_header_and_an_argument_come_together(arguments, sent, message):
    with pytest.raises(HeaderMismatch) as caught:
        verify_arguments(ANNOTATED, arguments, sent)
    assert str(caught.value) == message


@pytest.mark.requirement("HDR-5", "HDR-25")
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        JSON | st.fixed_dictionaries({"c": JSON}) | st.integers(-BEYOND - 2, BEYOND + 2) | st.text(),
    )
)
def test_mirrored_headers_are_verified(arguments):
    try:
        sent = mirror_arguments(ANNOTATED, arguments)
    except ValueError:
        return
    verify_arguments(ANNOTATED, arguments, sent)
    for header in sent:
        with pytest.raises(HeaderMismatch):
            verify_arguments(ANNOTATED, arguments, {**sent, header: f"{sent[header]}!"})


@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.sampled_from(list(ANNOTATED)), st.text()))
def test_junk_is_a_mismatch_at_worst(arguments, sent):
    with contextlib.suppress(HeaderMismatch):
        verify_arguments(ANNOTATED, arguments, sent)


# --------------------------------------------------------------------- media types


@pytest.mark.parametrize(
    ("header", "json", "stream"),
    [
        pytest.param(None, True, True, id="no header"),
        pytest.param(" ", True, True, id="empty header"),
        pytest.param("application/json, text/event-stream", True, True, id="both"),
        pytest.param("application/json,text/event-stream", True, True, id="both without a space"),
        pytest.param("application/json", True, False, id="only JSON"),
        pytest.param("text/event-stream", False, True, id="only streams"),
        pytest.param("Application/JSON", True, False, id="any case"),
        pytest.param("*/*", True, True, id="anything"),
        pytest.param("application/*", True, False, id="any application"),
        pytest.param("text/*;q=0.5", False, True, id="any text"),
        pytest.param("application/json;q=0, */*", False, True, id="zero excludes, the specific range wins"),
        pytest.param("*/*, application/json; Q=0.000", False, True, id="in any order, spelling and case"),
        pytest.param("text/*;q=0, text/event-stream", False, True, id="the type wins over its family"),
        pytest.param("*/*;q=0, application/*", True, False, id="the family wins over anything"),
        pytest.param("application/json;q=0.001", True, False, id="a small weight is one"),
        pytest.param("application/json;q=.0", False, False, id="zero without its first digit"),
        pytest.param("application/json;q=zero;q=", True, False, id="a weight that is none"),
        pytest.param("application/json;version=0", True, False, id="other parameters do not count"),
        pytest.param("application/json;v=1;q=0, application/json", True, False, id="one of two admits"),
        pytest.param('application/json;a=",text/event-stream,";q=1', True, False, id="a comma in quotes"),
        pytest.param(
            r'text/x;a="\",application/json", text/event-stream', False, True, id="a quote in quotes"
        ),
        pytest.param('text/x;a="b, application/json', False, False, id="quotes without end"),
        pytest.param(",,application/json,", True, False, id="empty parts"),
        pytest.param("json, application, /, */json, application/jsonx", False, False, id="junk"),
        pytest.param("text/html", False, False, id="something else"),
    ],
)
def test_an_accept_header_admits(header, json, stream):
    assert accepts(header, "application/json") is json
    assert accepts(header, "text/event-stream") is stream


@pytest.mark.parametrize("unit", [",", ";", '"', '\\"', '"\\', ",;", 'a;q="', "*/*;"])
def test_a_huge_accept_header_is_read_in_one_pass(unit):
    assert accepts(unit * 200_000 + "x", "application/json") is unit.startswith("*/*")
    assert not is_json(unit * 200_000)


@pytest.mark.parametrize(
    ("content_type", "ok"),
    [
        pytest.param("application/json", True, id="plain"),
        pytest.param(" Application/JSON ", True, id="any case, white space around"),
        pytest.param("application/json; charset=utf-8", True, id="UTF-8"),
        pytest.param('application/json;charset="UTF-8"', True, id="UTF-8 in quotes"),
        pytest.param("application/json;", True, id="empty parameter"),
        pytest.param("application/json; profile=x", True, id="another parameter"),
        pytest.param('application/json; a=";charset=latin1"', True, id="a charset in quotes is none"),
        pytest.param("application/json; charset=latin1", False, id="another charset"),
        pytest.param("application/json; charset", False, id="charset without value"),
        pytest.param("application/json; charset=utf-8; charset=utf-16", False, id="two charsets"),
        pytest.param("application/json, text/plain", False, id="two types"),
        pytest.param("application/json-rpc", True, id="the type of JSON-RPC"),
        pytest.param("application/json-seq", False, id="a longer type"),
        pytest.param("application/problem+json", False, id="a suffix"),
        pytest.param("text/plain", False, id="what a form of another site can send"),
        pytest.param("text/plain; application/json", False, id="hidden in a parameter"),
        pytest.param("", False, id="empty"),
        pytest.param(None, False, id="missing"),
    ],
)
def test_a_content_type_is_json(content_type, ok):
    assert is_json(content_type) is ok


@given(st.text() | st.text('aq0=;,"\\/* '))
def test_junk_media_types_never_raise(text):
    assert accepts(text, "application/json") in {True, False}
    assert is_json(text) in {True, False}


def test_a_hidden_session_id_names_one_session_and_does_not_contain_the_id():
    hidden = headers.hide_session_id("session-1")
    assert hidden == headers.hide_session_id("session-1") != headers.hide_session_id("session-2")
    assert len(hidden) == 24
    assert "session" not in hidden
