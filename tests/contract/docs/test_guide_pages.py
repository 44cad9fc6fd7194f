"""The code on the pages of the guide runs block by block, in one namespace."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
ALL = sorted(path.name for path in DOCS.glob("*.md"))
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OTHERS = re.compile(r' title="(mcp|FastMCP) [\d.]+"')
"""The title of a block for another library, which is not installed: the block is only parsed."""

SHOWN = {
    "testing.md": "it is a file of tests, and tests/contract/testing/test_kit_page.py has pytest run them",
    "transports.md": "what it shows is a file in examples/, and test_readme.py holds the two together",
}


def blocks(page: str, language: str) -> list[tuple[int, str, str]]:
    """Return the blocks of a page in a language: the number of lines above, further attributes, the text."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, block.start(3)), block[2], block[3])
        for block in BLOCK.finditer(text)
        if block[1] == language
    ]


RUN = [page for page in ALL if blocks(page, "python") and page not in SHOWN]


@pytest.mark.parametrize("page", RUN)
def test_the_code_on_a_page_runs(page, monkeypatch):
    monkeypatch.chdir(ROOT)  # pages name the files in `examples/` as a reader in a checkout would
    namespace: dict[str, Any] = {"__name__": "page"}
    for above, more, block in blocks(page, "python"):
        code = compile("\n" * above + block, DOCS / page, "exec")  # a traceback names the line of the page
        if not OTHERS.fullmatch(more):
            assert not more, f"{page}: what does {more} mean?"
            exec(code, namespace)
    for name in [name for name in namespace if name.startswith("test_")]:
        namespace[name]()


@pytest.mark.parametrize("page", ALL)
def test_all_blocks_of_a_page_are_in_languages_that_are_checked(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [block[1] for block in BLOCK.finditer(text)]
    assert text.count("\n```") == 2 * len(found)
    assert set(found) <= {"python", "console", "json", "toml", "text", ""}


@pytest.mark.parametrize("page", ALL)
def test_data_on_a_page_can_be_read(page):
    for _, _, block in blocks(page, "json"):
        json.loads(block)
    for _, _, block in blocks(page, "toml"):
        tomllib.loads(block)


@pytest.mark.parametrize("page", [page for page in ALL if blocks(page, "console")])
def test_commands_on_a_page_exist(page):
    for above, _, block in blocks(page, "console"):
        assert block.startswith("$ "), f"{page}:{above + 1}: a prompt comes first"
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            words = shlex.split(line, comments=True)
            if words[0] == "toolpost" and not words[1].startswith("-"):
                known = options(words[1])
                used = {word.partition("=")[0] for word in ours(words[1], words[2:]) if word.startswith("--")}
                assert used <= known, f"{page}: `{line}` has options that are not known"


@cache
def options(command: str) -> set[str]:
    """Return the options of a toolpost command."""
    asked = [sys.executable, "-m", "toolpost", command, "--help"]
    said = subprocess.run(
        asked, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}
    )
    section, _, _ = said.stdout.partition("Options:\n")[2].partition("\n\n")
    return {
        name
        for names in re.findall(r"^  (?:-\w, )?(--[a-z-]+)(?: / (--[a-z-]+))?", section, re.MULTILINE)
        for name in names
    }


def ours(command: str, words: list[str]) -> list[str]:
    """Return the arguments for toolpost, without those of another program, a tool or a prompt."""
    first = words[: words.index("--")] if "--" in words else words
    plain = [place for place, word in enumerate(first) if not word.startswith("-")]
    name = 0 if "--" in words else 1  # behind the target, unless that is a command
    return first[: plain[name]] if command in {"call", "prompt"} and len(plain) > name else first


@pytest.mark.parametrize("page", ALL)
def test_the_contents_name_every_section(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    head, *rest = re.sub(BLOCK, "", text).split("\n## ")
    if "Contents: [" not in head:
        return
    sections = [part.partition("\n")[0] for part in rest]
    anchors = [re.sub(r"[^\w\- ]", "", section.lower()).replace(" ", "-") for section in sections]
    assert re.findall(r"\]\(#([^)]*)\)", head) == anchors


def navigation() -> list[str]:
    """The pages of the site, in their order."""
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    found: list[str] = []
    for entry in site["nav"]:
        for value in entry.values():
            found += [value] if isinstance(value, str) else [page for item in value for page in item.values()]
    return found


@pytest.mark.parametrize("page", ALL)
def test_a_page_can_be_found(page):
    assert page in navigation()
    home = (DOCS / "README.md").read_text(encoding="utf-8")
    assert page == "README.md" or f"]({page})" in home
