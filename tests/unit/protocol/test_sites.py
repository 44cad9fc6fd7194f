import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.protocol.allowed_hosts import explain_refused_host, explain_refused_origin, parse_allowed_hosts

PUBLIC = {"public_url": "https://mcp.example.com/mcp?x#y"}


@pytest.mark.requirement("HTTP-1")
@pytest.mark.parametrize(
    ("settings", "host", "ok"),
    [
        pytest.param({}, "localhost", True, id="localhost"),
        pytest.param({}, "LocalHost:8000", True, id="localhost in any case on any port"),
        pytest.param({}, "localhost.", True, id="localhost with the dot of the root"),
        pytest.param({}, "127.0.0.1:80", True, id="IPv4 loopback"),
        pytest.param({}, "127.255.0.9", True, id="the whole network of it"),
        pytest.param({}, "[::1]:8000", True, id="IPv6 loopback"),
        pytest.param({}, "[0:0:0:0:0:0:0:1]", True, id="IPv6 loopback, spelled out"),
        pytest.param({}, "evil.example.com", False, id="another name"),
        pytest.param({}, "localhost.evil.com", False, id="a name that begins like localhost"),
        pytest.param({}, "evil-localhost", False, id="a name that ends like localhost"),
        pytest.param({}, "127.0.0.1.evil.com", False, id="a name that begins like an address"),
        pytest.param({}, "127.1", False, id="a short address"),
        pytest.param({}, "127.0.0.256", False, id="no address"),
        pytest.param({}, "127.0.0.01", False, id="an address with an octal digit"),
        pytest.param({}, "0.0.0.0", False, id="the address of every interface"),
        pytest.param({}, "[::2]", False, id="another IPv6 address"),
        pytest.param(PUBLIC, "mcp.example.com", True, id="public URL"),
        pytest.param(PUBLIC, "MCP.Example.COM.:443", True, id="public URL with its port, case and dot"),
        pytest.param(PUBLIC, "mcp.example.com:80", False, id="public URL with the port of another scheme"),
        pytest.param(PUBLIC, "mcp.example.com:8443", False, id="public URL with another port"),
        pytest.param(PUBLIC, "example.com", False, id="the parent of the public name"),
        pytest.param({"public_url": "http://h:8000"}, "h:8000", True, id="public URL with a port"),
        pytest.param(
            {"public_url": "http://h:8000"}, "h", False, id="public URL with a port that is missing"
        ),
        pytest.param({"public_url": "HTTP://[2001:DB8::1]/"}, "[2001:db8:0::1]", True, id="public IPv6 URL"),
        pytest.param({"hosts": ["h"]}, "h:1234", True, id="a host without port allows all ports"),
        pytest.param({"hosts": ["h:443"]}, "h", True, id="a default port may be left out"),
        pytest.param({"hosts": ["h:8000"]}, "h", False, id="another port may not"),
        pytest.param({"hosts": "h"}, "h", True, id="a lone text is one host"),
        pytest.param({"hosts": ["*.example.com"]}, "a.example.com", True, id="pattern"),
        pytest.param(
            {"hosts": ["*.example.com"]}, "a.b.example.com:1", True, id="pattern, two levels, any port"
        ),
        pytest.param(
            {"hosts": ["*.example.com"]}, "example.com", False, id="pattern without the name itself"
        ),
        pytest.param({"hosts": ["*.example.com"]}, "evilexample.com", False, id="pattern at the dot only"),
        pytest.param({"hosts": ["*.example.com"]}, "*.example.com", False, id="the pattern is no host"),
        pytest.param({"hosts": ["*.example.com:81"]}, "a.example.com:82", False, id="pattern with a port"),
        pytest.param({"hosts": ["my_service"]}, "my_service", True, id="a name in a container network"),
        pytest.param({"hosts": ["*"]}, "evil.example.com", True, id="everything"),
        pytest.param({"hosts": "*"}, None, True, id="everything, even nothing"),
        pytest.param({}, None, False, id="missing"),
    ],
)
def test_a_host_is_allowed(settings, host, ok):
    refusal = explain_refused_host(parse_allowed_hosts(**settings), host)
    assert (refusal is None) is ok


