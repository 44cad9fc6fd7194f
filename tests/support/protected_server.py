"""A protected server on a real uvicorn, an issuer, and the log."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from hosted import Site, modern, serving
from toolpost import Auth, Context, Jwt, Server
from toolpost.testing import AuthorizationServer, TokenIssuer

__all__ = ["RESOURCE", "Guarded", "Later", "bearer", "guarded", "kitchen", "listing", "place"]

RESOURCE = "http://127.0.0.1/mcp"


def kitchen(auth: Any, **options: Any) -> Server:
    """Create a server with a tool for each scope."""
    server = Server("kitchen", auth=auth, **options)

    @server.tool
    async def whoami(ctx: Context) -> dict[str, Any]:
        who = ctx.principal
        assert who is not None
        return {"subject": who.subject, "client": who.client, "scopes": sorted(who.scopes)}

    @server.tool
    async def headers(ctx: Context) -> list[str]:
        return sorted(ctx.request.headers)

    @server.tool(scopes=["write"])
    def cook(dish: str) -> str:
        return f"{dish} is ready"

    @server.tool
    async def burn(ctx: Context) -> str:
        ctx.require("burn", "write")
        return "burnt"

    @server.tool
    async def talk(ctx: Context) -> str:
        await ctx.progress(1)
        ctx.require("burn")
        return "never"

    @server.tool
    async def count(ctx: Context) -> int:
        count = await ctx.state.get("n", 0) + 1
        await ctx.state.set("n", count)
        return count

    _shelves(server)
    return server


def _shelves(server: Server) -> None:
    @server.resource("kitchen://menu")
    def menu() -> str:
        return "soup"

    @server.resource("kitchen://till", scopes=["money"])
    def till() -> str:
        return "100"

    @server.resource("kitchen://till/{day}", scopes=["money"])
    def day(day: str) -> str:
        return day

    @server.prompt(scopes=["write"])
    def recipe(dish: str) -> str:
        return f"How to cook {dish}"


class Guarded(NamedTuple):
    """The server and its token issuer."""

    site: Site
    mint: TokenIssuer
    server: Server


@asynccontextmanager
async def guarded(*, scopes: Any = ("read",), web: Any = None, options: Any = None, **auth: Any):
    """Serve the kitchen with the keys of its issuer, so that nothing is fetched."""
    web = {} if web is None else web
    mint = TokenIssuer("https://login.example.com")
    verifier = auth.pop("verifier", None) or Jwt(mint.issuer, keys=mint.jwks)
    guard = Auth(mint.issuer, resource=RESOURCE, scopes=scopes, verifier=verifier, **auth)
    server = kitchen(guard, **(options or {}))
    async with serving(server.asgi(**web)) as site:
        yield Guarded(site, mint, server)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def listing(token: str | None = None) -> tuple[dict[str, str], bytes]:
    """Return a request that every valid token allows."""
    headers, body = modern("tools/list")
    return {**headers, **({} if token is None else bearer(token))}, body


class Later:
    """An application that is created when its port is known."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    async def stop(self) -> None:
        if hasattr(self.app, "stop"):  # it is one of ours
            await self.app.stop()


@asynccontextmanager
async def place(login: AuthorizationServer, *, sse: bool = False, **auth: Any) -> AsyncGenerator[str]:
    """Serve the kitchen for users who log in at a test authorization server; yield its URL."""
    later = Later()
    async with serving(later, lifespan="off") as site:
        url = f"http://127.0.0.1:{site.port}"
        named = {"resource": url} if sse else {}  # one name for both addresses
        server = kitchen(Auth(login.issuer, scopes=["read"], **named, **auth))
        later.app = server.asgi(public_url=url)
        yield f"{url}/sse" if sse else f"{url}/mcp"
