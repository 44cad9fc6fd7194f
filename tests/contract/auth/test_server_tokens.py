"""Valid tokens and all kinds of invalid ones: the status, the challenge, and the log."""

import time
from typing import Any

import pytest

from hosted import call, legacy, message, modern, opening, run
from protected_server import RESOURCE, bearer, guarded, listing
from toolpost import Principal
from toolpost.testing import TokenIssuer

ASKED = 'Bearer scope="read", resource_metadata="http://127.0.0.1/.well-known/oauth-protected-resource/mcp"'
UNFIT = (
    ASKED.replace("Bearer ", 'Bearer error="invalid_token", ')
    + ', error_description="The token may have expired or be for another server. See the server log."'
)


def good(mint: TokenIssuer, **changes: Any) -> str:
    made: dict[str, Any] = {"scopes": ["read"], **changes}
    return mint.token(RESOURCE, **made)


@pytest.mark.requirement("AUTH-42", "AUTH-45")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"headers": {"typ": "JWT"}},
        {"headers": {"typ": "application/at+jwt"}},
        {"aud": ["https://other.example.com", RESOURCE]},
        {"aud": "HTTP://127.0.0.1/mcp"},
        {"lifetime": -10},  # clocks differ
        {"nbf": lambda: int(time.time()) + 10},
        {"scope": None, "scp": ["read"]},
        {"scope": ["read"]},
        {"scope": "other read"},
    ],
)
def test_a_good_token_is_let_in(changes):
    async def main() -> None:
        async with guarded() as (site, mint, _):
            now = {name: made() if callable(made) else made for name, made in changes.items()}
            answer = await site.post(*listing(good(mint, **now)))
            assert answer.status == 200, answer

    run(main)


@pytest.mark.requirement("AUTH-50", "AUTH-5", "AUTH-8", "AUTH-11")
@pytest.mark.parametrize(
    ("sent", "status", "error"),
    [
        ({}, 401, None),
        ({"Authorization": ""}, 401, None),
        ({"Authorization": "Basic YTpi"}, 401, None),
        ({"Authorization": "Bearer"}, 400, "invalid_request"),
        ({"Authorization": "Bearer "}, 400, "invalid_request"),
        ({"Authorization": "Bearer a b"}, 400, "invalid_request"),
        ({"Authorization": 'Bearer "abc"'}, 400, "invalid_request"),
        ({"Authorization": "Bearer \xe9"}, 400, "invalid_request"),
        ({"Authorization": f"Bearer {'a' * 20_000}"}, 400, "invalid_request"),
        ([("Authorization", "Bearer abc"), ("Authorization", "Bearer def")], 400, "invalid_request"),
        ({"Authorization": "bearer abc"}, 401, "invalid_token"),
    ],
)
def test_missing_and_malformed_credentials(sent, status, error):
    async def main() -> None:
        async with guarded() as (site, _, _):
            headers, body = modern("tools/list")
            pairs = [*headers.items(), *(sent.items() if isinstance(sent, dict) else sent)]
            answer = await site.ask("POST", "/mcp", pairs, body)
            told = answer.headers["www-authenticate"]
            assert answer.status == status
            bad = ASKED.replace("Bearer ", f'Bearer error="{error}", ')
            assert told == {None: ASKED, "invalid_token": UNFIT}.get(error, bad)

    run(main)


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize("query", ["access_token={token}", "token={token}"])
def test_a_token_in_the_query_is_none(query):
    async def main() -> None:
        async with guarded() as (site, mint, _):
            headers, body = modern("tools/list")
            answer = await site.ask("POST", "/mcp?" + query.format(token=good(mint)), headers, body)
            assert answer.status == 401

    run(main)


# --------------------------------------------------------------------- every way in


@pytest.mark.requirement("SEC-5", "SEC-6", "AUTH-1", "HTTP-4", "SSE-7")
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("DELETE", "/mcp"),
        ("PUT", "/mcp"),
        ("POST", "/mcp/"),
        ("GET", "/sse"),
        ("POST", "/messages?session_id=x"),
        ("POST", "/.well-known/oauth-protected-resource"),
    ],
)
def test_every_verb_on_every_path_wants_a_token_before_anything_is_read(method, target):
    async def main() -> None:
        async with guarded() as (site, _, _):
            wire = await site.wire()
            # The body never comes: a server that waited for it would not answer.
            head = {**legacy("some-session"), "Content-Length": "100", "Accept": "text/event-stream"}
            await wire.ask(method, target, head)
            answer = await wire.answer()
            # A client of HTTP+SSE gets the URL that it uses.
            asked = ASKED.replace("/mcp", "/sse") if target.startswith(("/sse", "/messages")) else ASKED
            assert (answer.status, answer.headers["www-authenticate"]) == (401, asked)

    run(main)


def test_health_checks_and_unknown_paths_need_no_token():
    async def main() -> None:
        async with guarded(web={"health": "/health"}) as (site, _, _):
            assert (await site.ask("GET", "/health")).status == 200
            assert (await site.ask("GET", "/nowhere")).status == 404

    run(main)


