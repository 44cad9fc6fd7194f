"""Builds the documentation site: `python dev/website.py` writes `site/`, and fails on any warning.

Handles the differences between a page on a code host and on the site: links that leave `docs/`, tables of
contents, pages outside `docs/`, examples with their code, and the reference with its docstrings. zensical
does the rest in a temporary folder, because its cache folder `.cache` has the same name as ours.
"""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import reference
from toolpost.client.options import ClientOptions
from toolpost.server.options import HTTP, SERVER

__all__ = ["build", "loaded", "staged"]

ROOT: Final = Path(__file__).resolve().parents[1]
BESIDE: Final = {
    "examples/README.md": "examples.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages outside `docs/` that the site includes."""

KINDS: Final = {
    "feature": "Features",
    "bugfix": "Bug fixes",
    "removal": "Removals",
    "doc": "Documentation",
}
"""The kinds of changes that the site lists as unreleased; the others matter only to contributors."""

LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
CONTENTS: Final = re.compile(r"^Contents: \[.*?\n\n", re.DOTALL | re.MULTILINE)
"""The table of contents of a page: the site has its own."""

PICTURES: Final = "pictures"
"""The folder of the site's pictures."""

KEPT: Final = re.compile(r"\0(\d+)\0")
LOADS: Final = re.compile(
    r"<(?:script|img|iframe|link|source)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)"
)
"""Elements that make a browser load a URL; links that a reader may follow do not."""

STYLE: Final = Path(__file__).with_name("site.css")
"""Small corrections of the theme, named in `zensical.toml`."""

DEFAULTS: Final = {"SERVER": SERVER, "HTTP": HTTP, "ClientOptions": ClientOptions}
DEFAULT: Final = re.compile(r"(?<== )(SERVER|HTTP|ClientOptions)\.(\w+)(?=,?$)", re.MULTILINE)
"""Defaults in signatures of the public API that are kept in a table: the reference shows their values."""

CONSTANT: Final = re.compile(r"(: (?:int|float) = )([A-Z][A-Z_]+)\b")
"""A parameter or field whose default is a constant of its module: the reference shows its value."""


# --------------------------------------------------------------------- pages


def staged(page: Path, root: Path = ROOT) -> str:
    """Return a page of the repository as the site shows it."""
    code: list[str] = []

    def keep(match: re.Match[str]) -> str:
        # Code hosts need `\|` in the cells of a table, the site does not.
        code.append(match[0] if "\n" in match[0] else match[0].replace(r"\|", "|"))
        return f"\0{len(code) - 1}\0"

    text = page.read_text(encoding="utf-8")
    if page == root / "docs" / "reference.md":
        text = reference.index()
    text = CONTENTS.sub(lambda match: "\n" * match[0].count("\n"), text, count=1)
    text = CODE.sub(keep, text)  # lines keep their numbers, which warnings name
    text = LINK.sub(lambda match: _link(page, root, *match.groups()), text)
    return KEPT.sub(lambda match: code[int(match[1])], text)


def _link(page: Path, root: Path, mark: str, words: str, target: str) -> str:
    """Return a link for the site, or only its words if the site does not have its target."""
    name, hash_, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return f"{mark}[{words}]({target})"
    goal = Path(os.path.relpath(page.parent / name, root)).as_posix()
    if mark and not goal.startswith("docs/"):
        return f"![{words}]({PICTURES}/{Path(goal).name})"
    if goal.startswith("docs/"):
        return f"{mark}[{words}]({goal.removeprefix('docs/')}{hash_}{anchor})"
    if goal.startswith("examples/") and goal.endswith(".py") and (root / goal).exists():
        return f"[{words}]({_example_page(root / goal)})"
    return f"[{words}]({BESIDE[goal]}{hash_}{anchor})" if goal in BESIDE else words


def _example_page(example: Path) -> str:
    return f"example-{example.stem.replace('_', '-')}.md"


def _example(example: Path) -> str:
    """Return the page of an example: its docstring and its code."""
    source = example.read_text(encoding="utf-8")
    about = ast.get_docstring(ast.parse(source))
    code = re.sub(r'\A""".*?"""\n+', "", source, flags=re.DOTALL)
    text = re.sub(
        r"((?:^    .*\n?)+)", r"```text\n\1```\n", f"{about}\n" if about else "", flags=re.MULTILINE
    )
    text = re.sub(r"^    ", "", text, flags=re.MULTILINE)
    name = example.name
    return f"# {name}\n\n{text}\n```python\n{code}```\n\nAll examples: [examples](examples.md).\n"


def _unreleased(root: Path) -> str:
    """Return the part of the changelog that has not been released, from its fragments."""
    parts: list[str] = []
    for kind, title in KINDS.items():
        found = (root / "changes").glob(f"*.{kind}*.md")
        fragments = sorted(found, key=lambda path: (path.name.partition(".")[0].zfill(9), path.name))
        entries = (f"- {textwrap.indent(path.read_text('utf-8'), '    ').strip()}\n" for path in fragments)
        parts += [f"\n### {title}\n\n", *entries] if fragments else []
    return "\n## Unreleased\n" + "".join(parts) if parts else ""


def _generated(root: Path) -> dict[str, str]:
    """Return the pages that exist on the site only, by file name: examples, and topics of the reference."""
    listed = (root / "examples" / "README.md").read_text(encoding="utf-8")
    examples = sorted((root / "examples").glob("*.py"), key=lambda path: listed.find(f"({path.name})"))
    pages = {_example_page(path): _example(path) for path in examples}
    if (root / "docs" / "reference.md").exists():
        topics = (*reference.GROUPS, *reference.MODULE_PAGES)
        pages |= {f"{reference.slug(topic)}.md": reference.topic_page(topic) for topic in topics}
    return pages


def _navigation(text: str, pages: dict[str, str]) -> str:
    """Return `zensical.toml` with the generated pages below the pages that list them."""
    for parent, prefix in (("examples.md", "example-"), ("reference.md", "reference-")):
        names = [name for name in pages if name.startswith(prefix)]
        titles = {name: pages[name].partition("\n")[0].removeprefix("# ") for name in names}
        entries = ", ".join(f'{{ "{title}" = "{name}" }}' for name, title in titles.items())
        text = re.sub(
            rf'\{{ "([^"]+)" = "{parent}" \}}',
            rf'{{ "\1" = [{{ "Overview" = "{parent}" }}, {entries}] }}',
            text,
        )
    return text


# --------------------------------------------------------------------- the site


def build(site: Path, root: Path = ROOT) -> None:
    """Build the site into a folder, which is replaced.

    Raises:
        RuntimeError: there was a warning, or a page would load a resource from another host.
    """
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        work = Path(folder)
        shutil.copytree(root / "docs", work / "docs")
        for page in (root / "docs").glob("*.md"):
            (work / "docs" / page.name).write_text(staged(page, root), encoding="utf-8")
        for name, called in BESIDE.items():
            (work / "docs" / called).write_text(staged(root / name, root), encoding="utf-8")
        with (work / "docs" / "changelog.md").open("a", encoding="utf-8") as changelog:
            changelog.write(_unreleased(root))
        pages = _generated(root)
        for name, text in pages.items():
            (work / "docs" / name).write_text(text, encoding="utf-8")
        for picture in _pictures(root):
            shutil.copy(picture, work / "docs" / PICTURES)
        shutil.copy(STYLE, work / "docs")
        settings = (root / "zensical.toml").read_text(encoding="utf-8")
        (work / "zensical.toml").write_text(_navigation(settings, pages), encoding="utf-8")
        _copy_sources(root / "src", work / "src")
        _zensical(work)
        if foreign := sorted(set(loaded(work / "site"))):
            raise RuntimeError(f"pages would load from other hosts: {', '.join(foreign)}")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)


