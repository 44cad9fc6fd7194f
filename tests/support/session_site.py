"""A running server with sessions, and messages of a session."""

from contextlib import asynccontextmanager
from typing import Any

from hosted import (
    OLD,
    Stage,
    call,
    hosted,
    kitchen,
    message,
)

__all__ = ["ELICITS", "GET", "listening", "stage_and_site", "steps", "text", "tool"]


GET = {"Accept": "text/event-stream"}
ELICITS = {"elicitation": {}}


def tool(name: str, id: Any, *, token: Any = None, **arguments: Any) -> bytes:  # noqa: A002 - the protocol's word
    """Return a tool call; with a token, it requests progress."""
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return message("tools/call", {**call(name, **arguments), **meta}, id)


def listening(session: str, last: str | None = None, revision: str = OLD) -> dict[str, str]:
    """The headers of a GET."""
    more = {} if last is None else {"Last-Event-ID": last}
    return {**GET, "Mcp-Session-Id": session, "MCP-Protocol-Version": revision, **more}


def text(event: Any) -> str:
    """Return the result of a tool from an event or a body."""
    return event.json["result"]["content"][0]["text"]


def steps(events: Any) -> list[Any]:
    """Return the progress in events."""
    said = [event.json for event in events if event.data]
    return [each["params"]["progress"] for each in said if each.get("method") == "notifications/progress"]


@asynccontextmanager
async def stage_and_site(**web: Any):
    stage = Stage()
    async with hosted(kitchen(stage), **web) as site:
        yield stage, site
        stage.go.set()
