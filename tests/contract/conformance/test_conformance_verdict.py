"""Each way in which a scenario could pass wrongly (FIXTURE, part D)."""

import pytest

from verdict import faults

OWED = {"said": "SUCCESS", "meant#One": "SUCCESS", "meant#Two": "SUCCESS", "never": "SKIPPED", "free": "INFO"}


def check(name: str, status: str, **more: str) -> dict[str, str]:
    id_, _, label = name.partition("#")
    return {"id": id_, "name": label or "Name", "status": status, **more}


GOOD = [check("said", "SUCCESS"), check("meant#One", "SUCCESS"), check("meant#Two", "SUCCESS")]


@pytest.mark.parametrize(
    "more",
    [
        [],
        [check("never", "SKIPPED"), check("free", "INFO")],
        [check("never", "SUCCESS"), check("free", "SUCCESS")],
        [check("another", "SUCCESS"), check("outgoing-request", "INFO")],
        [check("said", "SUCCESS")],
    ],
)
def test_it_passes_if_all_that_is_owed_succeeds_and_nothing_complains(more):
    assert faults(OWED, [*GOOD, *more], "") == []


@pytest.mark.parametrize(
    ("checks", "told"),
    [
        ([], "missing said"),
        (GOOD[1:], "missing said"),
        (GOOD[:2], "missing meant#Two"),
        ([*GOOD[1:], check("said", "SKIPPED")], "SKIPPED said"),
        ([*GOOD[1:], check("said", "INFO")], "INFO said"),
        ([*GOOD, check("said", "SKIPPED")], "SKIPPED said"),
        ([*GOOD, check("said", "FAILURE", errorMessage="it\nwas not")], "FAILURE said: it was not"),
        ([*GOOD, check("said", "WARNING", description="not nice")], "WARNING said: not nice"),
        ([*GOOD, check("another", "FAILURE")], "FAILURE another"),
        ([*GOOD, check("another", "WARNING")], "WARNING another"),
        ([*GOOD, check("another", "SKIPPED")], "SKIPPED another"),
        ([*GOOD, check("never", "FAILURE")], "FAILURE never"),
        ([*GOOD, check("never", "INFO")], "INFO never"),
        ([*GOOD, check("free", "SKIPPED")], "SKIPPED free"),
        ([*GOOD, check("said", "PASSED")], "PASSED said"),
        ([*GOOD, {}], "None unnamed check"),
    ],
)
def test_it_fails_where_the_suite_would_pass(checks, told):
    [first, *_] = faults(OWED, checks, "")
    assert first.startswith(told)


def test_processes_that_ended_badly_are_a_fault_of_their_own():
    assert faults(OWED, GOOD, "exit code 3") == ["exit code 3"]


@pytest.mark.parametrize("owed", [{}, {"never": "SKIPPED"}])
def test_nothing_passes_that_owes_nothing(owed):
    assert faults(owed, GOOD, "") == ["its required checks are unknown"]
