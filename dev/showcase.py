"""`make run`: serves the weather example on loopback and calls it with our client.

Runs `toolpost run`, calls every tool once, uses every transport, and prints the messages. Then serves until
Ctrl-C. The only knowledge about the example are arguments for its tools.
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
READY: Final = "MCP at"

CALLS: Final[dict[str, dict[str, Any]]] = {
    "cities": {},
    "forecast": {"city": "Oslo", "days": 3},
    "warmest": {"day": 2},
}
"""Tool → its arguments."""

COMMANDS: Final = ("list {url}", "call {url} forecast --city Oslo --days 3", "doctor {url}")


class _ShowcaseError(Exception):
    """The showcase failed; the message gives the reason."""


def main() -> int:
    """Run the showcase and return the exit code."""
    parser = argparse.ArgumentParser(description="Serve the weather example on loopback and call its tools.")
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on; 0 picks a free port (default: 8000)"
    )
    port: int = parser.parse_args().port
    if not 0 <= port < 65536:
        parser.error(f"invalid port {port}: use 0 to 65535")
    try:
        asyncio.run(_show(port))
    except (MCPError, _ShowcaseError) as error:
        print(error, file=sys.stderr)
        return 1
    except asyncio.CancelledError:  # Ctrl-C again during shutdown
        return 130
    _print("\nStopped.")
    return 0


async def _show(port: int) -> None:
    """Start the server, call it, print how to use it, and wait for a signal."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    process = await asyncio.create_subprocess_exec(*RUN, "--http", f"127.0.0.1:{port}", stderr=PIPE)
    ready: asyncio.Future[str] = asyncio.Future()
    serving = asyncio.create_task(_forward_stderr(process, ready))
    try:
        await asyncio.wait({ready, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise _ShowcaseError(
                f"If another program uses the port, choose another: make run PORT={port + 1}"
            )
        await _call_server(ready.result())
        await asyncio.wait({serving})  # a signal does not cancel it
        raise _ShowcaseError("The server stopped unexpectedly.")
    except asyncio.CancelledError:
        pass  # a signal: the normal end
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait({serving})


async def _forward_stderr(process: Process, ready: asyncio.Future[str]) -> None:
    """Forward the stderr of the server until it ends. `ready` gets its URL."""
    assert process.stderr is not None
    async for line in process.stderr:
        text = line.decode(errors="replace")
        if READY in text and not ready.done():
            ready.set_result(text.partition(" at ")[2].split()[0])
        else:
            sys.stderr.write(text)
    await process.wait()


# --------------------------------------------------------------------- the transcript


async def _call_server(url: str) -> None:
    """Call every tool, use every transport, and print the next steps."""
    async with Client(url, on_log=_print_log) as mcp:
        assert mcp.server_info is not None
        _print(f"{mcp.server_info.name} {mcp.server_info.version} at {url}, revision {mcp.revision}\n")
        for tool in await mcp.list_tools():
            _print(f"{tool.name}: {tool.description}")
            _print(f"  > {json.dumps(CALLS[tool.name])}")
            result = await mcp.call_tool(tool.name, CALLS[tool.name])
            _print(f"  < {json.dumps(result.data)}")
    old = f"{url.removesuffix('/mcp')}/sse"
    _print("\nThe same call over every transport:")
    await _call_over("Streamable HTTP, no session", url, DATES[-1], url)
    await _call_over("Streamable HTTP, session", url, DATES[-2], url)
    await _call_over("HTTP+SSE", {"type": "sse", "url": old}, DATES[0], old)
    await _call_over("stdio", list(RUN), DATES[-1], f"{_toolpost()} run {_relative(EXAMPLE)}")
    entry = {"mcpServers": {"weather": {"type": "http", "url": url}}}
    _print(f"\nServer is running. Entry for an mcp.json:\n\n{json.dumps(entry, indent=2)}\n")
    _print("Try it in another terminal:\n")
    for words in COMMANDS:
        _print(f"  {_toolpost()} {words.format(url=url)}")
    _print("\nPress Ctrl-C to stop.")


async def _call_over(transport: str, target: Any, revision: str, address: str) -> None:
    """Call one tool in one revision, and print the result."""
    async with Client(target, revision=revision) as mcp:
        text = (await mcp.call_tool("warmest")).text
        _print(f"  {transport:<29}{mcp.revision}   {text}   {address}")


async def _print_log(line: LogParams) -> None:
    _print(f"  | {line.level}: {json.dumps(line.data)}")


def _toolpost() -> str:
    """Return the command with its path: the environment may not be active."""
    return _relative(Path(sys.executable).with_name("toolpost"))


def _relative(path: Path) -> str:
    """Return a path relative to the current folder if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _print(text: str) -> None:
    print(text, flush=True)  # a pipe gets each line immediately


if __name__ == "__main__":
    sys.exit(main())
