"""The bench: goals, arithmetic, report, and one real scenario."""

import os
import shutil
import sys

import pytest

from bench import __main__ as bench
from bench import over_http
from bench.arena import Arena
from bench.contenders import CONTENDERS
from bench.figures import LIMIT, OFFICIAL, OURS, Figure, Row, Sample
from bench.goals import GOALS, judge
from bench.loader import Loader, post
from bench.process import Failed, started
from bench.report import format_row
from bench.targets import wire
from bench.wrk import Wrk

ALONE = {name: "not in this test" for name in CONTENDERS if name != OURS}


def row(more=True, busy=0.95, **figures):
    made = Row.of("http-stateless-context", "calls", more=more)
    names = {"ours": OURS, "official": OFFICIAL, "limit": LIMIT}
    for name, values in figures.items():
        made.figures[names[name]] = Figure(tuple(Sample(value, value / busy) for value in values))
    return made


def test_a_quick_run_measures_every_goal():
    quick = bench.select([], quick=True)
    assert all(bench._concerns(goal, quick) for goal in GOALS)
    assert len(quick) < len(bench.select([], quick=False))


def test_words_choose_scenarios_by_how_they_begin():
    assert {scenario.key for scenario in bench.select(["stdio", "http-list"], quick=True)} == {
        "stdio-sequential",
        "stdio-64",
        "http-list-100",
    }
    assert bench.select(["nothing"], quick=False) == []
    assert bench._unknown(["stdio", "nothing", "http-list", "none"]) == ["nothing", "none"]


def test_goals_without_a_measurement_in_a_quick_run_are_reported():
    made = row(busy=0.8, ours=[80], official=[10])
    unjudged, disturbed = bench._caveats({made.key: made}, GOALS, quick=True)
    names = (
        "idle session; idle session with an open stream; call rate with 5 000 idle sessions and 1 000 tools; "
        "change of a list to 1500 streams"
    )
    assert unjudged.startswith("only a full run")
    assert unjudged.endswith(f": {names}")
    assert disturbed.endswith("not conclusive: http-stateless-context")
    assert not list(bench._caveats({}, GOALS, quick=False))


def test_a_scenario_that_fails_as_a_whole_misses_and_is_reported():
    def run(_arena):
        raise Failed("nothing works")

    with Arena(Loader(), quick=True, missing={}) as arena:
        [made] = bench._measure(bench.Scenario("http-list-100", True, run), arena)
    assert "nothing works" in format_row(made)
    [goal] = [goal for goal in GOALS if goal.key == made.key]
    assert not judge(goal, {made.key: made}).reached


# --------------------------------------------------------------------- really run


def test_a_scenario_is_run_with_toolpost_alone(monkeypatch):
    monkeypatch.setattr(over_http, "SECONDS", 0.0)
    monkeypatch.setattr(over_http, "WARM", 0.0)
    scenarios = {scenario.key: scenario for scenario in over_http.SCENARIOS}
    with Arena(Loader(), quick=True, missing=ALONE) as arena:
        for key in KEYS:
            [made] = scenarios[key].run(arena)
            assert made.failed == {}
            assert made.figures[OURS].median > 0
        pids = {target.pid for target in arena._running.values()}
    assert len(pids) == 3  # plain, with a token, with middleware
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


KEYS = (
    "http-stateless-1",
    "http-stateless-context",
    "http-stateless-progress-10",
    "http-session-token",
    "http-session-middleware",
    "http-session-progress-1",
)


@pytest.mark.parametrize("command", ["", "wrk"])
def test_each_request_of_a_load_has_numbers_of_its_own(command, tmp_path):
    if command and shutil.which(command) is None:
        pytest.skip(reason="wrk is not installed")
    load = Wrk(command) if command else Loader()
    serve = [sys.executable, "-c", RECORDER, "PORT", str(tmp_path / "seen")]
    with started(serve, listens=True, log=tmp_path / "log") as target:
        body = b"%d %d" % (wire.NUMBER, wire.NUMBER)
        load.run(
            target.port, target.pid, [post(target.port, body, {"x-request-id": f"r-{wire.NUMBER}"})], 2, 0.05
        )
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) > 1
    assert all(header == f"r-{first}" and first == second for header, first, second in seen)
    assert len({first for _, first, _ in seen}) == len(seen)


RECORDER = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
seen = open(sys.argv[2], "w", buffering=1)

class Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        seen.write(f"{self.headers['x-request-id']} {body}\\n")
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Recorder).serve_forever()
"""
