"""Secrets are found by name, by pattern and by value, and nothing else is masked."""

import pytest

from expected_limits import MASKED
from toolpost.testing import Mask

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "name", ["progressToken", "nextPageToken", "maxTokens", "city", "key", "tokenizer", "bypass"]
)
def test_names_of_others(name):
    assert Mask()({name: "shown"}) == {name: "shown"}


def test_the_schema_of_a_secret_is_none():
    schema = {"properties": {"password": {"type": "string"}}, "required": ["password"], "secret": True}
    assert Mask()(schema) == schema


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Bearer abcdefgh12345678", "Bearer <masked>"),
        ("send basic dXNlcjpwYXNz now", "send basic <masked> now"),
        (f"it is {JWT}.", "it is <masked>."),
        ("sk-abcdefghijklmnop", "sk-<masked>"),
        ("http://x/?api_key=1&b=2", "http://x/?api_key=<masked>&b=2"),
        ("http://x/#access_token=1", "http://x/#access_token=<masked>"),
        ("http://ann:tiger@x/y@z", "http://ann:<masked>@x/y@z"),
        ("DB_PASSWORD=tiger USER=ann", "DB_PASSWORD=<masked> USER=ann"),
        ('sent {"apiKey": "a b", "user": "ann"}', 'sent {"apiKey": "<masked>", "user": "ann"}'),
        (r'sent "{\"token\":\"abc\"}"', r'sent "{\"token\":\"<masked>\"}"'),
        ('{"user": "ann", "login": {"password": "x"}}', '{"user":"ann","login":{"password":"<masked>"}}'),
        ('[ "ann" ]', '[ "ann" ]'),
        ("{no json}", "{no json}"),
        ("[" * 100_000, "[" * 100_000),
        ("a bearer of news", "a bearer of news"),
        ("eyJ.no.token", "eyJ.no.token"),
    ],
)
def test_the_forms_of_secrets(text, masked):
    assert Mask()([text]) == [masked]


def test_values_that_are_named():
    mask = Mask(["", "wolf", "wolfhound"])
    assert mask({"wolf": ["a wolfhound", 1, None, 2.5]}) == {MASKED: [f"a {MASKED}", 1, None, 2.5]}


def test_all_that_is_in_a_secret_is_masked():
    value = {"credentials": {"user": "ann", "keys": [1, "a"], "valid": True, "until": None}}
    hidden = {"user": MASKED, "keys": [MASKED, MASKED], "valid": True, "until": None}
    assert Mask()(value) == {"credentials": hidden}


def test_a_value_that_is_named_may_be_written_otherwise():
    text = Mask(['a/"b'])(["http://x/?q=a%2F%22b", 'said {"a": "a/\\"b"} and a/"b'])
    assert text == ["http://x/?q=<masked>", 'said {"a": "<masked>"} and <masked>']


def test_masking_does_not_change_its_input():
    value = {"a": {"token": "x"}}
    Mask()(value)
    assert value == {"a": {"token": "x"}}


def test_values_nested_deeper_than_any_message_are_masked():
    value: object = "deep"
    for _ in range(100_000):
        value = [value]
    assert MASKED in str(Mask()(value))


def test_long_texts_take_no_time():
    for part in ("eyJ", "eyJ-", "Bearer ", "?token", "sk-", "&token=", "a=", '"token":"', "://a:", '{"a":'):
        Mask(["eyJx"])(part * 100_000)
