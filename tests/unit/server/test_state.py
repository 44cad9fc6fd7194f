"""`ctx.state`: values by key, of one session or one principal, as JSON in the store."""

import asyncio
from typing import Any

import pytest

from toolpost.errors import LocalProtocolError
from toolpost.principal import Principal
from toolpost.server import state as module
from toolpost.server.state import State, SyncState
from toolpost.stores.memory import MemoryStore


@pytest.mark.parametrize("value", [None, False, 0, 1.5, "text", [1, [2]], {"a": {"b": []}}, "x" * 65_000])
def test_a_value_comes_back_as_it_was_set(value: Any):
    async def main():
        state = State.in_memory()
        assert await state.get("key", "none") == "none"
        await state.set("key", value)
        assert await state.get("key", "none") == value
        await state.delete("key")
        await state.delete("key")
        assert await state.get("key") is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("x" * module.MAX_VALUE_BYTES, ValueError, "'key' has 65538 bytes as JSON; the limit is 65536"),
        (object(), LocalProtocolError, "object"),
    ],
)
def test_a_value_that_cannot_be_kept_changes_nothing(value: Any, error: type[Exception], text: str):
    async def main():
        state = State.in_memory()
        await state.set("key", "before")
        with pytest.raises(error, match=text):
            await state.set("key", value)
        assert await state.get("key") == "before"

    asyncio.run(main())


def test_states_in_one_store_are_kept_apart():
    async def main():
        records = MemoryStore().records
        people = [Principal("ann"), Principal("bob"), Principal("ann", issuer="https://i.example")]
        states = [State.of_principal(records, person) for person in people]
        states += [State(records, "state/a/"), State(records, "state/b/"), State.in_memory()]
        for number, state in enumerate(states):
            await state.set("key", number)
        assert [await state.get("key") for state in states] == [*range(len(states))]
        # All clients of one principal share it.
        again = State.of_principal(records, Principal("ann", client="another"))
        assert await again.get("key") == 0

    asyncio.run(main())


def test_a_value_is_kept_for_a_time():
    async def main():
        now = [0.0]
        state = State(MemoryStore(clock=lambda: now[0]).records, "state/a/")
        await state.set("key", 1)
        now[0] += module.STATE_TTL - 1
        assert await state.get("key") == 1
        now[0] += 1
        assert await state.get("key") is None

    asyncio.run(main())


def test_a_thread_waits_for_it():
    async def main():
        loop, state = asyncio.get_running_loop(), State.in_memory()

        def work() -> list[Any]:
            there = SyncState(state, lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(10))
            there.set("key", 1)
            found = [there.get("key"), there.get("other", 2)]
            there.delete("key")
            return [*found, there.get("key")]

        assert await asyncio.to_thread(work) == [1, 2, None]

    asyncio.run(main())
