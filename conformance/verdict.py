"""The verdict on one scenario: what is wrong with what the suite has left of it.

Pure. A scenario has passed if every check that it owes is there and a success, no other check complains, and
its processes ended as they should. The suite itself asks for less: see docs/conformance.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["faults"]


def faults(owed: Mapping[str, str], checks: Sequence[Mapping[str, Any]], trouble: str) -> list[str]:
    """What is wrong with a scenario; nothing if it has passed.

    Args:
        owed: the checks that it owes: id, or `id#name` where one id stands for several, and the status that
            is good enough besides SUCCESS: "SKIPPED" or "INFO" for what cannot be shown, "SUCCESS" otherwise.
        checks: those that the suite has made.
        trouble: what went wrong with its processes.
    """
    found = [trouble] if trouble else []
    found += _complaints(owed, checks)
    if "SUCCESS" not in owed.values():
        found.append("nobody has said which checks it owes")
    found += _missing(owed, checks)
    return found


def _complaints(owed: Mapping[str, str], checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The checks that did not go well, whether they are owed or not."""
    for check in checks:
        status, name = str(check.get("status")), check.get("id", "a check without a name")
        # What is not owed and only informs is a line of the suite's log.
        if status in {"SUCCESS", _least(owed, check) or "INFO"}:
            continue
        why = check.get("errorMessage") or check.get("description") or ""
        yield f"{status} {name}: {' '.join(str(why).split())}"[:300]


def _missing(owed: Mapping[str, str], checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is owed, and was not even tried."""
    made = {name for check in checks for name in _names(check)}
    for name, least in owed.items():
        if least == "SUCCESS" and name not in made:
            yield f"missing {name}"


def _least(owed: Mapping[str, str], check: Mapping[str, Any]) -> str | None:
    """The status that is good enough for a check; None if it is not owed."""
    return next((owed[name] for name in _names(check) if name in owed), None)


def _names(check: Mapping[str, Any]) -> tuple[str, str]:
    """How a check may be called, the closer name first."""
    return f"{check.get('id')}#{check.get('name')}", str(check.get("id"))
