"""The bench: goals, arithmetic, report, and one real scenario."""

import json
import os
import sys
from functools import partial

import pytest

from bench import __main__ as bench
from bench import by_turns, over_http
from bench.arena import Arena
from bench.contenders import CONTENDERS, Missing
from bench.figures import LIMIT, OFFICIAL, OURS, Figure, Row, Sample, percentile
from bench.goals import EMPTY, FULL, GOALS, judge
from bench.loader import Answer, Loader
from bench.micro.__main__ import measure
from bench.micro.steps import STEPS
from bench.process import Failed, started
from bench.report import as_markdown, format_row, plain
from bench.targets import wire
from bench.targets.ways import WAYS

ALONE = {name: "not in this test" for name in CONTENDERS if name != OURS}
CALL, SHARE = (goal for goal in GOALS if goal.key == "http-stateless-context")
NAME = "HTTP stateless `tools/call` with context, 16 connections"


def row(more=True, busy=0.95, **figures):
    made = Row.of("http-stateless-context", "calls", more=more)
    names = {"ours": OURS, "official": OFFICIAL, "limit": LIMIT}
    for name, values in figures.items():
        made.figures[names[name]] = Figure(tuple(Sample(value, value / busy) for value in values))
    return made


# --------------------------------------------------------------------- goals


def test_the_goals_are_those_that_were_set():
    assert [(goal.key, goal.sense, goal.figure, goal.unit) for goal in GOALS] == [
        ("asgi-stateless-constant", "at least", 14, "× less CPU"),
        ("asgi-stateless", "at least", 14, "× less CPU"),
        ("asgi-stateless-context", "at least", 12, "× less CPU"),
        ("asgi-stateless-token", "at least", 10, "× less CPU"),
        ("asgi-session-context", "at least", 12, "× less CPU"),
        ("asgi-session-token", "at least", 10, "× less CPU"),
        ("asgi-session-progress-1", "at least", 18, "× less CPU"),
        ("asgi-session-progress-10", "at least", 12, "× less CPU"),
        ("asgi-stateless-progress-10", "at least", 15, "× less CPU"),
        ("http-stateless-context", "at least", 7, "×"),
        ("http-stateless-context", "at least", 65, "%"),
        ("http-session-context", "at least", 7, "×"),
        ("http-session-progress-1", "at least", 10, "×"),
        ("http-list-100", "at least", 60, "×"),
        ("http-read-stateless", "at least", 5, "×"),
        ("http-read-session", "at least", 2, "×"),
        ("stdio-sequential", "at least", 5, "×"),
        ("stdio-64", "at least", 50, "×"),
        ("clients-stdio-16", "at least", 15, "×"),
        ("clients-http-16", "at least", 8, "×"),
        ("clients-memory", "at least", 10, "×"),
        ("memory-idle-many", "at most", 1, "KiB"),
        ("memory-stream-many", "at most", 16, "KiB"),
        ("start-server-list", "at least", 7, "× sooner"),
        ("start-server-rss", "at most", 30, "MB"),
        ("start-telemetry", "at most", 0, "modules"),
        *(("options", "at least", percent, "%") for percent in (99, 97, 85, 85)),
        ("growth-full", "at least", 90, "%"),
        ("fleet-calls", "at most", 1.1, "×"),
        ("fleet-calls-commands", "at most", 0.1, "commands"),
        ("fleet-question", "at most", 5, "ms"),
        ("fleet-change", "at most", 200, "ms"),
        ("fleet-bytes", "at most", 0, "bytes"),
        ("tasks-empty", "at least", 20, "× less CPU"),
        ("tasks-idle", "at most", 0, "wake-ups/s"),
    ]


