import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolpost.cli.install.config_file import edit_toml
from toolpost.cli.install.jsonc import ConfigSyntaxError

ENTRY = {"command": "py", "args": ["-m", 'é"\\'], "env": {"A b": "1"}}
WRITTEN = '[mcp_servers.w]\ncommand = "py"\nargs = ["-m", "é\\"\\\\"]\nenv = {"A b" = "1"}\n'


def put(text, path, value):
    return edit_toml(text, {tuple(path): value}, ())


def drop(text, path):
    return edit_toml(text, {}, [tuple(path)])


CONFIG = '''model = "x" # [mcp_servers.w]
nested = [
  [1],
  ["mcp_servers"]
]
text = """
[mcp_servers.w]
command = "no\\"""" # no
other = \'\'\'
[mcp_servers.w]\'\'\'

# about w
[mcp_servers.w] # ours
# its command
command = "old"
"args" = [
  "-m", # m
]
startup_timeout_sec = 3

[ mcp_servers . "w" . env ]
OLD = 'kept'

# about the profile
[profiles.p]
model = "y"

[[tables]]
a = 1
'''


def test_an_entry_is_put_at_the_end():
    assert put("", ["mcp_servers", "w"], ENTRY) == WRITTEN
    assert put('a = "b"', ["mcp_servers", "w"], ENTRY) == f'a = "b"\n\n{WRITTEN}'
    assert put('a = "b"\n\n', ["mcp_servers", "w"], ENTRY) == f'a = "b"\n\n{WRITTEN}'
    assert put("a = 1\r\n", ["b", "c"], {"d": 2}) == "a = 1\r\n\r\n[b.c]\r\nd = 2\r\n"


def test_keys_are_replaced_and_every_other_line_stays():
    changed = put(CONFIG, ["mcp_servers", "w"], {"command": "new", "args": [], "env": {"A": "1"}, "url": "u"})
    assert changed == (
        CONFIG.replace('"old"', '"new"')
        .replace('"args" = [\n  "-m", # m\n]', '"args" = []')
        .replace("sec = 3\n", 'sec = 3\nurl = "u"\n')
        .replace("'kept'\n", "'kept'\nA = \"1\"\n")
    )


def test_a_table_is_dropped_with_those_below_it():
    changed = drop(CONFIG, ["mcp_servers", "w"])
    assert tomllib.loads(changed) == {
        key: value for key, value in tomllib.loads(CONFIG).items() if key != "mcp_servers"
    }
    assert "# about w" in changed
    assert "# about the profile\n[profiles.p]" in changed
    assert "startup" not in changed


def test_a_comment_stays_with_the_table_below_it():
    text = "[a.b]\nc = 1\n\n# about x\n[x]\nd = 1\n"
    changed = "[a.b]\nc = 1\n\n[a.n]\ne = 1\n\n# about x\n[x]\nd = 1\n"
    assert put(text, ["a", "n"], {"e": 1}) == changed
    assert drop(changed, ["a", "n"]) == text


def test_a_table_within_braces_is_changed():
    assert put("a = { b = { c = 1 } }\n", ["a", "b", "c"], 2) == "a = { b = { c = 2 } }\n"
    assert tomllib.loads(put("a.b.c = 1\n", ["a", "d"], {"e": 2})) == {"a": {"b": {"c": 1}, "d": {"e": 2}}}
    split = "[a.b]\nc = 1\n[x]\n[a.d]\ne = 2\n"
    assert tomllib.loads(put(split, ["a", "f"], {"g": 3}))["a"] == {
        "b": {"c": 1},
        "d": {"e": 2},
        "f": {"g": 3},
    }


@pytest.mark.parametrize("before", ["", "a = 1\n", "a = 1\r\n", "# only this\n"])
def test_an_added_key_is_dropped_again(before):
    assert drop(put(before, ["mcp_servers", "w"], ENTRY), ["mcp_servers", "w"]) == before


@pytest.mark.parametrize(
    "value", ['""', "''", '"\\\\"', "'\\'", '"""a"""""', "'''a''''", '"""\n[b]\n"""', "[\n'[b]', # [\n]"]
)
def test_a_string_is_not_parsed_further(value):
    text = f"[a]\nc = {value}\nd = 1\n[b]\ne = 1\n"
    assert put(text, ["b", "e"], 2) == text.replace("e = 1", "e = 2")
    assert put(text, ["a", "d"], 2) == text.replace("d = 1", "d = 2")


def test_one_key_is_dropped():
    assert drop("[a.b]\nc = 1\nd = 2\n", ["a", "b", "c"]) == "[a.b]\nd = 2\n"
    assert drop("[a.b]\nc = 1\n", ["a", "b", "z"]) == "[a.b]\nc = 1\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = ", "end of document"),
        ("a = 1\nb", "end of document"),
        ("[a\n", "line 1"),
        ("a = " + "[" * 100_000, "too deeply"),
    ],
)
def test_invalid_files_are_reported(text, told):
    for change in (lambda text: put(text, ["a"], 1), lambda text: drop(text, ["a"])):
        with pytest.raises(ConfigSyntaxError, match=told):
            change(text)


plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), plain, max_size=3))
def test_any_value_comes_back(value):
    text = put("x = 1\n", ["servers", "a b"], value)
    assert tomllib.loads(text).get("servers", {}).get("a b", {}) == value


def test_a_file_that_cannot_be_edited_is_reported():
    deep = "a = " + "[" * 150 + "]" * 150 + "\n"
    with pytest.raises(ConfigSyntaxError, match="could not edit it"):
        edit_toml(deep, {("mcp_servers", "x"): {"command": "y"}}, [])


def test_comments_keep_their_indentation_however_often_a_key_is_added():
    text = "[a]\nx = 1\n  # about b\n[b]\ny = 2\n"
    for number in range(3):
        text = edit_toml(text, {("a", f"k{number}"): number}, [])
    assert "\n  # about b\n" in text
