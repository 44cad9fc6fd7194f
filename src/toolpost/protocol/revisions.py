"""The five revisions as records, derived from the rows, and the choice among them.

A record holds the features of a peer of that revision. Only this module compares revisions; all others read a
field of the record.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from toolpost.errors import CODES, LEGACY_ERROR_KINDS, InternalError
from toolpost.protocol.methods import (
    CLIENT,
    DATES,
    R_2025_03_26,
    R_2025_06_18,
    R_2025_11_25,
    R_2026_07_28,
    ROWS,
    SERVER,
    SESSION,
    Role,
    Row,
    Span,
)
from toolpost.types.base import Struct

Rows: TypeAlias = Mapping[str, Row]

RESERVED_CODES: Final = range(-32099, -32019)  # the codes that the specification keeps for itself (ERR-4)


class Revision(Struct, frozen=True, kw_only=True, eq=False):
    """The methods of one revision, and the features of its peers."""

    date: str
    era: Literal["session", "stateless"]
    stateless: bool  # whether every request carries its own facts
    requests: Mapping[Role, Rows]  # the requests that a client, or a server, may send
    notifications: Mapping[Role, Rows]  # the notifications that a client, or a server, may send
    input_requests: Rows  # the requests that a server may put into a result that requires input
    ungated: frozenset[str]  # methods whose capability does not exist yet: usable without it
    content: frozenset[str]  # the kinds of content in tools and prompts
    sampling_content: frozenset[str]  # the kinds of content in sampling
    structured: Literal["any", "object"] | None  # what `structuredContent` may be
    many_blocks: bool  # whether a sampling message may hold several blocks
    rich_forms: bool  # whether a user may be asked to choose several things, by title, or to visit a URL
    tasks: bool  # whether a request may be run as a task, without an extension
    batches: bool  # whether several messages may come in one array
    priming: bool  # whether an event stream opens with an empty event that carries an id
    codes: Mapping[int, int]  # error codes that this revision lacks, and their replacements

    def __repr__(self) -> str:
        return f"<Revision {self.date}>"

    def translate_code(self, code: int) -> int:
        """Return the error code in this revision; an undefined one becomes "internal error"."""
        if (code in RESERVED_CODES and code not in CODES) or code in LEGACY_ERROR_KINDS:
            return InternalError.code
        return self.codes.get(code, code)


_SPANS: Final = {span for row in ROWS for span in (row.client, row.server, row.asked) if span is not None}


def _select_rows(by: Role, alive: set[Span], *, requests: bool) -> Rows:
    return MappingProxyType(
        {row.name: row for row in ROWS if row.is_request is requests and getattr(row, by) in alive}
    )


def _build_revision(date: str) -> Revision:
    """Return the record of one revision."""
    session = date in SESSION
    until = DATES[: DATES.index(date) + 1]
    alive = {span for span in _SPANS if date in span}
    audio = ("audio",) if R_2025_03_26 in until else ()
    links = ("resource_link",) if R_2025_06_18 in until else ()
    tool_turns = ("tool_use", "tool_result") if R_2025_11_25 in until else ()
    # −32042 exists in one revision only, −32002 in the session era only (ERR-6).
    codes = {} if date == R_2025_11_25 else {-32042: -32603}
    if not session:
        codes[-32002] = -32602
    return Revision(
        date=date,
        era="session" if session else "stateless",
        stateless=not session,
        requests={by: _select_rows(by, alive, requests=True) for by in (CLIENT, SERVER)},
        notifications={by: _select_rows(by, alive, requests=False) for by in (CLIENT, SERVER)},
        input_requests={row.name: row for row in ROWS if row.asked in alive},
        ungated=frozenset(row.name for row in ROWS if row.needs and row.needs_since not in until),
        content=frozenset(("text", "image", "resource", *audio, *links)),
        sampling_content=frozenset(("text", "image", *audio, *tool_turns)),
        structured=None if R_2025_06_18 not in until else "object" if session else "any",
        many_blocks=R_2025_11_25 in until,
        rich_forms=R_2025_11_25 in until,
        tasks=date == R_2025_11_25,
        batches=date == R_2025_03_26,
        priming=date == R_2025_11_25,
        codes=codes,
    )


REVISIONS: Final[Mapping[str, Revision]] = MappingProxyType({date: _build_revision(date) for date in DATES})
LATEST: Final = REVISIONS[R_2026_07_28]
LATEST_SESSION: Final = REVISIONS[R_2025_11_25]
OLDEST_HTTP: Final = REVISIONS[R_2025_03_26]  # of an HTTP request without a version header (HTTPL-32)


def find_newest(
    dates: Iterable[str], *, era: str | None = None, among: Iterable[str] = DATES
) -> Revision | None:
    """Return the newest revision in both lists and, if given, in that era; None if there is none."""
    common = set(dates) & set(among)
    for date in reversed(DATES):
        if date in common and era in (None, REVISIONS[date].era):
            return REVISIONS[date]
    return None


def negotiate(offered: str, supported: Iterable[str] = DATES) -> Revision | None:
    """Return the revision that a server answers `initialize` with (LIFE-9 … LIFE-11), or None.

    It is the offered one if the server supports it, otherwise the newest supported one of the session era.
    """
    supported = tuple(supported)
    return find_newest([offered], era="session", among=supported) or find_newest(supported, era="session")
