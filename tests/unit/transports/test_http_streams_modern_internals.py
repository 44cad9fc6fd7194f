"""Requests of the stateless era: responses as JSON or in a stream, and cancellation."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosted import Stage, call, hosted, kept, kitchen, modern, run
from toolpost import Context, Server
from toolpost.server.http import exchange
from waiting import until

TOKEN = {"progressToken": "t"}


def tool(name: str, id: Any = 1, *, meta: Any = None, **arguments: Any) -> tuple[dict[str, str], bytes]:  # noqa: A002 - the protocol's word
    return modern("tools/call", call(name, **arguments), id, meta=meta)


def listen(id: Any = "sub", **wishes: Any) -> tuple[dict[str, str], bytes]:  # noqa: A002 - as above
    return modern("subscriptions/listen", {"notifications": wishes}, id)


@asynccontextmanager
async def stage_and_site(**web: Any):
    stage = Stage()
    async with hosted(kitchen(stage), **web) as site:
        yield stage, site
        stage.go.set()


# --------------------------------------------------------------------- disconnects


@pytest.mark.requirement("HTTPM-10", "HTTPM-11", "CANC-12")
@pytest.mark.parametrize("how", ["close", "abort", "half_close"])
def test_a_disconnect_cancels_the_call(how):
    async def main():
        async with stage_and_site() as (stage, site):
            wire = await site.wire()
            await wire.ask("POST", "/mcp", *tool("wait"))
            await stage.begun.wait()
            await getattr(wire, how)()
            await stage.ended.wait()
            assert stage.log == ["cancelled"]
            await until(lambda: not site.app._worker.running)

    run(main)


@pytest.mark.requirement("HTTPM-10", "HTTPM-12")
def test_closing_a_stream_cancels_the_call():
    async def main():
        async with stage_and_site() as (stage, site):
            wire, _ = await site.begin("POST", *tool("noisy", meta=TOKEN))
            await stage.begun.wait()
            await wire.abort()
            await stage.ended.wait()
            await until(lambda: not site.app._worker.running)

    run(main)


@pytest.mark.requirement("HTTPM-12")
def test_a_function_that_goes_on_says_nothing_more():
    """Its messages do not end up in the next response either."""
    server = Server("stubborn")
    stage: list[Stage] = []
    tried: list[Any] = []

    @server.tool
    async def stubborn(ctx: Context) -> str:
        await ctx.progress(1)
        stage[0].begun.set()
        try:
            await stage[0].go.wait()
        except asyncio.CancelledError:
            tried.append(ctx.cancelled)
            await ctx.progress(2)
            await ctx.info("too late")
            tried.append("said")
        return "late"

    async def main():
        stage[:] = [Stage()]
        async with hosted(server) as site:
            wire, _ = await site.begin("POST", *tool("stubborn", meta=TOKEN))
            await stage[0].begun.wait()
            await wire.abort()
            await until(lambda: not site.app._worker.running)
            assert tried == [True, "said"]

    run(main)


def test_only_the_call_of_a_disconnected_client_is_cancelled():
    async def main():
        async with stage_and_site() as (stage, site):
            one, two = await site.wire(), await site.wire()
            for wire in (one, two):
                await wire.ask("POST", "/mcp", *tool("wait"))
            await stage.begun.wait()
            await until(lambda: len(site.app._worker.running) == 2)
            await one.abort()
            await until(lambda: len(site.app._worker.running) == 1)
            stage.go.set()
            assert (await two.answer()).json["result"]["content"][0]["text"] == "waited"
            assert stage.log == ["cancelled"]

    run(main)


def test_requests_with_one_id_do_not_know_of_each_other():
    async def main():
        async with stage_and_site() as (stage, site):
            wires = [await site.wire() for _ in range(3)]
            for wire in wires:
                await wire.ask("POST", "/mcp", *tool("wait", 1))
            await until(lambda: len(site.app._worker.running) == 3)
            stage.go.set()
            assert [(await wire.answer()).status for wire in wires] == [200] * 3

    run(main)


def test_nothing_is_kept():
    async def main():
        async with hosted(kitchen()) as site:
            wire = await site.wire()
            for number in range(50):
                await wire.ask("POST", "/mcp", *tool("echo", number, text="x"))
                assert (await wire.answer()).status == 200
            assert kept(site.app._handler.store) == [str(site.app._worker.number)]
            assert not site.app._worker.running

    run(main)


@pytest.mark.requirement("HTTPM-8")
def test_a_quiet_stream_carries_comments(monkeypatch):
    monkeypatch.setattr(exchange, "KEEP_ALIVE_INTERVAL", 0.01)

    async def main():
        async with stage_and_site() as (stage, site):
            wire, _ = await site.begin("POST", *tool("noisy", meta=TOKEN))
            await wire.event()
            for _ in range(3):
                beat = await wire.block()
                assert beat is not None
                assert beat.comment
            # A response that has not begun stays open: nothing is said there.
            quiet = await site.wire()
            await quiet.ask("POST", "/mcp", *tool("quiet"))
            await until(lambda: len(site.app._worker.running) == 2)
            for _ in range(2):
                await wire.block()
            stage.go.set()
            assert (await quiet.answer()).headers["content-type"] == "application/json"
            assert (await wire.events())[-1].json["id"] == 1

    run(main)


def test_a_subscription_ends_with_its_client():
    async def main():
        server = kitchen()
        async with hosted(server) as site:
            wire, _ = await site.begin("POST", *listen(toolsListChanged=True))
            await wire.event()
            await wire.abort()
            await until(lambda: not site.app._worker.running)
            assert not server._subscriptions._active
            assert [*server.broadcaster._subscribers] == [site.app._worker]

    run(main)


@pytest.mark.requirement("HTTPM-8")
def test_a_quiet_subscription_carries_comments(monkeypatch):
    monkeypatch.setattr(exchange, "KEEP_ALIVE_INTERVAL", 0.01)

    async def main():
        async with hosted(kitchen()) as site:
            wire, _ = await site.begin("POST", *listen(toolsListChanged=True))
            await wire.event()
            beat = await wire.block()
            assert beat is not None
            assert beat.comment

    run(main)
