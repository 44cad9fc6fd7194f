"""A headless Chromium, controlled by the WebDriver protocol.

Each browser is new, has its own profile and reaches only this machine. No process outlives the context, and
all files are in the given folder.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from chromium import CHROMIUM, DRIVER
from waiting import until

__all__ = ["Browser", "browsing"]

PATIENCE = 60
"""Seconds for each action: the browser starts slowly on a busy machine."""

FLAGS = [
    "--headless",
    "--no-sandbox",  # root cannot use the sandbox, and every page is ours
    "--disable-gpu",
    "--disable-dev-shm-usage",  # small in containers
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element id, defined by the protocol."""


class Browser:
    """A controlled browser window, created by `browsing`."""

    def __init__(self, http: aiohttp.ClientSession, session: str = "/session") -> None:
        self._http = http
        self._session = session

    async def ask(self, method: str, path: str, said: Any = None) -> Any:
        """Return the response of the driver to a command."""
        async with self._http.request(method, f"{self._session}{path}", json=said) as response:
            value = (await response.json())["value"]
            assert response.status == 200, value
            return value

    async def begin(self, folder: Path) -> "Browser":
        """Open a session with a browser."""
        options = {
            "binary": shutil.which(CHROMIUM),
            "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"],
        }
        wanted = {"goog:chromeOptions": options, "timeouts": {"implicit": PATIENCE * 1000}}
        made = await self.ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        return Browser(self._http, f"/session/{made['sessionId']}")

    async def go(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        await self.ask("POST", "/url", {"url": url})

    async def find(self, xpath: str) -> str:
        """Return an element as soon as it exists."""
        found = await self.ask("POST", "/element", {"using": "xpath", "value": xpath})
        return f"/element/{found[ELEMENT]}"

    async def text(self, xpath: str) -> str:
        """Return the text of an element."""
        return await self.ask("GET", f"{await self.find(xpath)}/text")

    async def click(self, xpath: str) -> None:
        await self.ask("POST", f"{await self.find(xpath)}/click", {})

    async def write(self, xpath: str, text: str) -> None:
        """Replace the text of a field."""
        field = await self.find(xpath)
        await self.ask("POST", f"{field}/clear", {})
        await self.ask("POST", f"{field}/value", {"text": text})


@asynccontextmanager
async def browsing(folder: Path) -> AsyncGenerator[Browser]:
    """Run a browser.

    Args:
        folder: an empty folder for all its files.
    """
    # The path of its temporary socket must be shorter than that of a test's folder.
    with TemporaryDirectory(prefix="toolpost", dir="/tmp") as short:
        places = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(folder))
        async with (
            _driver({**os.environ, **places, "TMPDIR": short}, folder) as address,
            aiohttp.ClientSession(address, timeout=aiohttp.ClientTimeout(PATIENCE)) as http,
        ):
            browser = await Browser(http).begin(folder)
            yield browser
            # Not after a failure: it would wait for the pending command.
            await browser.ask("DELETE", "")
            await until(lambda: not _processes(folder))


@asynccontextmanager
async def _driver(environment: dict[str, str], folder: Path) -> AsyncGenerator[str]:
    """Run a driver; yield its address. Ends the driver and the browser."""
    program = shutil.which(DRIVER)
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program, "--port=0", stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        yield await _address(process)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        # After a failure the browser still runs, and holds the other end of the pipe.
        ended = asyncio.ensure_future(process.communicate())
        await until(lambda: not _killed(folder) and ended.done())


async def _address(process: asyncio.subprocess.Process) -> str:
    """Read the address of the driver from its output."""
    assert process.stdout is not None
    async for line in process.stdout:
        _, found, port = line.decode().partition("started successfully on port ")
        if found:
            return f"http://127.0.0.1:{int(port.strip().rstrip('.'))}"
    raise AssertionError("the driver ends before it listens")


def _processes(folder: Path) -> list[int]:
    """Return the processes of the browser: their command lines contain its folder."""
    numbers: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended already
            if os.fsencode(folder) in path.read_bytes():
                numbers.append(int(path.parent.name))
    return numbers


def _killed(folder: Path) -> list[int]:
    """Kill the processes of the browser, and return their ids."""
    numbers = _processes(folder)
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return numbers
