"""Login with a real browser: the login page, the redirect to our listener, and its last page."""

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import chromium
from protected_server import place
from toolpost import Client, MemoryTokens, OAuth
from toolpost.errors import AuthorizationRequired
from toolpost.testing import AuthorizationServer
from webdriver import Browser, browsing

PATIENCE = 100
"""Seconds for a test, in which a browser starts and ends."""

LAST = "//p[contains(., 'return to the program')]"


@pytest.fixture(autouse=True)
def _chromium() -> None:
    absence = chromium.absence()
    if absence is not None:
        if chromium.demanded():
            pytest.fail(absence, pytrace=False)
        pytest.skip(reason=absence)


class BrowserUser:
    """A person at a browser, which our client opens pages in."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.shown: asyncio.Queue[str] = asyncio.Queue()
        self.auth = OAuth(client_name="Desk <b>", storage=MemoryTokens(), open_url=self.show, timeout=60.0)

    async def show(self, url: str) -> None:
        await self.browser.go(url)
        self.shown.put_nowait(url)

    async def answer(self, button: str, user: str = "alice") -> None:
        """Check the consent page, press a button, and check the last page."""
        asked = parse_qs(urlsplit(await self.shown.get()).query)
        back = urlsplit(asked["redirect_uri"][0])
        assert await self.browser.text("//*[@id='client']") == "Desk <b>"
        assert await self.browser.text("//*[@id='host']") == back.netloc
        assert await self.browser.text("//*[@id='scopes']") == "read"
        await self.browser.write("//input[@name='user']", user)
        await self.browser.click(f"//button[.='{button}']")
        assert await self.browser.text(LAST) == "You can close this window and return to the program."
        here = urlsplit(await self.browser.ask("GET", "/url"))
        assert (here.netloc, here.path) == (back.netloc, back.path)
        assert parse_qs(here.query)["state"] == asked["state"]


@pytest.mark.requirement("AS-10")
def test_a_person_allows_it_in_chromium(tmp_path):
    async def visit() -> None:
        async with (
            asyncio.timeout(PATIENCE),
            AuthorizationServer.serve(consent=True) as login,
            place(login) as url,
            browsing(tmp_path) as browser,
            asyncio.TaskGroup() as group,
        ):
            user = BrowserUser(browser)
            person = group.create_task(user.answer("Allow", "bob"))
            async with Client(url, auth=user.auth) as mcp:
                who = await mcp.call_tool("whoami", result_type=dict[str, Any])
                assert (who.data["subject"], who.data["scopes"]) == ("bob", ["read"])
                await person
            assert (login.request_counts["token"], user.shown.qsize()) == (1, 0)

    asyncio.run(visit())


def test_a_person_denies_it_in_chromium_and_may_think_again(tmp_path):
    async def visit() -> None:
        async with (
            asyncio.timeout(PATIENCE),
            AuthorizationServer.serve(consent=True) as login,
            place(login) as url,
            browsing(tmp_path) as browser,
            asyncio.TaskGroup() as group,
        ):
            user = BrowserUser(browser)
            person = group.create_task(user.answer("Deny"))
            with pytest.raises(AuthorizationRequired, match="declined"):
                await Client(url, auth=user.auth).connect()
            await person
            assert login.request_counts["token"] == 0
            person = group.create_task(user.answer("Allow"))
            async with Client(url, auth=user.auth) as mcp:
                assert (await mcp.call_tool("whoami", result_type=dict[str, Any])).data["subject"] == "alice"
                await person

    asyncio.run(visit())
