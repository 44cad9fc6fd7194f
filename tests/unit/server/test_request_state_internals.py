"""Request states: bound to who asks, what and where; and whatever else a client brings is refused."""

import asyncio
from dataclasses import dataclass
from typing import Any, Self

import pytest

from toolpost import Accepted, Client, Context, KeyRing, Server
from toolpost.channel import Channel
from toolpost.errors import InvalidParams
from toolpost.protocol.methods import DATES
from toolpost.server import states
from toolpost.stores.memory import MemoryStore
from toolpost.testing import pair

NEW = DATES[-1]
KEYS = KeyRing(["k" * 32])
REFUSED = r"Invalid params: the requestState is not valid for this request"


@dataclass
class Name:
    name: str


def made(**options: Any) -> Server:
    given: dict[str, Any] = {"name": "s", "keys": KEYS, **options}
    server = Server(**given)

    @server.tool
    async def greet(ctx: Context, word: str = "Hello") -> str:
        answer = await ctx.elicit("What is your name?", Name, key="user_name")
        return f"{word}, {answer.data.name}!" if isinstance(answer, Accepted) else "Nobody."

    @server.tool
    async def other(ctx: Context, word: str = "Hello") -> str:
        answer = await ctx.elicit("What is your name?", Name, key="user_name")
        return f"other {word} {answer}"

    @server.prompt
    async def greeting(ctx: Context) -> str:
        return repr(await ctx.elicit("What is your name?", Name, key="user_name"))

    return server


class Talk:
    """A client that writes its retries by hand, on behalf of somebody."""

    def __init__(self, server: Server, principal: str | None = None) -> None:
        ours, theirs = pair()
        self._channel: Channel = theirs
        self._serving = asyncio.create_task(server.serve(ours, principal=principal))
        self._client = Client(theirs, revision=NEW, on_elicitation=lambda _: {"name": "Ann"})

    async def __aenter__(self) -> Self:
        await self._client.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self._serving

    async def ask(self, state: str | None = None, method: str = "tools/call", **params: Any) -> Any:
        """What the server answers; with a state, it comes with an answer."""
        params = {"name": "greet", **params}
        if state is not None:
            answer = {"action": "accept", "content": {"name": "Ann"}}
            params |= {"requestState": state, "inputResponses": {"user_name": answer}}
        return await self._client.request(method, params)


@pytest.mark.requirement("MRTR-11")
def test_a_state_has_its_time(monkeypatch):
    now = 1_900_000_000.5
    monkeypatch.setattr(states.time, "time", lambda: now)

    async def main() -> None:
        nonlocal now
        async with Talk(made(answer_within=60)) as talk:
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
