"""Each house rule, on small trees that follow it and small trees that break it."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import house

SCRIPT = Path(house.__file__)
TOP = "src/toolpost/__init__.py"
ERRORS = "src/toolpost/errors.py"
THING = "src/toolpost/protocol/thing.py"
WORDS = "src/toolpost/types/words.py"
PLAIN = "src/toolpost/cli/words.py"
METHODS = "src/toolpost/protocol/methods.py"
REVISIONS = "src/toolpost/protocol/revisions.py"
CONTRACT = "tests/contract/server/test_x.py"
CODE = "x = 1\n" * 10
ESSAY = '"""Essay.\n' + "more\n" * 9 + '"""\n'

BESIDE = {house.method_literals: {METHODS: 'CALL = "tools/call"\nPING = "ping"\n'}}
"""What is in the tiny trees of a rule besides the file of the case."""

# rule, path, content
KEEP = [
    (house.module_size, THING, "#\n" * 600),
    (house.module_size, "tests/test_long.py", "#\n" * 601),
    (house.module_docstring, THING, '"""Owns things.\n\nKnows nothing else.\n"""\n' + CODE),
    (house.module_docstring, THING, '"""Owns little."""\n'),
    (house.module_docstring, THING, ""),
    (house.module_docstring, "src/toolpost/__main__.py", CODE),
    (house.module_docstring, ERRORS, ESSAY),
    (house.names, "src/toolpost/server/handler.py", "class Handler: ...\nclass Simple: ...\n"),
    (house.names, "src/toolpost/types/base.py", "class Base: ...\n"),
    (house.names, "tests/types/test_base.py", ""),
    (house.class_names, THING, "class One: ...\nclass _Two:\n    class Three: ...\n"),
    (house.class_names, "tests/test_x.py", "class One: ...\nclass One: ...\n"),
    (
        house.function_names,
        THING,
        "def send(): ...\ndef is_closed(): ...\ndef feed(): ...\ndef __made__(): ...\n",
    ),
    (
        house.function_names,
        THING,
        "class F:\n    @property\n    def sent(self): ...\n    def cancelled(self): ...\n",
    ),
    (house.function_names, THING, "def find_sent(): ...\ndef sent_bytes(): ...\nfound = 1\n"),
    (house.function_names, "tests/test_x.py", "def told(): ...\n"),
    (house.budget, THING, "#\n" * 600),
    (house.budget, "tests/test_long.py", "#\n" * 60_000),
    (house.revision_literals, THING, 'x = "since 2025-11-25"\ny = "2025", "-", "--", "utf-8", 5 - 4\n'),
    (house.revision_literals, METHODS, 'x = "2025-11-25"\n'),
    (house.revision_literals, REVISIONS, 'x = "2025-11-25"\n'),
    (house.revision_literals, "tests/test_x.py", 'x = "2025-11-25"\n'),
    (house.revision_order, THING, "revision == other\nsize < 5\nlen(date) > 3\ndate in DATES\nmax(sizes)\n"),
    (
        house.revision_order,
        THING,
        "when: str\nwhen = revision.date\nwhen == other\nsize = len(DATES)\nsize < 3\n",
    ),
    (house.revision_order, REVISIONS, "a.date < b.date\n"),
    (house.method_literals, THING, '"""Serves `tools/call`."""\nx = "tools/call me", "ping", "tools/list"\n'),
    (house.method_literals, THING, 'x: Literal["tools/call"]\ny: typing.Literal["a", "tools/call"]\n'),
    (house.method_literals, "tests/test_x.py", 'x = "tools/call"\n'),
    (
        house.module_exports,
        WORDS,
        '__all__ = ["F", "g", "x"]\nclass F: ...\nasync def g(): ...\nx, y = 1, 2\n',
    ),
    (house.module_exports, WORDS, '__all__ = ["a", "b"]\nfrom m import a\nif a:\n    b: int = 1\n'),
    (
        house.module_exports,
        WORDS,
        '__all__ = ["a", "b"]\ntry:\n    import c as a\nexcept E: ...\nelse:\n    b = 1\n',
    ),
    (house.module_exports, "src/toolpost/types/_inner.py", "x = 1\n"),
    (house.module_exports, "src/toolpost/types/__init__.py", ""),
    (house.module_exports, "src/toolpost/run.py", "x = 1\n"),
    (house.package_exports, "README.md", "no package yet"),
    (house.package_exports, TOP, '"""Nothing yet."""'),
    (
        house.package_exports,
        TOP,
        '__all__ = ["Late"]\ndef __getattr__(name):\n    return {"Late": 1}[name]\n',
    ),
    (house.links, "a.md", "[web](https://example.com/x) [mail](mailto:a@example.com) `[code](gone.md)`\n"),
    (house.links, "a.md", "[down](#start)\n# Start\n```md\n[block](gone.md)\n```\n"),
    (house.links, "a.md", "# A `coded` part, and more\n[it](a.md#a-coded-part-and-more)\n"),
    (house.links, "a.md", "# Same\n# Same ##\n[first](#same), [second]\n\n[second]: #same-1\n"),
    (house.links, "a.md", "# [Linked](a.md) words\n[it](#linked-words)\n"),
    (house.links, "docs/a b.md", "[self](a%20b.md), ![self](<../docs/a%20b.md>), [folder](../docs)\n"),
    (house.machine_words, "a.md", "src/work/x ../root/x https://example.com/work/ /home/<name>/ {x}/root/"),
    (house.machine_words, "a.md", "file:///home/user/project, ~/work/x, pypi.org/project/toolpost"),
    (
        house.excuses,
        "a.py",
        "import b  # noqa: F401 - for its effect\nc = 'see # noqa'\n# why noqa is rare\n",
    ),
    (house.plain_words, PLAIN, 'nobody = "there is no list"  # it is no longer used, amended\n'),
    (house.plain_words, "tests/test_x.py", 'x = "nobody"\n'),
    (house.excuses, "a.py", "@pytest.mark.skipif(x, reason='no forks')\ndef f(): skip()\n"),
    (house.excuses, "a.py", "tree.skip(3)\npytest.skip(reason='no spec')\npytest.skip(reason=absence)\n"),
    (house.excuses, "a.py", "x = y  # pyright: ignore[z] - is tested\n# a pyright: word in prose\n"),
    (house.excuses, "a.md", "import b  # noqa\n"),
    (house.contract_imports, CONTRACT, "import toolpost\nfrom toolpost import Client, errors\n"),
    (
        house.contract_imports,
        CONTRACT,
        "from toolpost.server import middleware\nfrom toolpost.types import Tool\n",
    ),
    (house.contract_imports, CONTRACT, "self._x = cls._y = pair._replace(a=1).__class__\n"),
    (house.contract_imports, CONTRACT, "monkeypatch.setattr('time.time', x)\n"),
    (
        house.contract_imports,
        "tests/unit/test_x.py",
        "from toolpost.server.server import Server\nserver._x\n",
    ),
]

# rule, path, content, line, what is said
BREAK = [
    (house.module_size, THING, "#\n" * 601, 601, "601 lines (limit: 600)"),
    (house.module_docstring, THING, CODE, 1, "docstring lines: 0, expected: 2 to 6"),
    (house.module_docstring, THING, '"""One line."""\n' + CODE, 1, "docstring lines: 1, expected"),
    (house.module_docstring, THING, ESSAY, 1, "docstring lines: 10, expected"),
    (house.module_docstring, ERRORS, CODE, 1, "docstring lines: 0, expected"),
    (house.names, "src/toolpost/protocol/base.py", "", 1, "`base` is a generic name"),
    (house.names, "src/toolpost/utils/text.py", "", 1, "`utils` is a generic name"),
    (house.names, "src/toolpost/tool_manager.py", "", 1, "`tool_manager` is a generic name"),
    (house.names, "src/toolpost/tool_handler.py", "", 1, "`tool_handler` is a generic name"),
    (house.names, THING, "class SessionManager: ...", 1, "class `SessionManager` has a generic name"),
    (house.names, THING, "\nclass HTTPHandler: ...", 2, "class `HTTPHandler` has a generic name"),
    (
        house.class_names,
        THING,
        "class One: ...\nif x:\n    class One: ...\n",
        3,
        "class `One` is also defined in " + THING + ":1",
    ),
    (house.function_names, THING, "\ndef dropped(): ...\n", 2, "`dropped` is a participle"),
    (
        house.function_names,
        THING,
        "class F:\n    async def _sent(self): ...\n",
        2,
        "`_sent` is a participle",
    ),
    (house.budget, THING, "#\n" * 20_000, 1, "package `protocol`: 20000 lines"),
    (house.budget, "src/toolpost/odd/thing.py", "", 1, "package `odd` has no budget"),
    (house.revision_literals, THING, '\nx = ["2025-11-25"]\n', 2, "revision 2025-11-25 as a literal"),
    (house.revision_literals, THING, 'x = b"2025-11-25"\n', 1, "revision 2025-11-25 as a literal"),
    (house.revision_literals, THING, 'x = "2025-" + y\n', 1, "revision 2025- as a literal"),
    (house.revision_literals, THING, 'x = year + "-11-25"\n', 1, "revision -11-25 as a literal"),
    (house.revision_literals, THING, 'x = f"{year}11-25"\n', 1, "revision 11-25 as a literal"),
    (house.revision_literals, THING, 'x = " 2025-11-25 ".strip()\n', 1, "revision  2025-11-25  as a literal"),
    (house.revision_order, THING, "\nold >= peer.revision\n", 2, "orders by `revision`"),
    (house.revision_order, THING, "first <= revision.date < last\n", 1, "orders by `date`"),
    (house.revision_order, THING, "_D = DATES[2]\nwhen > _D\n", 2, "orders by `_D`"),
    (house.revision_order, THING, "_D: Final = LATEST.date\nwhen > _D\n", 2, "orders by `_D`"),
    (
        house.revision_order,
        THING,
        "if (when := peer.revision.date) and when < x: ...\n",
        1,
        "orders by `when`",
    ),
    (house.revision_order, THING, "(when := revision.date) < x\n", 1, "orders by `date`"),
    (house.revision_order, THING, "DATES.index(a) < 3\n", 1, "orders by `DATES`"),
    (house.revision_order, THING, "meta.protocol_version[:4] < x\n", 1, "orders by `protocol_version`"),
    (house.revision_order, THING, "a == max(a, b.date)\n", 1, "orders by `date`"),
    (
        house.method_literals,
        THING,
        '\nx = {"tools/call": 1}\n',
        2,
        "`tools/call` as a literal; use its constant",
    ),
    (house.module_exports, WORDS, "x = 1\n", 1, "no `__all__`"),
    (house.module_exports, WORDS, "__all__ = sorted(x)\n", 1, "no `__all__`"),
    (house.module_exports, WORDS, '__all__ = ["x"]\nx.y = 1\n', 1, "`x`, which the module does not define"),
    (house.module_exports, WORDS, '__all__ = ["x", "x"]\nx = 1\n', 1, "`x` twice"),
    (house.package_exports, TOP, '__all__ = ["Gone"]\n', 1, "`Gone`, which `toolpost` does not have"),
    (house.package_exports, TOP, '__all__ = ["x", "x"]\nx = 1\n', 1, "`x` twice"),
    (
        house.package_exports,
        TOP,
        "import nowhere_at_all\n",
        1,
        "`import toolpost` fails: ModuleNotFoundError",
    ),
    (house.links, "a.md", "\nsee [b](b.md)", 2, "the link to b.md is dead: there is no such file"),
    (house.links, "a.md", "[b]: b.md", 1, "the link to b.md is dead: there is no such file"),
    (house.links, "a.md", "[b](#b)\n# A", 1, "the link to #b is dead: there is no such heading"),
    (house.links, "a.md", "~~~\n# A\n~~~\n[a](#a)", 4, "the link to #a is dead: there is no such heading"),
    (house.links, "a.md", "[b](../b.md)", 1, "the link to ../b.md is dead: it leaves the repository"),
    # Written in two pieces, because the rule reads this file too.
    (house.machine_words, "a.md", f"\nsee /{'work'}/main", 2, f"/{'work'}/ is a local path"),
    (house.machine_words, "a.txt", f"file:///{'root'}/x", 1, f"/{'root'}/ is a local path"),
    (house.machine_words, "a.py", f"'/home/{'ann'}/x'", 1, f"/home/{'ann'}/ is a local path"),
    (house.machine_words, "a.lock", f"https://pypi.org/{'simple'}/x", 1, "is a package index"),
    (house.plain_words, PLAIN, "x = 1  # Nobody reads it\n", 1, "banned word `nobody`; name the subject"),
    (
        house.plain_words,
        PLAIN,
        '"""One.\n\nWait for\never.\n"""\n',
        3,
        "banned word `for ever`; write `no limit`",
    ),
    (house.plain_words, PLAIN, 'x = "a"\ny = f"{x} is no list"\n', 2, "banned word `is no`"),
    (house.excuses, "a.py", "\nimport b  # noqa: F401\n", 2, "`noqa` without a reason"),
    (house.excuses, "a.py", "# ruff: noqa\n", 1, "`ruff: noqa` without a reason"),
    (house.excuses, "a.py", "x = 1  # type: ignore[x]  # more\n", 1, "`type: ignore` without a reason"),
    (house.excuses, "a.py", "x = 1  # so - y  # pyright: ignore\n", 1, "`pyright: ignore` without a reason"),
    (house.excuses, "a.py", "if x:  # pragma: no cover\n    y\n", 1, "`pragma: no cover` without a reason"),
    (house.excuses, "a.py", "@pytest.mark.skip\ndef f(): ...\n", 1, "`pytest.mark.skip` without a reason"),
    (
        house.excuses,
        "a.py",
        "@pytest.mark.xfail(x)\nclass F: ...\n",
        1,
        "`pytest.mark.xfail` without a reason",
    ),
    (house.excuses, "a.py", "\npytest.skip(reason='')\n", 2, "`pytest.skip` without a reason"),
    (house.excuses, "a.py", "pytest.skip(reason=None)\n", 1, "`pytest.skip` without a reason"),
    (house.excuses, "a.py", "pytest.skip(reason='flaky')\n", 1, "`pytest.skip` without a reason"),
    (house.excuses, "a.py", "x = 1  # noqa: F401 - x\n", 1, "`noqa` without a reason"),
    (house.excuses, "a.py", "# pyright: basic\n", 1, "loosens the types of a whole file"),
    (
        house.excuses,
        "a.py",
        "x = 1\n  #pyright:reportX=false - why not\n",
        2,
        "loosens the types of a whole file",
    ),
    (house.excuses, "a.py", "# type: ignore[x] - why not\n", 1, "loosens the types of a whole file"),
    (house.excuses, "a.py", "\npytest.importorskip('x')\n", 2, "`pytest.importorskip` without a reason"),
    (
        house.contract_imports,
        CONTRACT,
        "\nfrom toolpost.server.server import Server\n",
        2,
        "`toolpost.server.server.Server`",
    ),
    (house.contract_imports, CONTRACT, "import toolpost.web\n", 1, "`toolpost.web` is not public"),
    (
        house.contract_imports,
        CONTRACT,
        "def f():\n    from toolpost.server import server\n",
        2,
        "`toolpost.server.server`",
    ),
    (house.contract_imports, CONTRACT, "server._store\n", 1, "`_store` is private"),
    (
        house.contract_imports,
        CONTRACT,
        "m.setattr('toolpost.run.DRAIN_TIMEOUT', 1)\n",
        1,
        "replaces `toolpost.run.DRAIN_TIMEOUT`",
    ),
]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    """Turn coverage off in child processes: they import the `toolpost` of a tiny tree."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