JUNK = [
    "",
    " ",
    ".",
    "..",
    "a..b",
    ".a",
    "a b",
    "localhost ",
    "localhost:",
    "localhost:0",
    "localhost:65536",
    "localhost:123456",
    "localhost:8o",
    "localhost:-1",
    "user@localhost",
    "user:secret@localhost",
    "localhost/",
    "localhost/path",
    "localhost?x",
    "localhost#x",
    "localhost\\x",
    "localhost,localhost",
    "localhost\n",
    "localhost\x00",
    "loca\u217dhost",
    "\u212a",
    "münchen.example",
    "::1",
    "[::1",
    "::1]",
    "[]",
    "[::1%lo0]",
    "[127.0.0.1]",
    "[1::2::3]",
    "[::1]x",
    "a" * 1_000_000,
]


@pytest.mark.requirement("HTTP-1")
@pytest.mark.parametrize("host", [*JUNK, "http://localhost"], ids=lambda text: f"{text[:20]!a}")
def test_a_malformed_host_is_refused(host):
    refusal = explain_refused_host(parse_allowed_hosts(), host)
    assert refusal is not None
    assert refusal.endswith("is not a valid host with an optional port.")
    assert len(refusal) < 200


@pytest.mark.requirement("HTTP-1")
@pytest.mark.parametrize(
    ("settings", "origin", "host", "ok"),
    [
        pytest.param({}, None, "localhost", True, id="not a browser"),
        pytest.param(
            {}, "http://localhost:3000", "localhost:8000", True, id="a page on another port of loopback"
        ),
        pytest.param({}, "https://127.0.0.1", "localhost", True, id="loopback over TLS"),
        pytest.param({}, "HTTP://[::1]:80", None, True, id="loopback over IPv6"),
        pytest.param({}, "tauri://localhost", "localhost", False, id="loopback by another scheme"),
        pytest.param({}, "http://evil.example.com", "localhost", False, id="another site"),
        pytest.param({}, "http://evil.example.com", "evil.example.com", False, id="a rebound name"),
        pytest.param(
            {"hosts": "*"}, "http://evil.com", "evil.com", False, id="a rebound name where all hosts may"
        ),
        pytest.param({}, "http://localhost.evil.com", "localhost", False, id="begins like localhost"),
        pytest.param({}, "null", "localhost", False, id="a sandboxed page"),
        pytest.param({"origins": ["null"]}, "null", "localhost", True, id="a sandboxed page that may"),
        pytest.param({"origins": ["https://null"]}, "null", "null", False, id="null is not a name"),
        pytest.param(PUBLIC, "https://mcp.example.com", "mcp.example.com", True, id="public URL"),
        pytest.param(PUBLIC, "https://mcp.example.com:443", "x", True, id="public URL with its port"),
        pytest.param(
            PUBLIC, "http://mcp.example.com", "mcp.example.com", False, id="public URL, other scheme"
        ),
        pytest.param(
            PUBLIC, "https://mcp.example.com:1", "mcp.example.com:1", False, id="public URL, other port"
        ),
        pytest.param({"hosts": ["h"]}, "https://h", "h", True, id="the page is our own"),
        pytest.param({"hosts": ["h"]}, "http://h:81", "H:81", True, id="the page is our own, on a port"),
        pytest.param({"hosts": ["h"]}, "http://h:81", "h", False, id="a page of our name on another port"),
        pytest.param({"hosts": ["h", "i"]}, "http://h", "i", False, id="a page of another name of ours"),
        pytest.param({"hosts": ["h"]}, "http://h", None, False, id="no host to compare with"),
        pytest.param({"hosts": ["h"]}, "http://h", "user@h", False, id="a malformed host to compare with"),
        pytest.param({"hosts": ["none"]}, "http://none", None, False, id="no host is not a name"),
        pytest.param({"hosts": ["h"]}, "app://h", "h", False, id="our name by another scheme"),
        pytest.param({"origins": ["https://a.com"]}, "HTTPS://A.com.", "h", True, id="listed"),
        pytest.param(
            {"origins": "https://a.com"}, "https://a.com", "h", True, id="a lone text is one origin"
        ),
        pytest.param(
            {"origins": ["https://a.com"]}, "https://a.com:444", "h", False, id="listed, other port"
        ),
        pytest.param({"origins": ["https://a.com"]}, "http://a.com", "h", False, id="listed, other scheme"),
        pytest.param({"origins": ["https://*.a.com"]}, "https://x.a.com", "h", True, id="pattern"),
        pytest.param(
            {"origins": ["https://*.a.com"]}, "https://a.com", "h", False, id="pattern without the name"
        ),
        pytest.param(
            {"origins": ["chrome-extension://ab"]}, "chrome-extension://ab", "h", True, id="extension"
        ),
        pytest.param({"origins": ["*"]}, "http://evil.com", "h", True, id="everything"),
        pytest.param({"origins": "*"}, "junk", "h", True, id="everything, even junk"),
    ],
)
def test_an_origin_is_allowed(settings, origin, host, ok):
    refusal = explain_refused_origin(parse_allowed_hosts(**settings), origin, host)
    assert (refusal is None) is ok


