"""The report of `toolpost doctor`: one line per check as it runs, and the verdict at the end.

Formats checks, and computes the exit code.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, NoReturn, TypeAlias

import click
from msgspec import Struct

from toolpost.cli.errors import FAILED, OK, UNREACHABLE
from toolpost.cli.output import CommandOutput, is_plain
from toolpost.protocol.jsonrpc import shorten

Verdict: TypeAlias = Literal["ok", "warn", "fail"]

MAX_DETAIL_LINES: Final = 12  # details of one check to show; `--json` has them all
MAX_TEXT_LENGTH: Final = 500  # characters of a finding, which may quote the server
_MARKS: Final[dict[Verdict, str]] = {"ok": "✓", "warn": "!", "fail": "✗"}
_COLOURS: Final[dict[Verdict, str]] = {"ok": "green", "warn": "yellow", "fail": "red"}
_NAME_WIDTH: Final = 13  # columns for the name of a check


class CheckResult(Struct, omit_defaults=True):
    """One check: its name, the verdict, the finding, and a hint."""

    name: str
    verdict: Verdict
    text: str
    hint: str = ""
    details: list[str] = []


class DoctorAborted(Exception):
    """No further check is possible."""


class DoctorReport:
    """Collects checks, and shows each at once; with `--json`, all at the end."""

    def __init__(self, output: CommandOutput) -> None:
        self._output = output
        self._code = OK
        self.checks: list[CheckResult] = []

    def ok(self, name: str, text: str) -> None:
        """Report a check without findings."""
        self._add(CheckResult(name, "ok", text))

    def warn(self, name: str, text: str, hint: str = "", *, details: Sequence[str] = ()) -> None:
        """Report a possible problem."""
        self._add(CheckResult(name, "warn", text, hint, list(details)))

    def fail(
        self, name: str, text: str, hint: str = "", *, details: Sequence[str] = (), code: int = FAILED
    ) -> None:
        """Report a failure. The first exit code other than `FAILED` is that of the command."""
        self._add(CheckResult(name, "fail", text, hint, list(details)))
        if self._code in {OK, FAILED}:
            self._code = code

    def stop(
        self, name: str, text: str, hint: str = "", *, details: Sequence[str] = (), code: int = FAILED
    ) -> NoReturn:
        """Report a failure that prevents further checks, and raise `DoctorAborted`."""
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
        counts = Counter(check.verdict for check in self.checks)
        verdict = "fail" if counts["fail"] else "warn" if counts["warn"] else "ok"
        if self._output.json:
            self._output.print_value({"target": target, "verdict": verdict, "checks": self.checks})
            return self._code
        failures = f"{counts['fail']} failure{'' if counts['fail'] == 1 else 's'}"
        warnings = f"{counts['warn']} warning{'' if counts['warn'] == 1 else 's'}"
        texts = {"fail": f": {failures}, {warnings}.", "warn": f": {warnings}.", "ok": ": no problems found."}
        self._output.print_text()
        self._output.print_text(target + texts[verdict], style=f"bold {_COLOURS[verdict]}")
        return self._code

    def _add(self, check: CheckResult) -> None:
        check.text = shorten(check.text, MAX_TEXT_LENGTH)
        self.checks.append(check)
        if self._output.json:
            return
        colour, plain = _COLOURS[check.verdict], is_plain(sys.stdout)
        margin = " " * (_NAME_WIDTH + (6 if plain else 3))
        head = f"{check.verdict:<5}" if plain else f"{_MARKS[check.verdict]} "
        first, *more = check.text.splitlines() or [""]
        text = f" {check.name:<{_NAME_WIDTH}}{first}"
        if plain or check.verdict != "ok":
            self._output.print_text(head + text, style=colour)
        else:  # colour only the mark
            click.echo(click.style(head, fg=colour), nl=False, color=True)
            self._output.print_text(text)
        for line in (*more, *check.details[:MAX_DETAIL_LINES]):
            self._output.print_text(f"{margin}{line}", style="dim")
        if len(check.details) > MAX_DETAIL_LINES:
            more_count = len(check.details) - MAX_DETAIL_LINES
            self._output.print_text(f"{margin}… and {more_count} more: see --json", style="dim")
        if check.hint:
            self._output.print_text(f"{margin}→ {check.hint}", style="cyan")
