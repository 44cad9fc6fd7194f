"""A small server with tools, resources and questions, for the tests of `toolpost.testing`."""

from dataclasses import dataclass

from toolpost import Context, Server

__all__ = ["calculator"]


@dataclass
class Name:
    name: str


def calculator() -> Server:
    """Create the server again."""
    server = Server("calculator")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    async def sign(text: str, *, ctx: Context) -> str:
        """Ask for a name, and sign a text with it."""
        await ctx.info("reading")
        await ctx.progress(1, 2)
        answer = await ctx.elicit("Who are you?", Name)
        await ctx.info("signing")
        return f"{text} ({getattr(answer, 'data', None)})"

    @server.tool
    async def login(user: str, password: str) -> str:
        """Log in."""
        return f"{user} has {password}"

    @server.resource("sums://last")
    async def last() -> str:
        """The last sum."""
        return "3"

    return server
