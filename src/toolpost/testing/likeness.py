"""Whether what is said now is like something else: a pattern with gaps, or what was said before and masked.

Owns the comparison of texts and of JSON values. Knows nothing of messages.
"""

from typing import Any, cast

import msgspec

from toolpost.testing.masking import MASKED

__all__ = ["get_member", "matches_pattern", "matches_recorded"]


def matches_pattern(pattern: str, text: str, gap: str) -> bool:
    """Whether a text fits a pattern, in which a gap stands for anything. The work is linear."""
    first, *rest = pattern.split(gap)
    if not rest:
        return pattern == text
    if not text.startswith(first):
        return False
    place = len(first)
    for part in rest[:-1]:
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return len(text) - place >= len(rest[-1]) and text.endswith(rest[-1])


def matches_recorded(recorded: Any, now: Any) -> bool:
    """Whether two JSON values are the same, as far as the recorded one was not masked."""
    if isinstance(recorded, str) and isinstance(now, str):
        return matches_pattern(recorded, now, MASKED) or (
            MASKED in recorded and _matches_as_json(recorded, now)
        )
    if isinstance(recorded, dict) and isinstance(now, dict):
        ours, theirs = cast("dict[str, Any]", recorded), cast("dict[str, Any]", now)
        return ours.keys() == theirs.keys() and all(
            matches_recorded(ours[name], theirs[name]) for name in ours
        )
    if isinstance(recorded, list) and isinstance(now, list):
        some, others = cast("list[Any]", recorded), cast("list[Any]", now)
        return len(some) == len(others) and all(map(matches_recorded, some, others))
    return recorded == MASKED or (recorded == now and isinstance(recorded, bool) == isinstance(now, bool))


def _matches_as_json(recorded: str, now: str) -> bool:
    """Whether two texts are JSON that is alike: one with a secret is written anew when that is masked."""
    try:
        return matches_recorded([msgspec.json.decode(recorded)], [msgspec.json.decode(now)])
    except (msgspec.DecodeError, RecursionError):
        return False


def get_member(value: Any, *names: str) -> Any:
    """A member of an object, or of a member of it; None if there is no such thing."""
    for name in names:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value
