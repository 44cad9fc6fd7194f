"""Our client against one server of somebody else: connects in a revision, runs a suite, leaves.

Owns what the callbacks answer and what was heard. What is asked of which server is told in `drive_*`.
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

EXPECTED: Final = frozenset({"late answer"})
"""What is thrown away without a mistake of ours: `mcp` 1.x answers requests that were cancelled."""

REPLAYED: Final = frozenset(
    {"malformed message", "progress that does not increase", "progress of no request in flight"}
)
"""What npm's `server-everything` makes us throw away when a stream is resumed: the store of its own hands out
the events of all streams, and the SDK below it keeps each event that primes a stream as a message `{}`."""


@dataclass
class Guest:
    """Our client, and what it heard."""

    peer: str
    client: Client
    place: str = ""
    """A folder of its own, for peers that need one."""
    relay: Relay | None = None
    """What stands between us and a server that is reached by URL."""
    another: Callable[[], Client] | None = None
    """Makes one more client of the same server."""
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


class Trip(NamedTuple):
    """How our client is to connect.

    Args:
        peer: what to call the server.
        over: stdio, http or sse; or what else the rows are to show.
        target: where it is.
        revision: the revision to speak; None lets the client find out.
        expected: the revision that has to come of it.
        place: a folder for the suite.
        relay: what stands in between, where there is a URL.
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
        """Stdio, http, sse or alone: what the cases know."""
        return "http" if self.over == "httpx2" else self.over

    def outcome(self, what: str, why: str) -> Outcome:
        """How a case went."""
        return Outcome(self.peer, "our client", self.over, self.revision or "unpinned", what, why)


async def visit(trip: Trip, suite: Suite[Guest]) -> AsyncIterator[Outcome]:
    """The outcomes of a suite against a server."""

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
