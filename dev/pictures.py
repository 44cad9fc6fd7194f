"""Screenshots of the command line for the README and the site, drawn by Chromium.

Run by `make pictures`. Runs the real commands on a pseudo-terminal and keeps their colours. Nothing in a
picture is written by hand.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pexpect
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from chromium import CHROMIUM, absence

HOME: Final = Path(__file__).resolve().parents[1]
PLACE: Final = HOME / "docs" / "pictures"
COLUMNS: Final = 96
LINE: Final = 20
"""Pixels of a line of text."""

WIDTH: Final = 880

PAGE: Final = """<!doctype html><meta charset="utf-8"><body style="margin:0;background:#16181d">
<pre style="margin:0;padding:14px 20px;font:14px/{line}px monospace;color:#d7dae0">{code}</pre>
"""

TAPPED: Final = """
import asyncio, sys
from toolpost import Client, Stdio, ToolError

async def main():
    words = ["-m", "toolpost", "tap", "--", sys.executable, "-m", "toolpost", "run", "examples/weather.py"]
    async with Client(Stdio(sys.executable, words, stderr="inherit")) as mcp:
        await mcp.list_tools()
        await mcp.call_tool("forecast", {"city": "Oslo", "days": 2})
        try:
            await mcp.call_tool("forecast", {"city": "Atlantis"})
        except ToolError:
            pass

asyncio.run(main())
"""
"""A host with a tap between itself and its server."""

SHOWN: Final[dict[str, tuple[str, list[str]]]] = {
    "doctor": (
        "toolpost doctor examples/weather.py",
        ["-m", "toolpost", "doctor", "examples/weather.py"],
    ),
    "tap": ("toolpost tap -- toolpost run examples/weather.py", ["-c", TAPPED]),
}
"""Picture → the command line to show, and the command to run."""


def main() -> int:
    """Draw the pictures and return the exit code."""
    missing = absence()
    if missing:
        print(missing, file=sys.stderr)
        return 1
    PLACE.mkdir(exist_ok=True)
    for name, (typed, words) in SHOWN.items():
        _draw(Text.from_ansi(f"\x1b[1m$ {typed}\x1b[0m\n{_run(words)}".rstrip()), PLACE / f"{name}.png")
        print((PLACE / f"{name}.png").relative_to(HOME))
    return 0


def _run(words: list[str]) -> str:
    """Return the terminal output of a command."""
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    run: Any = getattr(pexpect, "run")  # noqa: B009 - pexpect has no types
    output, status = run(
        f"{sys.executable} {_quoted(words)}",
        withexitstatus=True,
        cwd=str(HOME),
        env=env,
        timeout=60,
        dimensions=(50, COLUMNS),
    )
    text: str = output.decode().replace("\r\n", "\n")
    if status:
        raise SystemExit(f"{words} ended with {status}:\n{text}")
    return text


def _quoted(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _draw(text: Text, picture: Path) -> None:
    console = Console(width=COLUMNS, record=True, file=StringIO(), force_terminal=True)
    console.print(text, soft_wrap=False, end="")
    lines = 1 + console.export_text(clear=False).count("\n")
    page = console.export_html(
        inline_styles=True, code_format=PAGE.replace("{line}", str(LINE)), theme=MONOKAI
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        subprocess.run(
            [
                shutil.which(CHROMIUM) or CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--no-first-run",
                "--hide-scrollbars",
                "--force-device-scale-factor=2",
                f"--user-data-dir={folder}/profile",
                f"--window-size={WIDTH},{lines * LINE + 28}",
                f"--screenshot={picture}",
                file.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )


if __name__ == "__main__":
    sys.exit(main())
