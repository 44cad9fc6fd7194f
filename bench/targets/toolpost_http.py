"""toolpost over HTTP, as docs/http.md says: `toolpost_http.py PORT [TOOLS] [WITH]`.

WITH names something that may be switched on, so that its cost can be seen.
"""

import logging
import sys
from typing import Any

from toolpost import Auth, Context, Server
from toolpost.server.middleware import Call, Concurrency, Logging, Next, RateLimit, Timeout

PORT = sys.argv[1]
TOOLS = int(sys.argv[2]) if len(sys.argv) > 2 else 0
WITH = sys.argv[3] if len(sys.argv) > 3 else ""
LARGE = ("The quick brown fox jumps over the lazy dog.\n" * 25000)[: 1 << 20]


async def through(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
    """Middleware that does nothing."""
    return await next(call)


def known(token: str) -> str | None:
    """Whose token it is."""
    return "ann" if token == "bench-token" else None  # noqa: S105 - not a secret


def signed() -> dict[str, Any]:
    """Tokens that their issuer has signed; one of them is printed."""
    from toolpost import Jwt  # noqa: PLC0415 - needs packages that the others do without
    from toolpost.testing import AuthorizationServer  # noqa: PLC0415 - as above

    login = AuthorizationServer("https://login.example.com")
    url = f"http://127.0.0.1:{PORT}/mcp"
    print(login.token(url, subject="ann"), flush=True)
    return {"auth": Auth(login.issuer, resource=url, verifier=Jwt(login.issuer, http=login))}


SWITCHES: dict[str, Any] = {
    "": dict,
    "middleware": lambda: {"middleware": [through]},
    "logging": lambda: {"middleware": [Logging(level=logging.ERROR)]},  # so that the lines are written
    "rate limit": lambda: {"middleware": [RateLimit(1_000_000)]},
    "concurrency limit": lambda: {"middleware": [Concurrency(1000)]},
    "timeout": lambda: {"middleware": [Timeout(60)]},
    "token, by a function": lambda: {"auth": Auth("https://login.example.com", verifier=known)},
    "token, signed": signed,
}
server = Server("bench", version="1", **SWITCHES[WITH]())


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def told(a: int, b: int, ctx: Context) -> int:
    """Add two numbers, and say so first."""
    await ctx.progress(1, 2)
    return a + b


async def count(to: int, ctx: Context) -> int:
    """Count."""
    for number in range(1, to + 1):
        await ctx.progress(number, to)
    return to


@server.resource("bench://large")
async def large() -> str:
    """One MiB of text."""
    return LARGE


for function in (add, told, count)[: TOOLS or 3]:
    server.tool(function)
for number in range(3, TOOLS):
    server.tool(name=f"tool_{number}")(add)
server.run(http=f"127.0.0.1:{PORT}")
