"""The house rules that no linter has: sizes, names, words, links, reasons.

Each rule is a function that reads the tree and yields its findings; `RULES` lists them. ruff, pyright and
import-linter check everything else. Run `python dev/house.py [root]`, or `make check`.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from budget import budget, report
from pages import links
from tree import File, Finding, Tree

# --------------------------------------------------------------------- limits and patterns

MAX_LINES: Final = 600
"""Lines of a module. A longer one has more than one topic; 200 lines are normal."""

DOCSTRING_LINES: Final = (2, 6)
"""Minimum and maximum of non-empty lines in the docstring of a module."""

ONE_LINER: Final = 10
"""Lines. A shorter module needs no docstring of several lines."""

LONGER_DOCSTRINGS: Final = {
    "src/toolpost/__init__.py": "greets the reader of `help(toolpost)`",
    "src/toolpost/errors.py": "draws the exception tree",
    "src/toolpost/protocol/seal.py": "draws the layout of a sealed string",
    "src/toolpost/protocol/connection.py": "opens with the essay and the table of the state machine",
}

REVISIONS_LIVE_IN: Final = frozenset(
    {"src/toolpost/protocol/methods.py", "src/toolpost/protocol/revisions.py"}
)
METHODS_LIVE_IN: Final = "src/toolpost/protocol/methods.py"
METHOD: Final = re.compile(r"[a-z]+(?:/[A-Za-z_]+)+")
"""The name of a method. Names of one word (`ping`) are also ordinary words, and allowed anywhere."""

DATE: Final = re.compile(r"\s*(?=-*\d)(?=\d*-)[\d-]+\s*")
"""A date, or a fragment of one: digits and hyphens, at least one of each."""

ORDERED_WORDS: Final = frozenset({"DATES", "date", "protocol_version", "revision"})
ORDERING: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ORDERING_CALLS: Final = frozenset({"max", "min", "sorted"})

EMPTY_MODULE: Final = re.compile(r"(?:^|_)(?:base|common|helpers?|impl|manager|shared|utils?)$|_handler$")
EMPTY_CLASS: Final = re.compile(r"(?:Helpers?|Impl|Manager|Utils?|(?<=[A-Za-z0-9])Handler)$")
"""Generic words. At the end of a name they hide its purpose."""

NAMED_ANYWAY: Final = {"src/toolpost/types/base.py": "the base struct of all protocol types"}

PARTICIPLE: Final = re.compile(
    r"_*(?:[a-z]+(?<!e)ed"
    r"|told|said|kept|found|known|begun|shown|written|heard|sent|made|taken|given|held|lost|seen)"
)
"""A bare participle: it names a state, not the action of the function."""

PARTICIPLES: Final = {
    "_elapsed": "the usual word for elapsed seconds",
    "cancelled": "the name that asyncio uses for futures",
}
"""Exceptions, each with the reason."""

EXPORTING: Final = ("src/toolpost/types/",)

MACHINE_WORDS: Final = {
    # The specification's own examples use /home/user.
    r"(?<![\w.~})>-])/(?:work|root|(?:home|Users)/(?!user/)[\w.-]+)/": "is a local path; make it relative",
    r"\bpypi\.org/simple|files\.pythonhosted\.org|registry\.npmjs\.org": "is a package index; remove it",
}

EXCUSE: Final = re.compile(r"#\s*((?:[\w-]+:\s*)?noqa|(?:type|pyright):\s*ignore|pragma:\s*no \w+)")
REASON: Final = re.compile(r" - .*\w{3}")
WHOLE_FILE: Final = re.compile(r"\s*#\s*(pyright:|type:\s*ignore)")
"""On a separate line, such a comment changes the type checker's settings for the whole file."""

BANNED_WORDS: Final = {
    "anew": "write `again`, or a verb with re-",
    "by itself": "write `automatically`, or name the cause",
    "for ever": "write `no limit` or `never ends`",
    "graver": "write `higher` or `more severe`",
    "in vain": "write what failed",
    "is due": "write `is expected` or `must be`",
    "is no": "write `is not a`",
    "mend": "write `fix`",
    "so many": "write the number, or `N`",
    "told": "write `sent`, `reported` or `logged`",
    **dict.fromkeys(
        ("anybody", "nobody", "somebody", "whoever"), "name the subject: the client, the user, …"
    ),
}
"""Word or phrase → how to replace it."""

