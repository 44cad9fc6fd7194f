"""Introspection and verifier functions: one request for all calls, bounded, not in the event loop."""

import asyncio
import threading
from typing import Any

import pytest

from hosted import run, serving
from introspection_issuer import GOOD, ISSUER, Issuer, asks
from protected_server import RESOURCE, guarded, kitchen, listing
from toolpost import Auth, Principal
from toolpost.errors import TokenRejected


@pytest.mark.parametrize(("keep", "times"), [(30.0, 1), (0.0, 3)])
def test_a_rejection_is_cached_for_a_while(keep, times):
    async def main() -> None:
        issuer = Issuer({"active": False})
        verifier = asks(issuer, cache_ttl=keep)
        for _ in range(3):
            with pytest.raises(TokenRejected, match="not active"):
                await verifier.verify("t", RESOURCE)
        assert issuer.asked == times

    run(main)


def test_a_token_rejected_for_one_server_may_be_valid_for_another():
    async def main() -> None:
        verifier = asks(Issuer())
        with pytest.raises(TokenRejected, match="wrong token audience"):
            await verifier.verify("t", "https://other.example.com")
        assert (await verifier.verify("t", RESOURCE)).subject == "ann"

    run(main)


@pytest.mark.requirement("AUTH-45", "AUTH-70")
@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, 200),
        ({"iss": ISSUER, "token_type": "Bearer", "exp": 10**11, "typ": "bearer"}, 200),
        ({"token_use": "access_token"}, 200),
        ({"iss": "https://other.example"}, 401),
        ({"iss": f"{ISSUER}/"}, 401),
        ({"token_type": "refresh_token"}, 401),
        ({"token_type": ["Bearer"]}, 401),
        ({"token_use": "id"}, 401),
        ({"typ": "Refresh"}, 401),
        ({"exp": 10**400}, 401),
        ({"exp": True}, 401),
        ({"nbf": -(10**400)}, 401),
        ({"iat": "now"}, 401),
    ],
)
def test_the_claims_of_a_response_are_checked(more, status, caplog):
    async def main() -> None:
        auth = Auth(ISSUER, resource=RESOURCE, verifier=asks(Issuer({**GOOD, **more})))
        async with serving(kitchen(auth).asgi()) as site:
            assert (await site.post(*listing("t"))).status == status
        assert "verifier raised" not in caplog.text

    run(main)


# --------------------------------------------------------------------- functions that block


def test_a_function_that_blocks_does_not_delay_others():
    async def main() -> None:
        begun, go = asyncio.Event(), threading.Event()
        loop, threads = asyncio.get_running_loop(), set[str]()

        def check(token: str) -> str | None:
            threads.add(threading.current_thread().name)
            if token == "slow":
                loop.call_soon_threadsafe(begun.set)
                go.wait(30)
            return "ann"

        async with guarded(verifier=check, scopes=[]) as (site, _, _):
            slow = asyncio.create_task(site.post(*listing("slow")))
            await begun.wait()
            assert (await site.post(*listing("quick"))).status == 200
            assert not slow.done()
            go.set()
            assert (await slow).status == 200
        assert threading.main_thread().name not in threads

    run(main)


class Async:
    async def __call__(self, token: str) -> str:
        assert threading.current_thread() is threading.main_thread()
        return "ann"


def test_async_functions_run_on_the_loop():
    async def main() -> None:
        for verifier in (Async(), Async().__call__):
            async with guarded(verifier=verifier, scopes=[]) as (site, _, _):
                assert (await site.post(*listing("t"))).status == 200
        # A wrapper may hide that the result is awaitable.
        async with guarded(verifier=lambda token: Async()(token), scopes=[]) as (site, _, _):  # noqa: PLW0108 - to hide it
            assert (await site.post(*listing("t"))).status == 200

    run(main)


@pytest.mark.parametrize("scopes", [["read"], "read", ("read", "write"), frozenset({"read"})])
def test_the_scopes_of_a_principal_have_the_usual_forms(scopes):
    async def main() -> None:
        async with guarded(verifier=lambda _: Principal("ann", scopes=scopes)) as (site, _, _):
            assert (await site.post(*listing("t"))).status == 200

    run(main)


@pytest.mark.parametrize(
    ("verifier", "status", "says"),
    [
        (lambda _: 5, 503, "a verifier must return a Principal, a subject or None, not int"),
        (lambda token: {}[token], 500, "the verifier raised KeyError, in <lambda> ("),
        (lambda _: 1 / 0, 500, "the verifier raised ZeroDivisionError: division by zero, in <lambda> ("),
        (lambda _: Principal("ann", scopes=5), 500, "the verifier raised TypeError: scopes must be"),  # type: ignore[arg-type] - odd
    ],
)
def test_an_error_in_a_verifier_is_logged_on_the_server(verifier, status, says, caplog):
    async def main() -> None:
        async with guarded(verifier=verifier) as (site, _, _):
            assert (await site.post(*listing("s3cret"))).status == status
            assert says in caplog.text
            assert "s3cret" not in caplog.text

    run(main)


def test_a_custom_verifier_returns_the_issuer():
    async def main() -> None:
        verifier: Any = lambda _: Principal("ann", "internal", scopes=frozenset({"read"}))  # noqa: E731 - as users write it
        async with guarded(verifier=verifier) as (site, _, _):
            assert (await site.post(*listing("t"))).status == 200

    run(main)
