"""Frequent progress and log messages are throttled, and the response arrives."""

import asyncio

import pytest

from raw_server import Clock, run
from toolpost import Client, Context, Server
from toolpost.protocol.methods import DATES
from toolpost.server.context import NOTIFICATION_BURST
from toolpost.server.options import SERVER
from toolpost.token_bucket import TokenBucket

RATE = SERVER.notification_rate
BURST = int(RATE * NOTIFICATION_BURST)
MANY = 3 * BURST


def server(rate: float = RATE) -> Server:
    flooding = Server("s", version="1", notification_rate=rate)

    @flooding.tool
    async def flood(ctx: Context) -> str:
        for number in range(1, MANY + 1):
            await ctx.progress(number, MANY)
            await ctx.info(number)
        return "done"

    return flooding


@pytest.mark.requirement("PROG-8", "LOG-5")
@pytest.mark.parametrize("date", [DATES[0], DATES[-2], DATES[-1]])
def test_a_flood_is_throttled_and_its_last_message_is_sent(date):
    async def main() -> None:
        heard: list[float] = []
        lines: list[object] = []

        async def progress(told: object) -> None:
            heard.append(told.progress)  # type: ignore[attr-defined] - ProgressParams

        async def log(message: object) -> None:
            lines.append(message.data)  # type: ignore[attr-defined] - LogParams

        async with Client(server(), revision=date, on_log=log) as client:
            await client.set_log_level("info")
            assert (await client.call_tool("flood", progress=progress)).text == "done"
        assert heard == [*range(1, BURST + 1), MANY]
        assert lines == [
            *range(1, BURST + 1),
            "log messages are dropped: tools/call sends more than 100 per second",
        ]

    run(main(), Clock)


@pytest.mark.parametrize(("rate", "burst"), [(2, 10), (0.1, 1), (150, 750)])
def test_the_rate_is_an_option(rate, burst):
    async def main() -> None:
        lines: list[object] = []

        async def log(message: object) -> None:
            lines.append(message.data)  # type: ignore[attr-defined] - LogParams

        async with Client(server(rate), on_log=log) as client:
            await client.set_log_level("info")
            await client.call_tool("flood")
        dropped = f"log messages are dropped: tools/call sends more than {rate:g} per second"
        assert lines == [*range(1, burst + 1), dropped]

    run(main(), Clock)


@pytest.mark.parametrize(
    ("rate", "error"),
    [(0, ValueError), (-1, ValueError), ("1", TypeError), (None, TypeError), (True, TypeError)],
)
def test_a_rate_that_makes_no_sense_is_refused(rate, error):
    with pytest.raises(error, match="notification_rate must be"):
        server(rate)


def test_tokens_are_refilled_up_to_the_burst():
    async def main() -> None:
        measure = TokenBucket(BURST, RATE, asyncio.get_running_loop().time)
        assert [measure.take() for _ in range(BURST + 1)] == [True] * BURST + [False]
        await asyncio.sleep(10 / RATE)
        assert [measure.take() for _ in range(11)] == [True] * 10 + [False]
        await asyncio.sleep(1000)
        assert [measure.take() for _ in range(BURST + 1)] == [True] * BURST + [False]

    run(main(), Clock)