@pytest.mark.requirement("HTTP-1")
@pytest.mark.parametrize(
    "origin",
    [
        *(f"http://{text}" for text in JUNK),
        "",
        "localhost",
        "//localhost",
        "NULL",
        "null null",
        "1a://b",
        "http:/a",
    ],
    ids=lambda text: f"{text[:28]!a}",
)
def test_a_malformed_origin_is_refused(origin):
    refusal = explain_refused_origin(parse_allowed_hosts(), origin, "localhost")
    assert refusal is not None
    assert refusal.endswith("is not valid. An origin looks like https://app.example.com.")
    assert len(refusal) < 200


@pytest.mark.requirement("HTTP-1")
def test_a_rejection_names_the_value_and_the_option():
    assert explain_refused_host(parse_allowed_hosts(), "evil.com:1") == (
        "Host 'evil.com:1' is not allowed. To allow it,"
        " set allowed_hosts=['evil.com:1'], or public_url= to the URL that clients use."
    )
    assert (
        explain_refused_host(parse_allowed_hosts(), None) == "Missing Host header, which HTTP/1.1 requires."
    )
    assert explain_refused_origin(parse_allowed_hosts(), "http://evil.com", "localhost") == (
        "Origin 'http://evil.com' is not allowed. To allow it,"
        " set allowed_origins=['http://evil.com'], or public_url= if this server serves the page."
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"hosts": ["https://h"]}, "allowed_hosts: invalid value 'https://h'", id="URL for a host"
        ),
        pytest.param({"hosts": ["*h"]}, r"allowed_hosts: invalid value '\*h'", id="star without a dot"),
        pytest.param({"hosts": ["*."]}, r"allowed_hosts: invalid value '\*\.'", id="star without a name"),
        pytest.param({"hosts": ["h:*"]}, r"allowed_hosts: invalid value 'h:\*'", id="star for a port"),
        pytest.param({"hosts": [""]}, "allowed_hosts: invalid value ''", id="empty host"),
        pytest.param({"origins": ["h"]}, "allowed_origins: invalid value 'h'", id="host for an origin"),
        pytest.param(
            {"origins": ["http://h/"]}, "allowed_origins: .*without a path", id="origin with a path"
        ),
        pytest.param({"public_url": "h"}, "public_url must be", id="host for a URL"),
        pytest.param({"public_url": "ftp://h"}, "public_url must be", id="scheme"),
        pytest.param({"public_url": "https:///x"}, "public_url must be", id="URL without host"),
        pytest.param({"public_url": "https://u:secret@h"}, "public_url must be", id="URL with a password"),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_allowed_hosts(**settings)
    assert "secret" not in str(caught.value)


@pytest.mark.requirement("HTTP-1")
@given(st.text() | st.text("localhst:/.[]1@*"), st.none() | st.text())
def test_junk_sites_never_raise(text, host):
    for allowed in (
        parse_allowed_hosts(),
        parse_allowed_hosts("https://h", ["*.h", "h:1"], ["http://*.h"]),
    ):
        for refusal in (
            explain_refused_host(allowed, text),
            explain_refused_origin(allowed, text, host),
            explain_refused_origin(allowed, f"http://{text}", text),
        ):
            assert refusal is None or "\n" not in refusal
