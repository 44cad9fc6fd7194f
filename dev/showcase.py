"""What `make run` shows: the weather example, served on loopback and tried by a client of ours.

`toolpost run` serves it; every tool is called once, every transport is used, and what was said is printed.
Then it serves until Ctrl-C. Knows nothing of the example but arguments that are good for its tools.
"""

import argparse
import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any, Final

from toolpost import Client, MCPError
from toolpost.protocol.methods import DATES
from toolpost.types import LogParams

EXAMPLE: Final = Path(__file__).resolve().parents[1] / "examples" / "weather.py"
RUN: Final = (sys.executable, "-m", "toolpost", "run", str(EXAMPLE))
READY: Final = "serves MCP at"

CALLS: Final[dict[str, dict[str, Any]]] = {
    "cities": {},
    "forecast": {"city": "Oslo", "days": 3},
    "warmest": {"day": 2},
}
"""What each tool is called with."""

COMMANDS: Final = ("list {url}", "call {url} forecast --city Oslo --days 3", "doctor {url}")


class _Trouble(Exception):
    """It cannot be shown; the text says why."""


def main() -> int:
    """What the process returns."""
    parser = argparse.ArgumentParser(description="Serve the weather example on loopback, and try it.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes one that is free (default: 8000)")
    port: int = parser.parse_args().port
    if not 0 <= port < 65536:
        parser.error(f"{port} is no port: it is a number up to 65535")
    try:
        asyncio.run(_show(port))
    except (MCPError, _Trouble) as error:
        print(error, file=sys.stderr)
        return 1
    except asyncio.CancelledError:  # Ctrl-C again, while it ends
        return 130
    _say("\nIt has ended.")
    return 0


async def _show(port: int) -> None:
    """Serve, try what is served, tell how to use it, and go on until a signal comes."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    process = await asyncio.create_subprocess_exec(*RUN, "--http", f"127.0.0.1:{port}", stderr=PIPE)
    ready: asyncio.Future[str] = asyncio.Future()
    serving = asyncio.create_task(_served(process, ready))
    try:
        await asyncio.wait({ready, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise _Trouble(f"If another program has the port, choose one: make run PORT={port + 1}")
        await _tried(ready.result())
        await asyncio.wait({serving})  # which a signal does not cancel
        raise _Trouble("The server has ended by itself.")
    except asyncio.CancelledError:
        pass  # a signal: this is how it ends
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait({serving})


async def _served(process: Process, ready: asyncio.Future[str]) -> None:
    """Hand on what the server complains about, until it has ended; its URL is for whoever waits for it."""
    assert process.stderr is not None
    async for line in process.stderr:
        text = line.decode(errors="replace")
        if READY in text and not ready.done():
            ready.set_result(text.split()[-1])
        else:
            sys.stderr.write(text)
    await process.wait()


# --------------------------------------------------------------------- the transcript


async def _tried(url: str) -> None:
    """Call every tool, use every transport, and tell what a person may do next."""
    async with Client(url, on_log=_logged) as mcp:
        assert mcp.server_info is not None
        _say(f"{mcp.server_info.name} {mcp.server_info.version} at {url}, revision {mcp.revision}\n")
        for tool in await mcp.list_tools():
            _say(f"{tool.name}: {tool.description}")
            _say(f"  > {json.dumps(CALLS[tool.name])}")
            result = await mcp.call_tool(tool.name, CALLS[tool.name])
            _say(f"  < {json.dumps(result.data)}")
    old = f"{url.removesuffix('/mcp')}/sse"
    _say("\nThe same, over every transport:")
    await _asked("Streamable HTTP, no session", url, DATES[-1], url)
    await _asked("Streamable HTTP, session", url, DATES[-2], url)
    await _asked("HTTP+SSE", {"type": "sse", "url": old}, DATES[0], old)
    await _asked("stdio", list(RUN), DATES[-1], f"{_toolpost()} run {_shown(EXAMPLE)}")
    entry = {"mcpServers": {"weather": {"type": "http", "url": url}}}
    _say(f"\nIt serves now. The entry for an mcp.json:\n\n{json.dumps(entry, indent=2)}\n")
    _say("To try, in another terminal:\n")
    for words in COMMANDS:
        _say(f"  {_toolpost()} {words.format(url=url)}")
    _say("\nCtrl-C ends it.")


async def _asked(way: str, target: Any, revision: str, where: str) -> None:
    """Call one tool in one revision, and tell what it said."""
    async with Client(target, revision=revision) as mcp:
        said = (await mcp.call_tool("warmest")).text
        _say(f"  {way:<29}{mcp.revision}   {said}   {where}")


async def _logged(line: LogParams) -> None:
    _say(f"  | {line.level}: {json.dumps(line.data)}")


def _toolpost() -> str:
    """The command as one has to write it here: the environment may not be active."""
    return _shown(Path(sys.executable).with_name("toolpost"))


def _shown(path: Path) -> str:
    """A path as one would write it in this folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _say(text: str) -> None:
    print(text, flush=True)  # who reads it from a pipe gets it at once


if __name__ == "__main__":
    sys.exit(main())
