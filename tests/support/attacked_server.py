"""Our server as attackers reach it, with functions that repeat their input."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from hosted import Site, call, legacy, message, modern, serving
from toolpost import Context, Server
from toolpost.server.http.uvicorn import make_bounded_protocol

__all__ = ["Victim", "attacked", "calls"]


class Victim(Server):
    """Records the calls of its functions."""

    def __init__(self, **options: Any) -> None:
        super().__init__("victim", **options)
        self.marks: list[str] = []
        self.found: list[Any] = []
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()
        self._functions()

    def _functions(self) -> None:
        @self.tool
        async def mark(text: str) -> str:
            self.marks.append(text)
            return text

        @self.tool
        async def shout(text: str, ctx: Context) -> str:
            await ctx.progress(1, 2, text)
            await ctx.info(text)
            await ctx.info({text: [text]})
            return text

        @self.tool
        async def wait(text: str) -> str:
            self.begun.put_nowait(text)
            await self.go.wait()
            return text

        for number, template in enumerate(("files://all/{path}", "tree://all/{+path}", "deep://all{/path*}")):
            self.resource(template, name=f"r{number}")(self._reader())

        @self.resource("tags://all{?tags*}")
        def tags(tags: list[str]) -> str:
            self.found.append(tags)
            return "read"

    def _reader(self) -> Any:
        def read(path: Any) -> str:
            self.found.append(path)
            return "read"

        return read


@asynccontextmanager
async def attacked(server: Server | None = None, **web: Any) -> AsyncGenerator[Site]:
    """Serve with our own protocol for uvicorn, as `server.run(http=…)` does."""
    log = logging.getLogger("uvicorn.error")
    log.addFilter(_is_our_fault)
    try:
        async with serving((server or Victim()).asgi(**web), http=make_bounded_protocol()) as site:
            yield site
    finally:
        log.removeFilter(_is_our_fault)


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Return whether a log line reports anything except a peer that does not speak HTTP."""
    return record.getMessage() != "Invalid HTTP request received."


async def calls(site: Site, session: str | None = None, text: str = "fine") -> bool:
    """Return whether the server still serves another client."""
    params = call("mark", text=text)
    asked = (
        modern("tools/call", params)
        if session is None
        else (legacy(session), message("tools/call", params, 1))
    )
    answer = await site.post(*asked)
    return answer.status == 200 and answer.json["result"]["content"][0]["text"] == text
