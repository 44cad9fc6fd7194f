"""The session cache of a worker is bounded in bytes, because clients choose the size of their data."""

import pytest

from hosted import OLD, hosted, kitchen, legacy, message, run
from toolpost.server.http import sessions


def describe(number: int, size: int) -> dict[str, object]:
    return {"experimental": {"much": {"text": f"{number:0{size}}"}}}


@pytest.mark.parametrize("size", [1000, 10_000])
def test_sessions_of_clients_that_say_much_are_forgotten_sooner_and_go_on(
    size: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sessions, "MAX_CACHED_FACTS_BYTES", 5 * size)

    async def main():
        async with hosted(kitchen()) as site:
            opened = [await site.open(OLD, describe(number, size)) for number in range(12)]
            sessions_here = site.app._worker.sessions
            cached = sessions_here._cache
            assert 3 <= len(cached) <= 5
            for session in opened:
                assert (await site.post(legacy(session), message("ping", id=1))).status == 200
            assert 3 <= len(cached) <= 5
            for session in opened:
                assert (await site.ask("DELETE", "/mcp", legacy(session))).status == 200
            assert (len(cached), sessions_here._cached_bytes) == (0, 0)

    run(main)
