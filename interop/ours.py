"""Runs a suite with our client against the server of a peer.

Defines the callbacks, and collects notifications. The cases are in `drive_*`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cases import Outcome, Suite, attempt
from relay import Relay
from toolpost import Client
from toolpost.connect import Target
from toolpost.types import (
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitParams,
    LogParams,
    TextContent,
)

__all__ = ["Guest", "Trip", "visit"]

EXPECTED: Final = frozenset({"late response"})
"""Expected dropped messages: `mcp` 1.x responds to cancelled requests."""

REPLAYED: Final = frozenset(
    {"malformed message", "progress that does not increase", "progress of an unknown request"}
)
"""Messages of npm's `server-everything` that we drop when a stream is resumed: its store returns the events
of all streams, and the SDK stores each priming event of a stream as a message `{}`."""


@dataclass
class Guest:
    """Our client, and what it received."""

    peer: str
    client: Client
    place: str = ""
    """A folder for peers that need one."""
    relay: Relay | None = None
    """The relay in front of a server with a URL."""
    another: Callable[[], Client] | None = None
    """Creates another client of the same server."""
    logs: list[Any] = field(default_factory=list[Any])
    notices: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    questions: list[Any] = field(default_factory=list[Any])

    @property
    def stateless(self) -> bool:
        """Whether there is no session."""
        return self.client.era == "stateless"

    def heard(self, method: str) -> bool:
        """Return whether a notification has arrived."""
        return any(name == method for name, _ in self.notices)


def _reply(params: ElicitParams) -> Mapping[str, Any] | bool:
    """Fill in a form: a value for each required field."""
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
    if "oneOf" in field:
        return field["oneOf"][0]["const"]
    return {"string": "Ann", "integer": 2, "number": 2.5, "boolean": True}.get(field.get("type", "string"))


class Trip(NamedTuple):
    """A connection of our client.

    Args:
        peer: the name of the server.
        over: stdio, http or sse, or another label.
        target: the target of the client.
        revision: the revision to use; None to negotiate.
        expected: the expected revision.
        place: a folder for the suite.
        relay: the relay in front of a URL.
    """

    peer: str
    over: str
    target: Target
    revision: str | None
    expected: str
    place: str = ""
    relay: Relay | None = None

    @property
    def way(self) -> str:
        """The transport for the cases: stdio, http, sse or alone."""
        return "http" if self.over == "httpx2" else self.over

    def outcome(self, what: str, why: str) -> Outcome:
        """Create the outcome of a case."""
        return Outcome(self.peer, "our client", self.over, self.revision or "unpinned", what, why)


async def visit(trip: Trip, suite: Suite[Guest]) -> AsyncIterator[Outcome]:
    """Run a suite against a server, and yield the outcomes."""

    def sample(params: CreateMessageParams) -> CreateMessageResult:
        guest.questions.append(params)
        return CreateMessageResult(
            role="assistant", content=TextContent("the soup"), model="cook-1", stop_reason="endTurn"
        )

    def elicit(params: ElicitParams) -> Mapping[str, Any] | bool:
        guest.questions.append(params)
        return _reply(params)

    def log(message: LogParams) -> None:
        guest.logs.append(message)

    def hear(method: str, params: Any) -> None:
        guest.notices.append((method, params))

    client = Client(
        trip.target,
        name="toolpost-interop",
        revision=trip.revision,
        timeout=20,
        on_sampling=sample,
        on_elicitation=elicit,
        on_roots=[trip.place or "file:///kitchen"],
        on_log=log,
        on_notification=hear,
        capabilities=ClientCapabilities(elicitation=ElicitationCapability(form={}, url={})),
        strict=True,
    )

    def another() -> Client:
        return Client(trip.target, name="toolpost-second", revision=trip.revision, timeout=20)

    guest = Guest(trip.peer, client, trip.place, trip.relay, another)
    why = await attempt(client.connect())
    if not why and client.revision != trip.expected:
        why = f"agreed on {client.revision}, not on {trip.expected}"
    yield trip.outcome(f"connect → {trip.expected}", why)
    if client.connected:
        for case in suite.fitting(client.revision, client.era, trip.way):
            yield trip.outcome(case.what, await attempt(case.run(guest)))
    yield trip.outcome("leave", await attempt(client.close()))
    expected = EXPECTED | REPLAYED if trip.peer == "everything" and trip.way == "http" else EXPECTED
    lost = {why: times for why, times in client.stats.discarded.items() if why not in expected}
    yield trip.outcome("no message was thrown away", f"{lost}" if lost else "")
    if trip.relay is not None and trip.relay.sessions:
        left = [session for session in trip.relay.sessions if await trip.relay.knows(session)]
        yield trip.outcome("our sessions are deleted", f"{len(left)} are there still" if left else "")
