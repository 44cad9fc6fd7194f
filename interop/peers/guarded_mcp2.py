"""A server of PyPI's `mcp` 2.x that wants tokens. Argument: the issuer, which is asked whose a token is."""

import asyncio
import socket
import sys
from typing import Any

import httpx2
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl


class Asks:
    """Asks the issuer whose a token is (RFC 7662)."""

    def __init__(self, issuer: str, url: str) -> None:
        self.issuer = issuer
        self.url = url

    async def verify_token(self, token: str) -> AccessToken | None:
        """Whose it is."""
        async with httpx2.AsyncClient(auth=("peer", "s3cret")) as http:
            answer = await http.post(f"{self.issuer}/introspect", data={"token": token})
        told: dict[str, Any] = answer.json()
        if not told.get("active"):
            return None
        return AccessToken(
            token=token,
            client_id=told["client_id"],
            scopes=told["scope"].split(),
            expires_at=told["exp"],
            resource=told["aud"],
            subject=told["sub"],
        )


async def main(issuer: str) -> None:
    """Serve until we are told to stop."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(issuer),
            resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
            required_scopes=["read"],
            validate_token_resource=True,
        )
        server = MCPServer("guarded", auth=settings, token_verifier=Asks(issuer, f"{origin}/mcp"))

        @server.tool()
        def whoami() -> str:
            """Who speaks."""
            token = get_access_token()
            return "nobody" if token is None else f"{token.subject}: {' '.join(sorted(token.scopes))}"

        print(f"guarded serves at {origin}", flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])


asyncio.run(main(sys.argv[1]))
