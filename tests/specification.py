"""Where the specification lies, and how it names its rules.

Schemas, example messages and REQUIREMENTS.md are data of their own, kept beside the repository and not in it.
This module finds them and reads the ids of the rules; it knows nothing of tests and of what they prove.
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
    """The folder of the specification, whether it is there or not."""
    place = os.environ.get(PLACE)
    return Path(place) if place else _BESIDE


def absence() -> str | None:
    """What is missing and what to do about it; None when the specification is there."""
    rulebook = folder() / "REQUIREMENTS.md"
    if rulebook.is_file():
        return None
    return f"the specification is missing: there is no {rulebook}; set {PLACE} to the folder that has it"


def demanded() -> bool:
    """Return whether a missing specification is a failure: in CI, and where its place was given."""
    return os.environ.get("CI") == "true" or bool(os.environ.get(PLACE))


def rules() -> dict[str, list[str]]:
    """The ids of all rules by section, both in the order of REQUIREMENTS.md."""
    sections: dict[str, list[str]] = {}
    for line in (folder() / "REQUIREMENTS.md").read_text(encoding="utf-8").splitlines():
        if row := _ROW.match(line):
            sections.setdefault(row[1], []).append(f"{row[1]}-{row[2]}")
    return sections
