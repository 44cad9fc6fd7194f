"""The conformance runner: legs, pending scenarios, table and exit code."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

import suite
from judge import Row, judge, judge_leg, summary
from legs import Leg, Run, Waiting, plan
from owed import FILE, FREE, WIRES, Owed, collect
from suite import Ran

HERE = Path(__file__).resolve().parent
CONFORMANCE = HERE.parents[2] / "conformance"

MOST = 1
"""The most scenarios that may be in `waiting.txt`: lower it when the list gets shorter."""

GOOD = {"id": "said", "name": "Said", "description": "it was said", "status": "SUCCESS"}
SAID = {"said": "SUCCESS"}


def owing(**scenarios: list[str]) -> Owed:
    """The required checks of scenarios, by `side_wire`; the years are enough as a wire."""
    wires = {wire[5:].replace("-", ""): wire for wire in WIRES} | {"extension": "extension"}
    checks = {side: {wire: {} for wire in wires.values()} for side in ("server", "client")}
    for place, names in scenarios.items():
        side, wire = place.split("_")
        checks[side][wires[wire]] = dict.fromkeys(names, SAID)
    sets = {date: {side: list(checks[side][date]) for side in checks} for date in WIRES[-2:]}
    return Owed({"checks": checks, "sets": sets})


# --------------------------------------------------------------------- the files that are in the repository


def test_all_that_the_issue_counts_is_owed():
    owed = Owed.load()
    assert sum(len(owed.scenarios("server", wire)) for wire in WIRES) == 101
    for side in ("server", "client"):
        for wire in (*WIRES, "extension"):
            for scenario in owed.scenarios(side, wire):
                vacuous = scenario == "tasks-status-notifications"  # which the suite always skips
                assert vacuous is ("SUCCESS" not in owed.checks(side, wire, scenario).values())


def test_all_that_has_to_pass_stands_in_a_leg_and_no_leg_is_empty():
    owed, waiting = Owed.load(), Waiting.load()
    legs = plan(owed, waiting.runs)
    assert all(leg.runs for leg in legs)
    planned = {run for leg in legs for run in leg.runs}
    for side in ("server", "client"):
        for wire in (*WIRES, "extension"):
            assert {Run(side, wire, scenario) for scenario in owed.scenarios(side, wire)} <= planned
    own = [run for leg in legs[:-1] for run in leg.runs]
    assert set(own).isdisjoint(waiting.runs)


def test_the_list_of_pending_scenarios_is_sorted_and_has_not_grown():
    waiting = Waiting.load()
    assert waiting.faults(Owed.load()) == []
    assert len(waiting.runs) <= MOST


def test_the_lock_names_no_registry_and_holds_the_suite_that_is_owed_to():
    lock = (CONFORMANCE / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    packages = json.loads(lock)["packages"]
    version = packages["node_modules/@modelcontextprotocol/conformance"]["version"]
    [pinned] = json.loads((CONFORMANCE / "package.json").read_text())["dependencies"].values()
    owed_to = json.loads((CONFORMANCE / "owed.json").read_text())["suite"]
    assert version == pinned
    assert owed_to.endswith(f" {pinned}")
    assert all(re.match("sha512-", package["integrity"]) for path, package in packages.items() if path)


# --------------------------------------------------------------------- what is owed, from what was seen


def test_a_check_that_any_implementation_passed_is_required():
    seen = {
        "both": {"py": "ok", "ts": "FAIL"},
        "never": {"py": "skip", "ts": "skip"},
        "nobody": {"py": "FAIL", "ts": "skip"},
    }
    empty = {wire: {} for wire in (*WIRES, "extension")}
    owed = collect({"server": empty | {WIRES[0]: {"one": seen}}, "client": empty})
    assert owed["server"][WIRES[0]]["one"] == {"both": "SUCCESS", "never": "SKIPPED"}


def test_optional_checks_are_listed_and_not_counted_as_success():
    owed = Owed.load()
    for (side, wire, scenario, check), least in FREE.items():
        assert owed.checks(side, wire, scenario)[check] == least


# --------------------------------------------------------------------- what may wait


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("client 2026-07-28 auth/two # later\nclient 2026-07-28 auth/two", "is listed twice"),
        ("client 2026-07-28 auth/three", "unknown run client 2026-07-28 auth/three"),
        ("nobody 2026-07-28 auth/two", "unknown run nobody"),
        ("client 2026-07-28 one", "must not be listed"),
    ],
)
def test_a_list_that_is_not_in_order(line, told):
    assert told in Waiting(line).faults(owing(client_0728=["one", "auth/two"]))[0]


def test_a_line_that_is_not_a_run():
    with pytest.raises(ValueError, match="line 2 of the waiting list"):
        Waiting("# a comment\nauth/two\n")


def test_pending_scenarios_have_their_own_leg():
    owed = owing(client_0728=["one", "auth/two"], server_extension=["tasks"])
    waiting = Waiting("client 2026-07-28 auth/two\nserver extension tasks")
    legs = {leg.name: [run.scenario for run in leg.runs] for leg in plan(owed, waiting.runs)}
    assert legs == {
        "client-2026-07-28": ["one"],
        "client-requirements-2026-07-28": ["one"],
        "auth": ["auth/two"],
        "extensions": ["tasks"],
    }


# --------------------------------------------------------------------- rows

ONE = Run("client", "2026-07-28", "one")


def test_a_scenario_that_was_not_run_is_red():
    [row] = judge_leg(Leg("client-2026-07-28", [ONE]), {}, "", owing(client_0728=["one"]))
    assert row == Row(str(ONE), ["not run", "missing said"])


def test_an_unknown_scenario_fails():
    another = Run("client", "2026-07-28", "another")
    ran = {ONE: Ran([GOOD]), another: Ran([GOOD])}
    rows = judge_leg(Leg("client-2026-07-28", [ONE]), ran, "", owing(client_0728=["one"]))
    assert [row.faults != [] for row in rows] == [False, True]


def test_a_leg_that_ended_badly_is_red_though_its_scenarios_are_fine():
    rows = judge_leg(
        Leg("client-2026-07-28", [ONE]), {ONE: Ran([GOOD])}, "a traceback", owing(client_0728=["one"])
    )
    assert rows[1:] == [Row("client-2026-07-28", ["a traceback"])]


@pytest.mark.parametrize(("checks", "counts"), [([], False), ([GOOD], True)])
def test_pending_scenarios_count_only_if_they_pass(checks, counts):
    [row] = judge_leg(Leg("auth", [ONE]), {ONE: Ran(checks)}, "", owing(client_0728=["one"]))
    assert row.faults
    assert row.counts is counts


def test_the_summary_closes_with_the_sum():
    told = {"a": [Row("one", []), Row("two", ["bad"])], "auth": [Row("three", ["bad"], counts=False)]}
    assert summary(told).splitlines()[-1] == "1 passed, 1 failed"
    assert summary(told).splitlines()[-3].split() == ["auth", "0", "0", "1"]


# --------------------------------------------------------------------- all together, by a stand-in


@pytest.fixture
def program(monkeypatch):
    monkeypatch.setattr(suite, "NODE", Path(sys.executable))
    monkeypatch.setattr(suite, "PROGRAM", HERE / "fake_suite.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    ("scenario", "code"),
    [
        ("fine", 0),
        ("fine.code-3", 1),
        ("forgiven", 1),
        ("killed", 1),
        ("quiet", 1),
        ("empty", 1),
        ("wrong", 1),
        ("warned", 1),
        ("skipped", 1),
    ],
)
def test_the_exit_code_shows_whether_all_passed(scenario, code, capsys):
    owed = owing(client_0618=["fine", scenario])
    assert asyncio.run(judge([], Waiting(""), owed)) == code
    told = capsys.readouterr().out
    assert told.splitlines()[-1] == (
        f"{2 - code} passed, {code} failed" if scenario != "fine" else "1 passed, 0 failed"
    )
    assert ("RED" in told) is bool(code)


@pytest.mark.usefixtures("program")
def test_pending_scenarios_do_not_fail_the_run_until_they_pass(capsys):
    owed = owing(client_0618=["auth/a.wrong", "auth/fine"])
    assert asyncio.run(judge([], Waiting("client 2025-06-18 auth/a.wrong"), owed)) == 0
    assert asyncio.run(judge(["auth"], Waiting("client 2025-06-18 auth/fine"), owed)) == 1
    assert "remove it from waiting.txt" in capsys.readouterr().out


@pytest.mark.usefixtures("program")
def test_a_list_that_is_not_in_order_fails_the_run(capsys):
    owed = owing(client_0618=["fine"], client_1125=["other"])
    assert asyncio.run(judge(["client-2025-06"], Waiting("client 2025-11-25 other"), owed)) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed"


@pytest.mark.usefixtures("program")
def test_servers_are_judged_in_one_go(monkeypatch, capsys):
    monkeypatch.setenv("STAND_IN", "fine")
    owed = owing(server_0618=["fine", "gone"])
    assert asyncio.run(judge(["server"], Waiting(""), owed)) == 1
    told = capsys.readouterr().out
    assert "not run" in told
    assert told.splitlines()[-1] == "1 passed, 1 failed"


def test_an_unknown_leg_is_reported(capsys):
    assert asyncio.run(judge(["nothing"], Waiting(""), owing(client_0618=["fine"]))) == 2
    assert "unknown leg 'nothing'; available: client-2025-06-18" in capsys.readouterr().out


UNSHOWN = {
    ("server", "extension", "tasks-status-notifications", "tasks-status-notifications"),
    *(
        ("client", "2026-07-28", "http-standard-headers", f"sep-2243-client-includes-standard-headers#{name}")
        for name in ("ClientMcpMethodHeader_initialize", "ClientMcpMethodHeader_notifications_initialized")
    ),
}
"""Checks that no implementation can pass."""


def test_all_required_checks_succeed_except_the_named_ones():
    """A file that was loosened by hand would let a scenario pass that shows nothing."""
    owed = json.loads(FILE.read_bytes())["checks"]
    least = {
        (side, wire, scenario, check): status
        for side, wires in owed.items()
        for wire, scenarios in wires.items()
        for scenario, checks in scenarios.items()
        for check, status in checks.items()
    }
    assert len(least) == 1065, "checks were added or taken away: was the suite changed?"
    loose = {check: status for check, status in least.items() if status != "SUCCESS"}
    assert loose == FREE | dict.fromkeys(UNSHOWN, "SKIPPED")