BANNED: Final = re.compile(
    r"\b(?:" + "|".join(BANNED_WORDS).replace(" ", r"\s+") + r")\b(?!\s+longer\b)", re.IGNORECASE
)
THERE: Final = re.compile(r"\bthere\s+\Z", re.IGNORECASE)
"""`there is no` is allowed."""
WORD_TOKENS: Final = frozenset({"COMMENT", "STRING", "FSTRING_MIDDLE"})

CONTRACT_TESTS: Final = "tests/contract/"
PUBLIC_MODULES: Final = {
    "toolpost": "src/toolpost/__init__.py",
    "toolpost.errors": "src/toolpost/errors.py",
    "toolpost.prompting": "src/toolpost/prompting.py",
    "toolpost.server.middleware": "src/toolpost/server/middleware.py",
    "toolpost.testing": "src/toolpost/testing/__init__.py",
    "toolpost.types": "src/toolpost/types/__init__.py",
}
"""The modules that users import from. `__all__` of each lists its public names."""

SKIPS: Final = frozenset({"importorskip", "skip", "skipif", "xfail"})
REASON_WORDS: Final = 2
"""Minimum number of words in a reason."""

# --------------------------------------------------------------------- the rules: modules


def module_size(tree: Tree) -> Iterator[Finding]:
    """Report modules that are too long."""
    for file in tree.source:
        lines = len(file.text.splitlines())
        if lines > MAX_LINES:
            yield file.find(MAX_LINES + 1, f"{lines} lines (limit: {MAX_LINES}); split the module by topic")


def module_docstring(tree: Tree) -> Iterator[Finding]:
    """Report missing, short and long docstrings of modules."""
    least, most = DOCSTRING_LINES
    for file in tree.source:
        if file.stem == "__main__" or len(file.text.splitlines()) < ONE_LINER:
            continue
        docstring = ast.get_docstring(file.tree) or ""
        lines = sum(1 for line in docstring.splitlines() if line.strip())
        if lines < least or (lines > most and file.path not in LONGER_DOCSTRINGS):
            yield file.find(
                1,
                f"docstring lines: {lines}, expected: {least} to {most}; "
                "describe what the module does and what it leaves to others",
            )


def names(tree: Tree) -> Iterator[Finding]:
    """Report generic names of modules and classes."""
    for file in tree.source:
        for name in (*Path(file.path).parts[1:-1], file.stem):
            if EMPTY_MODULE.search(name) and file.path not in NAMED_ANYWAY:
                yield file.find(1, f"`{name}` is a generic name; name the module after its purpose")
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef) and EMPTY_CLASS.search(node.name):
                yield file.find(node.lineno, f"class `{node.name}` has a generic name; name its purpose")


def class_names(tree: Tree) -> Iterator[Finding]:
    """Report duplicate class names, including private ones, so that a search finds one class."""
    known: dict[str, str] = {}
    for file in tree.source:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef):
                first = known.setdefault(node.name, f"{file.path}:{node.lineno}")
                if first != f"{file.path}:{node.lineno}":
                    yield file.find(
                        node.lineno, f"class `{node.name}` is also defined in {first}; rename one"
                    )


def function_names(tree: Tree) -> Iterator[Finding]:
    """Report functions that are named by a bare participle instead of a verb."""
    for file in tree.source:
        for node in ast.walk(file.tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and PARTICIPLE.fullmatch(node.name)
                and node.name not in PARTICIPLES
                and not any(ast.unparse(each).endswith("property") for each in node.decorator_list)
            ):
                yield file.find(
                    node.lineno,
                    f"`{node.name}` is a participle; use a verb, or is_, has_, can_ for a boolean",
                )


# --------------------------------------------------------------------- the rules: revisions and methods


def revision_literals(tree: Tree) -> Iterator[Finding]:
    """Report dates of revisions, or parts of dates, outside the two modules that define them."""
    for file in _modules_without_dates(tree):
        for node in ast.walk(file.tree):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, bytes):
                value = value.decode("latin-1")
            if isinstance(node, ast.Constant) and isinstance(value, str) and DATE.fullmatch(value):
                yield file.find(node.lineno, f"revision {value} as a literal; use the fields of the revision")


