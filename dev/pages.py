"""House rule about links: each relative link of a Markdown page leads to an existing file and heading.

Links to the web are not checked.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tree import Finding, Tree

__all__ = ["links"]

LINK: Final = re.compile(r"\]\(\s*<?([^()\s<>]+)|^\[[^\]]+\]:\s+<?([^\s<>]+)")
SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
HEADING: Final = re.compile(r"#{1,6}\s+(.*)")
INLINE_CODE: Final = re.compile(r"`[^`]*`")


def links(tree: Tree) -> Iterator[Finding]:
    """Report relative links to files or headings that do not exist."""
    headings = {file.path: _anchors(file.text) for file in tree.pages}
    for file in tree.pages:
        for number, line in _prose(file.text):
            for match in LINK.finditer(INLINE_CODE.sub("", line)):
                target = match[1] or match[2]
                if not SCHEME.match(target):
                    problem = _dead(tree.root, file.path, unquote(target), headings)
                    if problem:
                        yield file.find(number, f"the link to {target} is dead: {problem}")


def _dead(root: Path, page: str, target: str, headings: dict[str, set[str]]) -> str | None:
    name, _, anchor = target.partition("#")
    goal = (root / page).parent.joinpath(name).resolve() if name else root / page
    if not goal.is_relative_to(root):
        return "it leaves the repository; use plain text instead"
    if not goal.exists():
        return "there is no such file; correct or remove it"
    if anchor and anchor not in headings.get(goal.relative_to(root).as_posix(), set()):
        return "there is no such heading; correct or remove the anchor"
    return None


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page, derived from its headings as GitHub does."""
    counts: Counter[str] = Counter()
    anchors: set[str] = set()
    for _, line in _prose(text):
        if heading := HEADING.match(line):
            words = re.sub(r"\]\([^)]*\)", "]", heading[1].rstrip(" #")).lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            anchors.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
            counts[slug] += 1
    return anchors


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Return the numbered lines of a page outside code blocks."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = line.strip()[:3]
        if fence:
            fence = "" if mark == fence else fence
        elif mark in {"```", "~~~"}:
            fence = mark
        else:
            yield number, line
