"""The house rules that no linter knows: sizes, names, words, links, reasons.

Each rule is a function that reads the tree and yields what breaks it; `RULES` is the list of them. What ruff,
pyright and import-linter can check is left to them. Run as `python dev/house.py [root]`, or by `make check`.
"""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

# --------------------------------------------------------------------- what the rules say

MAX_LINES: Final = 600
"""Beyond this a module is more than one noun; 200 lines are normal."""

DOCSTRING_LINES: Final = (2, 6)
"""What a module owns and what it refuses to know fits in this many lines that are not empty."""

ONE_LINER: Final = 10
"""A module shorter than this is read faster than a docstring about it."""

LONGER_DOCSTRINGS: Final = {
    "src/toolpost/__init__.py": "greets the reader of `help(toolpost)`",
    "src/toolpost/errors.py": "draws the exception tree",
    "src/toolpost/protocol/seal.py": "draws the layout of a sealed string",
    "src/toolpost/protocol/connection.py": "opens with the essay and the table of the state machine",
}

REVISIONS_LIVE_IN: Final = frozenset(
    {"src/toolpost/protocol/methods.py", "src/toolpost/protocol/revisions.py"}
)
REVISION: Final = re.compile(r"20\d\d-\d\d-\d\d")
ORDERED_WORDS: Final = frozenset({"date", "revision"})
ORDERING: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)

EMPTY_MODULE: Final = re.compile(r"(?:^|_)(?:base|common|helpers?|impl|manager|shared|utils?)$|_handler$")
EMPTY_CLASS: Final = re.compile(r"(?:Helpers?|Impl|Manager|Utils?|(?<=[A-Za-z0-9])Handler)$")
"""Words that name no thing: at the end of a name they hide what it is."""

NAMED_ANYWAY: Final = {"src/toolpost/types/base.py": "the struct that all of the vocabulary is based on"}

EXPORTING: Final = ("src/toolpost/types/", "src/toolpost/protocol/")

MACHINE_WORDS: Final = {
    # The specification's own examples live in the home of one called user.
    r"(?<![\w.~})>-])/(?:work|root|(?:home|Users)/(?!user/)[\w.-]+)/": "is a local path; make it relative",
    r"\bpypi\.org/simple|files\.pythonhosted\.org|registry\.npmjs\.org": "is a package index; leave it out",
}

EXCUSE: Final = re.compile(r"#\s*((?:[\w-]+:\s*)?noqa|(?:type|pyright):\s*ignore|pragma:\s*no \w+)")
REASON: Final = re.compile(r" - \S")
SKIPS: Final = frozenset({"importorskip", "skip", "skipif", "xfail"})

NOT_OURS: Final = frozenset({"__pycache__", "build", "dist", "site"})
"""Folders that are made, not written. Used, with hidden ones, only where git cannot be asked."""

# --------------------------------------------------------------------- what the rules read


class Finding(NamedTuple):
    """What breaks a rule, and what to do about it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class File:
    """A text file, parsed when a rule asks."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of a Python file."""
        return ast.parse(self.text, self.path)

    @property
    def stem(self) -> str:
        """The name of the file without folder and ending."""
        return Path(self.path).stem

    def find(self, line: int, text: str) -> Finding:
        """A finding in this file."""
        return Finding(self.path, line, text)


class Tree:
    """The text files of a repository.

    Args:
        root: its folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.files = [
            File(path, text) for path in _paths(self.root) if (text := _text(self.root / path)) is not None
        ]

    @property
    def python(self) -> list[File]:
        """All Python files."""
        return [file for file in self.files if file.path.endswith(".py")]

    @property
    def source(self) -> list[File]:
        """The Python files that are shipped."""
        return [file for file in self.python if file.path.startswith("src/")]

    @property
    def pages(self) -> list[File]:
        """The Markdown files."""
        return [file for file in self.files if file.path.endswith(".md")]


def _paths(root: Path) -> list[str]:
    """The files that git has or would take; where git cannot say, all files but hidden and made ones."""
    git = shutil.which("git")
    if git:
        command = [git, "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, check=False, capture_output=True)
        if listed.returncode == 0:
            paths = set(listed.stdout.decode().split("\0"))
            return sorted(path for path in paths if (root / path).is_file())
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.startswith(".")]
        found += [Path(folder, name).relative_to(root).as_posix() for name in names]
    return sorted(found)


def _text(path: Path) -> str | None:
    """The text of a file; None for one that is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


