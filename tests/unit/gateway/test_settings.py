"""The file of a gateway: what it may say, and what is wrong in it, by line."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from toolpost.gateway.file import GatewayFile, read_gateway_file
from toolpost.gateway.settings import AuditSettings, RateSettings, UpstreamAuth

FULL = """{
  // hosts read this file, too
  "mcpServers": {
    "shop": {
      "url": "https://shop.example/mcp",
      "toolpost": {
        "only": ["search_*"],
        "auth": {"exchange": {"issuer": "https://idp.example", "client_id": "gw", "audience": "shop"}},
        "share": "principal",
        "tools": {"search": {"name": "find", "arguments": {"tenant": {"constant": "eu"}}}}
      }
    },
    "time": {"command": "%s", "args": ["-m", "time"], "toolpost": {"start": "lazy", "idle": 300, "name": ""}},
    "off": {"command": "missing", "disabled": true},
  },
  "toolpost": {
    "auth": {"issuer": "https://idp.example", "audience": "https://gw.example/mcp"},
    "policy": [
      {"tools": "shop_order", "scopes": ["buy"]},
      {"destructive": true, "then": "ask"},
      {"tools": "*", "then": "allow"}, {"resources": "*"}, {"prompts": "*"}
    ],
    "rate": {"calls": 60, "seconds": 60, "by": "principal"},
    "audit": {"path": "calls.jsonl", "required": true}
  }
}
"""


def read(tmp_path: Path, text: str) -> GatewayFile:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    return read_gateway_file(path)


def told(tmp_path: Path, text: str) -> list[str]:
    found = read(tmp_path, text)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in found.problems]


def entry(**settings: Any) -> str:
    return json.dumps({"mcpServers": {"shop": {"url": "https://shop.example/mcp", "toolpost": settings}}})


def top(**settings: Any) -> str:
    return json.dumps({"mcpServers": {"shop": {"url": "https://shop.example/mcp"}}, "toolpost": settings})


def test_a_full_file(tmp_path):
    found = read(tmp_path, FULL % sys.executable)
    assert found.problems == []
    assert list(found.upstreams) == ["shop", "time"]
    shop, time = found.upstreams.values()
    assert isinstance(shop.settings.auth, UpstreamAuth)
    assert shop.settings.auth.needs_caller
    assert shop.settings.tools["search"].arguments["tenant"].constant == "eu"
    assert "toolpost" not in shop.entry
    assert (time.settings.start, time.settings.idle, time.settings.name) == ("lazy", 300, "")
    assert found.settings.rate == RateSettings(calls=60)
    assert found.settings.audit == AuditSettings(path="calls.jsonl", required=True)
    assert [rule.then for rule in found.settings.policy[:2]] == ["allow", "ask"]


@pytest.mark.parametrize("key", ["mcpServers", "servers", "context_servers", "mcp"])
def test_a_strangers_file_needs_no_settings(tmp_path, key):
    text = json.dumps(
        {key: {"a": {"url": "https://a.example/mcp"}, "b": {"command": [sys.executable, "x.py"]}}}
    )
    found = read(tmp_path, text)
    assert found.problems == []
    assert list(found.upstreams) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{\n "mcpServers": {\n "a" {}}}', "mcp.json:3: the file is not valid JSON"),
        ('{"mcpServers": {}}', "mcp.json:1: no servers are defined"),
        ('{"mcpServers": [1]}', "mcp.json:1: 'mcpServers' must be an object"),
        ("[]", "mcp.json:1: the file must be an object"),
        ("{\n/* never ends", "a comment has no end"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"mcpServers": {"a": 1}}', "server 'a': the entry must be an object"),
        (top(polcy=[]), "unknown setting 'polcy'; did you mean policy?"),
        (top(policy=[{"tools": "*", "than": "deny"}]), "unknown setting 'than'; did you mean then?"),
        (top(policy=[{"tools": "*", "then": "block"}]), '"policy[0].then": Invalid enum value'),
        (top(policy=[{"resources": "*", "read_only": True}]), "rule 1: only tools have hints"),
        (top(rate={"calls": 0}), '"calls" must be at least 1'),
        (top(auth={"audience": "x"}), "missing required field `issuer`"),
        (top(name=7), '"name": Expected `str`, got `int`'),
        (entry(onyl=["x"]), "server 'shop': unknown setting 'onyl'; did you mean only?"),
        (entry(share="everyone"), "server 'shop': \"share\": Invalid enum value 'everyone'"),
        (entry(auth={}), 'must be "oauth" or have exactly one of: exchange,'),
        (entry(auth={"passthrough": {"same_audience": False}}), "same_audience"),
        (entry(auth={"passthrough": {"same_audience": True}}), "the gateway accepts none"),
        (entry(auth={"per_user": {"redirect_uri": "https://x.example/back"}}), "redirect_uri"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_with_the_line(tmp_path, text, problem):
    assert any(problem in each for each in told(tmp_path, text)), told(tmp_path, text)
    assert read(tmp_path, text).is_broken


def test_the_line_is_that_of_the_member(tmp_path):
    text = FULL.replace('"required": true', '"requierd": true').replace('"idle": 300', '"idle": "300"')
    problems = told(tmp_path, text % sys.executable)
    assert [each.partition(" ")[0] for each in problems] == ["mcp.json:24:", "mcp.json:13:"]
    assert "unknown setting 'requierd'; did you mean required?" in problems[0]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"command": "no-such-program-here"}, "the command 'no-such-program-here' was not found"),
        ({"command": sys.executable, "cwd": "/no/such/folder"}, "does not exist"),
        ({}, 'neither "command" nor "url"'),
        ({"url": "ftp://a.example"}, "must start with http"),
        ({"url": "https://a.example/${NO_SUCH_VARIABLE}"}, "NO_SUCH_VARIABLE, which is not set"),
    ],
)
def test_a_server_that_cannot_be_started_costs_only_itself(tmp_path, wrong, problem):
    text = json.dumps({"mcpServers": {"good": {"url": "https://a.example/mcp"}, "bad": wrong}}, indent=1)
    found = read(tmp_path, text)
    (told,) = found.problems
    assert problem in told.message
    assert not found.is_broken
    assert told.line == 6


def test_a_token_is_never_sent_without_encryption(tmp_path):
    text = json.dumps(
        {"mcpServers": {"shop": {"url": "http://shop.example/mcp", "toolpost": {"auth": "oauth"}}}}
    )
    assert any("without encryption" in each for each in told(tmp_path, text))


def test_credentials_are_of_one_kind(tmp_path):
    for more in ({"auth": "t0ken"}, {"headers": {"Authorization": "Bearer t0ken"}}):
        one = {"url": "https://shop.example/mcp", "toolpost": {"auth": "oauth"}, **more}
        (problem,) = told(tmp_path, json.dumps({"mcpServers": {"shop": one}}))
        assert "two kinds of credentials" in problem
        assert "t0ken" not in problem


def test_rules_that_decide_nothing_are_noted(tmp_path):
    found = read(tmp_path, top(policy=[{"then": "ask"}, {"tools": "x"}]))
    (warning,) = found.problems
    assert warning.warning
    assert not found.is_broken
    assert "rule 2 and later ones decide nothing" in warning.message
    found = read(tmp_path, top(policy=[{"tools": "*"}]))
    assert "no rule allows resources or prompts" in found.problems[0].message


def test_a_missing_file(tmp_path):
    (problem,) = read_gateway_file(tmp_path / "none.json").problems
    assert "No such file" in str(problem)


def test_two_servers_with_one_prefix(tmp_path):
    servers = {
        "a": {"url": "https://a.example"},
        "b": {"url": "https://b.example", "toolpost": {"name": "a"}},
    }
    (problem,) = told(tmp_path, json.dumps({"mcpServers": servers}))
    assert "server 'b'" in problem
