"""Calls of the stateless era, and clients that answer questions."""

import asyncio
from typing import Any

from revision_dates import DATES
from toolpost import (
    Client,
    Handler,
)
from toolpost.types import CreateMessageResult, ElicitResult, TextContent

__all__ = ["NEW", "answering", "called"]


NEW = DATES[-1]


def answering(**given: Any) -> dict[str, Any]:
    """Return callbacks of a client with the answers of user and model."""
    seen: list[str] = []

    async def elicit(params):
        seen.append(params.message)
        said = given.get("user", 1)
        said = said(params.message) if callable(said) else said
        return said if isinstance(said, ElicitResult) else {"value": said}

    async def sample(params):
        seen.append("sample")
        return CreateMessageResult("assistant", TextContent("A poem."), "model")

    options: dict[str, Any] = {"on_elicitation": elicit, "on_sampling": sample, "on_roots": ["file:///a"]}
    return {"options": options, "seen": seen}


def called(server: Handler, revision: str, tool: str = "ask", *, said: Any = None, **arguments: Any) -> Any:
    """Call a tool. Returns the result, and the questions to the client."""
    host = answering(**(said or {}))

    async def main():
        async with Client(server, revision=revision, **host["options"]) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(main()), host["seen"]
