"""`toolpost list`."""

import sys

import pytest

import exit_codes
from command_line import SHOP, TALKER, serving, toolpost
from expected_limits import MANY_PARAMETERS
from revision_dates import DATES


def test_everything_is_listed():
    said = toolpost("list", *SHOP)
    assert (said.code, said.err) == (exit_codes.OK, "")
    lines = said.out.splitlines()
    assert lines[:2] == [f"shop 1.2, revision {DATES[-1]}", "Ask for the menu first."]
    titles = ["Tools", "Resources", "Resource templates", "Prompts"]
    assert [line for line in lines if line in titles] == titles
    assert any(line.split() == ["hello", "name", "Greet."] for line in lines)
    assert any(
        line.split() == ["shop://menu", "text/plain", "What", "there", "is", "to", "eat."] for line in lines
    )
    assert any(line.split() == ["praise", "dish", "[style]", "Praise", "a", "dish."] for line in lines)


@pytest.fixture(scope="module")
def shop():
    with serving() as url:
        yield url


@pytest.mark.parametrize("revision", DATES)
def test_programs_get_one_document(revision, shop):
    told = toolpost("list", "--json", "--revision", revision, shop).json
    assert (told["server"]["name"], told["revision"]) == ("shop", revision)
    assert told["instructions"] == "Ask for the menu first."
    assert told["tools"][0]["inputSchema"]["required"] == ["dish"]
    assert [each["uri"] for each in told["resources"]] == ["shop://menu", "shop://dot.png"]
    assert [each["uriTemplate"] for each in told["resourceTemplates"]] == ["shop://dish/{name}"]
    assert [each["name"] for each in told["prompts"]] == ["praise"]


def test_one_list_stands_alone(shop):
    said = toolpost("list", "--prompts", shop)
    assert said.out == "NAME    ARGUMENTS     DESCRIPTION\npraise  dish [style]  Praise a dish.\n"
    told = toolpost("list", "--json", "--templates", "--prompts", shop).json
    assert {"tools", "resources"}.isdisjoint(told)
    assert told["prompts"]


def test_a_missing_capability_is_printed():
    said = toolpost("list", "--prompts", "--resources", *TALKER, "silent")
    assert said.code == exit_codes.OK
    assert said.out == ("Resources: not supported by this server\nPrompts: not supported by this server\n")


RESOURCES_ONLY = """
import json, sys
hello = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"resources": {}},
    "serverInfo": {"name": "s", "version": "1"},
}
answers = {
    "initialize": {"result": hello},
    "resources/list": {"result": {"resources": [{"uri": "a:b", "name": "b"}]}},
}
missing = {"error": {"code": -32601, "message": "Method not found"}}
for asked in map(json.loads, sys.stdin):
    if "id" in asked:
        answer = answers.get(asked["method"], missing)
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def test_a_list_that_the_server_does_not_know_is_empty():
    """Some servers declare resources, and know nothing of templates."""
    said = toolpost("list", "--", sys.executable, "-c", RESOURCES_ONLY)
    assert (said.code, said.err) == (exit_codes.OK, "")
    lines = said.out.splitlines()
    assert "a:b" in lines[-2]
    assert lines[-1] == "Resource templates: none"


def test_of_many_parameters_some_are_named(tmp_path):
    names = [f"p{number}" for number in range(100)]
    text = f"""
from toolpost import Server
server = Server("many")
@server.tool
def wide({", ".join(f"{name}: int" for name in names)}) -> None: ...
"""
    (tmp_path / "many.py").write_text(text)
    last = toolpost("list", "--tools", "many.py", cwd=tmp_path).out.splitlines()[-1]
    assert last.split() == ["wide", *names[:MANY_PARAMETERS], "…"]


def test_long_instructions_are_cut(tmp_path):
    (tmp_path / "long.py").write_text(
        "from toolpost import Server\nserver = Server('long', instructions='\\n'.join('abcdef'))\n"
    )
    said = toolpost("list", "long.py", cwd=tmp_path)
    assert said.out.splitlines()[1:] == ["a", "b", "c", "… (3 more lines; --json has all of it)"]
