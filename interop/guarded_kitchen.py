"""A protected server, with the authorization server for tests, for logins of peers.

Prints its URL on stderr, and serves until it gets a signal.
"""

import asyncio
import socket

from toolpost import Auth, Context, Server
from toolpost.testing import AuthorizationServer


def kitchen(issuer: str, url: str) -> Server:
    """A kitchen that requires a token."""
    server = Server("guarded", version="1", auth=Auth(issuer, resource=url, scopes=["read"]))

    @server.tool
    async def whoami(ctx: Context) -> str:
        """Return the user and the scopes."""
        who = ctx.principal
        assert who is not None
        return f"{who.subject}: {' '.join(sorted(who.scopes))}"

    @server.tool(scopes=["write"])
    def cook(dish: str) -> str:
        """Cook, if the scope allows it."""
        return f"{dish} is ready"

    return server


async def main() -> None:
    """Serve until a signal arrives."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with AuthorizationServer.serve(scopes=["read", "write"]) as login:
        await kitchen(login.issuer, f"http://{address}/mcp").serve_http(address)


if __name__ == "__main__":
    asyncio.run(main())
