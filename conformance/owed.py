"""The required checks of each scenario: those that have passed with some other implementation.

They are in `owed.json`, with the scenarios of the suite's two requirement sets.
`PYTHONPATH=interop python conformance/owed.py <anchor-checks.json>` regenerates that file from the anchors,
which are outside the repository, and from the suite, which it installs.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

__all__ = ["EXTENSION", "SETS", "SIDES", "WIRES", "Owed"]

FILE: Final = Path(__file__).with_name("owed.json")
SIDES: Final = ("server", "client")
WIRES: Final = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
SETS: Final = WIRES[-2:]
EXTENSION: Final = "extension"
"""The key of scenarios without a revision."""

FREE: Final = {
    # A server may respond to lists with JSON or event streams. Ours sends JSON, so the suite has no stream to
    # check. Another check covers concurrent responses.
    ("server", "2025-11-25", "server-sse-multiple-streams", "server-sse-streams-functional"): "INFO",
    # A client that detects metadata of another resource stops, and contacts no authorization server.
    ("client", "2026-07-28", "auth/resource-mismatch", "authorization-server-metadata"): "INFO",
    # A workload has no user: an anchor that asked one failed the scenario, but its other checks are listed.
    **{
        ("client", "extension", "auth/wif-jwt-bearer", check): "INFO"
        for check in (
            "authorization-request",
            "pkce-code-challenge-sent",
            "pkce-code-verifier-sent",
            "pkce-s256-method-used",
            "pkce-verifier-matches-challenge",
        )
    },
}
"""Optional checks, and their minimum status."""


class Owed:
    """The required checks of scenarios.

    Args:
        read: the content of `owed.json`.
    """

    def __init__(self, read: dict[str, Any]) -> None:
        self._checks: dict[str, dict[str, dict[str, dict[str, str]]]] = read["checks"]
        self._sets: dict[str, dict[str, list[str]]] = read["sets"]

    @classmethod
    def load(cls) -> "Owed":
        """Read the file."""
        return cls(json.loads(FILE.read_text()))

    def scenarios(self, side: str, wire: str) -> list[str]:
        """Return the scenarios of a side in a revision."""
        return list(self._checks[side][wire])

    def required(self, side: str, revision: str) -> list[str]:
        """Return the scenarios of a side in a requirement set, including informative ones."""
        return self._sets[revision][side]

    def checks(self, side: str, wire: str, scenario: str) -> dict[str, str]:
        """Return the required checks of a scenario, with their minimum status."""
        checks = self._checks[side]
        return checks[wire].get(scenario) or checks[EXTENSION].get(scenario, {})

    def is_extension(self, side: str, scenario: str) -> bool:
        """Return whether a scenario has no revision."""
        return scenario in self._checks[side][EXTENSION]


def _least(seen: dict[str, str]) -> str | None:
    """Return the minimum status from the results of other implementations; None if none passed."""
    statuses = set(seen.values())
    if "ok" in statuses:
        return "SUCCESS"
    return "SKIPPED" if statuses == {"skip"} else None


def collect(anchors: dict[str, Any]) -> dict[str, Any]:
    """Return the required checks from the observed ones."""
    owed: dict[str, Any] = {}
    for side in SIDES:
        for wire in (*WIRES, EXTENSION):
            for scenario, checks in anchors[side][wire].items():
                names = {
                    name: FREE.get((side, wire, scenario, name)) or _least(checks[name]) for name in checks
                }
                kept = {name: least for name, least in names.items() if least is not None}
                owed.setdefault(side, {}).setdefault(wire, {})[scenario] = kept
    return owed


async def _sets() -> dict[str, dict[str, list[str]]]:
    """Return the scenarios of the requirement sets from the suite."""
    from suite import install, sets  # noqa: PLC0415 - reading the file needs no suite

    await install()
    return {revision: await sets(revision) for revision in SETS}


def main(anchors: Path) -> None:
    """Write the file."""
    read = json.loads(anchors.read_text())
    written = {"suite": read["suite"], "sets": asyncio.run(_sets()), "checks": collect(read)}
    FILE.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