def plant(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.mark.parametrize(("rule", "path", "content"), KEEP)
def test_a_tree_that_keeps_the_rule(rule, path, content, tmp_path):
    assert list(rule(house.Tree(plant(tmp_path, {**BESIDE.get(rule, {}), path: content})))) == []


@pytest.mark.parametrize(("rule", "path", "content", "line", "said"), BREAK)
def test_a_tree_that_breaks_the_rule(rule, path, content, line, said, tmp_path):
    (finding,) = rule(house.Tree(plant(tmp_path, {**BESIDE.get(rule, {}), path: content})))
    assert (finding.path, finding.line) == (path, line)
    assert said in finding.text


def test_every_rule_is_kept_and_broken_above():
    assert {case[0] for case in KEEP} == {case[0] for case in BREAK} == {*house.RULES}


def test_a_class_of_another_module_takes_the_name_too(tmp_path):
    other = "src/toolpost/server/thing.py"
    tree = house.Tree(plant(tmp_path, {THING: "class _One: ...\n", other: "\nclass _One: ...\n"}))
    (finding,) = house.class_names(tree)
    assert (finding.path, finding.line) == (other, 2)


def test_a_folder_has_few_modules_and_the_whole_has_not_many(tmp_path):
    folder = {f"src/toolpost/types/word{number:02}.py": "" for number in range(21)}
    tree = house.Tree(plant(tmp_path, {**folder, "src/toolpost/types/__init__.py": ""}))
    (finding,) = house.budget(tree)
    assert (finding.path, finding.line) == ("src/toolpost/types/word20.py", 1)
    assert "(limit: 20)" in finding.text
    many = {f"src/toolpost/cli/a{number // 20}/word{number}.py": "" for number in range(240)}
    (_, finding) = house.budget(house.Tree(plant(tmp_path, many)))
    assert str(finding).startswith("src/toolpost/:1: 261 modules in total ")
    assert str(finding).endswith("; merge small ones")


def test_the_whole_has_a_budget_of_its_own(tmp_path):
    names = (
        "auth",
        "cli",
        "client",
        "protocol",
        "server",
        "testing",
        "transports",
        "stores",
        "types",
        "server/http",
    )
    tree = house.Tree(plant(tmp_path, {f"src/toolpost/{name}/a.py": "#\n" * 6_000 for name in names}))
    assert any(each.text.startswith("60000 lines in total ") for each in house.budget(tree))


def test_the_sizes_are_printed_by_package(tmp_path, capsys):
    http = "src/toolpost/server/http/app.py"
    files = {
        TOP: "",
        "src/toolpost/server/__init__.py": "#\n",
        "src/toolpost/server/runtime/a.py": "#\n" * 2,
        http: "#\n",
    }
    house.main(plant(tmp_path, files))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[:5]]
    assert rows[0] == ["package", "lines", "budget", "modules"]
    assert [(row[0], row[1], row[3]) for row in rows[1:]] == [
        (".", "0", "0"),
        ("server", "3", "1"),
        ("server/http", "1", "1"),
        ("total", "4", "2"),
    ]


