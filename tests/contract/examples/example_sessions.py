"""The examples as separate processes, called by our client in each way that a host could use.

Over stdio an example is started as `python examples/x.py`, over HTTP by `toolpost run`.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from revision_dates import DATES
from toolpost import Client

__all__ = ["EXAMPLES", "REVISIONS", "ROOT", "WAYS", "serving", "started", "tour"]

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
WAYS = ("stdio", "http")
REVISIONS = (DATES[0], DATES[-2], DATES[-1])
PATIENCE = 40.0

Visit = Callable[[Client], Awaitable[None]]


def tour(example: str, way: str, visit: Visit, **options: Any) -> None:
    """Visit an example in the oldest revision, in the last one with sessions, and in the newest."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            if way == "stdio":
                await _visited([sys.executable, str(EXAMPLES / example)], REVISIONS, visit, options)
                return
            async with serving(example) as url:
                old = {"type": "sse", "url": url.replace("/mcp", "/sse")}
                await _visited(old, REVISIONS[:1], visit, options)
                await _visited(url, REVISIONS[1:], visit, options)

    asyncio.run(main())


async def _visited(target: Any, revisions: tuple[str, ...], visit: Visit, options: dict[str, Any]) -> None:
    for revision in revisions:
        async with Client(target, revision=revision, **options) as mcp:
            assert mcp.revision == revision
            await visit(mcp)


@asynccontextmanager
async def serving(example: str) -> AsyncGenerator[str]:
    """The URL of an example that is served over HTTP."""
    words = ["-m", "toolpost", "run", str(EXAMPLES / example), "--http", "127.0.0.1:0"]
    async with started(words, "serves MCP at") as line:
        yield line.partition(" at ")[2].split()[0]


@asynccontextmanager
async def started(words: list[str], sign: str) -> AsyncGenerator[str]:
    """A Python process, and the line on stderr that it prints when it is ready."""
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    told: list[str] = []
    try:
        while not told or sign not in told[-1]:
            told.append((await process.stderr.readline()).decode())
            assert told[-1], f"it has ended: {''.join(told)}"
        yield told[-1]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
