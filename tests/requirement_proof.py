"""A pytest plugin: reports which rules of the specification the tests prove.

A test names the rules that it proves with `@pytest.mark.requirement("MSG-5", ...)`. A rule is proven when at
least one test that names it passed and none that names it failed. An id that does not exist is an
error. The run ends with a list of proven rules. The plugin does not judge how well a test proves its rule.
"""

from collections.abc import Generator, Iterator

import pytest

import specification

_PROPERTY = "requirement"
"""Ids travel in the user properties of reports: pytest-xdist carries these from worker to controller."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "requirement_sections",
        "sections of REQUIREMENTS.md in the summary, unless --requirements names others",
        type="args",
        default=[],
    )
    parser.getgroup("requirements").addoption(
        "--requirements",
        metavar="MSG,HTTP,...|all|none",
        help="sections of REQUIREMENTS.md in the summary of proven rules",
    )


def pytest_configure(config: pytest.Config) -> None:
    absence = specification.absence()
    if absence and specification.demanded():
        raise pytest.UsageError(absence)
    rules = {} if absence else specification.rules()
    sections = _sections(config, known=list(rules))
    config.pluginmanager.register(Proof(rules, sections, absence), "proof of rules")


def _sections(config: pytest.Config, known: list[str]) -> list[str]:
    option: str | None = config.getoption("--requirements")
    if option == "none":
        return []
    if option == "all":
        return known
    sections: list[str] = option.split(",") if option else config.getini("requirement_sections")
    unknown = [section for section in sections if known and section not in known]
    if unknown:
        raise pytest.UsageError(
            f"REQUIREMENTS.md has no section {', '.join(unknown)}; "
            f"name some of {', '.join(known)}, or all, or none"
        )
    return sections


class Proof:
    """The rules, and the results of the tests that name them.

    Args:
        rules: all ids by section; empty when the specification is missing.
        sections: the sections to print.
        absence: the reason if the specification is missing.
    """

    def __init__(self, rules: dict[str, list[str]], sections: list[str], absence: str | None) -> None:
        self.rules = rules
        self.sections = sections
        self.absence = absence
        self.ids = {id_ for ids in rules.values() for id_ in ids}
        self.passed: set[str] = set()
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        items = [node for node in report.result or () if isinstance(node, pytest.Item)]
        mistakes = [mistake for item in items for mistake in self._claim(item)]
        if mistakes:
            report.outcome, report.longrepr, report.result = "failed", "\n".join(mistakes), []
        return report

    def _claim(self, item: pytest.Item) -> Iterator[str]:
        """Record the rules that a test names; yield the errors in them."""
        marks = list(item.iter_markers("requirement"))
        path, line, name = item.location
        where = f"{path}:{(line or 0) + 1}: {name}"
        if not all(mark.args for mark in marks):
            yield f'{where} has a requirement mark without ids; write @pytest.mark.requirement("MSG-5")'
        for id_ in dict.fromkeys(id_ for mark in marks for id_ in mark.args):
            item.user_properties.append((_PROPERTY, id_))
            if id_ not in self.ids and not self.absence:
                yield f"{where} names the rule {id_}, which REQUIREMENTS.md does not have"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = [str(value) for name, value in report.user_properties if name == _PROPERTY]
        if report.failed:
            self.failed.update(ids)
        elif report.passed and report.when == "call" and not hasattr(report, "wasxfail"):
            self.passed.update(ids)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        yield  # after the skips and failures, which may be many: the last lines show what to do
        if not self.sections or terminalreporter.config.getoption("collectonly"):
            return
        if self.absence:
            skipped = len(terminalreporter.stats.get("skipped", ()))
            terminalreporter.section(f"{skipped} tests skipped", sep="!", yellow=True, bold=True)
            terminalreporter.line(self.absence, yellow=True, bold=True)
            return
        terminalreporter.section("rules of the specification")
        for section in self.sections:
            self._tell(section, terminalreporter)

    def _tell(self, section: str, terminalreporter: pytest.TerminalReporter) -> None:
        ids = self.rules[section]
        proven = [id_ for id_ in ids if id_ in self.passed - self.failed]
        open_ = [id_ for id_ in ids if id_ not in proven]
        terminalreporter.line(f"{section} {len(proven)}/{len(ids)} proven", bold=True)
        for word, some in (("proven", proven), ("not proven", open_)):
            if some:
                terminalreporter.line(f"  {word}: {' '.join(some)}")
