"""The address of an HTTP server: valid and invalid ones, and the parts that are never shown."""

import pytest

from toolpost.errors import ConnectFailed
from toolpost.transports.targets import Http, display_url, resolve_url

URL = "https://example.com/mcp"


def test_nothing_that_may_be_secret_is_shown():
    http = Http(f"{URL}?api_key=secret", headers={"Authorization": "Bearer secret"})
    assert repr(http) == "Http('https://example.com/mcp', headers={'authorization': '…'})"
    assert http.label == URL
    assert Http(URL, name="weather").label == "weather"
    assert display_url("http://user:secret@example.com?secret") == "http://example.com"


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("/messages?id=1", "https://example.com/messages?id=1"),
        ("messages", "https://example.com/messages"),
        ("?id=1", "https://example.com/mcp?id=1"),
        ("https://EXAMPLE.com:443/x#y", "https://EXAMPLE.com:443/x"),
        ("//example.com/x", "https://example.com/x"),
        ("", URL),
    ],
)
def test_a_reference_within_the_origin_is_followed(reference, url):
    assert resolve_url(URL, reference) == url


@pytest.mark.parametrize(
    ("reference", "where"),
    [
        ("http://example.com/mcp", "http://example.com/mcp"),
        ("https://example.com:444/mcp", "https://example.com:444/mcp"),
        ("https://evil.example/mcp?token=secret", "https://evil.example/mcp has"),
        ("//evil.example", "https://evil.example"),
        ("https://user:secret@example.com/", "password"),
        ("javascript:alert(1)", "http"),
        ("https://[", "cannot be parsed"),
        ("/a b", "an invalid character"),
    ],
)
def test_a_reference_to_elsewhere_is_refused_and_named(reference, where):
    with pytest.raises(ConnectFailed, match=where) as refused:
        resolve_url(URL, reference)
    assert "secret" not in str(refused.value)