# --------------------------------------------------------------------- the rules: modules


def module_size(tree: Tree) -> Iterator[Finding]:
    """A module is short."""
    for file in tree.source:
        lines = len(file.text.splitlines())
        if lines > MAX_LINES:
            yield file.find(MAX_LINES + 1, f"{lines} lines, {MAX_LINES} are the limit; split it by nouns")


def module_docstring(tree: Tree) -> Iterator[Finding]:
    """A module says in a few lines what it owns and what it refuses to know."""
    least, most = DOCSTRING_LINES
    for file in tree.source:
        if file.stem == "__main__" or len(file.text.splitlines()) < ONE_LINER:
            continue
        docstring = ast.get_docstring(file.tree) or ""
        lines = sum(1 for line in docstring.splitlines() if line.strip())
        if lines < least or (lines > most and file.path not in LONGER_DOCSTRINGS):
            yield file.find(
                1,
                f"docstring lines: {lines}, wanted: {least} to {most}; "
                "say what the module owns and what it refuses to know",
            )


def names(tree: Tree) -> Iterator[Finding]:
    """A module or a class is named after a thing."""
    for file in tree.source:
        for name in (*Path(file.path).parts[1:-1], file.stem):
            if EMPTY_MODULE.search(name) and file.path not in NAMED_ANYWAY:
                yield file.find(1, f"`{name}` names no thing; call the module by the noun that it owns")
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef) and EMPTY_CLASS.search(node.name):
                yield file.find(node.lineno, f"class `{node.name}` names no thing; say what it is")


# --------------------------------------------------------------------- the rules: revisions


def revision_literals(tree: Tree) -> Iterator[Finding]:
    """The date of a revision is written in two modules only."""
    for file in tree.source:
        if file.path in REVISIONS_LIVE_IN:
            continue
        for node in ast.walk(file.tree):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, bytes):
                value = value.decode("latin-1")
            if isinstance(node, ast.Constant) and isinstance(value, str) and REVISION.fullmatch(value):
                yield file.find(
                    node.lineno, f"revision {value} as a literal; ask the revision's record for a fact"
                )


def revision_order(tree: Tree) -> Iterator[Finding]:
    """Revisions are ordered in two modules only; elsewhere the record says what holds."""
    for file in tree.source:
        if file.path in REVISIONS_LIVE_IN:
            continue
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Compare) and any(isinstance(operator, ORDERING) for operator in node.ops):
                words = {_last_word(operand) for operand in (node.left, *node.comparators)}
                for word in sorted(words & ORDERED_WORDS):
                    yield file.find(node.lineno, f"orders by `{word}`; ask the revision's record for a fact")


def _last_word(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# --------------------------------------------------------------------- the rules: exports


def module_exports(tree: Tree) -> Iterator[Finding]:
    """A module of the two inner rings lists its public names, each defined and each once; ruff sorts them."""
    for file in tree.source:
        exports = _exports(file.tree) if file.path.startswith(EXPORTING) else []
        if exports is None and not file.stem.startswith("_"):
            yield file.find(1, "no `__all__`; list the public names in one, as plain strings")
        for name in sorted(set(exports or ()) - set(_defined(file.tree.body))):
            yield file.find(
                1, f"`__all__` lists `{name}`, which the module does not define; remove or define it"
            )
        for name in sorted(_doubles(exports or [])):
            yield file.find(1, f"`__all__` lists `{name}` twice; remove one")


def _exports(module: ast.Module) -> list[str] | None:
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements)):
                return [str(element.value) for element in elements if isinstance(element, ast.Constant)]
            case _:
                pass
    return None


def _doubles(words: list[str]) -> set[str]:
    return {word for word in words if words.count(word) > 1}


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements bind, also under a condition."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case ast.If() | ast.Try():
                yield from _defined([*node.body, *node.orelse])
            case _:
                for part in ast.walk(node):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        yield part.id


