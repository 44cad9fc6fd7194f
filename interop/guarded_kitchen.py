"""A protected server, with the authorization server for tests, for logins of peers.

With the argument `provider` the server is the authorization server itself, and the other one the provider
that its users log in at. Prints its URL on stderr, and serves until it gets a signal.
"""

import asyncio
import socket
import sys

from toolpost import Auth, Context, OAuthProvider, Server
from toolpost.testing import AuthorizationServer


def kitchen(auth: Auth) -> Server:
    """A kitchen that requires a token."""
    server = Server("guarded", version="1", auth=auth)

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
    async with AuthorizationServer.serve(scopes=["read", "write"], clients={"app": "s3cret"}) as login:
        url = f"http://{address}/mcp"
        auth = Auth(login.issuer, resource=url, scopes=["read"])
        if "provider" in sys.argv:
            provider = OAuthProvider("app", "s3cret", issuer=login.issuer)
            auth = Auth(provider=provider, resource=url, scopes=["read"], optional_scopes=["write"])
        await kitchen(auth).serve_http(address)


if __name__ == "__main__":
    asyncio.run(main())
