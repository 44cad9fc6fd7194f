"""Checks of a connected server: revisions, capabilities, lists and schemas, latency, violations.

Calls no tool. `Capture` keeps the invalid messages that `tap` finds. Rules for tools that authors can use in
their tests are in `toolpost.testing.schemas`.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from toolpost.channel import Channel
from toolpost.cli.doctor.report import DoctorReport
from toolpost.cli.tap.http_messages import ExchangeTracker, TrackedExchange
from toolpost.cli.tap.inspector import MessageInspector
from toolpost.cli.tap.recorder import ObservedMessage
from toolpost.client.client import Client
from toolpost.errors import ChannelClosed, MCPError
from toolpost.json_schema import as_object
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import DATES, SERVER, Role
from toolpost.protocol.revisions import REVISIONS, Revision
from toolpost.testing.channel import TappedChannel
from toolpost.testing.schemas import Finding, lint_tool
from toolpost.types.initialize import PaginatedResult
from toolpost.types.tools import Tool

PING_COUNT: Final = 5  # pings to measure
SLOW_PING: Final = 1.0  # seconds; warn if pings are slower
SLOW_START: Final = 3.0  # seconds; a server that starts slower is not started once for each revision
LAST_OUTPUT_TIMEOUT: Final = 2.0  # seconds for a server to end once its stdin is closed
MAX_REPORTED: Final = 20  # messages that break rules to report
STDERR_HINT: Final = "write other output to stderr: print(…, file=sys.stderr)"
MAX_VIOLATIONS: Final = 200  # messages to keep at most


class Capture(ExchangeTracker):
    """The invalid messages of a server, its HTTP exchanges, and the end of its process."""

    def __init__(self) -> None:
        super().__init__(self.record, time.monotonic)
        self.violations: list[ObservedMessage] = []
        self.junk: list[ObservedMessage] = []
        self.exchanges: list[TrackedExchange] = []
        self.has_started = False
        self.returncode: int | None = None
        self.stderr_tail: tuple[str, ...] = ()

    def begin(self, method: str, path: str, sent: Mapping[str, str]) -> TrackedExchange:
        """Begin an exchange, and keep it."""
        self.exchanges.append(super().begin(method, path, sent))
        return self.exchanges[-1]

    def record(self, seen: ObservedMessage) -> None:
        """Keep an invalid message of the server."""
        kept = self.junk if seen.kind == "junk" else self.violations
        if seen.by == SERVER and seen.violations and len(kept) < MAX_VIOLATIONS:
            kept.append(seen)


class CapturedChannel(TappedChannel):
    """A channel to a server process that captures messages, and how the process has ended."""

    def __init__(self, inner: Channel, capture: Capture) -> None:
        super().__init__(inner, self._inspect)
        self._inspector = MessageInspector()
        self._capture = capture
        capture.has_started = True

    def _inspect(self, sender: Role, data: bytes) -> None:
        for seen in self._inspector.inspect(sender, data, time.monotonic()):
            self._capture.record(seen)

    async def close(self) -> None:
        """Capture how the process has ended, if it has; end it, and read its last output."""
        child: Any = self.inner
        self._capture.returncode, self._capture.stderr_tail = child.returncode, child.stderr_tail
        child.end_input()
        with suppress(ChannelClosed, TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_TIMEOUT):
                while True:
                    await self.receive()
        await child.close()


# --------------------------------------------------------------------- tools, resources and prompts

MAX_TOOLS: Final = 128  # tools that all common model APIs accept at once
_URI_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class ItemKind(NamedTuple):
    """A list of a server, and the rule for its items; `key` is the member that names an item."""

    read_pages: Callable[[Client], AsyncIterator[PaginatedResult]]
    member: str
    noun: str
    key: str
    lint: Callable[[Mapping[str, Any], Revision], Iterator[Finding]]
    shared_capability: str = ""  # the capability of another list; this one is optional then


def lint_items(kind: ItemKind, items: Sequence[Any], revision: Revision) -> Iterator[Finding]:
    """Yield the findings about each item of a list, then about missing and duplicate names."""
    if kind.noun == "tool" and len(items) > MAX_TOOLS:
        yield "warn", f"{len(items)} tools; some hosts accept at most {MAX_TOOLS}"
    names = [as_object(item).get(kind.key) for item in items]
    for item, name in zip(items, names, strict=True):
        if isinstance(name, str):
            for verdict, text in kind.lint(item, revision):
                yield verdict, f"{kind.noun} {shorten(name)}: {text}"
    for number, name in enumerate(names, 1):
        if not isinstance(name, str):
            yield "fail", f"{kind.noun} number {number} has no {kind.key}"
    for name, count in Counter(shorten(name) for name in names if isinstance(name, str)).items():
        if count > 1:
            yield "fail", f"{kind.noun} {name}: {count} items have this {kind.key}"


def _lint_tool(item: Mapping[str, Any], revision: Revision) -> Iterator[Finding]:
    try:
        tool = msgspec.convert(item, Tool)
    except msgspec.ValidationError as error:
        yield "fail", f"invalid definition: {error}"
        return
    yield from lint_tool(tool)
    output = tool.output_schema
    if output is not None and revision.structured != "any" and output.get("type") != "object":
        yield "fail", f"the type of the output schema must be 'object' in {revision.date}"


def _lint_resource(item: Mapping[str, Any], _: Revision) -> Iterator[Finding]:
    if not _URI_SCHEME.match(item["uri"]):
        yield "fail", "the URI has no scheme, such as file: or notes:"
    elif not isinstance(item.get("name"), str):
        yield "fail", "no name"


def _lint_template(item: Mapping[str, Any], _: Revision) -> Iterator[Finding]:
    from toolpost.protocol.uri_template import UriTemplate  # noqa: PLC0415 - few servers have any

    try:
        UriTemplate(item["uriTemplate"])
    except ValueError as error:
        yield "fail", str(error)


def _lint_prompt(item: Mapping[str, Any], _: Revision) -> Iterator[Finding]:
    if not item.get("description") and not item.get("title"):
        yield "warn", "no title and no description: users choose prompts by them"


ITEM_KINDS: Final = {
    "tools": ItemKind(Client.list_tools_pages, "tools", "tool", "name", _lint_tool),
    "resources": ItemKind(Client.list_resources_pages, "resources", "resource", "uri", _lint_resource),
    "templates": ItemKind(
        Client.list_resource_templates_pages,
        "resourceTemplates",
        "template",
        "uriTemplate",
        _lint_template,
        "resources",
    ),
    "prompts": ItemKind(Client.list_prompts_pages, "prompts", "prompt", "name", _lint_prompt),
}


# --------------------------------------------------------------------- the session


async def check_session(report: DoctorReport, client: Client) -> None:
    """Check capabilities, lists, logging and latency of a connected server."""
    capabilities = msgspec.to_builtins(client.capabilities)
    names = [name for name, value in capabilities.items() if value is not None]
    if names:
        report.ok("capabilities", ", ".join(names))
    else:
        report.warn("capabilities", "the server declares none: hosts will not use it")
    used: set[str] = set()
    for name, kind in ITEM_KINDS.items():
        capability = kind.shared_capability or kind.member
        if has_capability(client.capabilities, capability) and await _check_list(report, client, name, kind):
            used.add(capability)
    for name in (each for each in ITEM_KINDS if each not in used):
        if has_capability(client.capabilities, name):
            report.warn(name, f"the server declares {name!r} but has none")
    if has_capability(client.capabilities, "logging") and client.era == "session":
        try:
            await client.set_log_level("warning")
        except MCPError as error:
            report.fail("logging", f"declared, but logging/setLevel fails: {error.message}")
    await _check_ping(report, client)


async def _check_list(report: DoctorReport, client: Client, name: str, kind: ItemKind) -> bool:
    """Check one list. Return whether it has items, or could not be read."""
    items: list[Any] = []
    pages, cursor, is_known = 0, None, True
    try:
        async for page in kind.read_pages(client):
            is_known = page.raw is not None  # a list that the server does not know is empty
            pages, cursor = pages + 1, page.next_cursor
            items += msgspec.json.decode(page.raw or b"{}").get(kind.member, [])
    except MCPError as error:
        after = f" after {pages} page(s)" if pages else ""
        report.fail(name, f"could not read the list{after}: {error.message}", error.hint or "")
        return True
    if not is_known:
        if not kind.shared_capability:
            text = f"the server declares {kind.member!r}, but: Method not found"
            report.fail(name, text, "implement the method, or remove the capability")
        return not kind.shared_capability
    found = list(lint_items(kind, items, REVISIONS[client.revision]))
    counted = f"{len(items)}, in {pages} pages" if pages > 1 else f"{len(items)}"
    failures, warnings = ([text for each, text in found if each == verdict] for verdict in ("fail", "warn"))
    if failures:
        report.fail(name, f"{counted}; violations:", details=failures)
    if warnings:
        report.warn(name, f"{counted}; possible problems:", details=warnings)
    if cursor is not None:
        report.fail(name, f"the last page has the cursor {cursor!r}, but no page follows", "omit it")
    elif not found and items:
        report.ok(name, counted)
    return bool(items)


async def _check_ping(report: DoctorReport, client: Client) -> None:
    took: list[float] = []
    try:
        for _ in range(PING_COUNT):
            began = time.perf_counter()
            await client.ping()
            took.append(time.perf_counter() - began)
    except MCPError as error:
        report.fail("ping", error.message, error.hint or "")
        return
    text = f"{1000 * median(took):.1f} ms (fastest {1000 * min(took):.1f}, slowest {1000 * max(took):.1f})"
    if median(took) > SLOW_PING:
        report.warn("ping", f"{text}: slow")
    else:
        report.ok("ping", text)


async def check_revisions(
    report: DoctorReport, client_of: Callable[[str], Client], opened: Client, took: float
) -> None:
    """Find the revisions of a server by connecting in each of them."""
    found = opened.discover_result
    listed = set(() if found is None else found.supported_versions)
    if took > SLOW_START:
        others = ", ".join(date for date in DATES if date in listed and date != opened.revision)
        also = f"; the server also lists {others}" if others else ""
        report.ok("revisions", f"{opened.revision}{also}; did not try others: the server starts slowly")
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
    false = [f"{date}: {why[date]}" for date in DATES if date in listed - spoken]
    if false:
        report.fail("revisions", f"the server supports {text}, but lists others that fail", details=false)
    elif eras == {"stateless"}:
        hint = "older hosts cannot connect: the server does not support `initialize`"
        report.warn("revisions", text, hint)
    else:
        report.ok("revisions", text + ("" if len(eras) > 1 else "; session era only"))


def check_messages(report: DoctorReport, capture: Capture, *, process: bool) -> None:
    """Report captured lines that are not messages, and violations."""
    if capture.junk:
        lines = dict.fromkeys(shorten(seen.body.decode("utf-8", "replace"), 100) for seen in capture.junk)
        name, hint = ("stdout", STDERR_HINT) if process else ("bodies", "")
        report.fail(name, "output that is not an MCP message:", hint, details=list(lines)[:MAX_REPORTED])
    elif process:
        report.ok("stdout", "only MCP messages")
    if capture.violations:
        violations = dict.fromkeys(
            f"{seen.kind} {seen.method}: {each}" for seen in capture.violations for each in seen.violations
        )
        text = f"{len(violations)} protocol violation(s)"
        report.fail("messages", text, details=list(violations)[:MAX_REPORTED])
    else:
        report.ok("messages", "all messages conform to the protocol")
