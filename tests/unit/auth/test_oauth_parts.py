"""Parts of OAuth without a server: challenges, metadata URLs, client authentication, records, the browser."""

import asyncio
import io
import os
import sys
import webbrowser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.auth import urls
from toolpost.auth.client import discovery, login, storage
from toolpost.auth.client.discovery import AuthorizationServerMetadata, ServerRecord
from toolpost.auth.client.token_endpoint import (
    ClientIdentity,
    Registration,
    Tokens,
    choose_auth_method,
    decode_record,
    encode_record,
    parse_token_response,
)
from toolpost.auth.jose import DpopProver
from toolpost.auth.urls import normalize_origin, redact_url
from toolpost.errors import AuthError, AuthorizationRequired


@pytest.mark.requirement("AUTH-7")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Bearer", [("bearer", {})]),
        ('Bearer realm="a, b", scope="x y"', [("bearer", {"realm": "a, b", "scope": "x y"})]),
        ('bearer  Error=invalid_token ,scope = "x"', [("bearer", {"error": "invalid_token", "scope": "x"})]),
        (
            'DPoP algs="ES256", Bearer resource_metadata="https://x.example/?a=b"',
            [("dpop", {"algs": "ES256"}), ("bearer", {"resource_metadata": "https://x.example/?a=b"})],
        ),
        (r'Bearer realm="say \"hi\""', [("bearer", {"realm": 'say "hi"'})]),
        (
            "Bearer resource_metadata=https://x.example/y",
            [("bearer", {"resource_metadata": "https://x.example/y"})],
        ),
        ('Bearer scope="a", scope="b"', [("bearer", {"scope": "a"})]),
        ('Basic, Bearer scope="a"', [("basic", {}), ("bearer", {"scope": "a"})]),
        ('Bearer scope="never ends', [("bearer", {})]),
        ('="x" Bearer', []),
        ('a="x", Bearer', [("bearer", {})]),
    ],
)
def test_challenges(text, expected):
    assert [tuple(found) for found in discovery.parse_challenges(text)] == expected


@given(st.text(max_size=200))
def test_any_header_text_is_parsed(text):
    for found in discovery.parse_challenges(text):
        assert found.scheme
        assert found.scopes == tuple(dict.fromkeys(found.scopes))


def test_a_long_header_costs_little():
    discovery.parse_challenges('Bearer scope="' + "\\" * 1_000_000)
    discovery.parse_challenges("a" * 1_000_000)
    discovery.parse_challenges("a=b," * 1_000_000)


@pytest.mark.requirement("AUTH-6")
@pytest.mark.parametrize(
    ("server", "places"),
    [
        ("https://x.example/a/mcp", ["/a/mcp", ""]),
        ("https://x.example/mcp/", ["/mcp", ""]),
        ("https://x.example", [""]),
        ("https://x.example/", [""]),
        ("https://x.example/mcp?tenant=1", ["/mcp?tenant=1", ""]),
    ],
)
def test_where_a_server_describes_itself(server, places):
    base = "https://x.example/.well-known/oauth-protected-resource"
    assert urls.list_resource_metadata_urls(server) == [base + place for place in places]


@pytest.mark.parametrize(
    ("identifier", "server", "good"),
    [
        ("https://x.example/mcp", "https://x.example/mcp", True),
        ("https://x.example:443/mcp", "https://x.example/mcp", True),
        ("https://X.EXAMPLE/mcp", "https://x.example/mcp", True),
        ("https://x.example/MCP", "https://x.example/mcp", False),
        ("https://x.example/a", "https://x.example/a/mcp", True),
        ("https://x.example/mc", "https://x.example/mcp", False),
        ("https://x.example/mcp?a=1", "https://x.example/mcp?a=1", True),
        ("https://x.example/mcp?a=1", "https://x.example/mcp?a=2", False),
        ("http://x.example/mcp", "https://x.example/mcp", False),
        ("https://[", "https://x.example/mcp", False),
        ("urn:x", "https://x.example/mcp", False),
    ],
)
def test_which_identifiers_stand_for_a_server(identifier, server, good):
    assert discovery.covers(identifier, server) is good


# --------------------------------------------------------------------- authentication


@pytest.mark.parametrize(
    ("supported", "secret", "key", "method"),
    [
        (None, True, None, "client_secret_basic"),
        (None, False, None, "none"),
        (None, False, "key", "private_key_jwt"),
        (["client_secret_post"], True, None, "client_secret_post"),
        (["none"], True, None, "none"),
        (["private_key_jwt", "client_secret_basic"], True, None, "client_secret_basic"),
        (["client_secret_basic"], False, None, "none"),
    ],
)
def test_the_way_to_authenticate(supported, secret, key, method):
    assert choose_auth_method(supported, secret=secret, key=key) == method


def test_there_may_be_no_way_to_authenticate():
    with pytest.raises(AuthError, match="it supports tls_client_auth"):
        choose_auth_method(["tls_client_auth"], secret=True)
    issuer = AuthorizationServerMetadata("https://a.example")
    for registration, match in (
        (Registration("https://a.example", "me", "s", method="tls"), "unsupported authentication method"),
        (Registration("https://a.example", "me", method="private_key_jwt"), "no key"),
        (Registration("https://b.example", "me"), "not for"),
    ):
        with pytest.raises(AuthError, match=match):
            ClientIdentity(registration).build_credentials(issuer)