def method_literals(tree: Tree) -> Iterator[Finding]:
    """Report names of methods outside protocol/methods.py. `Literal[…]` in annotations is allowed."""
    for home in tree.source:
        if home.path == METHODS_LIVE_IN:
            names = {value for _, value in _strings(home.tree) if METHOD.fullmatch(value)}
            for file in tree.source:
                for line, value in _strings(file.tree) if file is not home else ():
                    if value in names:
                        yield file.find(
                            line, f"`{value}` as a literal; use its constant in protocol/methods.py"
                        )


def _strings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module with their lines, except those inside `Literal[…]`."""
    nodes = list(ast.walk(module))
    literals = [node for node in nodes if isinstance(node, ast.Subscript) and _last_word(node) == "Literal"]
    left_out = {id(part) for literal in literals for part in ast.walk(literal)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.lineno, node.value


def revision_order(tree: Tree) -> Iterator[Finding]:
    """Revisions are ordered in two modules only; elsewhere the record says what holds."""
    for file in _modules_without_dates(tree):
        dates = ORDERED_WORDS | set(_date_aliases(file.tree))
        for node in (node for node in ast.walk(file.tree) if isinstance(node, ast.expr)):
            for word in sorted({_last_word(operand) for operand in _ordered(node)} & dates):
                yield file.find(node.lineno, f"orders by `{word}`; use the fields of the revision")


def _modules_without_dates(tree: Tree) -> Iterator[File]:
    """Return the modules that must not contain dates of revisions."""
    return (file for file in tree.source if file.path not in REVISIONS_LIVE_IN)


def _ordered(node: ast.expr) -> list[ast.expr]:
    """Return the operands that an expression orders."""
    match node:
        case ast.Compare() if any(isinstance(operator, ORDERING) for operator in node.ops):
            return [node.left, *node.comparators]
        case ast.Call(func=ast.Name(id=name)) if name in ORDERING_CALLS:
            return node.args
        case _:
            return []


def _date_aliases(module: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds to dates."""
    for node in ast.walk(module):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ) if _last_word(value) in ORDERED_WORDS:
                yield name
            case _:
                pass


def _last_word(node: ast.expr) -> str:
    """Return the last name of an expression, ignoring an index and a method call after it."""
    match node:
        case ast.Attribute(attr=word) | ast.Name(id=word):
            return word
        case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner)):
            return _last_word(inner)
        case ast.NamedExpr(value=inner):
            return _last_word(inner)
        case _:
            return ""


# --------------------------------------------------------------------- the rules: exports


def module_exports(tree: Tree) -> Iterator[Finding]:
    """Report modules of `toolpost.types` whose `__all__` is missing or wrong. ruff sorts it."""
    for file in tree.source:
        exports = _exports(file.tree) if file.path.startswith(EXPORTING) else []
        if exports is None and not file.stem.startswith("_"):
            yield file.find(1, "no `__all__`; add one with the public names as plain strings")
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
    """Yield the names that statements bind, including conditional ones."""
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
"""Runs in a new interpreter, which resolves lazy names as a user would."""


def package_exports(tree: Tree) -> Iterator[Finding]:
    """Report public names of the package that do not exist or are listed twice."""
    for file in tree.source:
        if file.path == "src/toolpost/__init__.py":
            command = [sys.executable, "-c", PROBE, str(tree.root / "src")]
            probe = subprocess.run(command, check=False, capture_output=True, text=True)
            for line in probe.stdout.splitlines():
                yield file.find(1, line)
            if probe.returncode:
                yield file.find(
                    1, f"`import toolpost` fails: {probe.stderr.strip().splitlines()[-1]}; fix it"
                )


# --------------------------------------------------------------------- the rules: words


def machine_words(tree: Tree) -> Iterator[Finding]:
    """Report local paths and package indexes."""
    for pattern, advice in MACHINE_WORDS.items():
        for file in tree.files:
            for number, line in enumerate(file.text.splitlines(), 1):
                if match := re.search(pattern, line):
                    yield file.find(number, f"{match[0]} {advice}")


def plain_words(tree: Tree) -> Iterator[Finding]:
    """Report banned words in the comments, docstrings and strings of the source."""
    for file in tree.source:
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            if tokenize.tok_name[token.type] not in WORD_TOKENS:
                continue
            for match in BANNED.finditer(token.string):
                word = " ".join(match[0].lower().split())
                if word != "is no" or not THERE.search(token.string, 0, match.start()):
                    line = token.start[0] + token.string.count("\n", 0, match.start())
                    yield file.find(line, f"banned word `{word}`; {BANNED_WORDS[word]}")


