"""Compares the differences between responses with the table of known ones, `differences.toml`.

Pure, except for reading that file. A run fails after a difference that is not in the table, an entry that
no longer differs, or an entry with the verdict that the peers are right.
"""

import json
import textwrap
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from answers import Answer

__all__ = ["TABLE", "VERDICTS", "Difference", "Entry", "Judged", "differing", "drafted", "entries", "judge"]

TABLE: Final = Path(__file__).resolve().parent / "differences.toml"

VERDICTS: Final = ("ours right", "theirs right", "free choice")

USUAL: Final = ("part", "content")
"""Marks omitted text."""

WIDTH: Final = 106
GLUE: Final = "\0"
"""Stands for a blank where no line may end."""

Key = tuple[str, str]
"""The name of a request, and its revision."""


class Difference(NamedTuple):
    """Two different responses to one request.

    Args:
        name: the request.
        revision: the revision of its client.
        peer: the peer with the other response.
        part: the part of the response: "content" or "id".
        ours: our response.
        theirs: the peer's response.
    """

    name: str
    revision: str
    peer: str
    part: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class Entry:
    """Differences of one kind, with a verdict.

    Args:
        verdict: one of `VERDICTS`.
        rule: the id in REQUIREMENTS.md that decides it; "none" for a free choice without a rule.
        why: the reason, in one or two sentences.
        differences: the differences.
    """

    verdict: str
    rule: str
    why: str
    differences: frozenset[Difference]


class Judged(NamedTuple):
    """The result of a run: the number of differences by verdict, and the faults."""

    counts: Counter[str]
    faults: list[str]


def differing(ours: Mapping[Key, Answer], theirs: Mapping[str, Mapping[Key, Answer]]) -> set[Difference]:
    """Return the differences between the responses of peers and ours."""
    return {
        Difference(*key, peer, part, mine, other)
        for peer, answers in theirs.items()
        for key, answer in answers.items()
        for part, mine, other in zip(Answer._fields, ours[key], answer, strict=True)
        # An error and a result may have different ids: `content` already shows that.
        if mine != other and (part == "content" or _alike(ours[key].content, answer.content))
    }


def _alike(*contents: str) -> bool:
    """Return whether all responses are of one kind."""
    return len({one.split(" ")[1] for one in contents}) == 1


def entries(text: str, revisions: Mapping[str, Sequence[str]]) -> list[Entry]:
    """Parse the entries of a table.

    Args:
        text: TOML.
        revisions: the revisions of each request.

    Raises:
        ValueError: an entry is invalid, or two are about the same difference.
    """
    found: list[Entry] = []
    seen: set[Difference] = set()
    for row in tomllib.loads(text).get("difference", []):
        entry = _entry(row, revisions)
        if twice := seen & entry.differences:
            raise ValueError(f"two entries are about {min(twice)}")
        seen |= entry.differences
        found.append(entry)
    return found


def judge(found: Iterable[Difference], known: Sequence[Entry]) -> Judged:
    """Judge a run.

    Args:
        found: the differences of this run.
        known: the table.
    """
    found = set(found)
    counts: Counter[str] = Counter(dict.fromkeys(VERDICTS, 0))
    faults: list[str] = []
    for entry in known:
        counts[entry.verdict] += len(entry.differences & found)
        faults += [f"no longer differs: {_format(one)}" for one in sorted(entry.differences - found)]
        if entry.verdict == "theirs right":
            mended = sorted(entry.differences & found)
            faults += [f"theirs is right ({entry.rule}): {_format(one)}" for one in mended]
        found -= entry.differences
    counts["not classified"] = len(found)
    faults += [f"not classified: {_format(one)}" for one in sorted(found)]
    return Judged(counts, faults)


def drafted(found: Iterable[Difference], revisions: Mapping[str, Sequence[str]]) -> str:
    """Return drafts of entries, to be completed with a verdict."""
    groups: defaultdict[tuple[str, str, str, str], set[Key]] = defaultdict(set)
    for one in found:
        groups[one.peer, one.part, one.ours, one.theirs].add((one.name, one.revision))
    rows: list[str] = []
    for values, keys in sorted(groups.items()):
        row = dict(zip(("peer", "part", "ours", "theirs"), values, strict=True))
        lines = [f"{name} = {_quote(value)}" for name, value in row.items() if (name, value) != USUAL]
        requests = ", ".join(_quote(line).replace(" ", GLUE) for line in _lines(keys, revisions))
        lines += [
            "requests = [",
            textwrap.indent(
                textwrap.fill(requests, WIDTH, break_long_words=False, break_on_hyphens=False), "    "
            ),
            "]",
        ]
        rows.append("\n".join(["[[difference.seen]]", *lines, ""]).replace(GLUE, " "))
    return "\n".join(rows)


def _entry(row: Mapping[str, Any], revisions: Mapping[str, Sequence[str]]) -> Entry:
    verdict, rule, why = row["verdict"], row["rule"], row["why"]
    if verdict not in VERDICTS or not rule or not why:
        raise ValueError(f"entry without a verdict, a rule or a reason: {why or row}")
    if rule == "none" and verdict != "free choice":
        raise ValueError(f"this verdict requires a rule: {why}")
    meant = [
        Difference(*key, seen["peer"], seen.get("part", "content"), seen["ours"], seen["theirs"])
        for seen in row["seen"]
        for line in seen["requests"]
        for key in _keys(line, revisions)
    ]
    return Entry(verdict, rule, why, frozenset(meant))


def _keys(line: str, revisions: Mapping[str, Sequence[str]]) -> list[Key]:
    """Return the requests of a line: `name` or `name @ revision`, with `*` as a wildcard in both."""
    name, _, revision = line.partition(" @ ")
    names = [one for one in revisions if fnmatchcase(one, name)] if "*" in name else [name]
    keys = [
        (one, there)
        for one in names
        for there in revisions.get(one, ())
        if fnmatchcase(there, revision or "*")
    ]
    if not keys:
        raise ValueError(f"unknown request: {line}")
    return keys


def _lines(keys: set[Key], revisions: Mapping[str, Sequence[str]]) -> list[str]:
    """Return short lines that `_keys` parses to these."""
    lines: list[str] = []
    left = set(keys)
    for name in sorted(name for name, _ in keys):
        about = f"*: {name.partition(': ')[2]}"
        for line in (about, f"{about} @ 2025-*", name, f"{name} @ 2025-*"):
            # A name without a colon, or the only one with its prefix, is not abbreviated.
            meant = set(_keys(line, revisions)) if _is_there(line, revisions) else set[Key]()
            if meant and meant <= left and (line[0] != "*" or len({one for one, _ in meant}) > 2):
                lines.append(line)
                left -= meant
    return sorted([*lines, *(f"{name} @ {revision}" for name, revision in left)])


def _is_there(line: str, revisions: Mapping[str, Sequence[str]]) -> bool:
    try:
        return bool(_keys(line, revisions))
    except ValueError:
        return False


def _quote(text: str) -> str:
    """Return a TOML literal without escapes: no name has both kinds of quotation marks."""
    return f"'{text}'" if "'" not in text else json.dumps(text)


def _format(one: Difference) -> str:
    return f"{one.name} @ {one.revision}, {one.peer}, {one.part}: ours {one.ours!r}, theirs {one.theirs!r}"