def test_a_secret_may_be_in_the_body():
    who = ClientIdentity(Registration("https://a.example", "me", "s", method="client_secret_post"))
    assert who.build_credentials(AuthorizationServerMetadata("https://a.example")) == (
        {"client_id": "me", "client_secret": "s"},
        {},
    )
    assert repr(who) == "ClientIdentity(registration=Registration(…), key=None)"


# --------------------------------------------------------------------- records


def test_records_survive_and_show_nothing():
    tokens = Tokens("s3cret", refresh="s3cret", key={"d": "s3cret"}, expires_at=5.0)
    bound = Tokens("s3cret", "dpop", refresh="s3cret", key=DpopProver().jwk, expires_at=5.0)
    assert decode_record(encode_record(bound), Tokens) == bound
    assert decode_record("[]", Tokens) is None
    registration = Registration("https://a.example", "me", "s3cret")
    for record in (tokens, registration):
        assert "s3cret" not in repr(record) + str(record) + f"{record!r}"
        assert record.__rich_repr__() == []
    known = ServerRecord("https://x.example/mcp", "https://a.example")
    assert decode_record(encode_record(known), ServerRecord) == known


@pytest.mark.parametrize(
    ("expires_in", "ends"),
    [(3600, True), ("60", True), ("soon", False), (None, False), (-1, False), (1e300, False), ("nan", False)],
)
def test_when_a_token_ends(expires_in, ends):
    said = {"access_token": "t", "token_type": "bearer", "expires_in": expires_in}
    tokens = parse_token_response(said, (), None)
    assert (tokens.expires_at is not None) is ends
    assert not tokens.is_stale


def test_a_short_life_is_not_all_spent_on_refreshing():
    tokens = parse_token_response({"access_token": "t", "token_type": "bearer", "expires_in": 20}, (), None)
    assert not tokens.is_stale


def test_the_scopes_of_a_token():
    said = {"access_token": "t", "token_type": "bearer"}
    first = parse_token_response(said | {"scope": "a  b a"}, ("a",), None)
    assert (first.scopes, first.asked) == (("a", "b"), ("a",))
    assert parse_token_response(said, ("a",), first).scopes == ("a", "b")
    assert parse_token_response(said, ("a",), None).scopes == ("a",)


# --------------------------------------------------------------------- the browser


@pytest.mark.requirement("SEC-14", "SEC-15")
def test_the_browser_is_given_pages_only(monkeypatch, capsys):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url, new: opened.append(url) or len(opened) < 2)
    login.open_in_browser("https://as.example/x?y=1")
    ours, terminal = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        login.open_in_browser("https://as.example/x?y=2")
        assert b"https://as.example/x?y=2" in screen.read(2000)
    for nobody in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", nobody)
        with pytest.raises(AuthorizationRequired, match=r"no browser.*open_url="):
            login.open_in_browser("https://as.example/x?y=3")
    assert capsys.readouterr() == ("", "")
    for bad in ("file:///etc/passwd", "javascript:alert(1)", "https://a.example/ -x", "--help"):
        with pytest.raises(AuthError):
            login.open_in_browser(bad)
    assert len(opened) == 4


def test_secrets_in_an_address_are_not_shown():
    assert redact_url("https://me:pw@x.example/a?token=1#f") == "https://x.example/a"
    assert redact_url("https://x.example/\x1b[31m") == "https://x.example/?[31m"
    assert len(redact_url("https://x.example/" + "a" * 1000)) <= 200
    assert normalize_origin("HTTPS://X.example:443/a") == "https://x.example"
    assert normalize_origin("http://[::1]:80/a") == "http://[::1]"


# --------------------------------------------------------------------- storage


def test_locks_keep_others_out(tmp_path):
    async def use(kept: storage.FileTokens | storage.MemoryTokens) -> None:
        inside = most = 0

        async def enter() -> None:
            nonlocal inside, most
            async with kept.lock("x"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(enter() for _ in range(5)))
        assert most == 1

    asyncio.run(use(storage.MemoryTokens()))
    asyncio.run(use(storage.FileTokens(tmp_path)))
    assert "tmp" in repr(storage.FileTokens(tmp_path)) or sys.platform == "win32"
    assert repr(storage.MemoryTokens()) == "MemoryTokens()"


def test_a_file_is_replaced_as_a_whole(tmp_path):
    async def use() -> None:
        kept = storage.FileTokens(tmp_path)
        await kept.put("key/../with strange\ncharacters", "1")
        await kept.put("key/../with strange\ncharacters", "2")
        assert await kept.get("key/../with strange\ncharacters") == "2"
        await kept.delete("key/../with strange\ncharacters")
        await kept.delete("key/../with strange\ncharacters")
        assert await kept.get("key/../with strange\ncharacters") is None
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").write_text("")
        with pytest.raises(AuthError, match="could not store"):
            await storage.FileTokens(tmp_path / "file").put("k", "v")
        assert await storage.FileTokens(tmp_path / "file").get("k") is None

    asyncio.run(use())