def test_a_word_that_chooses_nothing_is_refused_beside_one_that_does(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "stdio", "htpp"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "no scenario begins with htpp; available: http-stateless-context, " in capsys.readouterr().err


def test_a_target_that_waits_reveals_a_busy_machine():
    calm, busy = row(ours=[80], official=[10]), row(busy=0.8, ours=[80], official=[10])
    assert (calm.disturbed, busy.disturbed) == (False, True)
    assert ("disturbed" in calm.plain(), "disturbed" in busy.plain()) == (False, True)
    assert "disturbed: mcp-2.3.0" in format_row(busy)
    assert "Disturbed by other processes: calls." in as_markdown(
        {busy.key: busy}, [], plain({}, [], {}, "wrk")["facts"]
    )
    assert not row(busy=0.8, ours=[80]).disturbed


@pytest.mark.parametrize(
    ("measured", "reached", "text"),
    [
        (row(ours=[70], official=[10]), True, f"reached  {NAME}: 7 ×"),
        (row(ours=[69], official=[10]), False, f"MISSED   {NAME}: 6.9 ×"),
        (row(ours=[80]), False, "none: no target to compare with"),
        (None, False, "none: not measured"),
    ],
)
def test_a_goal_is_reached_by_a_figure_and_missed_without_one(measured, reached, text):
    verdict = judge(CALL, {measured.key: measured} if measured else {})
    assert verdict.reached is reached
    assert text in str(verdict)


def test_a_goal_reports_why_there_is_no_figure():
    made = row(official=[10])
    made.failed[OURS] = "it fell over"
    assert "it fell over" in str(judge(CALL, {made.key: made}))


def test_goals_read_shares_and_plain_figures():
    goals = {(goal.key, goal.unit): goal for goal in GOALS}
    share = judge(SHARE, {SHARE.key: row(ours=[66], limit=[100])})
    assert (share.reached, share.figure) == (True, pytest.approx(66))
    idle = Row.of("memory-idle-many", "idle", "KiB", more=False)
    idle.figures[OURS] = Figure((Sample(1.1),))
    assert not judge(goals["memory-idle-many", "KiB"], {idle.key: idle}).reached
    full = Row.of("growth-full", "full")
    full.figures.update({EMPTY: Figure((Sample(100),)), FULL: Figure((Sample(95),))})
    assert judge(goals["growth-full", "%"], {full.key: full}).figure == pytest.approx(95)
    assert "of the empty server |" in as_markdown({full.key: full}, [], plain({}, [], {}, "wrk")["facts"])


# --------------------------------------------------------------------- arithmetic


def test_a_figure_is_the_median_with_its_spread():
    figure = Figure((Sample(3, 30, 1.0), Sample(1, 10), Sample(2, 20, 3.0)))
    assert figure.median == 2
    assert figure.spread == (1, 3)
    assert (figure.typical("per_cpu"), figure.typical("p50"), figure.typical("p99")) == (20, 2.0, None)
    assert figure.plain() == {"median": 2, "min": 1, "max": 3, "rounds": 3, "per_cpu": 20, "p50": 2.0}


def test_a_ratio_is_taken_round_by_round():
    # A slow machine in the second round slows both: the ratio of the medians would be 10.
    assert row(ours=[40, 4, 30], official=[10, 1, 3]).times(OFFICIAL) == 4
    assert row(more=False, ours=[2, 4], official=[10, 12]).times(OFFICIAL) == 4
    assert row(ours=[1]).times(OFFICIAL) is None
    assert row(ours=[1], official=[0]).times(OFFICIAL) is None


def test_a_percentile_is_a_value_that_was_seen():
    assert percentile(range(100), 0.5) == 50
    assert percentile(range(100), 0.99) == 99
    assert percentile([7.0], 0.99) == 7.0


# --------------------------------------------------------------------- the arena


def test_targets_take_turns_and_a_failed_target_does_not_stop_the_others():
    turns = []

    def ready(name):
        def turn():
            turns.append(name)
            if name == "broken" and len(turns) > 2:
                raise Failed("it fell over")
            return Sample(1.0)

        return turn

    with Arena(Loader(), quick=False, missing={"away": "no Node"}) as arena:
        made = arena.contest(
            Row.of("key", "title"),
            {name: partial(ready, name) for name in (OURS, "broken", "away")},
            rounds=3,
        )
    assert turns == [OURS, "broken", OURS, "broken", OURS]
    assert set(made.figures) == {OURS}
    assert made.failed == {"broken": "it fell over"}
    assert "failed: it fell over" in format_row(made)


def test_a_target_that_ends_instead_of_listening_says_why(tmp_path):
    command = [sys.executable, "-c", "raise SystemExit('there is no tool')"]
    with (
        pytest.raises(Failed, match="there is no tool"),
        started(command, listens=True, log=tmp_path / "log"),
    ):
        pass


def test_without_the_official_sdk_there_is_no_bench(monkeypatch, capsys):
    def prepare(_names):
        raise Missing("mcp-2.3.0 could not be installed")

    monkeypatch.setattr(bench, "prepare", prepare)
    monkeypatch.setattr(bench, "open_files", lambda: None)
    monkeypatch.setattr(sys, "argv", ["bench", "--quick"])
    assert bench.main() == 2
    assert "could not measure: mcp-2.3.0" in capsys.readouterr().out


# --------------------------------------------------------------------- the report


def test_failures_are_recorded_without_the_output_of_the_program():
    made = row(ours=[1.0])
    made.failed[OFFICIAL] = "it fell over in a folder of ours"
    assert made.plain()["failed"] == [OFFICIAL]


def test_the_report_has_figures_and_goals_and_nothing_of_the_machine():
    made = row(ours=[80.0, 90.0], official=[10.0, 10.0], limit=[100.0, 100.0])
    verdicts = [judge(goal, {made.key: made}) for goal in (CALL, SHARE)]
    results = plain({made.key: made}, verdicts, {"npm-server-2.4.0": "no Node"}, "wrk 4")
    assert results["goals"][0]["figure"] == 8.5
    assert results["rows"][0]["targets"][OURS]["vs_official"] == 8.5
    assert results["missing"] == ["npm-server-2.4.0"]
    text = json.dumps(results)
    assert os.uname().nodename not in text
    assert os.uname().release not in text
    page = as_markdown({made.key: made}, verdicts, results["facts"])
    assert f"| {NAME} | ≥ 7 × | 8.5 × | 8 – 9 | reached |" in page
    assert str(verdicts[0]).endswith(": 8.5 × (at least 7, 8 .. 9 by round)")
    assert "| calls | calls/s | 85 | 10 | 100 | **8.5** | 85% |" in page
    assert "| calls | toolpost | 85 | 80 – 90 | 89.5 | – | – |" in page
    assert "8.50 x mcp-2.3.0" in format_row(made)
    assert "(80 .. 90)" in format_row(made)
    assert "..)" not in format_row(row(ours=[80.0]))
    assert "**1,440**" in as_markdown({"http-x": row(ours=[14_400], official=[10])}, [], results["facts"])


# --------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("request_name", "body", "kind", "wrong"),
    [
        ("add", b'{"result":{"structuredContent":3}}', "application/json", ""),
        ("add", b'{"error":{"code":-32602}}', "application/json", "wrong response"),
        ("add", b'{"result":{"structuredContent":4}}', "application/json", "wrong response"),
        ("add", b'{"result":{"structuredContent":3}}', "text/event-stream", "type is application/json"),
        ("one", b'{"result":{"structuredContent":3}}', "", "0 notifications before the response"),
        ("one", b'data: {}\n\ndata:\n\ndata: {"result":{"structuredContent":{"result":3}}}\n\n', "", ""),
    ],
)
def test_a_response_is_checked(request_name, body, kind, wrong):
    answer = Answer(200, {"content-type": "application/json"}, body)
    if not wrong:
        over_http.check(request_name, answer, kind)
        return
    with pytest.raises(Failed, match=wrong):
        over_http.check(request_name, answer, kind)


