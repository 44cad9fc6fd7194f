"""The client of PyPI's `mcp` 2.x logs in with its own OAuth provider. Arguments: mode, URL of the server."""

import asyncio
import json
import re
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("first", "whoami", {}),
    ("cooked", "cook", {"dish": "egg"}),
    ("second", "whoami", {}),
]
BACK = "http://127.0.0.1:3999/callback"


class Memory:
    """Keeps what the provider wants to keep."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        """What was kept."""
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        """Keep it."""
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        """What was kept."""
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        """Keep it."""
        self.client = client_info


class Browser:
    """Somebody who allows everything: follows the page, and says where it was sent back to."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}
        self.pages = 0

    async def show(self, url: str) -> None:
        """Show a page, and those that follow."""
        async with httpx2.AsyncClient() as http:
            while not url.startswith(BACK):
                answer = await http.get(url)
                sealed = re.search(r'name="request" value="([^"]+)"', answer.text)
                if sealed is not None:
                    form = {"request": sealed[1], "answer": "allow"}
                    answer = await http.post(url.partition("?")[0], data=form)
                url = answer.headers["location"]
        self.pages += 1
        self.sent = parse_qs(urlsplit(url).query)

    async def told(self) -> AuthorizationCodeResult:
        """Where it led."""
        first = {name: values[0] for name, values in self.sent.items()}
        return AuthorizationCodeResult(code=first["code"], state=first.get("state"), iss=first.get("iss"))


async def main(mode: str, url: str) -> None:
    """Log in, do what every token allows, then what needs more."""
    browser = Browser()
    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(client_name="peer", redirect_uris=[BACK]),
        storage=Memory(),
        redirect_handler=browser.show,
        callback_handler=browser.told,
    )
    told: dict[str, Any] = {}
    async with (
        httpx2.AsyncClient(auth=provider, follow_redirects=True) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        told["revision"] = client.protocol_version
        for what, tool, arguments in CALLS:
            told[what] = (await client.call_tool(tool, arguments)).content[0].text
    told["pages"] = browser.pages
    print(json.dumps(told))


asyncio.run(main(*sys.argv[1:3]))
