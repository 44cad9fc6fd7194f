"""The page of `examples/clock.py` in a host of another project, in Chromium."""

import asyncio
import functools
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest
from example_sessions import EXAMPLES, started

import chromium
import external_programs
from webdriver import ELEMENT, Browser, browsing

pytestmark = pytest.mark.timeout(400)  # the first of them may have to install the host

PATIENCE = 100
PAGE = '<!doctype html><meta charset="utf-8"><p id="report"></p><script type="module" src="host.js"></script>'
TIME = re.compile(r"\d\d:\d\d:\d\d UTC\+2")


@pytest.fixture(autouse=True)
def _chromium() -> None:
    absence = chromium.absence()
    if absence is not None:
        external_programs.excused(absence, "make test")


class _QuietRequest(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has
        pass


@contextmanager
def folder_served(folder: Path) -> Generator[str]:
    """The URL of the files in a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_QuietRequest, directory=folder)) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{site.server_port}"
        finally:
            site.shutdown()
            thread.join()


async def enter_frame(browser: Browser) -> None:
    frame = (await browser.find("//iframe")).removeprefix("/element/")
    await browser.ask("POST", "/frame", {"id": {ELEMENT: frame}})


def test_the_host_of_ext_apps_shows_the_page_and_calls_tools_for_it(tmp_path):
    site, profile = tmp_path / "site", tmp_path / "browser"
    site.mkdir()
    profile.mkdir()
    (site / "index.html").write_text(PAGE)
    external_programs.apps_host(site / "host.js")
    words = ["-m", "toolpost", "run", str(EXAMPLES / "clock.py"), "--http", "127.0.0.1:0", "--cors"]

    async def visit(origin: str) -> None:
        async with (
            asyncio.timeout(PATIENCE),
            started([*words, "--allowed-origin", origin], "serves MCP at") as line,
            browsing(profile) as browser,
        ):
            [url] = re.findall(r"serves MCP at (\S+)", line)
            query = {"mcp": url, "tool": "time_now", "arguments": '{"offset": 2}'}
            await browser.go(f"{origin}/?{urlencode(query)}")
            assert await browser.text("//p[text()]") == "shown: ui://clock/app.html"
            await enter_frame(browser)
            assert TIME.fullmatch(await browser.text("//p[contains(., 'UTC')]"))
            await browser.click("//button[.='Again']")
            assert "UTC+2" in await browser.text("//p[contains(., 'UTC') and contains(., '.')]")

    with folder_served(site) as origin:
        asyncio.run(visit(origin))
