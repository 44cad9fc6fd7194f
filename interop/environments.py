"""The environments of peers: a virtual environment or a Node folder each, created once.

`<peer>.txt` for pip and `<peer>.json` for npm, here and in `bench`, list their packages. Packages come from
the registries that pip and npm are configured with. As a script, it creates the environments of the peers in
its arguments.
"""

import asyncio
import hashlib
import os
import shutil
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

__all__ = ["HERE", "HOME", "INSTALLED", "NODE", "ROOT", "Broken", "prepare", "python_of"]

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
HOME: Final = ROOT / ".cache" / "interop"
NODE: Final = HOME / "node" / "bin" / "node"
DESCRIPTIONS: Final = (HERE, ROOT / "bench")
SCRIPTS: Final = (HERE / "peers", ROOT / "bench" / "targets")

INSTALLED: Final = "toolpost"
"""Not a peer: an empty environment with this repository installed, as a user would have it."""


class Broken(Exception):
    """An environment could not be created; the message is the installer's output."""


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment."""
    return HOME / peer / "bin" / "python"


async def prepare(peers: list[str]) -> dict[str, str]:
    """Create missing environments. Returns peer → reason of its failure."""
    kinds = {peer: peer == INSTALLED or _wanted(peer, "txt").is_file() for peer in peers}
    names = [peer for peer in peers if kinds[peer]]
    if not all(kinds.values()):
        names.append("node")
    broken = await _all({name: _installed() if name == INSTALLED else _python(name) for name in names})
    if "node" in broken:
        return broken | {peer: broken["node"] for peer in peers if not kinds[peer]}
    return broken | await _all({peer: _npm(peer) for peer in peers if not kinds[peer]})


def _wanted(name: str, kind: str) -> Path:
    """Return the file that lists the packages of an environment, or its expected path."""
    places = [folder / f"{name}.{kind}" for folder in DESCRIPTIONS]
    return next((place for place in places if place.is_file()), places[0])


async def _all(jobs: dict[str, Awaitable[None]]) -> dict[str, str]:
    results = await asyncio.gather(*jobs.values(), return_exceptions=True)
    return {name: str(result) for name, result in zip(jobs, results, strict=True) if result is not None}


async def _python(name: str) -> None:
    wanted = _wanted(name, "txt")
    await _venv(name, [wanted], "-r", str(wanted))


async def _installed() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    await _venv(INSTALLED, [ROOT / "pyproject.toml", *sources], str(ROOT))


async def _venv(name: str, made_of: list[Path], *wanted: str) -> None:
    if _is_current(name, made_of):
        return
    await _run(sys.executable, "-m", "venv", str(_emptied(name)))
    await _run(str(python_of(name)), "-m", "pip", "install", "--quiet", *wanted)
    _stamp(name, made_of)


async def _npm(name: str) -> None:
    wanted = _wanted(name, "json")
    if not _is_current(name, [wanted]):
        folder = _emptied(name)
        folder.mkdir(parents=True)
        shutil.copy(wanted, folder / "package.json")
        quiet = ("--no-audit", "--no-fund", "--loglevel=error")
        npm = str(NODE.with_name("npm"))
        await _run(npm, "install", "--ignore-scripts", "--no-package-lock", *quiet, at=folder)
        _stamp(name, [wanted])
    # Node looks for packages where a script is, not where it is started.
    for script in (script for folder in SCRIPTS for script in folder.glob("*.mjs")):
        shutil.copy(script, HOME / name / script.name)


def _emptied(name: str) -> Path:
    folder = HOME / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _digest(made_of: list[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in made_of)).hexdigest()


def _is_current(name: str, made_of: list[Path]) -> bool:
    stamp = HOME / name / ".ready"
    return stamp.is_file() and stamp.read_text() == _digest(made_of)


def _stamp(name: str, made_of: list[Path]) -> None:
    (HOME / name / ".ready").write_text(_digest(made_of))


async def _run(*command: str, at: Path | None = None) -> None:
    path = f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=at,
        env={**os.environ, "PATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise Broken(f"{Path(command[0]).name} failed: {output.decode(errors='replace')[-800:]}")


if __name__ == "__main__":
    sys.exit("\n".join(f"{peer}: {why}" for peer, why in asyncio.run(prepare(sys.argv[1:])).items()) or 0)
