"""Login with a provider in a browser: our client, the consent page, the page of the provider, and back."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from authlib_site import Authlib

import chromium
from hosted import serving
from login_site import visit
from protected_server import Later, kitchen
from toolpost import Auth, Client, MemoryTokens, OAuth, OAuthProvider
from toolpost.errors import AuthorizationRequired
from toolpost.testing import AuthorizationServer
from webdriver import Browser, browsing

PATIENCE = 100
"""Seconds for a test, in which a browser starts and ends."""

LAST = "//p[contains(., 'return to the program')]"


@pytest.fixture
def _chromium() -> None:
    absence = chromium.absence()
    if absence is not None:
        if chromium.demanded():
            pytest.fail(absence, pytrace=False)
        pytest.skip(reason=absence)


async def serve_kitchen(stack: AsyncExitStack, **provider: Any) -> str:
    """Serve the kitchen for users who log in at a provider; return its URL."""
    later = Later()
    site = await stack.enter_async_context(serving(later, lifespan="off"))
    auth = Auth(
        provider=OAuthProvider("app", "s3cret", name="Example", **provider),
        scopes=["read"],
        optional_scopes=["write"],
    )
    later.app = kitchen(auth).asgi(public_url=f"http://127.0.0.1:{site.port}")
    return f"http://127.0.0.1:{site.port}/mcp"


class Desk:
    """A person at a browser, which our client opens pages in."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.shown: asyncio.Queue[str] = asyncio.Queue()
        self.auth = OAuth(client_name="Desk <b>", storage=MemoryTokens(), open_url=self.show, timeout=60.0)

    async def show(self, url: str) -> None:
        await self.browser.go(url)
        self.shown.put_nowait(url)

    async def consent(self, scopes: str, button: str = "Continue to Example") -> None:
        """Check the consent page of our server, and press a button."""
        asked = parse_qs(urlsplit(await self.shown.get()).query)
        back = urlsplit(asked["redirect_uri"][0])
        assert await self.browser.text("//*[@id='client']") == "Desk <b>"
        assert await self.browser.text("//*[@id='server']") == "kitchen"
        assert await self.browser.text("//*[@id='host']") == back.netloc
        assert await self.browser.text("//*[@id='scopes']") == scopes
        await self.browser.click(f"//button[.='{button}']")

    async def log_in(self, user: str) -> None:
        """Log in at the provider, whose page knows our server and not the client."""
        await self.browser.write("//input[@name='user']", user)
        assert await self.browser.text("//*[@id='client']") == "app"
        await self.browser.click("//button[.='Allow']")

    async def read_last_page(self) -> None:
        assert await self.browser.text(LAST) == "You can close this window and return to the program."


def at_a_desk(folder: Path, work: Any) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(PATIENCE),
            AuthorizationServer.serve(consent=True, clients={"app": "s3cret"}) as login,
            AsyncExitStack() as stack,
            browsing(folder) as browser,
        ):
            url = await serve_kitchen(stack, issuer=login.issuer)
            desk = Desk(browser)
            async with asyncio.TaskGroup() as tasks:
                mcp = Client(url, auth=desk.auth)
                await work(desk, mcp, tasks)
                await mcp.close()

    asyncio.run(main())


@pytest.mark.requirement("AS-10", "SEC-1")
@pytest.mark.usefixtures("_chromium")
def test_a_person_logs_in_with_a_provider_in_chromium(tmp_path):
    async def work(desk: Desk, mcp: Client, tasks: asyncio.TaskGroup) -> None:
        opening = tasks.create_task(mcp.connect())
        await desk.consent("read")
        await desk.log_in("carol")
        await desk.read_last_page()
        await opening
        assert (await mcp.call_tool("whoami")).data["subject"] == "carol"
        cooking = tasks.create_task(mcp.call_tool("cook", {"dish": "egg"}))  # needs one more scope
        await desk.consent("read\nwrite")
        await desk.log_in("carol")
        await desk.read_last_page()
        assert (await cooking).text == "egg is ready"

    at_a_desk(tmp_path, work)


@pytest.mark.usefixtures("_chromium")
def test_a_person_declines_in_chromium(tmp_path):
    async def work(desk: Desk, mcp: Client, tasks: asyncio.TaskGroup) -> None:
        async def connect() -> None:
            with pytest.raises(AuthorizationRequired, match="declined"):
                await mcp.connect()

        opening = tasks.create_task(connect())
        await desk.consent("read", "Deny")
        await opening

    at_a_desk(tmp_path, work)


def test_users_log_in_with_the_authorization_server_of_authlib():
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
            later = Later()
            site = await stack.enter_async_context(serving(later, lifespan="off"))
            login = Authlib(f"http://127.0.0.1:{site.port}")
            later.app = login.app
            base = login.issuer
            url = await serve_kitchen(
                stack,
                authorization_endpoint=f"{base}/authorize",
                token_endpoint=f"{base}/token",
                userinfo_endpoint=f"{base}/userinfo",
                scopes=["profile"],
                parameters={"resource": base},
            )
            login.redirect_to(url.replace("/mcp", "/oauth/callback"))
            auth = OAuth(open_url=visit, storage=MemoryTokens())
            async with Client(url, auth=auth) as mcp:
                assert (await mcp.call_tool("whoami")).data["subject"] == "alice"

    asyncio.run(main())
