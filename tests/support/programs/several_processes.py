"""Applications for `uvicorn --factory --workers`, with and without a store."""

import os
from typing import Any

from toolpost import Context, Server


def make_server(**options: Any) -> Server:
    """Return a server."""
    server = Server("several", **options)

    @server.tool
    def pid() -> int:
        return os.getpid()

    @server.tool
    async def sample(ctx: Context) -> str:
        answer = await ctx.sample("Who are you?")
        return f"Hello, {answer.text}"

    return server


def alone() -> Any:
    """Keep sessions in the memory of each process."""
    return make_server().asgi()


def stateless() -> Any:
    """Have no sessions."""
    return make_server().asgi(stateless=True)


def shared() -> Any:
    """Share sessions."""
    return make_server(store=os.environ["STORE"]).asgi()
