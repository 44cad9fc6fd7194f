"""Diagnostics for operators of a protected server: why tokens are refused, and how to fix it."""

from typing import Any

import pytest

from hosted import run
from protected_server import kitchen
from toolpost import Auth
from toolpost.auth.server import protected_resource as denying
from toolpost.auth.server.protected_resource import LogThrottle
from toolpost.server.http.serve import _add_public_url, serve_http
from toolpost.server.options import HTTP

ISSUER = "https://login.example.com"


def own(**more: Any) -> Auth:
    return Auth(ISSUER, verifier=lambda _: "ann", **more)


def test_invented_reasons_do_not_fill_the_log(monkeypatch):
    reasons = LogThrottle()
    told = [reasons.should_log(f"reason {n}: detail") for n in range(2 * denying.MAX_LOGGED_REASONS)]
    assert told == [True] * denying.MAX_LOGGED_REASONS + [False] * denying.MAX_LOGGED_REASONS
    clock = denying.monotonic
    monkeypatch.setattr(denying, "monotonic", lambda: clock() + denying.LOG_INTERVAL)
    assert reasons.should_log("reason 0: another detail")
    assert not reasons.should_log("reason 0")


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "http://127.0.0.1:8000", "127.0.0.1:x", 8000])
@pytest.mark.parametrize("auth", [None, own()])
def test_an_invalid_address_is_reported_with_and_without_auth(address, auth):
    async def main() -> None:
        with pytest.raises(ValueError, match=r"expected host:port, such as '127"):
            await serve_http(kitchen(auth), address, HTTP)

    run(main)


def test_an_address_of_another_machine_has_no_default_url():
    assert _add_public_url(kitchen(own()), "10.0.0.1:8000", HTTP) is HTTP
