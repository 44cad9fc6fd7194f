"""The inputs that are kept in the repository: what a target starts from, and what once broke it."""

from pathlib import Path
from typing import Final

__all__ = ["CORPUS", "CRASHES", "FOUND", "crashes", "inputs"]

_HERE: Final = Path(__file__).resolve().parent
CORPUS: Final = _HERE / "corpus"
"""Inputs to start from, a folder a target: examples of the specification, and nasties."""
CRASHES: Final = _HERE / "crashes"
"""Inputs that broke a target, a folder a target. They stay for ever, and the tests replay them."""
FOUND: Final = _HERE.parent / ".cache" / "fuzz"
"""What `make fuzz` found interesting on this machine, and its logs."""


def inputs(name: str) -> list[bytes]:
    """What a target starts from, always in the same order."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def crashes(name: str) -> list[Path]:
    """What once broke a target."""
    return sorted((CRASHES / name).glob("*"))
