"""Rules about URLs: which can be used, how they are shown, which hosts are local; and secrets in texts."""

import pytest

from toolpost.protocol.urls import (
    display_url,
    get_origin,
    has_credentials,
    has_forbidden_characters,
    has_secret,
    is_loopback_host,
    split_http_url,
)


@pytest.mark.parametrize("url", ["https://a.example/x y", "https://a\\b", "https://a/\n", "https://a/<b>"])
def test_a_url_has_no_such_characters(url):
    assert has_forbidden_characters(url)
    assert not has_forbidden_characters("https://a.example/x?y=1#z")


def test_a_user_in_a_url_is_found_before_the_path_only():
    assert has_credentials("https://me:secret@a.example/")
    assert not has_credentials("https://a.example/@me")


@pytest.mark.parametrize("url", ["ftp://a/", "https://", "https://a:0/", "https://a:x/", "https://[::1/"])
def test_other_urls_have_no_parts(url):
    assert split_http_url(url) is None


def test_equal_origins_are_equal():
    plain, spelled = split_http_url("https://A.example/x"), split_http_url("https://a.example:443/y")
    assert plain is not None
    assert spelled is not None
    assert get_origin(plain) == get_origin(spelled) == ("https", "a.example", 443)


def test_a_url_is_shown_without_secrets():
    assert display_url("https://me:secret@a.example/x?token=1#y") == "https://a.example/x"


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:a00:1", False),
        ("localhost", True),
        ("a.localhost", True),
        ("a.example", False),
        (None, False),
    ],
)
def test_hosts_that_are_this_machine(host, is_local):
    assert is_loopback_host(host) is is_local


@pytest.mark.parametrize(
    ("text", "secrets", "found"),
    [
        ("the token abcdefgh is bad", ["abcdefgh"], True),
        ("a part of it: cdefghij", ["abcdefghijkl"], True),
        ("nothing of it", ["abcdefghijkl"], False),
        ("too short to tell: abc", ["abc"], False),
        ("abcd", ["abcd"], True),
    ],
)
def test_a_secret_in_a_text_is_found(text, secrets, found):
    assert has_secret(text, secrets) is found
