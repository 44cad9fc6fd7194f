"""The server of PyPI's `mcp` for calls with and without a socket, as its documentation recommends."""

import asyncio
from typing import Any

import wire
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, MCPServer

__all__ = ["make_server"]

LARGE = ("The quick brown fox jumps over the lazy dog.\n" * 25000)[: 1 << 20]


async def pass_on(ctx: Any, call_next: Any) -> Any:
    """Middleware that does nothing."""
    return await call_next(ctx)


class Verifier:
    """Accepts the token of the bench."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Verify a bearer token."""
        return (
            AccessToken(token=token, client_id="bench", scopes=[], subject="ann")
            if token == wire.TOKEN
            else None
        )


def option_arguments(switch: str, url: str) -> dict[str, Any]:
    """Return the keyword arguments that enable an option."""
    if switch == "middleware":
        return {"middleware": [pass_on]}
    if switch == "token":
        settings = AuthSettings(
            issuer_url="https://login.example.com", resource_server_url=url, validate_token_resource=False
        )
        return {"auth": settings, "token_verifier": Verifier()}
    return {}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def wait(a: int, b: int, ctx: Context) -> int:  # noqa: ARG001 - so that there is one
    """Add two numbers, after one turn of the event loop."""
    await asyncio.sleep(0)
    return a + b


async def one(a: int, b: int, ctx: Context) -> int:
    """Add two numbers, and report progress once before."""
    await ctx.report_progress(1, 2)
    return a + b


async def ten(a: int, b: int, ctx: Context) -> int:
    """Add two numbers, and report progress ten times before."""
    for number in range(1, 11):
        await ctx.report_progress(number, 10)
    return a + b


async def large() -> str:
    """Return 1 MiB of text."""
    return LARGE


TOOLS = (add, wait, one, ten)


def make_server(url: str, switch: str = "", tools: int = 0) -> MCPServer:
    """Create a server at a URL, with one option and this number of tools, but at least four."""
    server = MCPServer("bench", version="1", log_level="ERROR", **option_arguments(switch, url))
    for function in TOOLS:
        server.add_tool(function)
    for number in range(len(TOOLS), tools):
        server.add_tool(add, name=f"tool_{number}")
    server.resource("bench://large")(large)
    return server
