"""Arguments of callers: an error names the argument, and nothing is sent."""

import asyncio
import math
from types import MappingProxyType
from typing import Any

import pytest

from raw_server import RawServer, run
from toolpost.client.client import Client
from toolpost.client.options import check_mapping, check_seconds, encode_arguments, make_reference
from toolpost.errors import LocalProtocolError
from toolpost.types import Prompt, PromptReference, ResourceReference, ResourceTemplate


@pytest.mark.parametrize("value", [None, 1, 0.5, math.inf])
def test_a_number_of_seconds_passes(value):
    check_seconds("timeout", value)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("1", TypeError, "timeout must be a number of seconds or None, not '1'"),
        ([1], TypeError, r"timeout must be a number of seconds or None, not \[1\]"),
        (0, ValueError, "timeout must be more than 0 seconds, not 0"),
        (-1.5, ValueError, "timeout must be more than 0 seconds, not -1.5"),
        (math.nan, ValueError, "timeout must be more than 0 seconds, not nan"),
    ],
)
def test_other_values_are_not_a_timeout(value, error, text):
    with pytest.raises(error, match=text):
        check_seconds("timeout", value)


@pytest.mark.parametrize("name", ["timeout", "max_timeout", "connect_timeout", "probe_timeout"])
def test_a_client_checks_each_timeout(name):
    wrong: dict[str, Any] = {name: "1"}
    with pytest.raises(TypeError, match=f"^{name} must be a number of seconds"):
        Client(RawServer(), **wrong)


@pytest.mark.parametrize("value", [{"a": 1}, MappingProxyType({"a": 1})])
def test_a_mapping_becomes_a_dict(value):
    assert check_mapping("arguments", value) == {"a": 1}
    assert bytes(encode_arguments("t", value)) == b'{"a":1}'
    assert check_mapping("arguments", None) == {}
    assert bytes(encode_arguments("t", None)) == b"{}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1], "arguments must be a mapping, .* not list"),
        ("text", "not str"),
        (5, "not int"),
        ([], "not list"),
        ({1: 2}, "arguments: names must be strings, not 1"),
    ],
)
def test_an_invalid_mapping_of_names_is_rejected(value, text):
    with pytest.raises(TypeError, match=text):
        check_mapping("arguments", value)


@pytest.mark.parametrize("value", [object(), [{"deep": object()}], "\ud800", {(1, 2): 3}])
def test_an_argument_that_is_not_json_is_named(value):
    with pytest.raises(LocalProtocolError, match=r"tool 'add', argument 'b': .* encoded as JSON"):
        encode_arguments("add", {"a": 1, "b": value})


def test_all_of_them_are_named():
    with pytest.raises(LocalProtocolError, match="tool 'add', argument 'a', 'c': "):
        encode_arguments("add", {"a": object(), "b": 1, "c": object()})


PROMPT, TEMPLATE = PromptReference(name="p"), ResourceReference(uri="users://{id}")


@pytest.mark.parametrize(
    ("ref", "reads"),
    [
        (PROMPT, PROMPT),
        (TEMPLATE, TEMPLATE),
        (Prompt("p"), PROMPT),
        (ResourceTemplate("users://{id}", "users"), TEMPLATE),
        ("p", PROMPT),
        ("users://{id}", TEMPLATE),
        ("urn:users:{id}", ResourceReference(uri="urn:users:{id}")),
        ("config://app", ResourceReference(uri="config://app")),
    ],
)
def test_the_forms_of_a_reference(ref, reads):
    assert make_reference(ref) == reads


def test_an_ambiguous_reference_is_rejected():
    with pytest.raises(ValueError, match=r"ref 'urn:a' may be a prompt or a template: pass PromptRef"):
        make_reference("urn:a")
    with pytest.raises(TypeError, match=r"ref must be a prompt, a resource template, .* not int"):
        make_reference(5)


@pytest.mark.parametrize(
    ("method", "arguments", "options", "text"),
    [
        ("call_tool", ("t", [1]), {}, "^arguments must "),
        ("call_tool", ("t", {"a": object()}), {}, "^tool 't', argument 'a': "),
        ("call_tool", ("t",), {"meta": [1]}, "^meta must "),
        ("call_tool", ("t",), {"timeout": "1"}, "^timeout must "),
        ("list_tools", (), {"timeout": "1"}, "^timeout must "),
        ("subscribe", ("a://b",), {"timeout": 0}, "^timeout must "),
        ("get_prompt", ("p", [1]), {}, "^arguments must "),
        ("complete", (5, "a"), {}, "^ref must "),
        ("complete", ("p", "a"), {"context": [1]}, "^context must "),
        ("request", ("own/method",), {"meta": "x"}, "^meta must "),
    ],
)
def test_every_method_checks_before_it_sends(method, arguments, options, text):
    async def main() -> None:
        server = RawServer()
        async with Client(server) as client:
            sent = len(server.methods)
            with pytest.raises((TypeError, ValueError, LocalProtocolError), match=text):
                await getattr(client, method)(*arguments, **options)
            await asyncio.sleep(0)
            assert server.methods[sent:] == []

    run(main())
