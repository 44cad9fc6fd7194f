"""Checks of a server in conversation: revisions, capabilities, lists and schemas, latency, broken rules.

Acts as a client does, and calls no tool. `command` says how clients of the server are made.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from toolpost.cli.doctor import check_items
from toolpost.cli.doctor.capture import Capture
from toolpost.cli.doctor.report import DoctorReport
from toolpost.client.client import Client
from toolpost.errors import MCPError, MethodNotFound
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS, Revision
from toolpost.types.initialize import PaginatedResult

PING_COUNT: Final = 5  # how often the server is asked whether it is there, for the time that it takes
SLOW_PING: Final = 1.0  # seconds for such an answer that somebody should know of
SLOW_START: Final = 3.0  # a server that takes longer to answer first is not opened once for each revision
MAX_REPORTED: Final = 20  # how many messages that break rules are told


STDERR_HINT: Final = "what is for people belongs on stderr: print(…, file=sys.stderr)"


class _ListCheck(NamedTuple):
    """One of the lists of a server."""

    name: str
    needs: str
    member: str
    pages: Callable[[Client], AsyncIterator[PaginatedResult]]
    lint: Callable[[Sequence[Any], Revision], Iterator[check_items.LintFinding]]

    @property
    def optional(self) -> bool:
        """Whether a server that has the capability need not have the list."""
        return self.name == "templates"


_LIST_CHECKS: Final = (
    _ListCheck("tools", "tools", "tools", Client.list_tools_pages, check_items.lint_tools),
    _ListCheck(
        "resources", "resources", "resources", Client.list_resources_pages, check_items.lint_resources
    ),
    _ListCheck(
        "templates",
        "resources",
        "resourceTemplates",
        Client.list_resource_templates_pages,
        check_items.lint_templates,
    ),
    _ListCheck("prompts", "prompts", "prompts", Client.list_prompts_pages, check_items.lint_prompts),
)


async def check_session(checkup: DoctorReport, client: Client) -> None:
    """Look at a server that a client is connected to."""
    capabilities = msgspec.to_builtins(client.capabilities)
    names = [name for name, value in capabilities.items() if value is not None]
    if names:
        checkup.ok("capabilities", ", ".join(names))
    else:
        checkup.warn("capabilities", "it declares none: no host will ask it for anything")
    for each in _LIST_CHECKS:
        if has_capability(client.capabilities, each.needs):
            await _check_list(checkup, client, each)
    if has_capability(client.capabilities, "logging") and client.era == "session":
        try:
            await client.set_log_level("warning")
        except MCPError as error:
            checkup.fail("logging", f"it declares 'logging', but logging/setLevel fails: {error.message}")
    await _check_ping(checkup, client)


async def _check_list(checkup: DoctorReport, client: Client, kind: _ListCheck) -> None:
    items: list[Any] = []
    pages = 0
    try:
        async for page in kind.pages(client):
            pages += 1
            items += msgspec.json.decode(page.raw or b"{}").get(kind.member, [])
    except MethodNotFound as error:
        if not kind.optional:
            text = f"it declares {kind.needs!r}, but: {error.message}"
            checkup.fail(kind.name, text, "answer it, or declare less")
        return
    except MCPError as error:
        after = f" after {pages} page(s)" if pages else ""
        checkup.fail(kind.name, f"the list cannot be read{after}: {error.message}", error.hint or "")
        return
    found = list(kind.lint(items, REVISIONS[client.revision]))
    counted = f"{len(items)}, in {pages} pages" if pages > 1 else f"{len(items)}"
    failures = [each.text for each in found if each.verdict == "fail"]
    warnings = [each.text for each in found if each.verdict == "warn"]
    if failures:
        checkup.fail(kind.name, f"{counted}; this breaks rules:", details=failures)
    if warnings:
        checkup.warn(kind.name, f"{counted}; this could be better:", details=warnings)
    if not items and not kind.optional:
        checkup.warn(kind.name, f"it declares {kind.needs!r} and has none")
    elif not found and items:
        checkup.ok(kind.name, counted)


async def _check_ping(checkup: DoctorReport, client: Client) -> None:
    took: list[float] = []
    try:
        for _ in range(PING_COUNT):
            began = time.perf_counter()
            await client.ping()
            took.append(time.perf_counter() - began)
    except MCPError as error:
        checkup.fail("ping", error.message, error.hint or "")
        return
    text = f"{1000 * median(took):.1f} ms (fastest {1000 * min(took):.1f}, slowest {1000 * max(took):.1f})"
    if median(took) > SLOW_PING:
        checkup.warn("ping", f"{text}: that is slow")
    else:
        checkup.ok("ping", text)


async def check_revisions(
    checkup: DoctorReport, client_of: Callable[[str], Client], opened: Client, took: float
) -> None:
    """Look which revisions a server speaks, by opening a conversation in each."""
    found = opened.discover_result
    listed = set(() if found is None else found.supported_versions)
    if took > SLOW_START:
        others = ", ".join(date for date in DATES if date in listed and date != opened.revision)
        also = f"; it says that it speaks {others} as well" if others else ""
        checkup.ok("revisions", f"{opened.revision}{also}; others were not tried, because it starts slowly")
        return
    spoken = {opened.revision}
    why: dict[str, str] = {}
    for date in DATES:
        if date in spoken:
            continue
        try:
            async with client_of(date) as client:
                spoken.add(client.revision)
        except MCPError as error:
            why[date] = shorten(error.message.splitlines()[0], 120)
    eras = {REVISIONS[date].era for date in spoken}
    text = ", ".join(date for date in DATES if date in spoken)
    lied = [f"{date}: {why[date]}" for date in DATES if date in listed - spoken]
    if lied:
        checkup.fail("revisions", f"it speaks {text}, and lists others that it does not", details=lied)
    elif eras == {"stateless"}:
        hint = "older hosts open a session with `initialize`, which it does not know"
        checkup.warn("revisions", text, hint)
    else:
        checkup.ok("revisions", text + ("" if len(eras) > 1 else "; of the session era only"))


def check_messages(checkup: DoctorReport, notes: Capture, *, process: bool) -> None:
    """Look at what the server has said all the time: lines that are no messages, rules that it broke."""
    if notes.junk:
        lines = dict.fromkeys(shorten(seen.body.decode("utf-8", "replace"), 100) for seen in notes.junk)
        name, hint = ("stdout", STDERR_HINT) if process else ("bodies", "")
        checkup.fail(name, "it says what is no message:", hint, details=list(lines)[:MAX_REPORTED])
    elif process:
        checkup.ok("stdout", "nothing but messages")
    if notes.violations:
        told = dict.fromkeys(
            f"{seen.kind} {seen.method}: {each}" for seen in notes.violations for each in seen.violations
        )
        text = f"{len(told)} rule(s) of the protocol are broken"
        checkup.fail("messages", text, details=list(told)[:MAX_REPORTED])
    else:
        checkup.ok("messages", "all as the protocol has them")
