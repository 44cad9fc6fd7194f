"""The metadata of a protected server: alone, mounted in a framework, or behind another public URL."""

import json
from typing import Any

import pytest

from protected_server import kitchen
from toolpost import Auth
from toolpost.auth.urls import RESOURCE_METADATA_PATH, build_metadata_url, is_same_resource
from toolpost.server.options import HTTP


def auth(**more: Any) -> Auth:
    return Auth("https://login.example.com", verifier=lambda _: "ann", **more)


@pytest.mark.parametrize(
    ("resource", "where"),
    [
        ("https://Mcp.Example.com", "https://mcp.example.com/.well-known/oauth-protected-resource"),
        ("https://a.example/", "https://a.example/.well-known/oauth-protected-resource"),
        ("https://a.example/x/y", "https://a.example/.well-known/oauth-protected-resource/x/y"),
        ("https://a.example/x?k=v", "https://a.example/.well-known/oauth-protected-resource/x?k=v"),
    ],
)
def test_where_metadata_are(resource, where):
    assert build_metadata_url(resource) == where


@pytest.mark.requirement("AUTH-42")
@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("https://a.example/x", True),
        ("HTTPS://A.Example/x", True),
        ("https://a.example/X", False),
        ("https://a.example/x/", False),
        ("https://a.example:443/x", False),
        ("https://a.example/%78", False),
        ("https://a.example", False),
        ("a.example/x", False),
        ("", False),
        (None, False),
        (b"https://a.example/x", False),
    ],
)
def test_which_urls_are_the_same(one, same):
    assert is_same_resource(one, "https://a.example/x") is same


def test_served_at_an_address_of_this_machine_it_knows_its_url(capsys):
    """`run(http=…)` sets the public URL."""
    from toolpost.server.http.serve import Endpoint, _add_public_url  # noqa: PLC0415 - what `run` does, without running

    server = kitchen(auth())
    for address, resource in [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/mcp"),
        ("localhost:8000", "http://localhost:8000/mcp"),
        ("[::1]:8000", "http://[::1]:8000/mcp"),
    ]:
        app = Endpoint(server, _add_public_url(server, address, HTTP))
        assert app._authenticator is not None
        published = app._authenticator.metadata_documents
        assert json.loads(published[f"{RESOURCE_METADATA_PATH}/mcp"])["resource"] == resource
        assert json.loads(published[f"{RESOURCE_METADATA_PATH}/sse"])["resource"] == resource.replace(
            "/mcp", "/sse"
        )
    for address in ("0.0.0.0:8000", "127.0.0.1:0", "10.0.0.1:80"):
        assert _add_public_url(server, address, HTTP) is HTTP
    assert _add_public_url(kitchen(None), "127.0.0.1:8000", HTTP) is HTTP
