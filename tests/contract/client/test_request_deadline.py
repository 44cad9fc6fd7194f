"""The timeout of a request pauses while a person or a model answers the server."""

import asyncio
import logging
from typing import Any

import pytest

from raw_server import Asked, Clock, RawServer, run
from revision_dates import DATES
from toolpost import Client
from toolpost.errors import InternalError, RequestTimeout
from toolpost.types import CallToolResult, ElicitParams, ListToolsResult, Result, TextContent

SESSION = DATES[3]
FORM = ElicitParams(
    message="?", requested_schema={"type": "object", "properties": {"n": {"type": "integer"}}}
)
DONE = CallToolResult(content=[TextContent("done")])


async def slow(_: ElicitParams) -> dict[str, Any]:
    await asyncio.sleep(1000)
    return {"n": 1}


def asks(before: float, after: float, *, times: int = 1, progress: bool = False) -> Any:
    async def call(asked: Asked) -> Result:
        await asyncio.sleep(before)
        await asyncio.gather(*(asked.ask("elicitation/create", FORM) for _ in range(times)))
        if progress:
            await asked.progress(1)
        await asyncio.sleep(after)
        return DONE

    return call


@pytest.mark.requirement("TIME-1", "TIME-4")
@pytest.mark.parametrize(
    ("before", "after", "times", "progress", "cap", "waited"),
    [
        (3, 3, 1, False, 300, None),
        (3, 3, 3, False, 300, None),  # two at once do not make it go on sooner
        (3, 8, 1, False, 300, 10),
        (8, 3, 1, False, 300, 10),
        (8, 9, 1, True, 300, None),  # progress restarts it
        (8, 9, 1, True, 12, 12),  # the cap stands still, too, and no longer than that
    ],
)
def test_the_clock_stands_still_while_the_server_waits_for_us(before, after, times, progress, cap, waited):
    async def main() -> None:
        server = RawServer({"tools/call": asks(before, after, times=times, progress=progress)})
        async with Client(
            server, revision=SESSION, timeout=10, max_timeout=cap, on_elicitation=slow
        ) as client:
            if waited is None:
                assert (await client.call_tool("t")).text == "done"
                return
            with pytest.raises(RequestTimeout, match=f"no response to tools/call within {waited} s"):
                await client.call_tool("t")

    run(main(), Clock)


def test_progress_while_we_are_asked_counts_from_when_the_clock_goes_on():
    async def call(asked: Asked) -> Result:
        await asyncio.sleep(8)
        asking = asyncio.create_task(asked.ask("elicitation/create", FORM))
        await asyncio.sleep(500)
        await asked.progress(1)
        await asking
        await asyncio.sleep(9)
        return DONE

    async def main() -> None:
        server = RawServer({"tools/call": call})
        async with Client(server, revision=SESSION, timeout=10, on_elicitation=slow) as client:
            assert (await client.call_tool("t")).text == "done"

    run(main(), Clock)


def test_all_requests_in_flight_stand_still_and_one_that_was_answered_does_not_mind():
    async def quick(_: Asked) -> Result:
        await asyncio.sleep(5)
        return Result()

    async def late(_: Asked) -> Result:
        await asyncio.sleep(1005)
        return ListToolsResult(tools=[])

    async def main() -> None:
        server = RawServer({"tools/call": asks(1, 1), "ping": quick, "tools/list": late})
        async with Client(server, revision=SESSION, timeout=10, on_elicitation=slow) as client:
            results = await asyncio.gather(client.call_tool("t"), client.ping(), client.list_tools())
            assert results[1:] == [None, []]

    run(main(), Clock)


def test_a_request_inside_a_callback_has_its_own_timeout():
    async def main() -> None:
        async def never(_: Asked) -> Result:
            await asyncio.Event().wait()
            raise AssertionError

        async def curious(_: ElicitParams) -> bool:
            with pytest.raises(RequestTimeout):
                await client.ping(timeout=5)
            return True

        server = RawServer({"tools/call": asks(0, 0), "ping": never})
        async with Client(server, revision=SESSION, timeout=3, on_elicitation=curious) as client:
            assert (await client.call_tool("t")).text == "done"

    run(main(), Clock)


@pytest.mark.requirement("ELIC-42")
def test_in_a_session_a_wrong_answer_is_our_fault_and_holds_no_data_of_the_user(caplog):
    told: list[Any] = []

    async def call(asked: Asked) -> Result:
        try:
            await asked.ask("elicitation/create", FORM)
        except InternalError as error:
            told.append((error.code, error.message, error.data))
        return DONE

    async def main() -> None:
        server = RawServer({"tools/call": call})
        async with Client(server, revision=SESSION, on_elicitation=lambda _: {"n": "secret"}) as client:
            await client.call_tool("t")

    with caplog.at_level(logging.ERROR, "toolpost.client"):
        run(main())
    assert told == [(-32603, "Internal error: the client failed to answer elicitation/create", None)]
    assert "on_elicitation: invalid answer: 'n' must be an integer" in caplog.text
    assert "secret" not in caplog.text
