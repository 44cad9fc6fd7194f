"""A store that fails for a while: calls continue with cached data."""

import asyncio
from typing import Any

from hosted import Stage, call, hosted, kitchen, legacy, message, modern, run
from session_site import steps, text, tool
from toolpost.stores import MemoryStore
from waiting import until


class _Failing:
    """A part of a store that raises while the store is down."""

    def __init__(self, store: "FailingStore", part: Any) -> None:
        self._store = store
        self._part = part

    def __getattr__(self, name: str) -> Any:
        if self._store.is_down:
            raise ConnectionError("the store is down")
        return getattr(self._part, name)


class FailingStore(MemoryStore):
    """A store that can be switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.records: Any = _Failing(self, self.records)
        self.logs: Any = _Failing(self, self.logs)


def test_calls_of_a_session_go_on_without_the_store():
    store = FailingStore()

    async def main():
        async with hosted(kitchen(store=store)) as site:
            session = await site.open()
            store.is_down = True
            late = asyncio.get_running_loop().time() + 1.1  # settings that are older are read again
            await until(lambda: asyncio.get_running_loop().time() > late)
            assert text(await site.post(legacy(session), tool("echo", 1, text="x"))) == "x"
            assert (await site.post(*modern("tools/call", call("echo", text="x")))).status == 200
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 2, token=2, count=3))
            events = await wire.events()
            assert steps(events) == [1, 2, 3]
            assert text(events[-1]) == "done"
            store.is_down = False
            assert (await site.ask("DELETE", "/mcp", legacy(session))).status == 200
            assert (await site.post(legacy(session), message("ping", id=3))).status == 404

    run(main)


def test_a_call_that_has_begun_to_speak_ends_with_its_answer_when_the_store_fails():
    store, stage = FailingStore(), Stage()

    async def main():
        async with hosted(kitchen(stage, store=store)) as site:
            session = await site.open()

            wire, _ = await site.begin("POST", legacy(session), tool("noisy", 1, token=1))
            await stage.begun.wait()
            store.is_down = True
            stage.go.set()
            assert text((await wire.events())[-1]) == "said"
            store.is_down = False
            assert text(await site.post(legacy(session), tool("echo", 2, text="x"))) == "x"

    run(main)
