"""The differences between answers, held against the table of those that are known: `differences.toml`.

Pure, but for reading that file. A difference that is not in the table fails a run, and so does an entry that
does not differ any more, or that says that the others are right.
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

USUAL: Final = ("part", "said")
"""What is left out."""

WIDTH: Final = 106
GLUE: Final = "\0"
"""Stands for a blank where no line may end."""

Key = tuple[str, str]
"""The name of a request, and its revision."""


class Difference(NamedTuple):
    """Two answers to one request that are not the same.

    Args:
        name: the request.
        revision: what its client speaks.
        peer: who answers otherwise than we do.
        part: which part of the answer: "said" or "id".
        ours: our answer.
        theirs: the other one.
    """

    name: str
    revision: str
    peer: str
    part: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class Entry:
    """Differences of one kind, and who is right.

    Args:
        verdict: one of `VERDICTS`.
        rule: the id in REQUIREMENTS.md that decides it; "none" for a free choice that no rule is about.
        why: in a sentence or two.
        differences: what is meant.
    """

    verdict: str
    rule: str
    why: str
    differences: frozenset[Difference]


class Judged(NamedTuple):
    """How a run went: how many differences of each verdict there are, and what is wrong."""

    counts: Counter[str]
    faults: list[str]


def differing(ours: Mapping[Key, Answer], theirs: Mapping[str, Mapping[Key, Answer]]) -> set[Difference]:
    """Where the answers of peers are not the same as ours."""
    return {
        Difference(*key, peer, part, mine, other)
        for peer, answers in theirs.items()
        for key, answer in answers.items()
        for part, mine, other in zip(Answer._fields, ours[key], answer, strict=True)
        # An error and a result may be about different ids for a good reason: `said` shows that already.
        if mine != other and (part == "said" or _alike(ours[key].said, answer.said))
    }


def _alike(*said: str) -> bool:
    """Whether all answers are of one kind."""
    return len({one.split(" ")[1] for one in said}) == 1


def entries(text: str, revisions: Mapping[str, Sequence[str]]) -> list[Entry]:
    """The entries of a table.

    Args:
        text: TOML.
        revisions: those that each request is sent in.

    Raises:
        ValueError: an entry is no entry, or two are about the same.
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
    """How a run went.

    Args:
        found: the differences of this run.
        known: the table.
    """
    found = set(found)
    counts: Counter[str] = Counter(dict.fromkeys(VERDICTS, 0))
    faults: list[str] = []
    for entry in known:
        counts[entry.verdict] += len(entry.differences & found)
        faults += [f"does not differ any more: {_shown(one)}" for one in sorted(entry.differences - found)]
        if entry.verdict == "theirs right":
            mended = sorted(entry.differences & found)
            faults += [f"theirs is right ({entry.rule}): {_shown(one)}" for one in mended]
        found -= entry.differences
    counts["not classified"] = len(found)
    faults += [f"not classified: {_shown(one)}" for one in sorted(found)]
    return Judged(counts, faults)


def drafted(found: Iterable[Difference], revisions: Mapping[str, Sequence[str]]) -> str:
    """Parts of entries for differences, to be put under a verdict by hand."""
    groups: defaultdict[tuple[str, str, str, str], set[Key]] = defaultdict(set)
    for one in found:
        groups[one.peer, one.part, one.ours, one.theirs].add((one.name, one.revision))
    rows: list[str] = []
    for told, keys in sorted(groups.items()):
        row = dict(zip(("peer", "part", "ours", "theirs"), told, strict=True))
        lines = [f"{name} = {_quoted(value)}" for name, value in row.items() if (name, value) != USUAL]
        requests = ", ".join(_quoted(line).replace(" ", GLUE) for line in _lines(keys, revisions))
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
        raise ValueError(f"an entry without a verdict, a rule or a reason: {why or row}")
    if rule == "none" and verdict != "free choice":
        raise ValueError(f"nobody is right without a rule: {why}")
    meant = [
        Difference(*key, seen["peer"], seen.get("part", "said"), seen["ours"], seen["theirs"])
        for seen in row["seen"]
        for line in seen["requests"]
        for key in _keys(line, revisions)
    ]
    return Entry(verdict, rule, why, frozenset(meant))


def _keys(line: str, revisions: Mapping[str, Sequence[str]]) -> list[Key]:
    """The requests that a line is about: `name` or `name @ revision`; `*` stands for anything in both."""
    name, _, revision = line.partition(" @ ")
    names = [one for one in revisions if fnmatchcase(one, name)] if "*" in name else [name]
    keys = [
        (one, there)
        for one in names
        for there in revisions.get(one, ())
        if fnmatchcase(there, revision or "*")
    ]
    if not keys:
        raise ValueError(f"there is no such request: {line}")
    return keys


def _lines(keys: set[Key], revisions: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines that `_keys` reads as these: as few as the table stays readable with."""
    lines: list[str] = []
    left = set(keys)
    for name in sorted(name for name, _ in keys):
        about = f"*: {name.partition(': ')[2]}"
        for line in (about, f"{about} @ 2025-*", name, f"{name} @ 2025-*"):
            # A name without a colon, or one that is alone with what it is about, stands for itself.
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


def _quoted(text: str) -> str:
    """A literal of TOML: nothing in it is escaped, and no name has an apostrophe and a quotation mark."""
    return f"'{text}'" if "'" not in text else json.dumps(text)


def _shown(one: Difference) -> str:
    return f"{one.name} @ {one.revision}, {one.peer}, {one.part}: ours {one.ours!r}, theirs {one.theirs!r}"
