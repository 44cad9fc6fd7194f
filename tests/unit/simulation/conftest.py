"""In a simulation only samples of messages are validated: most are alike, or corrupted on purpose."""

from collections import Counter
from collections.abc import Iterator

import pytest

import recording

SAMPLE = 5
"""How many messages of a kind are judged in one test."""


@pytest.fixture(autouse=True)
def _recorded(_judge: recording.Judge | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in `recording`, but only for sent messages: received ones may be corrupted on purpose."""
    seen: Counter[tuple[object, ...]] = Counter()
    note = recording.note

    def sampled(said: recording.Said) -> None:
        kind = said[:-1]
        if said.way == "sent" and seen[kind] < SAMPLE:
            seen[kind] += 1
            note(said)

    monkeypatch.setattr(recording, "note", sampled)
    yield
    verdicts = list(recording._verdicts(_judge)) if _judge else []
    if verdicts:
        pytest.fail(
            "messages that the official schema does not allow:\n" + "\n".join(verdicts), pytrace=False
        )


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn recording off: recording every message would take most of the time."""
    for owner, name, _ in recording.PLACES:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, getattr(function, "__wrapped__", function))
