"""`make run` for a new user: a fresh copy, an empty home, and a PATH with Python and make.

Checks its output, runs the commands that it prints, calls it with the official client, and stops it by
Ctrl-C.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

import external_programs
from tree import Tree

HANDED_ON = re.compile(r"(?i)pip_|ssl_cert_|requests_ca_bundle|(?:https?|all|no)_proxy")
"""The variables that a new user needs to install packages."""

OFFICIAL = """
import asyncio, sys
from mcp import Client

async def main():
    async with Client(sys.argv[1]) as mcp:
        names = [tool.name for tool in (await mcp.list_tools()).tools]
        told = await mcp.call_tool("forecast", {"city": "Oslo", "days": 1})
        print(names, told.structured_content["days"])

asyncio.run(main())
"""

TRANSCRIPT = """\
weather 1.0 at URL, revision 2026-07-28

cities: List the cities that have a forecast.
  > {}
  < ["Bergen", "Cairo", "Oslo", "Quito"]
forecast: Return the forecast for the next days.
  > {"city": "Oslo", "days": 3}
  < {"city": "Oslo", "unit": "celsius", "days": [{"day": 1, "sky": "snow", "high": -2}, \
{"day": 2, "sky": "clouds", "high": 1}, {"day": 3, "sky": "snow", "high": -4}]}
warmest: Return the warmest city on a day.
  > {"day": 2}
  | info: {"highs": {"Bergen": 8, "Cairo": 33, "Oslo": 1, "Quito": 17}}
  < "Cairo"
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A fresh copy of the repository, without anything that was made in it."""
    folder = tmp_path / "toolpost"
    for file in Tree(external_programs.ROOT).files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
    return folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a new user."""
    tools, home = tmp_path / "bin", tmp_path / "home"
    tools.mkdir()
    home.mkdir()
    make = shutil.which("make")
    if make is None:
        external_programs.excused("make is not installed", "install it by the system's packages")
    (tools / "make").symlink_to(str(make))
    (tools / "python3").symlink_to(Path(sys.executable).resolve())
    handed_on = {name: value for name, value in os.environ.items() if HANDED_ON.match(name)}
    path = os.pathsep.join([str(tools), "/usr/bin", "/bin"])
    return {**handed_on, "PATH": path, "HOME": str(home), "TMPDIR": str(tmp_path), "LANG": "C.UTF-8"}


@pytest.fixture
def shown(copy: Path, env: dict[str, str]) -> Iterator[pexpect.spawn]:
    """`make run` on a terminal, up to its last line."""
    terminal = (200, 400)  # no line is broken
    make = pexpect.spawn(
        "make", ["run", "PORT=0"], cwd=copy, env=env, encoding="utf-8", timeout=240, dimensions=terminal
    )
    try:
        if make.expect_exact(["Press Ctrl-C to stop.", pexpect.EOF]) == 1:
            if not (copy / ".venv" / "bin" / "toolpost").is_file():
                external_programs.excused(
                    f"no environment could be made: {(make.before or '')[-400:]}", "make run"
                )
            pytest.fail(f"make run has ended:\n{make.before}")
        yield make
    finally:
        make.close(force=True)


@pytest.mark.timeout(600)
def test_make_run_works_as_described(shown, copy, env):
    told = (shown.before or "").replace("\r\n", "\n")
    url = re.search(r"http://127\.0\.0\.1:\d+/mcp", told)
    assert url is not None
    assert TRANSCRIPT.replace("URL", url[0]) in told
    for way in ("Streamable HTTP, no session", "Streamable HTTP, session", "HTTP+SSE", "stdio"):
        assert re.search(rf"^  {re.escape(way)} +\d\S+   Cairo   \S", told, re.MULTILINE), told
    entry = re.search(r"^{\n.*?^}", told, re.MULTILINE | re.DOTALL)
    assert entry is not None
    assert json.loads(entry[0]) == {"mcpServers": {"weather": {"type": "http", "url": url[0]}}}
    for line in re.findall(r"^  (\S+toolpost (?!run).*)$", told, re.MULTILINE):
        done = subprocess.run(line.split(), cwd=copy, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    command = [external_programs.python_with("mcp-2.3.0"), "-W", "ignore", "-c", OFFICIAL, url[0]]
    official = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "'forecast'" in official
    assert "{'day': 1, 'sky': 'snow', 'high': -2}" in official
    shown.sendintr()
    shown.expect(pexpect.EOF)
    assert "Stopped." in (shown.before or "")
    assert "Traceback" not in (shown.before or "")
    shown.close()
    assert (shown.exitstatus, shown.signalstatus) in {(0, None), (130, None), (None, 2)}
