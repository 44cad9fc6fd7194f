"""Introspection and verifier functions: one request for all calls, bounded, not in the event loop."""

import asyncio
import threading
from typing import Any

import pytest

from hosted import run
from introspection_issuer import ISSUER, Issuer, asks
from protected_server import RESOURCE, guarded, listing
from toolpost import Introspection, Principal
from toolpost.auth.server import auth as verifying
from toolpost.auth.server import introspection as asking
from toolpost.errors import RequestFailed


async def crowd(verifier: Introspection, *tokens: str) -> list[Any]:
    return await asyncio.gather(*(verifier.verify(each, RESOURCE) for each in tokens), return_exceptions=True)


def test_one_question_for_all_waiters_with_the_same_token():
    async def main() -> None:
        issuer = Issuer()
        verifier = asks(issuer)
        issuer.go.clear()
        waiting = asyncio.create_task(crowd(verifier, *["t"] * 8, "u"))
        left = asyncio.create_task(verifier.verify("t", RESOURCE))
        await issuer.begun.wait()
        left.cancel()
        issuer.go.set()
        assert [found.subject for found in await waiting] == ["ann"] * 9
        assert issuer.asked == 2
        assert not any(lane._flights for lane in verifier._request_pools.values())

    run(main)


def test_so_many_may_wait_and_no_more(monkeypatch):
    monkeypatch.setattr(asking, "MAX_CONCURRENT_REQUESTS", 2)
    monkeypatch.setattr(asking, "MAX_WAITING_REQUESTS", 3)

    async def main() -> None:
        issuer = Issuer()
        verifier = asks(issuer)
        issuer.go.clear()
        waiting = asyncio.create_task(crowd(verifier, *(f"t{n}" for n in range(8))))
        await issuer.begun.wait()
        with pytest.raises(RequestFailed, match="too many tokens"):
            await verifier.verify("late", RESOURCE)
        issuer.go.set()
        found = await waiting
        assert [isinstance(each, Principal) for each in found] == [True] * 5 + [False] * 3
        assert issuer.asked == 5

    run(main)


def test_tokens_that_were_good_before_do_not_wait_behind_inventions(monkeypatch):
    monkeypatch.setattr(asking, "MAX_CONCURRENT_REQUESTS", 2)
    monkeypatch.setattr(asking, "MAX_WAITING_REQUESTS", 3)

    async def main() -> None:
        issuer = Issuer()
        verifier = asks(issuer, cache_ttl=0)
        assert (await verifier.verify("good", RESOURCE)).subject == "ann"
        issuer.go.clear()
        strangers = asyncio.create_task(crowd(verifier, *(f"t{n}" for n in range(5))))
        for _ in range(3):
            await issuer.each.acquire()
        with pytest.raises(RequestFailed, match="too many tokens"):
            await verifier.verify("late", RESOURCE)
        known = asyncio.create_task(verifier.verify("good", RESOURCE))
        await issuer.each.acquire()  # beside the two strangers
        issuer.go.set()
        assert (await known).subject == "ann"
        await strangers

    run(main)


def test_no_waiter_waits_without_limit(monkeypatch):
    monkeypatch.setattr(asking, "MAX_CONCURRENT_REQUESTS", 1)
    monkeypatch.setattr(asking, "ISSUER_TIMEOUT", 0.01)

    async def main() -> None:
        issuer = Issuer()
        issuer.go.clear()
        found = await crowd(asks(issuer), "t", "u")
        assert [str(each) for each in found] == [f"{ISSUER}/i did not respond within 0.01 s"] * 2

    run(main)


def test_so_many_wait_for_a_function_and_no_more(monkeypatch):
    monkeypatch.setattr(verifying, "MAX_THREADS", 1)
    monkeypatch.setattr(verifying, "MAX_WAITING_TOKENS", 0)

    async def main() -> None:
        begun, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def check(token: str) -> str:
            loop.call_soon_threadsafe(begun.set)
            go.wait(30)
            return "ann"

        async with guarded(verifier=check, scopes=[]) as (site, _, _):
            first = asyncio.create_task(site.post(*listing("t")))
            await begun.wait()
            late = await site.post(*listing("t"))
            assert (late.status, late.headers["retry-after"]) == (503, "5")
            go.set()
            assert (await first).status == 200

    run(main)


def test_a_second_event_loop_has_a_bound_of_its_own():
    """A semaphore belongs to the event loop in which it was first awaited."""
    pool = asking._RequestPool()

    async def fill() -> None:
        async def hold() -> Principal:
            async with pool.semaphore:
                await asyncio.sleep(0)
            return Principal("ann")

        await asyncio.gather(
            *(pool.join(str(each), hold) for each in range(asking.MAX_CONCURRENT_REQUESTS + 8))
        )

    asyncio.run(fill())
    asyncio.run(fill())