def test_requests_of_both_eras_differ_in_their_headers_and_meta():
    modern, legacy = (wire.message("one", 7, stateless=stateless) for stateless in (True, False))
    assert len(modern["params"]["_meta"]) == 4
    assert legacy["params"]["_meta"] == {"progressToken": 7}
    assert wire.headers("add", stateless=True)["mcp-name"] == "add"
    assert wire.headers("add", stateless=False, session="s")["mcp-session-id"] == "s"


@pytest.mark.parametrize("stateless", [True, False])
def test_an_ordinary_request_has_numbers_of_its_own_wherever_clients_have_them(stateless):
    template = wire.body("wait", wire.NUMBER, stateless=stateless, ordinary=True)
    first, second = (
        json.loads(wire.numbered(template, number)) for number in (wire.NUMBER + 1, wire.NUMBER + 2)
    )
    assert (first["id"], second["id"]) == (wire.NUMBER + 1, wire.NUMBER + 2)
    assert first["params"]["_meta"]["progressToken"] == first["id"]
    headers = wire.headers("wait", stateless=stateless, session="s" * 210, ordinary=True)
    varying = {name for name, value in headers.items() if str(wire.NUMBER) in value}
    assert varying == {"x-request-id", "traceparent"}
    assert [len(part) for part in headers["traceparent"].split("-")] == [2, 32, 16, 2]
    constant = wire.headers("wait", stateless=stateless, session="s")
    assert not any(str(wire.NUMBER) in value for value in constant.values())


def test_numbers_of_a_later_load_are_others_and_as_long():
    first, later = wire.first_number(), wire.first_number()
    assert len(str(first)) == len(str(later)) == len(str(wire.NUMBER))
    assert later >= first > wire.NUMBER


def test_an_application_is_measured_by_turns_in_every_way(monkeypatch):
    monkeypatch.setattr(by_turns, "SECONDS", 0.01)
    scenarios = [scenario for scenario in by_turns.SCENARIOS if scenario.key.startswith("asgi-")]
    assert len(scenarios) == len(WAYS)
    with Arena(Loader(), quick=True, missing=ALONE) as arena:
        for scenario in scenarios:
            [made] = scenario.run(arena)
            assert made.failed == {}
            assert made.figures[OURS].median > 0


def test_every_step_can_be_taken():
    figures = measure(STEPS, rounds=1, calls=10)
    assert {name: figure for name, figure in figures.items() if isinstance(figure, str)} == {}
