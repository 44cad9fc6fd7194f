"""The examples for HTTP work as described: a server of its own, and mounted in another application."""

import asyncio
import runpy
from pathlib import Path

import pytest

from revision_dates import DATES
from toolpost import Client

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("revision", DATES[1:])
@pytest.mark.parametrize("example", ["mounted.py"])
def test_a_mounted_server_is_called_below_its_mount(example, revision):
    app = runpy.run_path(str(EXAMPLES / example))["app"]

    async def main():
        async with Client("http://127.0.0.1/api/mcp", http=app, revision=revision) as mcp:
            result = await mcp.call_tool("forecast", {"city": "Oslo"})
            assert (mcp.revision, result.text) == (revision, "Sunshine in Oslo")

    asyncio.run(main())


@pytest.mark.parametrize("example", ["mounted.py"])
def test_the_old_transport_is_mounted_with_it(example):
    app = runpy.run_path(str(EXAMPLES / example))["app"]

    async def main():
        entry = {"url": "http://127.0.0.1/api/sse", "type": "sse"}
        async with Client(entry, http=app) as mcp:
            assert (await mcp.call_tool("forecast", {"city": "Oslo"})).text == "Sunshine in Oslo"

    asyncio.run(main())


def test_the_example_of_the_readme_serves():
    server = runpy.run_path(str(EXAMPLES / "web.py"))["server"]

    async def main():
        async with Client("http://127.0.0.1:8000/mcp", http=server.asgi()) as mcp:
            assert (await mcp.call_tool("forecast", {"city": "Oslo"})).text == "Sunshine in Oslo"

    asyncio.run(main())
