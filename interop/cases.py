"""Suites of named cases, and their outcomes.

A suite is a table of functions. A case defines its oldest revision and its era. Independent of peers and
environments.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from toolpost.protocol.methods import DATES

__all__ = ["WAYS", "Case", "Outcome", "Suite", "at_least", "attempt", "eventually"]

T = TypeVar("T")

WAYS: Final = ("stdio", "http", "sse")

CASE_SECONDS: Final = 30.0
"""Timeout of a case in seconds; the slowest one waits three seconds for its peer."""

NOTICE_SECONDS: Final = 10.0
"""Seconds to wait for a notification."""


class Outcome(NamedTuple):
    """The outcome of a case; `why` is empty if it passed."""

    peer: str
    direction: str
    over: str
    revision: str
    what: str
    why: str

    def __str__(self) -> str:
        verdict = "ok" if not self.why else f"FAILED  {self.why}"
        return f"{self.peer:22} {self.direction:12} {self.over:6} {self.revision:12} {self.what:52} {verdict}"


def at_least(revision: str, since: str) -> bool:
    """Return whether a revision is this one or newer."""
    return DATES.index(revision) >= DATES.index(since)


@dataclass
class Case(Generic[T]):
    """A named function, and the sessions that it applies to."""

    what: str
    run: Callable[[T], Awaitable[None]]
    since: str = DATES[0]
    era: Literal["session", "stateless"] | None = None
    over: tuple[str, ...] = WAYS

    def applies(self, revision: str, era: str, over: str) -> bool:
        """Return whether the case applies to a session of this revision."""
        return at_least(revision, self.since) and self.era in {None, era} and over in self.over


@dataclass
class Suite(Generic[T]):
    """Cases, in the order in which they run."""

    cases: list[Case[T]] = field(default_factory=list[Any])

    def case(
        self,
        what: str,
        *,
        since: str = DATES[0],
        era: Literal["session", "stateless"] | None = None,
        over: tuple[str, ...] = WAYS,
    ) -> Callable[[Callable[[T], Awaitable[None]]], Callable[[T], Awaitable[None]]]:
        """Add a function as a case."""

        def add(run: Callable[[T], Awaitable[None]]) -> Callable[[T], Awaitable[None]]:
            self.cases.append(Case(what, run, since, era, over))
            return run

        return add

    def fitting(self, revision: str, era: str, over: str) -> Iterator[Case[T]]:
        """Return the cases that apply to a session."""
        return (case for case in self.cases if case.applies(revision, era, over))

    def without(self, *names: str, era: Literal["session", "stateless"] | None = None) -> "Suite[T]":
        """Return the suite without cases that a peer cannot pass, in an era or at all."""
        other = {"session": "stateless", "stateless": "session", None: None}[era]
        kept = [case for case in self.cases if era is not None or case.what not in names]
        return Suite([replace(case, era=other) if case.what in names else case for case in kept])

    def __add__(self, other: "Suite[T]") -> "Suite[T]":
        """Concatenate two suites."""
        return Suite([*self.cases, *other.cases])


async def attempt(action: Awaitable[object], seconds: float = CASE_SECONDS) -> str:
    """Return the reason of a failure in one line; empty after success."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await action
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        return f"timed out after {seconds:g} s" if limit.expired() else _describe(error)
    return ""


def _describe(error: BaseException) -> str:
    place = ""
    trace = error.__traceback__
    while trace is not None:
        if "interop" in trace.tb_frame.f_code.co_filename:
            place = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}".replace("\n", " ")[:500]


async def eventually(there: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true.

    Raises:
        AssertionError: it timed out.
    """
    for _ in range(int(NOTICE_SECONDS / 0.01)):
        if there():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"timed out: no {what}")
