"""Front matter: the core schema of YAML 1.2, as JSON, and what is refused."""

import pytest

from toolpost.skills.manifest import MAX_FRONT_MATTER, check_front_matter, read_front_matter

GOOD = {"name": "tidy-up", "description": "Tidy up."}

TABLE = [
    ("a: yes", "yes"),
    ("a: on", "on"),
    ("a: 2026-07-28", "2026-07-28"),
    ("a: 12:30:00", "12:30:00"),
    ("a: 0777", 777),
    ("a: 0o17", 15),
    ("a: 0x1F", 31),
    ("a: 1_000", "1_000"),
    ("a: -7", -7),
    ("a: 1.50", 1.5),
    ("a: .5e1", 5.0),
    ("a: True", True),
    ("a: false", False),
    ("a: ~", None),
    ("a:", None),
    ('a: "3"', "3"),
    ("a: '~'", "~"),
    ("a: <<", "<<"),
    ("a: |\n  one\n  two", "one\ntwo\n"),
    ("a: >-\n  one\n  two", "one two"),
    ("a: [1, [x, {b: null}]]", [1, ["x", {"b": None}]]),
    ("a:\n  - x\n  - y: z", ["x", {"y": "z"}]),
]


@pytest.mark.parametrize(("text", "value"), TABLE, ids=[text for text, _ in TABLE])
def test_a_value_is_read_by_the_core_schema(text, value):
    front = read_front_matter(f"---\n{text}\n---\nBody\n---\n")
    assert front == {"a": value}
    assert type(front["a"]) is type(value)


def test_line_ends_and_a_byte_order_mark_are_no_matter():
    assert read_front_matter("\ufeff---\r\na: b\r\n---\r\nBody") == {"a": "b"}


REFUSED = {
    "no front matter": ("# Title", "must begin with front matter"),
    "never ends": ("---\na: b\n", "must begin with front matter"),
    "a list": ("---\n- a\n---\n", "must be one mapping"),
    "nothing": ("---\n---\n", "must be one mapping"),
    "two documents": ("---\na: b\n...\nc: d\n---\n", "must be one mapping|not valid YAML"),
    "not YAML": ("---\na: [b\n---\n", "not valid YAML"),
    "an alias": ("---\na: &x b\nc: *x\n---\n", "line 3: front matter must not have aliases"),
    "a tag": ("---\na: !!python/name:os.system x\n---\n", "line 2: .* tags"),
    "a key twice": ("---\na: b\na: c\n---\n", "line 3: the key 'a' appears twice"),
    "a number as a key": ("---\n1: b\n---\n", "line 2: a key must be a string, not 1"),
    "infinity": ("---\na: .inf\n---\n", r"line 2: the number \.inf has no exact form"),
    "a long number": (f"---\na: {'9' * 30}\n---\n", "no exact form in JSON"),
    "depth": (f"---\na: {'[' * 40}{']' * 40}\n---\n", "more than 32 levels"),
    "length": (f"---\na: {'x' * MAX_FRONT_MATTER}\n---\n", "more than 32768 characters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(case):
    text, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        read_front_matter(text)


def test_valid_front_matter_passes():
    check_front_matter({**GOOD, "metadata": {"author": "me"}, "license": None}, "tidy-up")
    check_front_matter({**GOOD, "metadata": "text"}, "tidy-up")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Tidy"}, "not a valid name"),
        ({"name": "-tidy"}, "not a valid name"),
        ({"name": "tidy--up"}, "not a valid name"),
        ({"name": "x" * 65}, "not a valid name"),
        ({"name": 7}, "not a valid name"),
        ({"name": "other"}, "must be the name of its folder, 'tidy-up'"),
        ({"description": " "}, "description: write 1 to 1024"),
        ({"description": "x" * 1025}, "description: write 1 to 1024"),
        ({"description": None}, "description: write 1 to 1024"),
        ({"metadata": {"io.modelcontextprotocol/x": 1}}, "reserved"),
    ],
)
def test_front_matter_has_to_name_its_folder_and_describe_it(change, message):
    with pytest.raises(ValueError, match=message):
        check_front_matter({**GOOD, **change}, "tidy-up")
