"""The documentation as a site: `python dev/website.py` builds `site/`, and fails with a warning of any kind.

Owns what differs between a page on a code host and the same page on the site: links that leave `docs/`, the
contents, pages that live beside it, and the reference, whose names get their docstrings. zensical does
the rest, in a temporary folder: its cache is called `.cache`, as ours is, and it shares with nobody.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from reference import in_full

__all__ = ["build", "loaded", "staged"]

ROOT: Final = Path(__file__).resolve().parents[1]
BESIDE: Final = {
    "examples/README.md": "examples.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository that are pages of the site, too."""

LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
CONTENTS: Final = re.compile(r"^Contents: \[.*?\n\n", re.DOTALL | re.MULTILINE)
"""What a code host does not draw by itself, and the site does."""

PICTURES: Final = "pictures"
"""Where the pictures of the site are."""

KEPT: Final = re.compile(r"\0(\d+)\0")
LOADS: Final = re.compile(
    r"<(?:script|img|iframe|link|source)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)"
)
"""What a browser would get from elsewhere by itself; links that a reader may follow are none of these."""


def staged(page: Path, root: Path = ROOT) -> str:
    """A page of the repository as the site shows it."""
    code: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code.append(match[0])
        return f"\0{len(code) - 1}\0"

    text = CONTENTS.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"), count=1)
    text = CODE.sub(keep, text)  # lines stay where they are, for those who read a warning
    text = LINK.sub(lambda match: _link(page, root, *match.groups()), text)
    text = KEPT.sub(lambda match: code[int(match[1])], text)
    return in_full(text) if page.name == "reference.md" else text


def _link(page: Path, root: Path, mark: str, words: str, target: str) -> str:
    """A link as the site has it: within the site, or else no more than its words."""
    name, hash_, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return f"{mark}[{words}]({target})"
    goal = Path(os.path.relpath(page.parent / name, root)).as_posix()
    if mark and not goal.startswith("docs/"):
        return f"![{words}]({PICTURES}/{Path(goal).name})"
    if goal.startswith("docs/"):
        return f"{mark}[{words}]({goal.removeprefix('docs/')}{hash_}{anchor})"
    return f"[{words}]({BESIDE[goal]}{hash_}{anchor})" if goal in BESIDE else words


def build(site: Path, root: Path = ROOT) -> None:
    """Build the site into a folder, which is made anew.

    Raises:
        RuntimeError: there was a warning, or a page would load something from elsewhere; the text says which.
    """
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        work = Path(folder)
        shutil.copytree(root / "docs", work / "docs")
        for page in (root / "docs").glob("*.md"):
            (work / "docs" / page.name).write_text(staged(page, root), encoding="utf-8")
        for name, called in BESIDE.items():
            (work / "docs" / called).write_text(staged(root / name, root), encoding="utf-8")
        for picture in _pictures(root):
            shutil.copy(picture, work / "docs" / PICTURES)
        shutil.copy(root / "zensical.toml", work)
        (work / "src").symlink_to(root / "src")
        _zensical(work)
        if foreign := sorted(set(loaded(work / "site"))):
            raise RuntimeError(f"pages would load from elsewhere: {', '.join(foreign)}")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)


def _pictures(root: Path) -> Iterator[Path]:
    """Pictures beside `docs/` that its pages show."""
    for page in (root / "docs").glob("*.md"):
        for mark, _, target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
            if mark and target.startswith("../"):
                yield page.parent / target


def _zensical(folder: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[\d;]*m", "", ran.stdout + ran.stderr)
    told = [line for line in said.splitlines() if line.strip() and line.strip() != "Build started"]
    if ran.returncode or any(re.match(r"warning|griffe|mkdocstrings", line, re.IGNORECASE) for line in told):
        raise RuntimeError("\n".join(told).partition("Traceback")[0] or said)


def loaded(site: Path) -> Iterator[str]:
    """What the pages of a site would load from other hosts."""
    for page in site.rglob("*.html"):
        yield from LOADS.findall(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "site"
    try:
        build(target)
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"{len(list(target.rglob('*.html')))} pages, to be read from {target / 'index.html'}")
    print(f"with search: python3 -m http.server --bind 127.0.0.1 --directory {os.path.relpath(target)}")
