"""The verdict on one scenario.

Pure. A scenario passes if every required check succeeded, no other check failed, and its processes ended
normally. The suite itself is less strict: see docs/conformance.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["faults"]


def faults(owed: Mapping[str, str], checks: Sequence[Mapping[str, Any]], trouble: str) -> list[str]:
    """Return the faults of a scenario; none if it passed.

    Args:
        owed: the checks that it owes: id, or `id#name` where one id stands for several, and the status that
            is good enough besides SUCCESS: "SKIPPED" or "INFO" for what cannot be shown, "SUCCESS" otherwise.
        checks: the checks of the suite.
        trouble: a failure of its processes.
    """
    found = [trouble] if trouble else []
    found += _complaints(owed, checks)
    if "SUCCESS" not in owed.values():
        found.append("its required checks are unknown")
    found += _missing(owed, checks)
    return found


def _complaints(owed: Mapping[str, str], checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return the failed checks, required or not."""
    for check in checks:
        status, name = str(check.get("status")), check.get("id", "unnamed check")
        # Informative checks that are not required are log lines of the suite.
        if status in {"SUCCESS", _least(owed, check) or "INFO"}:
            continue
        why = check.get("errorMessage") or check.get("description") or ""
        yield f"{status} {name}: {' '.join(str(why).split())}"[:300]


def _missing(owed: Mapping[str, str], checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return the required checks that did not run."""
    present = {name for check in checks for name in _names(check)}
    for name, least in owed.items():
        if least == "SUCCESS" and name not in present:
            yield f"missing {name}"


def _least(owed: Mapping[str, str], check: Mapping[str, Any]) -> str | None:
    """Return the minimum status of a check; None if it is not required."""
    return next((owed[name] for name in _names(check) if name in owed), None)


def _names(check: Mapping[str, Any]) -> tuple[str, str]:
    """Return the possible names of a check, the most specific first."""
    return f"{check.get('id')}#{check.get('name')}", str(check.get("id"))
