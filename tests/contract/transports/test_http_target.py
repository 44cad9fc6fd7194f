"""The address of an HTTP server: valid and invalid ones, and the parts that are never shown."""

import pytest

from toolpost import Http
from toolpost.errors import ConnectFailed

URL = "https://example.com/mcp"


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "http://localhost",
        "http://127.0.0.1:8000/",
        "HTTPS://EXAMPLE.com/mcp?key=a%20b",
        "http://[::1]:8000/mcp",
        "https://bücher.example/mcp",
    ],
)
def test_an_address_is_taken_as_it_is(url):
    assert Http(url).url == url


def test_a_fragment_never_leaves_the_client():
    assert Http(f"{URL}?a=1#top").url == f"{URL}?a=1"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/mcp",
        "/mcp",
        "ftp://example.com/mcp",
        "ws://example.com",
        "file:///etc/passwd",
        "https://",
        "https:///mcp",
        "https://:8000/mcp",
        "https://example.com:0/mcp",
        "https://example.com:99999/mcp",
        "https://example.com:port/mcp",
        "https://[::1/mcp",
    ],
)
def test_an_invalid_address_is_rejected_with_an_example(url):
    with pytest.raises(ConnectFailed, match=r"https://example\.com/mcp"):
        Http(url)


@pytest.mark.parametrize("url", [f"{URL} ", f"{URL}\n", "https://good.example\\@evil.example/", f"{URL}\0"])
def test_characters_that_no_url_has_are_refused(url):
    with pytest.raises(ConnectFailed, match="an invalid character"):
        Http(url)


@pytest.mark.parametrize("user", ["user:secret", "user", ":secret", "us%40er:secret"])
def test_a_password_in_the_url_is_refused_and_not_repeated(user):
    with pytest.raises(ConnectFailed, match="Authorization") as refused:
        Http(f"https://{user}@example.com/mcp")
    assert "secret" not in str(refused.value)


def test_headers_are_known_by_their_names_in_lower_case():
    given = {"Authorization": "Bearer 1", "X-Empty": "", "x-space": " a "}
    http = Http(URL, headers=given)
    given["More"] = "later"
    assert http.headers == {"authorization": "Bearer 1", "x-empty": "", "x-space": "a"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "secret"),
        ("a b", "secret"),
        ("naïve", "secret"),
        ("a:", "secret"),
        ("a\n", "secret"),
        ("X-Token", "secret\n"),
        ("X-Token", "secret\r\nHost: evil"),
        ("X-Token", "secret\0"),
        ("X-Token", "sécret"),
        ("X-Token", None),
        ("Content-Length", "10"),
        ("transfer-encoding", "chunked"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_value(name, value):
    with pytest.raises(ConnectFailed) as refused:
        Http(URL, headers={name: value})
    assert repr(name) in str(refused.value)
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "sse"),
    [
        ({"url": URL}, False),
        ({"url": URL, "type": "http"}, False),
        ({"url": URL, "type": "streamable-http"}, False),
        ({"url": URL, "type": "streamableHttp", "disabled": True}, False),
        ({"url": URL, "transport": "streamable_http"}, False),
        ({"url": URL, "type": "sse"}, True),
        ({"url": URL, "transport": "sse", "type": None}, True),
    ],
)
def test_an_entry_of_an_mcp_json_is_read(entry, sse):
    http = Http.from_target({**entry, "headers": {"X-Key": "1"}})
    assert (http.url, http.headers, http.sse) == (URL, {"x-key": "1"}, sse)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"url": 1},
        {"url": URL, "headers": []},
        {"url": URL, "headers": {"a": 1}},
        {"url": URL, "type": "ws"},
    ],
)
def test_an_entry_that_describes_no_http_server_is_refused(entry):
    with pytest.raises(ConnectFailed, match=r"url|type"):
        Http.from_target(entry)


def test_a_description_stays_as_it_is():
    http = Http(URL)
    assert Http.from_target(http) is http
    assert Http.from_target(URL) == http
