"""Keys of `_meta` and identifiers of extensions: which ones may be used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.protocol.eras import DEFINED_META_KEYS, explain_invalid_meta_key

GOOD = [
    "name",
    "n",
    "9",
    "a-b_c.d",
    "a..b__c--d",
    "progressToken",
    "traceparent",
    "",
    "com.example/name",
    "com.example/",  # a name may be empty where there is a prefix
    "example/name",
    "x/y",
    "c0m.ex-ample/name",
    "a--b.c/name",
    "com.example.mcp/name",  # not the second label
    "mcp.example/name",
    "modelcontextprotocol.io/name",
    "mcp/name",
    "com.mcpx/name",
    "com.MCP/name",
]

BAD_PREFIX = [
    "/name",
    "/",
    "com./name",
    ".com/name",
    "com..example/name",
    "9com/name",
    "com.9example/name",
    "-com/name",
    "com-/name",
    "com.example-/name",
    "com_example/name",
    "com example/name",
    "com.exämple/name",
    "a/b/c",
    "https://example.com/name",
    "com.example\n/name",
    "com.example /name",
    "٣com/name",
]

BAD_NAME = [
    "-name",
    "name-",
    "_name",
    "name.",
    ".",
    "a b",
    "naïve",
    "name\n",
    "\nname",
    "na\0me",
    "٣",
    "com.example/-name",
    "com.example/name_",
    "com.example/na:me",
    "com.example/ ",
    "com.example/name\n",
]

RESERVED = [
    "io.modelcontextprotocol/unheard",
    "io.modelcontextprotocol/",
    "dev.mcp/name",
    "com.mcp.tools/name",
    "org.modelcontextprotocol.api/name",
    "io.modelcontextprotocol/protocolversion",
    "com.modelcontextprotocol/protocolVersion",
]


@pytest.mark.requirement("META-2", "META-3", "META-6")
@pytest.mark.parametrize("key", GOOD)
def test_keys_that_may_be_used(key):
    assert explain_invalid_meta_key(key) is None


@pytest.mark.requirement("META-2", "META-3")
@pytest.mark.parametrize("key", BAD_PREFIX)
@pytest.mark.parametrize("extension", [True, False])
def test_a_prefix_is_labels(key, extension):
    said = explain_invalid_meta_key(key, extension=extension)
    assert said is not None
    assert repr(key) in said
    assert "prefix must be labels" in said


@pytest.mark.requirement("META-6")
@pytest.mark.parametrize("key", BAD_NAME)
@pytest.mark.parametrize("extension", [True, False])
def test_a_name_starts_and_ends_with_a_letter_or_digit(key, extension):
    said = explain_invalid_meta_key(key, extension=extension)
    assert said is not None
    assert repr(key) in said
    assert "name must start and end" in said


@pytest.mark.requirement("META-5")
@pytest.mark.parametrize("key", RESERVED)
def test_a_reserved_prefix_is_for_the_specification(key):
    said = explain_invalid_meta_key(key)
    assert said is not None
    assert repr(key) in said
    assert "reserved" in said


@pytest.mark.requirement("META-5")
@pytest.mark.parametrize("key", sorted(DEFINED_META_KEYS))
def test_keys_of_the_specification_are_allowed(key):
    assert explain_invalid_meta_key(key) is None


def test_the_keys_that_the_schemas_define(schemas):
    """Every key that a schema names in a `_meta` object is allowed, and no other."""
    named = {
        key
        for schema in schemas.values()
        for name, definition in (schema.get("$defs") or schema["definitions"]).items()
        if name.endswith("MetaObject")
        for key in definition.get("properties", {})
    }
    # These two belong to the tasks of 2025-11-25, whose text names them and whose schema does not.
    told = {"io.modelcontextprotocol/related-task", "io.modelcontextprotocol/model-immediate-response"}
    assert named - {"progressToken"} | told == DEFINED_META_KEYS


@pytest.mark.requirement("VER-4")
@pytest.mark.parametrize("key", ["com.example/x", "io.modelcontextprotocol/tasks", "dev.mcp/x", "x/y"])
def test_an_extension_has_a_prefix_and_a_name(key):
    assert explain_invalid_meta_key(key, extension=True) is None


@pytest.mark.requirement("VER-4")
@pytest.mark.parametrize("key", ["tasks", "", "com.example/", "com.example"])
def test_an_extension_without_a_prefix_or_a_name(key):
    said = explain_invalid_meta_key(key, extension=True)
    assert said is not None
    assert repr(key) in said
    assert "extension" in said


@given(
    st.from_regex(
        r"([a-z]([a-z0-9-]{0,5}[a-z0-9])?\.){0,3}[A-Z]/[a-z0-9]([a-z0-9._-]{0,5}[a-z0-9])?", fullmatch=True
    )
)
def test_keys_that_follow_the_grammar(key):
    second = key.partition("/")[0].split(".")[1:2]
    assert (explain_invalid_meta_key(key) is None) is (second not in (["mcp"], ["modelcontextprotocol"]))
    assert explain_invalid_meta_key(key, extension=True) is None


@given(st.text())
def test_any_text_gets_an_answer(key):
    said = explain_invalid_meta_key(key)
    assert said is None or said.startswith(repr(key))


@pytest.mark.parametrize(
    "key",
    [
        "a" * 1_000_000,
        "a" * 1_000_000 + "!",
        "a" + "-" * 1_000_000,
        "a" + "-" * 1_000_000 + "/x",
        "a." * 500_000 + "/x",
        "a." * 500_000 + "!/x",
        "a-" * 500_000 + "/x",
        "x/" + "a." * 500_000,
        "/" * 1_000_000,
    ],
    ids=range(9),
)
def test_a_long_key_costs_linear_work(key):
    """A pattern that backtracks would not come back from these."""
    assert (explain_invalid_meta_key(key) is None) is (key == "a" * 1_000_000)