def _copy_sources(src: Path, copy: Path) -> None:
    """Copy the sources; in the copy, signatures show the values of their defaults."""
    shutil.copytree(src, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for module in copy.rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        shown = DEFAULT.sub(lambda match: repr(getattr(DEFAULTS[match[1]], match[2])), text)
        if CONSTANT.search(shown):
            name = ".".join(module.relative_to(copy).with_suffix("").parts)
            values = vars(importlib.import_module(name))
            shown = CONSTANT.sub(lambda match, values=values: f"{match[1]}{values[match[2]]!r}", shown)
        if shown != text:
            module.write_text(shown, encoding="utf-8")


def _pictures(root: Path) -> Iterator[Path]:
    """Return the pictures outside `docs/` that its pages show."""
    for page in (root / "docs").glob("*.md"):
        for mark, _, target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
            if mark and target.startswith("../"):
                yield page.parent / target


def _zensical(folder: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    output = re.sub(r"\x1b\[[\d;]*m", "", ran.stdout + ran.stderr)
    lines = [line for line in output.splitlines() if line.strip() and line.strip() != "Build started"]
    if ran.returncode or any(re.match(r"warning|griffe|mkdocstrings", line, re.IGNORECASE) for line in lines):
        raise RuntimeError("\n".join(lines).partition("Traceback")[0] or output)


def loaded(site: Path) -> Iterator[str]:
    """Return the URLs that the pages of a site would load from other hosts."""
    for page in site.rglob("*.html"):
        yield from LOADS.findall(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "site"
    try:
        build(target)
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"{len(list(target.rglob('*.html')))} pages: open {target / 'index.html'}")
    print(f"to view it: python3 -m http.server --bind 127.0.0.1 --directory {os.path.relpath(target)}")
