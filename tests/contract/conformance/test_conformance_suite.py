"""The results that the runner reads from the processes of a run, with a fake suite."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

import suite
from suite import Ran, run_client, run_server

STAND_IN = Path(__file__).with_name("fake_suite.py")


@pytest.fixture(autouse=True)
def program(monkeypatch):
    monkeypatch.setattr(suite, "NODE", Path(sys.executable))
    monkeypatch.setattr(suite, "PROGRAM", STAND_IN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


GOOD = {"id": "said", "name": "Said", "description": "it was said", "status": "SUCCESS"}


def test_a_client_that_comes_to_its_end():
    assert asyncio.run(run_client("fine", "--spec-version", "2026-07-28")) == Ran([GOOD])


@pytest.mark.parametrize(
    ("scenario", "trouble"),
    [
        ("fine.code-3", "exit code 3"),
        ("forgiven", "Client exited with code 1"),
        ("killed", "our client did not finish"),
    ],
)
def test_a_client_that_ends_in_another_way(scenario, trouble):
    assert asyncio.run(run_client(scenario)).trouble == trouble


def test_a_client_that_never_ends(monkeypatch):
    monkeypatch.setattr(suite, "SCENARIO", 0.5)
    assert asyncio.run(run_client("late")).trouble == "timed out after 1 s"


def test_a_scenario_that_leaves_nothing_has_no_checks():
    assert asyncio.run(run_client("quiet")).checks == []


def test_our_server_is_started_and_ended_for_a_leg(monkeypatch):
    monkeypatch.setenv("STAND_IN", "fine quiet")
    ran, trouble = asyncio.run(run_server("--suite", "all"))
    assert ran == {"fine": Ran([GOOD]), "quiet": Ran([])}
    assert trouble == ""


def test_a_leg_that_ends_badly(monkeypatch):
    monkeypatch.setenv("STAND_IN", "fine.code-1")
    _, trouble = asyncio.run(run_server("--suite", "all"))
    assert trouble == "exit code 1"


def test_a_server_that_does_not_start(monkeypatch, tmp_path):
    (tmp_path / "server.py").write_text("raise SystemExit('no port for me')")
    monkeypatch.setattr(suite, "HERE", tmp_path)
    ran, trouble = asyncio.run(run_server("--suite", "all"))
    assert ran == {}
    assert trouble == "our server did not start: no port for me"


def test_a_server_whose_log_has_a_traceback(monkeypatch, tmp_path):
    (tmp_path / "server.py").write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('Traceback (most recent call last)\\nOops: at http://127.0.0.1:1/mcp', flush=True)\n"
        "signal.pause()\n"
    )
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setenv("STAND_IN", "fine")
    _, trouble = asyncio.run(run_server("--suite", "all"))
    assert "Oops" in trouble