def test_preflight_requests_need_no_token_and_browsers_may_read_the_challenge():
    async def main() -> None:
        async with guarded(web={"cors": ["https://app.example.com"]}) as (site, _, _):
            page = {"Origin": "https://app.example.com"}
            wants = {
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization",
            }
            asked = await site.ask("OPTIONS", "/mcp", {**page, **wants})
            assert (asked.status, asked.headers["access-control-allow-headers"]) == (204, "authorization")
            headers, body = listing()
            answer = await site.post({**headers, **page}, body)
            assert answer.status == 401
            assert answer.headers["access-control-allow-origin"] == page["Origin"]
            assert "WWW-Authenticate" in answer.headers["access-control-expose-headers"]

    run(main)


@pytest.mark.requirement("AUTH-45")
def test_a_function_learns_on_whose_behalf_it_is_called():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            headers, body = modern("tools/call", call("whoami"))
            answer = await site.post({**headers, **bearer(good(mint, subject="bob", client="app"))}, body)
            told = answer.json["result"]["structuredContent"]
            assert told == {"subject": "bob", "client": "app", "scopes": ["read"]}

    run(main)


@pytest.mark.requirement("AUTH-71", "AUTH-49")
def test_the_token_itself_reaches_no_function():
    """A function cannot pass on a token that it does not get; nor is it in the store."""

    async def main() -> None:
        async with guarded() as (site, mint, _):
            token = bearer(good(mint))
            headers, body = modern("tools/call", call("headers"))
            answer = await site.post({**headers, **token, "DPoP": "x"}, body)
            told = answer.json["result"]["structuredContent"]["result"]
            assert "mcp-method" in told
            assert not {"authorization", "dpop"} & set(told)
            session = await site.open(headers=token)
            answer = await site.post({**legacy(session), **token}, message("tools/call", call("headers"), 1))
            told = answer.json["result"]["structuredContent"]["result"]
            assert "mcp-session-id" in told
            assert "authorization" not in told

    run(main)


def test_every_request_of_a_session_needs_a_token():
    async def main() -> None:
        async with guarded() as (site, mint, _):
            assert (await site.post(legacy(revision=None), opening())).status == 401
            session = await site.open(headers=bearer(good(mint)))
            # A session does not authenticate (SEC-6).
            assert (await site.post(legacy(session), message("ping", id=1))).status == 401
            answer = await site.post({**legacy(session), **bearer(good(mint))}, message("ping", id=1))
            assert answer.status == 200

    run(main)


# --------------------------------------------------------------------- a custom verifier


class Own:
    """A verifier with a fixed table of tokens."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, token: str) -> Principal | str | None:
        self.asked.append(token)
        return {"ann": Principal("ann", scopes=frozenset({"read"})), "bob": "bob"}.get(token)


def test_a_custom_verifier_is_asked_each_time():
    own = Own()

    async def main() -> None:
        async with guarded(verifier=own, scopes=()) as (site, _, _):
            for token, status in [("ann", 200), ("ann", 200), ("bob", 200), ("eve", 401), ("ann", 200)]:
                assert (await site.post(*listing(token))).status == status
        assert own.asked == ["ann", "ann", "bob", "eve", "ann"]

    run(main)


@pytest.mark.parametrize(
    ("token", "logged"),
    [
        ("broken", "the verifier raised RuntimeError: no such token, in check ("),
        ("a-secret-text", "the verifier raised RuntimeError, in check ("),
    ],
)
def test_an_exception_of_a_verifier_is_logged_unless_it_may_contain_the_token(token, logged, caplog):
    def check(token: str) -> None:
        raise RuntimeError("no such token" if token == "broken" else f"what is {token[3:]}?")

    async def main() -> None:
        async with guarded(verifier=check) as (site, _, _):
            answer = await site.post(*listing(token))
            assert (answer.status, answer.text) == (
                500,
                "The token could not be verified because of an internal error; see the server log.",
            )

    run(main)
    assert logged in caplog.text
    assert "ecret" not in caplog.text


@pytest.mark.parametrize("verifier", [lambda token: "sam" if token == "s" else None])
def test_a_plain_function_is_a_verifier(verifier):
    async def main() -> None:
        async with guarded(verifier=verifier, scopes=()) as (site, mint, _):
            headers, body = modern("tools/call", call("whoami"))
            answer = await site.post({**headers, **bearer("s")}, body)
            assert answer.json["result"]["structuredContent"]["subject"] == "sam"
            assert mint.issuer

    run(main)


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"aud": RESOURCE, "exp": 9e9, "nbf": 0, "iat": 0}, 200),
        ({"aud": ["https://other.example.com", RESOURCE]}, 200),
        ({"aud": None, "exp": None, "team": "red"}, 200),
        ({"aud": "https://other.example.com/mcp"}, 401),
        ({"aud": []}, 401),
        ({"aud": RESOURCE, "exp": 1}, 401),
        ({"exp": 1}, 401),
        ({"exp": "tomorrow"}, 401),
        ({"nbf": 9e9}, 401),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_the_server_checks_audience_and_times_that_a_function_returns(claims, status, is_async):
    found = Principal("ann", scopes=frozenset({"read"}), claims=claims)

    async def check(_token: str) -> Principal:
        return found

    async def main() -> None:
        async with guarded(verifier=check if is_async else lambda _token: found) as (site, _, _):
            assert (await site.post(*listing("t"))).status == status

    run(main)
