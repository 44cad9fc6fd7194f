"""The plugin that counts proven rules, run by a pytest inside pytest."""

import pytest

import specification

pytest_plugins = ["pytester"]

RULEBOOK = """
## AA - first

| id | who |
|---|---|
| AA-1 | both |
| AA-2 | both |

## BB - second

| BB-1 | both |
"""

TESTS = """
import pytest

pytestmark = pytest.mark.requirement("AA-1")

def test_passes(): pass

@pytest.mark.requirement("AA-2")
class TestSecond:
    def test_passes(self): pass
    @pytest.mark.parametrize("n", [0, pytest.param(1, marks=pytest.mark.requirement("BB-1"))])
    def test_some_fail(self, n): assert n
"""


@pytest.fixture(autouse=True)
def rulebook(pytester, monkeypatch):
    """A specification of three rules, and the plugin as the only one that a conftest brings."""
    place = pytester.mkdir("spec")
    (place / "REQUIREMENTS.md").write_text(RULEBOOK)
    monkeypatch.setenv("TOOLPOST_SPEC", str(place))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # the inner workers run nothing to measure
    pytester.makeconftest('pytest_plugins = ["requirement_proof"]')
    pytester.makeini(
        "[pytest]\nmarkers = requirement(*ids)\nrequirement_sections = AA\naddopts = --strict-markers"
    )
    return place / "REQUIREMENTS.md"


def test_ids_are_read_by_section():
    assert specification.rules() == {"AA": ["AA-1", "AA-2"], "BB": ["BB-1"]}


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_rule_is_proven_by_a_pass_and_no_failure(pytester, workers):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("--requirements=all", *workers)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["AA 0/2 proven", "  not proven: AA-1 AA-2", "BB 1/1 proven", "  proven: BB-1"], consecutive=True
    )


def test_proven_rules_are_listed_and_so_are_the_others(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.requirement('AA-2')\ndef test(): pass")
    pytester.runpytest().stdout.fnmatch_lines(
        ["AA 1/2 proven", "  proven: AA-2", "  not proven: AA-1"], consecutive=True
    )


@pytest.mark.parametrize(
    "body",
    [
        "@pytest.mark.skip(reason='not today')\ndef test(): pass",
        "@pytest.mark.xfail(reason='not yet')\ndef test(): assert False",
        "@pytest.mark.xfail(reason='thought so')\ndef test(): pass",
        "@pytest.fixture\ndef broken(): raise OSError\ndef test(broken): pass",
        "@pytest.fixture\ndef broken():\n    yield\n    raise OSError\ndef test(broken): pass",
    ],
    ids=["skipped", "xfailed", "xpassed", "setup fails", "teardown fails"],
)
def test_only_a_plain_pass_proves(pytester, body):
    pytester.makepyfile(f"import pytest\npytestmark = pytest.mark.requirement('AA-1')\n{body}\n")
    pytester.runpytest().stdout.fnmatch_lines(["AA 0/2 proven", "  not proven: AA-1 AA-2"])


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
@pytest.mark.parametrize(
    ("mark", "told"),
    [
        (
            "requirement('AA-1', 'ZZ-9')",
            "test_it.py:2: test_it names the rule ZZ-9, which REQUIREMENTS.md does not have",
        ),
        ("requirement()", "test_it.py:2: test_it has a requirement mark without ids; *"),
        ("requirement", "test_it.py:2: test_it has a requirement mark without ids; *"),
    ],
)
def test_a_mark_that_names_no_rule_is_a_collection_error(pytester, mark, told, workers):
    pytester.makepyfile(test_it=f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n")
    result = pytester.runpytest(*workers)
    result.assert_outcomes(errors=1)
    result.stdout.re_match_lines([r".*ERROR collecting test_it\.py.*"])
    result.stdout.fnmatch_lines([told])


@pytest.mark.parametrize(
    ("option", "shown", "hidden"),
    [
        ((), "AA ", "BB "),
        (("--requirements=BB",), "BB ", "AA "),
        (("--requirements=BB,AA",), "BB ", "CC "),
        (("--requirements=none",), "", "proven"),
        (("--collect-only",), "", "proven"),
    ],
)
def test_sections_are_chosen(pytester, option, shown, hidden):
    pytester.makepyfile("def test(): pass")
    result = pytester.runpytest(*option)
    result.stdout.fnmatch_lines([f"{shown}*"])
    result.stdout.no_fnmatch_line(f"*{hidden}*")


def test_an_unknown_section_is_refused(pytester):
    result = pytester.runpytest("--requirements=AA,XX")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no section XX; name some of AA, BB, or all, or none"])


def test_a_missing_specification_leaves_the_marks_unchecked_and_says_so(pytester, monkeypatch, tmp_path):
    monkeypatch.delenv("TOOLPOST_SPEC")
    monkeypatch.setattr(specification, "_BESIDE", tmp_path)
    pytester.makepyfile(
        "import pytest\n@pytest.mark.requirement('ZZ-9')\ndef test(): pass\n"
        "def test_skipped(): pytest.skip(reason='no specification')\n"
    )
    result = pytester.runpytest_inprocess("-ra")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED *",
            "*!! 1 tests skipped !!*",
            "the specification is missing: *; set TOOLPOST_SPEC to the folder that has it",
            "*1 passed, 1 skipped*",
        ]
    )


@pytest.mark.parametrize("demand", ["CI", "TOOLPOST_SPEC"])
def test_a_missing_specification_fails_where_it_is_demanded(pytester, monkeypatch, demand, tmp_path):
    monkeypatch.delenv("TOOLPOST_SPEC")
    monkeypatch.setattr(specification, "_BESIDE", tmp_path)
    monkeypatch.setenv(demand, {"CI": "true", "TOOLPOST_SPEC": str(tmp_path)}[demand])
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the specification is missing*"])
