"""Finds the specification, and reads the ids of its rules.

Schemas, example messages and REQUIREMENTS.md are in a folder next to the repository. Independent of tests and
of the rules that they prove.
"""

import os
import re
from pathlib import Path

__all__ = ["PLACE", "absence", "demanded", "folder", "rules"]

PLACE = "TOOLPOST_SPEC"
"""The environment variable that names the folder."""

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "spec"
_ROW = re.compile(r"\| ([A-Z]+)-(\d+) \|")


def folder() -> Path:
    """Return the folder of the specification, which may not exist."""
    place = os.environ.get(PLACE)
    return Path(place) if place else _BESIDE


def absence() -> str | None:
    """Return a message about a missing specification, or None."""
    rulebook = folder() / "REQUIREMENTS.md"
    if rulebook.is_file():
        return None
    return f"the specification is missing: there is no {rulebook}; set {PLACE} to the folder that has it"


def demanded() -> bool:
    """Return whether a missing specification is a failure: in CI, or if its folder is configured."""
    return os.environ.get("CI") == "true" or bool(os.environ.get(PLACE))


def rules() -> dict[str, list[str]]:
    """Return the ids of all rules by section, in the order of REQUIREMENTS.md."""
    sections: dict[str, list[str]] = {}
    for line in (folder() / "REQUIREMENTS.md").read_text(encoding="utf-8").splitlines():
        if row := _ROW.match(line):
            sections.setdefault(row[1], []).append(f"{row[1]}-{row[2]}")
    return sections
