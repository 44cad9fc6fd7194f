"""What each scenario owes: the ids of the checks that were seen to succeed with some other implementation.

They are in `owed.json`, beside the scenarios of the suite's two requirement sets. Run as
`PYTHONPATH=interop python conformance/owed.py <anchor-checks.json>`, it writes that file anew: from the
anchors, which lie outside of the repository, and from the suite, which it installs for that.
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
"""Where scenarios stand that belong to no revision."""

FREE: Final = {
    # Whether answers to lists are JSON or event streams is for the server to choose; ours are JSON, and then
    # the suite has no stream to look at. That several requests are answered at once is checked beside it.
    ("server", "2025-11-25", "server-sse-multiple-streams", "server-sse-streams-functional"): "INFO",
    # Whoever sees that the metadata is of another resource stops there, and asks no authorization server.
    ("client", "2026-07-28", "auth/resource-mismatch", "authorization-server-metadata"): "INFO",
    # A workload asks no user: an anchor that did failed the scenario, and its other checks stand there.
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
"""Checks that need not succeed though they did elsewhere, and the status that is good enough."""


class Owed:
    """What scenarios owe.

    Args:
        read: the content of `owed.json`.
    """

    def __init__(self, read: dict[str, Any]) -> None:
        self._checks: dict[str, dict[str, dict[str, dict[str, str]]]] = read["checks"]
        self._sets: dict[str, dict[str, list[str]]] = read["sets"]

    @classmethod
    def load(cls) -> "Owed":
        """What is in the file."""
        return cls(json.loads(FILE.read_text()))

    def scenarios(self, side: str, wire: str) -> list[str]:
        """The scenarios of a side on a wire."""
        return list(self._checks[side][wire])

    def required(self, side: str, revision: str) -> list[str]:
        """The scenarios of a side in a requirement set, also those that it only reports."""
        return self._sets[revision][side]

    def checks(self, side: str, wire: str, scenario: str) -> dict[str, str]:
        """The checks that a scenario owes, and the status that is good enough for each."""
        checks = self._checks[side]
        return checks[wire].get(scenario) or checks[EXTENSION].get(scenario, {})

    def is_extension(self, side: str, scenario: str) -> bool:
        """Whether a scenario belongs to no revision."""
        return scenario in self._checks[side][EXTENSION]


def _least(seen: dict[str, str]) -> str | None:
    """The status that is good enough, from what was seen elsewhere; None if nobody got through."""
    statuses = set(seen.values())
    if "ok" in statuses:
        return "SUCCESS"
    return "SKIPPED" if statuses == {"skip"} else None


def collect(anchors: dict[str, Any]) -> dict[str, Any]:
    """The checks that are owed, from those that were seen."""
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
    """The scenarios of the requirement sets, from the suite."""
    from suite import install, sets  # noqa: PLC0415 - whoever only reads the file needs no suite

    await install()
    return {revision: await sets(revision) for revision in SETS}


def main(anchors: Path) -> None:
    """Write the file."""
    read = json.loads(anchors.read_text())
    written = {"suite": read["suite"], "sets": asyncio.run(_sets()), "checks": collect(read)}
    FILE.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
