"""A client and a server in one revision, connected by function calls."""

from dataclasses import dataclass
from typing import Any

from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import ConnectionEvent, InboundRequest, OutboundRequest
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import Revision
from toolpost.testing import REVISIONS
from toolpost.types import (
    ClientCapabilities,
    ClientTasksCapability,
    ClientTasksRequests,
    ElicitationCapability,
    ElicitationTasks,
    Implementation,
    ListCapability,
    ResourcesCapability,
    SamplingCapability,
    SamplingTasks,
    ServerCapabilities,
    ServerTasksCapability,
    ServerTasksRequests,
    ToolsTasks,
)

__all__ = ["CLIENT", "SERVER", "Pair", "arrived", "open_pair"]

CLIENT = LocalPeer(
    Implementation(name="client", version="1"),
    ClientCapabilities(
        roots=ListCapability(list_changed=True),
        sampling=SamplingCapability(context={}, tools={}),
        elicitation=ElicitationCapability(form={}, url={}),
        tasks=ClientTasksCapability(
            list={},
            cancel={},
            requests=ClientTasksRequests(
                sampling=SamplingTasks(create_message={}), elicitation=ElicitationTasks(create={})
            ),
        ),
        extensions={"com.example/x": {}},
    ),
)
SERVER = LocalPeer(
    Implementation(name="server", version="1"),
    ServerCapabilities(
        tools=ListCapability(list_changed=True),
        resources=ResourcesCapability(list_changed=True, subscribe=True),
        prompts=ListCapability(list_changed=True),
        completions={},
        logging={},
        tasks=ServerTasksCapability(list={}, cancel={}, requests=ServerTasksRequests(ToolsTasks({}))),
        extensions={"com.example/x": {}},
    ),
)


@dataclass
class Pair:
    """Both ends, and the messages of the handshake."""

    client: Connection
    server: Connection
    opening: tuple[bytes, ...]

    @property
    def revision(self) -> Revision:
        """The revision."""
        return self.client.revision

    def ask(self, method: str, params: Any = None, **options: Any) -> tuple[OutboundRequest, InboundRequest]:
        """Send a request of the client, and return the event at the server."""
        outgoing = self.client.request(method, params, **options)
        return outgoing, arrived(self.server.receive(outgoing.data))

    def ask_back(self, method: str, params: Any = None) -> tuple[OutboundRequest, InboundRequest]:
        """Send a request of the server, and return the event at the client."""
        outgoing = self.server.request(method, params)
        return outgoing, arrived(self.client.receive(outgoing.data))


def arrived(events: list[ConnectionEvent]) -> InboundRequest:
    """Return the only received request."""
    [event] = events
    assert isinstance(event, InboundRequest), event
    return event


def open_pair(date: str, client: LocalPeer = CLIENT, server: LocalPeer = SERVER) -> Pair:
    """Connect two ends by handshake or discovery."""
    ours, theirs = Connection(client, revision=REVISIONS[date]), Connection(server)
    outgoing = ERAS[ours.revision.era].open(ours)
    incoming = arrived(theirs.receive(outgoing.data))
    answer = theirs.reply(incoming.id, theirs.local_peer.introduce(incoming.peer.revision, "Be kind."))
    assert answer is not None
    ours.receive(answer)
    opening = (outgoing.data, answer)
    if not ours.revision.stateless:
        opening = (*opening, ours.notify("notifications/initialized"))
        theirs.receive(opening[-1])
    assert ours.revision.date == date
    return Pair(ours, theirs, opening)
