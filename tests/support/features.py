"""Selects the revisions of a case by features, which come from the record of each revision.

`needs` narrows a case to the revisions that have a feature, `on` to some transports. Nothing is skipped: a
case that does not apply is not created.
"""

from collections.abc import Callable

import pytest

from revision_dates import DATES
from toolpost.protocol.revisions import Revision
from toolpost.testing import REVISIONS

__all__ = ["SPOKEN", "TRANSPORTS", "lacks", "needs", "on", "record"]

SPOKEN: dict[str, tuple[str, ...]] = {
    "memory": DATES,
    "stdio": DATES,
    "http": DATES[1:],
    "asgi": DATES[1:],
    "sse": DATES[:1],
}
"""The revisions of each transport: since the second revision, Streamable HTTP replaces HTTP+SSE."""

TRANSPORTS = tuple(SPOKEN)


def _server_asks(method: str) -> Callable[[Revision], bool]:
    return lambda revision: method in revision.requests["server"] or method in revision.input_requests


FEATURES: dict[str, Callable[[Revision], bool]] = {
    "sessions": lambda revision: not revision.stateless,
    "elicitation": _server_asks("elicitation/create"),
    "sampling": _server_asks("sampling/createMessage"),
    "roots": _server_asks("roots/list"),
    "sampling with tools": lambda revision: "tool_use" in revision.sampling_content,
    "URL elicitation": lambda revision: revision.rich_forms,
    "structured output": lambda revision: revision.structured is not None,
    "any structured output": lambda revision: revision.structured == "any",
    "audio": lambda revision: "audio" in revision.content,
    "resource links": lambda revision: "resource_link" in revision.content,
    "a completions capability": lambda revision: "completion/complete" not in revision.ungated,
    "subscriptions/listen": lambda revision: "subscriptions/listen" in revision.requests["client"],
}


def record(date: str) -> Revision:
    """Return the features of a revision."""
    return REVISIONS[date]


def needs(*features: str) -> pytest.MarkDecorator:
    """Run a case in the revisions that have these features."""
    return _narrowed(lambda revision: all(FEATURES[feature](revision) for feature in features))


def lacks(feature: str) -> pytest.MarkDecorator:
    """Run a case in the revisions that do not have this feature."""
    return _narrowed(lambda revision: not FEATURES[feature](revision))


def _narrowed(applies: Callable[[Revision], bool]) -> pytest.MarkDecorator:
    dates = [date for date, revision in REVISIONS.items() if applies(revision)]
    assert dates, "no revision has that: the case would never run"
    return pytest.mark.parametrize("revision", dates)


def on(*transports: str) -> pytest.MarkDecorator:
    """Run a case over these transports."""
    assert set(transports) <= set(TRANSPORTS)
    return pytest.mark.parametrize("transport", transports)
