"""A conversation in which a client returns the state of a request."""

import asyncio
from dataclasses import dataclass
from typing import Any, Self

from revision_dates import DATES
from toolpost import Accepted, Channel, Client, Context, KeyRing, Server
from toolpost.testing import memory_pair

__all__ = ["KEYS", "NEW", "REFUSED", "Name", "Talk", "made"]


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
    """A client that creates its retries manually, for a principal."""

    def __init__(self, server: Server, principal: str | None = None) -> None:
        ours, theirs = memory_pair()
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
        """Call the server and return the response; with a state, send an answer too."""
        params = {"name": "greet", **params}
        if state is not None:
            answer = {"action": "accept", "content": {"name": "Ann"}}
            params |= {"requestState": state, "inputResponses": {"user_name": answer}}
        return await self._client.request(method, params)
