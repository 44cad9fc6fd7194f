"""The page about rules that are not proven names exactly those that no test names."""

import re
from pathlib import Path

import specification

TESTS = Path(__file__).resolve().parents[2]
PAGE = TESTS.parent / "docs" / "requirements.md"
MARK = re.compile(r"(?:mark\.requirement|Case)\(([^)]*)\)")
ID = re.compile(r"\b[A-Z]+-[0-9]+\b")
SECTIONS = [
    "LIFE",
    "TIME",
    "STDIO",
    "HTTP",
    "HTTPL",
    "HTTPM",
    "HDR",
    "SSE",
    "SUB",
    "CACHE",
    "DISC",
    "VER",
    "CANC",
    "PROG",
    "PING",
    "PAGE",
    "TOOL",
    "RES",
    "PRM",
    "COMP",
    "LOG",
    "MRTR",
    "ELIC",
    "SAMP",
    "ROOT",
    "JSCH",
    "ICON",
    "AUTH",
    "AS",
    "SEC",
]


def test_a_rule_is_named_by_a_test_or_stands_on_the_page(spec):
    sources = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    named = {id_ for source in sources for ids in MARK.findall(source) for id_ in ID.findall(ids)}
    page, _, _ = PAGE.read_text(encoding="utf-8").partition("## Partly proven")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    # The reason of a row may point to a rule that is proven, in brackets or with "see".
    excused = {id_ for row in rows for id_ in ID.findall(re.sub(r"\([^)]*\)|see also \S+", "", row))}
    every = {id_ for section in SECTIONS for id_ in specification.rules()[section]}
    assert excused <= every
    assert sorted(every - named - excused) == [], "named by no test: say why in docs/requirements.md"
    assert sorted(excused & named) == [], "named by a test: take them off docs/requirements.md"
