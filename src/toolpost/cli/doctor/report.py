"""The report of `toolpost doctor`: one line for each check as it is done, and the verdict at the end.

Knows how checks look, and the exit code that follows from them.
"""

from collections.abc import Sequence
from typing import Final, Literal, NoReturn, TypeAlias

import click
from msgspec import Struct

from toolpost.cli.errors import FAILED, OK, UNREACHABLE
from toolpost.cli.output import CommandOutput
from toolpost.protocol.jsonrpc import shorten

Verdict: TypeAlias = Literal["ok", "warn", "fail"]

MAX_DETAIL_LINES: Final = 12  # how many details of one check are shown; `--json` has them all
MAX_TEXT_LENGTH: Final = 500  # how much of what a server said is repeated

_MARKS: Final[dict[Verdict, tuple[str, str]]] = {
    "ok": ("✓", "green"),
    "warn": ("!", "yellow"),
    "fail": ("✗", "red"),
}
_NAME_WIDTH: Final = 13  # the width of the column of names


class CheckResult(Struct, omit_defaults=True):
    """One check: its name, the verdict, what was found, and what to do about it."""

    name: str
    verdict: Verdict
    text: str
    hint: str = ""
    details: list[str] = []


class DoctorAborted(Exception):
    """Going on makes no sense."""


class DoctorReport:
    """Collects checks, and shows each at once; with `--json`, all at the end."""

    def __init__(self, page: CommandOutput) -> None:
        self._output = page
        self._code = OK
        self.checks: list[CheckResult] = []

    def ok(self, name: str, text: str, *, details: Sequence[str] = ()) -> None:
        """Report a check without findings."""
        self._add(CheckResult(name, "ok", text, "", list(details)))

    def warn(self, name: str, text: str, hint: str = "", *, details: Sequence[str] = ()) -> None:
        """Report something that works, but may cause trouble."""
        self._add(CheckResult(name, "warn", text, hint, list(details)))

    def fail(
        self, name: str, text: str, hint: str = "", *, details: Sequence[str] = (), code: int = FAILED
    ) -> None:
        """Report a failure; the first exit code that is not just `FAILED` counts."""
        self._add(CheckResult(name, "fail", text, hint, list(details)))
        if self._code in {OK, FAILED}:
            self._code = code

    def stop(
        self, name: str, text: str, hint: str = "", *, details: Sequence[str] = (), code: int = FAILED
    ) -> NoReturn:
        """Report a failure after which nothing else can be checked, and raise `DoctorAborted`."""
        self.fail(name, text, hint, details=details, code=code)
        raise DoctorAborted

    def stop_unreachable(
        self, name: str, text: str, hint: str = "", *, details: Sequence[str] = ()
    ) -> NoReturn:
        """Report that the server cannot be started or reached, and raise `DoctorAborted`."""
        self.stop(name, text, hint, details=details, code=UNREACHABLE)

    def finish(self, target: str) -> int:
        """Show the verdict, and return the exit code."""
        target = " ".join(target.split())
        found = {verdict: sum(check.verdict == verdict for check in self.checks) for verdict in _MARKS}
        if self._output.json:
            verdict = "fail" if found["fail"] else "warn" if found["warn"] else "ok"
            self._output.print_value({"target": target, "verdict": verdict, "checks": self.checks})
            return self._code
        failures = f"{found['fail']} failure{'' if found['fail'] == 1 else 's'}"
        warnings = f"{found['warn']} warning{'' if found['warn'] == 1 else 's'}"
        self._output.print_text()
        if found["fail"]:
            self._output.print_text(f"{target}: {failures}, {warnings}.", style="bold red")
        elif found["warn"]:
            self._output.print_text(f"{target} works, with {warnings}.", style="bold yellow")
        else:
            self._output.print_text(f"{target} is well.", style="bold green")
        return self._code

    def _add(self, check: CheckResult) -> None:
        check.text = shorten(check.text, MAX_TEXT_LENGTH)
        self.checks.append(check)
        if self._output.json:
            return
        mark, colour = _MARKS[check.verdict]
        plain = self._output.is_plain
        margin = " " * (_NAME_WIDTH + (6 if plain else 3))
        head = f"{check.verdict:<5}" if plain else f"{mark} "
        first, *more = check.text.splitlines() or [""]
        text = f" {check.name:<{_NAME_WIDTH}}{first}"
        if plain or check.verdict != "ok":
            self._output.print_text(head + text, style=colour)
        else:  # only its mark is coloured
            click.echo(click.style(head, fg=colour), nl=False, color=True)
            self._output.print_text(text)
        for line in (*more, *check.details[:MAX_DETAIL_LINES]):
            self._output.print_text(f"{margin}{line}", style="dim")
        if len(check.details) > MAX_DETAIL_LINES:
            more_count = len(check.details) - MAX_DETAIL_LINES
            self._output.print_text(f"{margin}… and {more_count} more: see --json", style="dim")
        if check.hint:
            self._output.print_text(f"{margin}→ {check.hint}", style="cyan")