def excuses(tree: Tree) -> Iterator[Finding]:
    """Report silenced checks and skipped tests without a reason, and comments that silence a whole file."""
    for file in tree.python:
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            if token.type != tokenize.COMMENT:
                continue
            excuse = EXCUSE.search(token.string)
            if WHOLE_FILE.match(token.line):
                yield file.find(token.start[0], "loosens the types of a whole file; silence a single line")
            elif excuse and not REASON.search(token.string, excuse.end()):
                yield file.find(token.start[0], f"`{excuse[1]}` without a reason; add ` - reason` after it")
        nodes = list(ast.walk(file.tree))
        reasoned = {id(node.func) for node in nodes if isinstance(node, ast.Call) and _has_reason(node)}
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in SKIPS and id(node) not in reasoned:
                owner = ast.unparse(node.value)
                if owner in {"pytest", "pytest.mark"}:
                    yield file.find(
                        node.lineno, f"`{owner}.{node.attr}` without a reason; explain it in `reason=`"
                    )


def _has_reason(call: ast.Call) -> bool:
    """Return whether a call has a reason. A computed reason is accepted."""
    for keyword in call.keywords:
        if keyword.arg == "reason":
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else "computed at run time"
            return isinstance(value, str) and len(value.split()) >= REASON_WORDS
    return False


# --------------------------------------------------------------------- the rules: contract tests


def contract_imports(tree: Tree) -> Iterator[Finding]:
    """Report contract tests that use private names."""
    public = _public_names(tree)
    for file in tree.python:
        if not file.path.startswith(CONTRACT_TESTS):
            continue
        for node in (node for node in ast.walk(file.tree) if isinstance(node, ast.stmt | ast.expr)):
            for name in _hidden(node, public):
                yield file.find(
                    node.lineno, f"`{name}` is not public; import a public name, or move it to tests/unit"
                )
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")) | ast.Attribute(attr="_replace"):
                    pass
                case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                    yield file.find(
                        node.lineno, f"`{name}` is private; use the public API, or move it to tests/unit"
                    )
                case ast.Call(
                    func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(name)), *_]
                ) if name.startswith("toolpost."):
                    yield file.find(
                        node.lineno, f"replaces `{name}`; set an option, or move it to tests/unit"
                    )
                case _:
                    pass


LISTING: Final = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
print(json.dumps({name: list(importlib.import_module(name).__all__) for name in sys.argv[2:]}))
"""
"""Runs in a new interpreter, as above: some lists are built on import."""


def _public_names(tree: Tree) -> dict[str, list[str]]:
    """Return the public names of each public module; none if it is missing or cannot be imported."""
    paths = {file.path for file in tree.source}
    there = [module for module, path in PUBLIC_MODULES.items() if path in paths]
    command = [sys.executable, "-c", LISTING, str(tree.root / "src"), *there]
    listed = subprocess.run(command, check=False, capture_output=True, text=True) if there else None
    known: dict[str, list[str]] = json.loads(listed.stdout) if listed and listed.returncode == 0 else {}
    return {module: known.get(module, []) for module in PUBLIC_MODULES}


def _hidden(node: ast.AST, public: dict[str, list[str]]) -> Iterator[str]:
    """Yield the names that an import takes from toolpost and that are not public."""
    match node:
        case ast.Import(names=names):
            found = [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            exports = public.get(module)
            found = [
                f"{module}.{alias.name}"
                for alias in names
                if exports is None or (exports and alias.name not in exports)
            ]
        case _:
            found = []
    yield from (name for name in found if name.partition(".")[0] == "toolpost" and name not in PUBLIC_MODULES)


# --------------------------------------------------------------------- all together

RULES: Final[tuple[Callable[[Tree], Iterator[Finding]], ...]] = (
    module_size,
    module_docstring,
    names,
    class_names,
    function_names,
    budget,
    revision_literals,
    revision_order,
    method_literals,
    module_exports,
    package_exports,
    links,
    machine_words,
    plain_words,
    excuses,
    contract_imports,
)


def main(root: Path) -> int:
    """Print the sizes and the findings. Returns the exit code."""
    tree = Tree(root)
    findings = sorted(finding for rule in RULES for finding in rule(tree))
    for line in (*report(tree), *findings):
        print(line)
    if not findings:
        print(f"house rules: {len(RULES)} rules, {len(tree.files)} files, no findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parents[1]))
