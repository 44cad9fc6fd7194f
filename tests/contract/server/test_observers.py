"""Observers are called for every request, and cannot change it: their exceptions are logged."""

import asyncio
from typing import Any

import pytest

from toolpost import Client, Context, Server
from toolpost.server.middleware import Outcome


def fail_at_start(ctx: Context) -> None:
    raise RuntimeError("no start")


def fail_at_end(ctx: Context) -> Any:
    def finish(outcome: Outcome) -> None:
        raise RuntimeError("no end")

    return finish


@pytest.mark.parametrize("failing", [fail_at_start, fail_at_end])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_observer_that_fails_neither_fails_the_request_nor_hides_it_from_others(
    failing: Any, is_first: bool, caplog: pytest.LogCaptureFixture
):
    seen: list[tuple[str, BaseException | None]] = []

    def count(ctx: Context) -> Any:
        return lambda outcome: seen.append((ctx.request.method, outcome.error))

    async def main() -> None:
        observers = [failing, count] if is_first else [count, failing]
        server = Server("observed", observers=observers)
        server.tool(name="hello")(lambda: "hello")
        async with Client(server) as client:
            assert (await client.call_tool("hello")).text == "hello"

    asyncio.run(main())
    assert seen[-1] == ("tools/call", None)
    assert "observer" in caplog.text
