"""Request states: bound to client, method and arguments; all others are rejected."""

import asyncio
from typing import Any

import pytest

from request_state_talk import REFUSED, Talk, made
from toolpost.errors import InvalidParams
from toolpost.server.elicitation import journal
from toolpost.stores.memory import MemoryStore


@pytest.mark.requirement("MRTR-11")
def test_a_state_has_its_time(monkeypatch):
    now = 1_900_000_000.5
    monkeypatch.setattr(journal.time, "time", lambda: now)

    async def main() -> None:
        nonlocal now
        async with Talk(made(answer_timeout=60)) as talk:
            first = await talk.ask()
            now += 60
            assert (await talk.ask(first.request_state)).content[0].text == "Hello, Ann!"
            now += 1
            with pytest.raises(InvalidParams, match=REFUSED):
                await talk.ask(first.request_state)

    asyncio.run(main())


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.requirement("MRTR-12")
def test_a_state_may_be_brought_once_or_often(once):
    """Over two servers that share a store, so that the other one knows as well."""
    store = MemoryStore()

    async def main() -> list[str]:
        options: dict[str, Any] = {"store": store, "answer_once": once}
        async with Talk(made(**options)) as one, Talk(made(**options)) as two:
            first = await one.ask()
            told = [(await two.ask(first.request_state)).content[0].text]
            for talk in (one, two):
                try:
                    told.append((await talk.ask(first.request_state)).content[0].text)
                except InvalidParams as error:
                    told.append(error.message)
            return told

    again = REFUSED if once else "Hello, Ann!"
    assert asyncio.run(main()) == ["Hello, Ann!", again, again]
    asyncio.run(store.close())
