"""Streams that a client resumes late or reads slowly: it gets its response, or an error."""

import asyncio
from typing import Any

import pytest

from fleet import fleet
from hosted import OLD, Stage, hosted, kitchen, legacy, message, run
from session_site import listening, text, tool
from toolpost import Context, Server

PIECE = "x" * 200_000  # twenty of them are as much as the log of a stream keeps


@pytest.mark.requirement("HTTPL-18")
def test_a_stream_that_is_over_and_forgotten_ends_at_another_worker_too():
    async def main():
        async with fleet() as (a, b):
            session = await a.open()
            wire, _ = await a.begin("POST", legacy(session), tool("steps", 1, token=1, count=1))
            first = (await wire.event()).id
            assert first is not None
            worker, number, request = first.removesuffix(".0").split("-")
            unknown = f"{worker}-{int(number, 16) + 1000:x}-{request}.0"
            resumed, head = await b.begin("GET", listening(session, unknown))
            assert head.status == 200
            assert (await resumed.event()).data == ""
            said = (await resumed.event()).json
            assert (said["id"], said["error"]["code"]) == (1, -32603)
            assert await resumed.event() is None

    run(main)


@pytest.mark.parametrize("reader", [0, 1])
def test_a_client_that_reads_a_resumed_stream_slowly_gets_its_answer(reader: int):
    """The oldest events are lost, because a log keeps only so much."""

    def adds_flood(server: Server, stage: Stage) -> None:
        @server.tool
        async def flood(ctx: Context) -> str:
            await ctx.progress(1)
            await ctx.close_stream()
            await stage.go.wait()
            for number in range(60):
                await ctx.notify("notifications/com.example/piece", {"number": number, "text": PIECE})
                await asyncio.sleep(0)
            stage.ended.set()
            return "flooded"

    async def main():
        async with fleet(2, adds_flood) as workers:
            writer = workers[0]
            session = await writer.open()
            wire, _ = await writer.begin("POST", legacy(session), tool("flood", 1, token=1))
            last = None
            while (event := await wire.event()) is not None:
                last = event.id
            resumed, _ = await workers[reader].begin("GET", listening(session, last))
            writer.stage.go.set()
            await writer.stage.ended.wait()
            events = [event async for event in _read(resumed) if event.data]
            assert len(events) < 61
            assert text(events[-1]) == "flooded"

    run(main)


async def _read(wire: Any):
    while (event := await wire.event()) is not None:
        yield event


def test_the_general_stream_goes_on_after_more_messages_than_are_kept():
    server, done = kitchen(), asyncio.Event()

    @server.on_notification("notifications/roots/list_changed")
    async def changed(ctx: Context) -> None:
        for number in range(1100):
            await ctx.notify("notifications/com.example/counted", {"number": number})
        done.set()

    async def main():
        async with hosted(server) as site:
            session = await site.open(OLD, {"roots": {"listChanged": True}})
            told = await site.post(legacy(session), message("notifications/roots/list_changed"))
            assert told.status == 202
            await done.wait()
            wire, _ = await site.begin("GET", listening(session))
            events = [event async for event in _read_until(wire, 1099)]
            assert events[-1].json["params"]["number"] == 1099
            assert len(events) < 1100

    run(main)


async def _read_until(wire: Any, number: int):
    while True:
        event = await wire.event()
        if event.data:
            yield event
            if event.json["params"]["number"] == number:
                return