def test_a_contract_test_imports_listed_names(tmp_path):
    code = "from toolpost import Client, connect\nfrom toolpost import *\n"
    tree = house.Tree(plant(tmp_path, {TOP: '__all__ = ["Client"]\n', CONTRACT: code}))
    assert [finding.line for finding in house.contract_imports(tree)] == [1, 2]


def test_all_findings_are_printed_in_order_and_fail_the_run(tmp_path, capsys):
    plant(tmp_path, {"b.md": "[x](x.md)", "a.py": "x = 1  # noqa\n"})
    assert house.main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a.py:1: `noqa` without a reason; add ` - reason` after it",
        "b.md:1: the link to x.md is dead: there is no such file; correct or remove it",
    ]


def test_a_tree_without_findings_is_reported_in_one_line(tmp_path, capsys):
    plant(tmp_path, {"a.md": "# A", "a.png": b"\x89PNG", ".venv/x.md": "[x](x.md)", "dist/x.md": "[x](x.md)"})
    assert house.main(tmp_path) == 0
    assert capsys.readouterr().out == f"house rules: {len(house.RULES)} rules, 1 files, no findings\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_says_which_files_are_ours(tmp_path):
    plant(
        tmp_path, {".gitignore": "made/\n", "made/x.md": "", "build/kept.md": "", "gone.md": "", "new.md": ""}
    )
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "build", "gone.md"], check=True)
    (tmp_path / "gone.md").unlink()
    assert [file.path for file in house.Tree(tmp_path).files] == [".gitignore", "build/kept.md", "new.md"]


def test_the_script_checks_the_folder_that_it_is_given(tmp_path):
    plant(tmp_path, {"a.md": "[x](x.md)"})
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout[:7], run.stderr) == (1, "a.md:1:", "")
