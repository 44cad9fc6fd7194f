"""Ownership of tokens, and the limit of prompts."""

import asyncio

import pytest

from toolpost.auth.client import token_cache
from toolpost.auth.client.grant import run_to_completion
from toolpost.auth.client.login import RedirectListener
from toolpost.auth.client.token_endpoint import Tokens
from toolpost.auth.urls import UrlPolicy
from toolpost.errors import AuthError, InsufficientScope, TokenRejected
from toolpost.single_flight import SingleFlight


def test_a_caller_that_joins_a_cancelled_task_starts_another():
    async def main() -> tuple[list[str], str]:
        flight: SingleFlight[str] = SingleFlight()
        began: list[str] = []
        first, ending, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            began.append("slow")
            first.set()
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await go_on.wait()
            return "never"

        async def quick() -> str:
            began.append("quick")
            return "done"

        one = asyncio.ensure_future(flight.join(slow))
        await first.wait()
        one.cancel()
        await ending.wait()
        two = await flight.join(quick)
        go_on.set()
        await asyncio.wait([one])
        return began, two

    assert asyncio.run(main()) == (["slow", "quick"], "done")


def test_a_user_is_not_asked_for_ever():
    asked, login = token_cache.PromptLimiter(), frozenset[str]()
    for _ in range(token_cache.MAX_PROMPTS):
        asked.record_prompt(login, None)
        asked.record_grant(login, Tokens("t0ken"))
        asked.record_success()
    for _ in range(2):
        with pytest.raises(TokenRejected, match="was asked 6 times within 10 minutes"):
            asked.record_prompt(login, None)
        with pytest.raises(InsufficientScope, match=r"was asked 6 times .*required: a b; .*scopes="):
            asked.record_prompt(frozenset("ab"), Tokens("t0ken"))


def test_an_early_cancellation_does_not_end_a_login():
    async def main() -> bool:
        return RedirectListener("http://127.0.0.1/callback").accept([])

    assert asyncio.run(main()) is False


def test_a_refresh_without_waiters_is_finished_and_stored():
    """The authorization server has used the refresh token: its response has the only valid one."""

    async def main() -> list[str]:
        kept: list[str] = []
        sent, answered = asyncio.Event(), asyncio.Event()

        async def refresh() -> bool:
            sent.set()
            await answered.wait()
            kept.append("new")
            return True

        waits = asyncio.ensure_future(run_to_completion(refresh()))
        await sent.wait()
        waits.cancel()
        await asyncio.sleep(0)
        answered.set()
        await asyncio.wait([waits])
        assert waits.cancelled()
        return kept

    assert asyncio.run(main()) == ["new"]


@pytest.mark.requirement("SEC-3", "SEC-4")
def test_a_name_that_says_it_is_this_machine_may_not_send_us_into_it(monkeypatch):
    """The owner of a name could otherwise let it resolve to 127.0.0.1 for a moment."""

    async def main() -> None:
        async def resolved(host: str, port: int, **_: object) -> list[object]:
            address = "127.0.0.1" if host == "mcp.evil.example" else host
            return [(2, 1, 6, "", (address, port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        guard = UrlPolicy("https://mcp.evil.example/mcp")
        for url in ("http://127.0.0.1:2375/", "http://127.0.0.1:9200/x"):
            with pytest.raises(AuthError, match="a private network that the server is not in"):
                await guard.check(url, "the metadata")
        await UrlPolicy("http://127.0.0.1:1/mcp").check("http://127.0.0.1:2/x", "the metadata")

    asyncio.run(main())
