import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.cli.install.jsonc import ConfigSyntaxError, drop, parse, put

SERVERS = """{
  // what is mine
  "mcpServers": {
    "x": {"command": "x"}, // an x
    /* and y */ "y": {"command": "//y", "args": ["/*", "*/",]}
  },
  "rest": [1, 2,],
}
"""


def test_comments_and_trailing_commas_are_read_past():
    assert parse(SERVERS) == {
        "mcpServers": {"x": {"command": "x"}, "y": {"command": "//y", "args": ["/*", "*/"]}},
        "rest": [1, 2],
    }


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "line 3, column 3"),
        ('{"a": 1 /* for ever', "line 1, column 9: a comment has no end"),
        ('{"a": "open', "line 1, column 7"),
        ("[,]", "line 1, column 2"),
        ("{,}", "line 1, column 2"),
        ('{"a": 1,,}', "line 1, column 9"),
        ("// nothing\n", "line 2, column 1"),
        ("[" * 100_000, "too deeply"),
        ("/*" * 100_000, "no end"),
    ],
)
def test_invalid_files_are_reported(text, where):
    with pytest.raises(ConfigSyntaxError, match=where):
        parse(text)


def test_a_member_is_added_where_the_others_are():
    assert put(SERVERS, ["mcpServers", "z"], {"command": "é"}) == SERVERS.replace(
        '"*/",]}\n', '"*/",]},\n    "z": {\n      "command": "é"\n    }\n'
    )


def test_a_value_is_replaced_and_nothing_else():
    assert put(SERVERS, ["mcpServers", "x", "command"], "w") == SERVERS.replace('"x"}', '"w"}')


def test_a_trailing_comma_stays_one():
    assert put('{\n\t"a": 1, // one\n}\n', ["b"], 2) == '{\n\t"a": 1, // one\n\t"b": 2,\n}\n'


def test_a_comma_goes_before_the_comment():
    assert put('{\n    "a": 1 // one\n}', ["b", "c"], 2) == (
        '{\n    "a": 1, // one\n    "b": {\n        "c": 2\n    }\n}'
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", '{\n  "a": 1\n}\n'),
        (" \n", ' \n{\n  "a": 1\n}\n'),
        ("{}", '{\n  "a": 1\n}'),
        ("{ // nothing yet\n}", '{ // nothing yet\n  "a": 1\n}'),
        ('{"b": 2}', '{"b": 2,\n  "a": 1\n}'),
        ('{\r\n  "b": 2\r\n}', '{\r\n  "b": 2,\r\n  "a": 1\r\n}'),
    ],
)
def test_a_member_is_added_to_any_object(text, wanted):
    assert put(text, ["a"], 1) == wanted


@pytest.mark.parametrize(
    ("text", "key", "wanted"),
    [
        ('{\n  "a": 1,\n  "b": 2\n}', "a", '{\n  "b": 2\n}'),
        ('{\n  "a": 1,\n  "b": 2\n}', "b", '{\n  "a": 1\n}'),
        ('{\n  "a": 1,\n  "b": 2,\n}', "b", '{\n  "a": 1,\n}'),
        ('{"a": 1, "b": 2}', "a", '{"b": 2}'),
        ('{"a": 1, "b": 2}', "b", '{"a": 1}'),
        ('{\n  "a": 1, // one\n  "b": 2 // two\n}', "b", '{\n  "a": 1 // one\n  // two\n}'),
        ('{"a": 1, // one\n "b": 2}', "a", '{// one\n "b": 2}'),
        ('{"a": 1, /* two */ "b": 2}', "b", '{"a": 1 /* two */ }'),
        ('{"a": 1,\n "b": 2}', "b", '{"a": 1}'),
        ('{"a": 1}', "b", '{"a": 1}'),
    ],
)
def test_a_member_is_dropped_and_every_comment_stays(text, key, wanted):
    assert drop(text, [key]) == wanted
    parse(wanted)


def test_an_object_that_holds_nothing_any_more_is_closed():
    assert drop('{\n  "a": {\n    "b": 1\n  }\n}', ["a", "b"]) == '{\n  "a": {}\n}'
    assert drop('{\n  "a": {\n    "b": 1 // one\n  }\n}', ["a", "b"]) == ('{\n  "a": {\n    // one\n  }\n}')


def test_of_two_members_of_one_name_the_last_counts():
    assert put('{"a": 1, "a": 2}', ["a"], 3) == '{"a": 1, "a": 3}'


@pytest.mark.parametrize(
    ("text", "told"), [("[]", "the file is not an object"), ('{"a": 1}', '"a" is not an object')]
)
def test_a_path_leads_through_objects_only(text, told):
    with pytest.raises(ConfigSyntaxError, match=told):
        put(text, ["a", "b"], 1)


def test_a_large_text_is_changed_in_a_moment():
    members = "".join(f'  "k{number}": [1,], // {number}\n' for number in range(5_000))
    changed = put(f"{{\n{members}}}", ["b"], 2)
    assert parse(changed)["b"] == 2
    assert drop(changed, ["b"]) == f"{{\n{members}}}"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from('abc/*"') | st.text(max_size=2), values, max_size=4)
space = st.text(st.sampled_from(" \n\t"), max_size=2) | st.sampled_from(["// c\n", "/* { */", "\r\n"])


@st.composite
def commented(draw, value):
    """The text of a value, as a user may write it."""
    pad = lambda: draw(space)  # noqa: E731 - three letters in many places
    if isinstance(value, list | dict) and value:
        pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        parts = [
            pad()
            + (json.dumps(key) + pad() + ":" if key is not None else "")
            + pad()
            + draw(commented(item))
            + pad()
            for key, item in pairs
        ]
        inner = ",".join(parts) + draw(st.sampled_from(["", ","])) + pad()
        return f"{{{inner}}}" if isinstance(value, dict) else f"[{inner}]"
    return json.dumps(value)


@given(st.data(), objects, values)
def test_a_change_alters_nothing_else_in_any_document(data, value, new):
    text = data.draw(space) + data.draw(commented(value)) + data.draw(space)
    assert parse(text) == value
    key = data.draw(st.sampled_from([*value, "new"]))
    changed = put(text, [key], new)
    assert parse(changed) == {**value, key: new}
    assert parse(drop(changed, [key])) == {name: inner for name, inner in value.items() if name != key}
    assert put(changed, [key], new) == changed
