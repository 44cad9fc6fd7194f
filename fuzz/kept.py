"""The inputs in the repository: seeds of the targets, and inputs of past crashes."""

from pathlib import Path
from typing import Final

__all__ = ["CORPUS", "CRASHES", "FOUND", "crashes", "inputs"]

_HERE: Final = Path(__file__).resolve().parent
CORPUS: Final = _HERE / "corpus"
"""Seeds, one folder per target: examples of the specification, and edge cases."""
CRASHES: Final = _HERE / "crashes"
"""Inputs of past crashes, one folder per target. The tests replay them; never delete them."""
FOUND: Final = _HERE.parent / ".cache" / "fuzz"
"""Local inputs and logs of `make fuzz`."""


def inputs(name: str) -> list[bytes]:
    """Return the seeds of a target, in a fixed order."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def crashes(name: str) -> list[Path]:
    """Return the inputs of past crashes of a target."""
    return sorted((CRASHES / name).glob("*"))
