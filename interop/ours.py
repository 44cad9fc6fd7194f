"""Our client against one server of somebody else: connects in a revision, runs a suite, leaves.

Owns what the callbacks answer and what was heard. What is asked of which server is told in `drive_*`.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cases import Outcome, Suite, attempt
from toolpost import Client, Stdio
from toolpost.types import (
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitParams,
    LogParams,
    TextContent,
)

__all__ = ["Guest", "visit"]

EXPECTED: Final = frozenset({"late answer"})
"""What is thrown away without a mistake of ours: `mcp` 1.x answers requests that were cancelled."""


@dataclass
class Guest:
    """Our client, and what it heard."""

    peer: str
    client: Client
    place: str = ""
    """A folder of its own, for peers that need one."""
    logs: list[Any] = field(default_factory=list[Any])
    notices: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    asked: list[Any] = field(default_factory=list[Any])

    @property
    def stateless(self) -> bool:
        """Whether there is no session."""
        return self.client.era == "stateless"

    def heard(self, method: str) -> bool:
        """Whether a notice has come."""
        return any(name == method for name, _ in self.notices)


def _reply(params: ElicitParams) -> Mapping[str, Any] | bool:
    """What the user fills into a form: something for each field that must be there."""
    if params.mode == "url":
        return True
    schema = params.requested_schema or {}
    fields: dict[str, Any] = schema.get("properties", {})
    known: dict[str, Any] = {"dish": "soup", "portions": 2}
    return {name: known.get(name, _filled(fields[name])) for name in schema.get("required", [])}


def _filled(field: dict[str, Any]) -> Any:
    if "default" in field:
        return field["default"]
    if "enum" in field:
        return field["enum"][0]
    return {"string": "Ann", "integer": 2, "number": 2.5, "boolean": True}.get(field.get("type", "string"))


async def visit(
    peer: str, command: Stdio, suite: Suite[Guest], *, revision: str | None, expected: str, place: str = ""
) -> AsyncIterator[Outcome]:
    """The outcomes of a suite against a server.

    Args:
        peer: what to call it.
        command: how to start it.
        suite: what to try.
        revision: the revision to speak; None lets the client find out.
        expected: the revision that has to come of it.
        place: a folder for the suite.
    """

    def sample(params: CreateMessageParams) -> CreateMessageResult:
        guest.asked.append(params)
        return CreateMessageResult(
            role="assistant", content=TextContent("the soup"), model="cook-1", stop_reason="endTurn"
        )

    def elicit(params: ElicitParams) -> Mapping[str, Any] | bool:
        guest.asked.append(params)
        return _reply(params)

    def log(message: LogParams) -> None:
        guest.logs.append(message)

    def hear(method: str, params: Any) -> None:
        guest.notices.append((method, params))

    client = Client(
        command,
        name="toolpost-interop",
        revision=revision,
        timeout=20,
        on_sampling=sample,
        on_elicitation=elicit,
        on_roots=[place or "file:///kitchen"],
        on_log=log,
        on_notification=hear,
        capabilities=ClientCapabilities(elicitation=ElicitationCapability(form={}, url={})),
        strict=True,
    )
    guest = Guest(peer, client, place)
    shown = revision or "unpinned"

    def outcome(what: str, why: str) -> Outcome:
        return Outcome(peer, "our client", shown, what, why)

    why = await attempt(client.connect())
    if not why and client.revision != expected:
        why = f"agreed on {client.revision}, not on {expected}"
    yield outcome(f"connect → {expected}", why)
    if client.connected:
        for case in suite.fitting(client.revision, client.era):
            yield outcome(case.what, await attempt(case.run(guest)))
    yield outcome("leave", await attempt(client.close()))
    lost = {why: times for why, times in client.stats.discarded.items() if why not in EXPECTED}
    yield outcome("no message was thrown away", f"{lost}" if lost else "")
