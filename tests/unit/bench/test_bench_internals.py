"""The bench: its goals, its arithmetic, its report, and one scenario that is really run."""

import os

import pytest

from bench import __main__ as bench
from bench import over_http
from bench.arena import Arena
from bench.contenders import CONTENDERS
from bench.figures import LIMIT, OFFICIAL, OURS, Figure, Row, Sample
from bench.goals import GOALS, judge
from bench.loader import Loader
from bench.process import Failed
from bench.report import shown

ALONE = {name: "not in this test" for name in CONTENDERS if name != OURS}


def row(more=True, busy=0.95, **figures):
    made = Row.of("http-stateless-16", "calls", more=more)
    names = {"ours": OURS, "official": OFFICIAL, "limit": LIMIT}
    for name, values in figures.items():
        made.figures[names[name]] = Figure(tuple(Sample(value, value / busy) for value in values))
    return made


def test_a_quick_run_measures_every_goal():
    quick = bench.chosen([], quick=True)
    assert all(bench._concerns(goal, quick) for goal in GOALS)
    assert len(quick) < len(bench.chosen([], quick=False))


def test_words_choose_scenarios_by_how_they_begin():
    assert {scenario.key for scenario in bench.chosen(["stdio", "http-list"], quick=True)} == {
        "stdio-sequential",
        "stdio-64",
        "http-list-100",
    }
    assert bench.chosen(["nothing"], quick=False) == []
    assert bench._unknown(["stdio", "nothing", "http-list", "none"]) == ["nothing", "none"]


def test_what_a_quick_run_cannot_judge_is_told():
    made = row(busy=0.8, ours=[80], official=[10])
    unjudged, disturbed = bench._caveats({made.key: made}, GOALS, quick=True)
    names = (
        "idle session; idle session with an open stream; call rate with 5 000 idle sessions and 1 000 tools"
    )
    assert unjudged.startswith("left to a whole run")
    assert unjudged.endswith(f": {names}")
    assert disturbed.endswith("no verdict: http-stateless-16")
    assert not list(bench._caveats({}, GOALS, quick=False))


def test_a_scenario_that_fails_as_a_whole_misses_and_is_told():
    def run(_arena):
        raise Failed("nothing works")

    with Arena(Loader(), quick=True, missing={}) as arena:
        [made] = bench._measured(bench.Scenario("http-list-100", True, run), arena)
    assert "nothing works" in shown(made)
    assert not judge(GOALS[6], {made.key: made}).reached


# --------------------------------------------------------------------- really run


def test_a_scenario_is_run_with_toolpost_alone(monkeypatch):
    monkeypatch.setattr(over_http, "SECONDS", 0.0)
    monkeypatch.setattr(over_http, "WARM", 0.0)
    scenarios = {scenario.key: scenario for scenario in over_http.SCENARIOS}
    with Arena(Loader(), quick=True, missing=ALONE) as arena:
        for key in ("http-stateless-1", "http-session-sse-1"):
            [made] = scenarios[key].run(arena)
            assert made.failed == {}
            assert made.figures[OURS].median > 0
        [pid] = {target.pid for target in arena._running.values()}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