PROBE: Final = """
import sys
sys.path.insert(0, sys.argv[1])
import toolpost
names = list(getattr(toolpost, "__all__", ()))
for name in sorted(set(names)):
    if not hasattr(toolpost, name):
        print(f"`__all__` lists `{name}`, which `toolpost` does not have; remove or define it")
    if names.count(name) > 1:
        print(f"`__all__` lists `{name}` twice; remove one")
"""
"""Asks a fresh interpreter, so that a lazy table of names is resolved as a user would resolve it."""


def package_exports(tree: Tree) -> Iterator[Finding]:
    """Every name that the package promises can be had, and is promised once."""
    for file in tree.source:
        if file.path == "src/toolpost/__init__.py":
            command = [sys.executable, "-c", PROBE, str(tree.root / "src")]
            probe = subprocess.run(command, check=False, capture_output=True, text=True)
            for line in probe.stdout.splitlines():
                yield file.find(1, line)
            if probe.returncode:
                yield file.find(
                    1, f"`import toolpost` fails: {probe.stderr.strip().splitlines()[-1]}; mend it"
                )


# --------------------------------------------------------------------- the rules: words


LINK: Final = re.compile(r"\]\(\s*<?([^()\s<>]+)|^\[[^\]]+\]:\s+<?([^\s<>]+)")
SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
HEADING: Final = re.compile(r"#{1,6}\s+(.*)")
INLINE_CODE: Final = re.compile(r"`[^`]*`")


def links(tree: Tree) -> Iterator[Finding]:
    """Every relative link leads to a file of the repository, and its anchor to a heading."""
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
        return "it leaves the repository; name the place in words"
    if not goal.exists():
        return "there is no such file; correct or remove it"
    if anchor and anchor not in headings.get(goal.relative_to(root).as_posix(), set()):
        return "there is no such heading; correct or remove the anchor"
    return None


def _anchors(text: str) -> set[str]:
    """The anchors of a page, made from its headings as GitHub makes them."""
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
    """The numbered lines of a page that stand outside of code blocks."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = line.strip()[:3]
        if fence:
            fence = "" if mark == fence else fence
        elif mark in {"```", "~~~"}:
            fence = mark
        else:
            yield number, line


def machine_words(tree: Tree) -> Iterator[Finding]:
    """Nothing in the repository knows the machine that it was written on."""
    for pattern, advice in MACHINE_WORDS.items():
        for file in tree.files:
            for number, line in enumerate(file.text.splitlines(), 1):
                if match := re.search(pattern, line):
                    yield file.find(number, f"{match[0]} {advice}")


def excuses(tree: Tree) -> Iterator[Finding]:
    """Whoever silences a check or skips a test says why, in the same place."""
    for file in tree.python:
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            excuse = EXCUSE.search(token.string) if token.type == tokenize.COMMENT else None
            if excuse and not REASON.search(token.string, excuse.end()):
                yield file.find(token.start[0], f"`{excuse[1]}` without a reason; write ` - why` behind it")
        calls = [node for node in ast.walk(file.tree) if isinstance(node, ast.Call)]
        reasoned = {
            id(call.func) for call in calls if any(keyword.arg == "reason" for keyword in call.keywords)
        }
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Attribute) and node.attr in SKIPS and id(node) not in reasoned:
                owner = ast.unparse(node.value)
                if owner in {"pytest", "pytest.mark"}:
                    yield file.find(node.lineno, f"`{owner}.{node.attr}` without a reason; give it `reason=`")


# --------------------------------------------------------------------- all together

RULES: Final[tuple[Callable[[Tree], Iterator[Finding]], ...]] = (
    module_size,
    module_docstring,
    names,
    revision_literals,
    revision_order,
    module_exports,
    package_exports,
    links,
    machine_words,
    excuses,
)


def main(root: Path) -> int:
    """Print what breaks a rule, or that nothing does; the exit code says which."""
    tree = Tree(root)
    findings = sorted(finding for rule in RULES for finding in rule(tree))
    for finding in findings:
        print(finding)
    if not findings:
        print(f"house rules: {len(RULES)} rules, {len(tree.files)} files, all hold")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parents[1]))
