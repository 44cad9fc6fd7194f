"""Limits on calls, subscriptions and streams, per client and in total, and the responses beyond them."""

from typing import Any

import pytest

from hosted import call, hosted, kitchen, legacy, message, modern, run
from toolpost import Server
from toolpost.errors import RateLimited
from toolpost.server.middleware import RateLimit


def user(scope: Any) -> str | None:
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


def as_user(name: str, headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "X-User": name}


@pytest.mark.parametrize("name", ["max_calls", "max_streams"])
def test_a_limit_of_zero_is_rejected(name):
    given: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be"):
        kitchen().asgi(**given)


# --------------------------------------------------------------------- the rate


def test_a_rate_limited_client_without_a_session_gets_retry_after():
    now = [0.0]
    server = Server("rated", middleware=[RateLimit(2, 10, clock=lambda: now[0])])

    @server.tool
    async def hello() -> str:
        return "hello"

    asked = modern("tools/call", call("hello"))

    async def main():
        async with hosted(server, principal=user) as site:
            for name in ("", "alice"):  # by address, and by principal
                headers = as_user(name, asked[0])
                for _ in range(2):
                    assert (await site.post(headers, asked[1])).status == 200
                refused = await site.post(headers, asked[1])
                assert (refused.status, refused.headers["retry-after"]) == (429, "5")
                assert (refused.code, refused.json["id"]) == (429, 1)
            # A session has no share of its own, if one knows whose it is.
            session = await site.open(headers={"X-User": "alice"})
            old = await site.post(as_user("alice", legacy(session)), message("tools/call", call("hello"), 1))
            assert (old.status, old.code) == (200, 429)
            now[0] += 5
            assert (await site.post(as_user("alice", asked[0]), asked[1])).status == 200

    run(main)


@pytest.mark.parametrize(
    ("data", "told"),
    [(None, "1"), ({"retryAfter": "soon"}, "1"), ({"retryAfter": 2.1}, "3"), ({"retryAfter": -1}, "1")],
)
def test_custom_middleware_may_choose_its_rate_error(data, told):
    server = Server("rated")

    @server.tool
    async def no() -> str:
        raise RateLimited("no", data)

    async def main():
        async with hosted(server) as site:
            refused = await site.post(*modern("tools/call", call("no")))
            assert (refused.status, refused.headers["retry-after"]) == (429, told)

    run(main)
