"""A different server for each client."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from revision_dates import DATES
from toolpost import Context, Principal, Server, ToolError
from toolpost.errors import InvalidParams
from toolpost.testing import REVISIONS
from toolpost.types import ClientCapabilities, Implementation

__all__ = ["STATELESS", "House"]

[STATELESS] = [date for date in DATES if REVISIONS[date].stateless]


class House:
    """Two servers, and their clients."""

    def __init__(self, **options: Any) -> None:
        self.lives: list[str] = []
        self.passed: list[str] = []
        self.calls: list[tuple[str | None, Principal | None]] = []
        self.one = self.server("one", 3)
        self.two = self.server("two", 1)
        self.two.prompt(name="greet")(lambda: "hello")
        self.factory = Server.factory(self.choose, "house", **options)

    def server(self, name: str, tools: int) -> Server:
        @asynccontextmanager
        async def lifespan(server: Server) -> AsyncGenerator[str]:
            self.lives.append(f"+{name}")
            yield f"life of {name}"
            self.lives.append(f"-{name}")

        async def note(call: Any, next: Any) -> Any:  # noqa: A002 - the word for it
            self.passed.append(f"{name} {call.method}")
            return await next(call)

        server = Server(
            name,
            version="7",
            instructions=f"Be {name}.",
            lifespan=lifespan,
            middleware=[note],
            page_size=1,
        )
        for number in range(tools):
            server.tool(name=f"{name}_{number}")(lambda: "")

        @server.tool
        async def who(ctx: Context) -> str:
            return f"{ctx.server.info.name}, {ctx.lifespan}"

        return server

    async def choose(
        self, info: Implementation | None, capabilities: ClientCapabilities, principal: Principal | None
    ) -> Server:
        name = info.name if info else ""
        self.calls.append((name, principal))
        if name == "rpc":
            raise InvalidParams("not you, rpc")
        if name == "tool":
            raise ToolError("not you, tool", hint="ask at the door")
        if name == "bug":
            raise ValueError("secret")
        if name == "odd":
            return "nonsense"  # pyright: ignore[reportReturnType] - the error is reported
        return self.one if name == "one" or capabilities.roots is not None else self.two
