"""Errors of users of authorization: invalid arguments, failing callbacks; each failure is an `AuthError`."""

import asyncio
import json

import pytest

from toolpost import (
    Client,
    Http,
)
from toolpost.client import mcp_json
from toolpost.errors import (
    ConnectFailed,
)

# --------------------------------------------------------------------- mcp.json


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"auth": "OAuth"}, 'neither "oauth" nor a token'),
        ({"auth": "oauth2"}, 'neither "oauth" nor a token'),
        ({"auth": 5}, 'a string, not 5 .*write "oauth"'),
        ({"auth": True}, "a string, not true"),
        ({"auth": ["oauth"]}, "a string, not"),
    ],
)
def test_an_invalid_configuration_is_reported_with_its_place(entry, match, tmp_path):
    config = {"mcpServers": {"notes": {"url": "http://localhost/mcp", **entry}}}
    with pytest.raises(ConnectFailed, match=match) as caught:
        Client(config)
    assert str(caught.value).startswith("server 'notes': \"auth\"")
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps(config))
    with pytest.raises(ConnectFailed, match=match) as caught:
        asyncio.run(Client(path).connect())
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("key", ["auth", "oauth"])
def test_the_settings_of_another_program_are_not_passed_over(key):
    config = {"mcpServers": {"notes": {"url": "http://localhost/mcp", key: {"clientId": "s3cret"}}}}
    with pytest.raises(
        ConnectFailed, match=f"'notes': \"{key}\" must not be an object .*auth=OAuth"
    ) as caught:
        Client(config)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "url", "header"),
    [
        ({"url": "http://${N7_HOST}/mcp"}, "http://localhost/mcp", None),
        ({"url": "http://${N7_NONE:-x.localhost}/mcp"}, "http://x.localhost/mcp", None),
        ({"url": "http://a.localhost/$N7_HOST${}"}, None, None),
        (
            {"url": "http://localhost/mcp", "headers": {"X-Key": "k-${N7_KEY}"}},
            "http://localhost/mcp",
            "k-k3y",
        ),
        ({"url": "http://localhost/mcp", "headers": {"X-Key": "${N7_VOID:-d}"}}, "http://localhost/mcp", "d"),
    ],
)
def test_a_configuration_may_name_variables_of_the_environment(monkeypatch, entry, url, header):
    for name, value in {"N7_HOST": "localhost", "N7_KEY": "k3y", "N7_VOID": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("N7_NONE", raising=False)
    filled = mcp_json.expand_variables(entry)
    if url is None:
        assert filled == entry  # these are not variables
    else:
        address = Http.from_target(filled)
        assert (address.url, (address.headers or {}).get("x-key")) == (url, header)
