"""A client and a server that exchange messages one by one, for the tests of `Connection`.

Peers are also simulated: `message` writes JSON without our encoder. Samples hold the least that a method
needs. Nothing here asserts what a test is about.
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self, TypeVar

import pytest

from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import ERAS
from toolpost.protocol.events import ConnectionEvent, InboundRequest, OutboundRequest
from toolpost.protocol.local_peer import Capabilities, LocalPeer
from toolpost.protocol.methods import CLIENT, ROWS, SERVER, Role, Row
from toolpost.protocol.revisions import LATEST, REVISIONS, Revision
from toolpost.types import (
    CLIENT_CAPABILITIES,
    PROTOCOL_VERSION,
    CallToolResult,
    ClientCapabilities,
    ClientTasksCapability,
    CompleteResult,
    Completion,
    CreateMessageResult,
    DiscoverResult,
    ElicitationCapability,
    ElicitResult,
    GetPromptResult,
    Implementation,
    InitializeResult,
    ListCapability,
    ListenResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListRootsResult,
    ListTasksResult,
    ListToolsResult,
    ReadResourceResult,
    ResourcesCapability,
    Result,
    SamplingCapability,
    ServerCapabilities,
    ServerTasksCapability,
    ServerTasksRequests,
    TaskPayload,
    TaskResult,
    TextContent,
    ToolsTasks,
)

E = TypeVar("E", bound=ConnectionEvent)
C = TypeVar("C", ClientCapabilities, ServerCapabilities)

# --------------------------------------------------------------------- the peers

CLIENT_INFO: Final = Implementation("a client", "1")
SERVER_INFO: Final = Implementation("a server", "2")

CLIENT_CAN: Final = ClientCapabilities(
    roots=ListCapability(list_changed=True),
    sampling=SamplingCapability(),
    elicitation=ElicitationCapability(),
    tasks=ClientTasksCapability(list={}, cancel={}),
)
SERVER_CAN: Final = ServerCapabilities(
    tools=ListCapability(list_changed=True),
    resources=ResourcesCapability(list_changed=True, subscribe=True),
    prompts=ListCapability(list_changed=True),
    completions={},
    logging={},
    tasks=ServerTasksCapability(list={}, cancel={}, requests=ServerTasksRequests(ToolsTasks({}))),
)
"""Every capability that a row needs."""

CLIENT_PARTY: Final = LocalPeer(CLIENT_INFO, CLIENT_CAN)
SERVER_PARTY: Final = LocalPeer(SERVER_INFO, SERVER_CAN)


def party(capabilities: Capabilities, **options: Any) -> LocalPeer:
    """A party with these capabilities and the usual name tag."""
    info = CLIENT_INFO if isinstance(capabilities, ClientCapabilities) else SERVER_INFO
    return LocalPeer(info, capabilities, **options)


def without(capabilities: C, path: str) -> C:
    """The capabilities less one."""
    less = copy.deepcopy(capabilities)
    *parents, name = path.split(".")
    holder = less
    for parent in parents:
        holder = getattr(holder, parent)
    setattr(holder, name, None)
    return less


# --------------------------------------------------------------------- what revisions there are

SESSIONS: Final = [revision for revision in REVISIONS.values() if not revision.stateless]


def _date(revision: Revision) -> str:
    return revision.date


every_revision = pytest.mark.parametrize("revision", list(REVISIONS.values()), ids=_date)
every_session = pytest.mark.parametrize("revision", SESSIONS, ids=_date)


def cases(
    sent: Callable[[Revision, Role], Mapping[str, Row]],
    wanted: Callable[[Revision, Role, Row], bool] = lambda _revision, _by, _row: True,
) -> pytest.MarkDecorator:
    """All triples of a revision, a sender and a row that this one may send."""
    return pytest.mark.parametrize(
        ("revision", "by", "row"),
        [
            pytest.param(revision, by, row, id=f"{revision.date}-{by}-{row.name}")
            for revision in REVISIONS.values()
            for by in (CLIENT, SERVER)
            for row in sent(revision, by).values()
            if wanted(revision, by, row)
        ],
    )


# --------------------------------------------------------------------- what is said

_TASK: Final[dict[str, Any]] = {
    "taskId": "t",
    "status": "working",
    "createdAt": "then",
    "lastUpdatedAt": "now",
    "ttl": None,
}

PARAMS: Final[dict[str, dict[str, Any]]] = {
    **{row.name: {} for row in ROWS},
    "initialize": {
        "protocolVersion": "1999-01-01",
        "capabilities": {},
        "clientInfo": {"name": "anybody", "version": "0"},
    },
    "tools/call": {"name": "add"},
    "resources/read": {"uri": "file:///a"},
    "resources/subscribe": {"uri": "file:///a"},
    "resources/unsubscribe": {"uri": "file:///a"},
    "subscriptions/listen": {"notifications": {}},
    "prompts/get": {"name": "greet"},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "greet"},
        "argument": {"name": "who", "value": "A"},
    },
    "logging/setLevel": {"level": "info"},
    "tasks/get": {"taskId": "t"},
    "tasks/result": {"taskId": "t"},
    "tasks/cancel": {"taskId": "t"},
    "sampling/createMessage": {"messages": [], "maxTokens": 1},
    "elicitation/create": {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}},
    "notifications/progress": {"progressToken": 1, "progress": 1},
    "notifications/cancelled": {"requestId": 1},
    "notifications/message": {"level": "info", "data": "hello"},
    "notifications/resources/updated": {"uri": "file:///a"},
    "notifications/elicitation/complete": {"elicitationId": "e"},
    "notifications/tasks/status": _TASK,
    "notifications/subscriptions/acknowledged": {"notifications": {}},
}
"""The least that each method may be sent with."""

_TASK_RESULT: Final = TaskResult(
    task_id="t", status="working", created_at="then", last_updated_at="now", ttl=None
)

RESULTS: Final[dict[str, Result]] = {
    "initialize": InitializeResult(
        protocol_version="1999-01-01", capabilities=ServerCapabilities(), server_info=SERVER_INFO
    ),
    "ping": Result(),
    "server/discover": DiscoverResult(supported_versions=[LATEST.date], capabilities=ServerCapabilities()),
    "tools/list": ListToolsResult(tools=[]),
    "tools/call": CallToolResult(content=[]),
    "resources/list": ListResourcesResult(resources=[]),
    "resources/templates/list": ListResourceTemplatesResult(resource_templates=[]),
    "resources/read": ReadResourceResult(contents=[]),
    "resources/subscribe": Result(),
    "resources/unsubscribe": Result(),
    "subscriptions/listen": ListenResult(),
    "prompts/list": ListPromptsResult(prompts=[]),
    "prompts/get": GetPromptResult(messages=[]),
    "completion/complete": CompleteResult(completion=Completion(values=[])),
    "logging/setLevel": Result(),
    "tasks/get": _TASK_RESULT,
    "tasks/result": TaskPayload(),
    "tasks/list": ListTasksResult(tasks=[]),
    "tasks/cancel": _TASK_RESULT,
    "roots/list": ListRootsResult(roots=[]),
    "sampling/createMessage": CreateMessageResult(role="assistant", content=TextContent("hi"), model="m"),
    "elicitation/create": ElicitResult(action="decline"),
}
"""The least that each request may be answered with."""


def message(**members: Any) -> bytes:
    """A message as a peer might write it."""
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def marked(
    params: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    *,
    revision: str = LATEST.date,
    capabilities: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Parameters that carry the facts of a stateless request."""
    facts = {PROTOCOL_VERSION: revision, CLIENT_CAPABILITIES: capabilities or {}}
    return {**(params or {}), "_meta": {**facts, **(meta or {})}}


def told(revision: Revision, method: str, **members: Any) -> bytes:
    """A sample request or notification of `method`, as a peer of `revision` encodes it."""
    params = PARAMS[method]
    return message(method=method, params=marked(params) if revision.stateless else params, **members)


def parse(data: bytes | None) -> Any:
    """Return the decoded bytes of the wire."""
    assert data is not None
    return json.loads(data)


def one(events: list[ConnectionEvent], kind: type[E]) -> E:
    """Return the only event; it must be of this kind."""
    [event] = events
    assert isinstance(event, kind), event
    return event


def refusal(events: list[ConnectionEvent]) -> Any:
    """The error on the wire that refuses a message."""
    [event] = events
    return parse(getattr(event, "data", None))["error"]


# --------------------------------------------------------------------- the conversation


class Exchange(NamedTuple):
    """A request as both ends see it."""

    outgoing: OutboundRequest
    incoming: InboundRequest


class Conversation:
    """Both ends, and nothing that could be lost between them."""

    def __init__(
        self,
        revision: Revision,
        *,
        client: LocalPeer = CLIENT_PARTY,
        server: LocalPeer = SERVER_PARTY,
        extra: Mapping[str, Row] | None = None,
        limit: int = 1024,
    ) -> None:
        client, server = (
            LocalPeer(party.info, party.capabilities, supported=party.supported, rows=extra)
            if extra
            else party
            for party in (client, server)
        )
        self.client = Connection(client, revision=revision, limit=limit)
        self.server = Connection(server, limit=limit)

    def end(self, role: Role) -> Connection:
        """One end."""
        return self.client if role == CLIENT else self.server

    def open(self, until: str = "ready") -> Self:
        """Open the conversation, until the server is in the state `until`."""
        if until == "new":
            return self
        opening = ERAS[self.client.revision.era].open(self.client)
        incoming = one(self.server.receive(opening.data), InboundRequest)
        if until == "opening":
            return self
        answer = self.server.reply(
            incoming.id, self.server.local_peer.introduce(incoming.peer.revision, "Be kind.")
        )
        assert answer is not None
        self.client.receive(answer)
        if until == "ready" and not self.client.revision.stateless:
            self.server.receive(self.client.notify("notifications/initialized"))
        return self

    def ask(self, method: str, *, by: Role = CLIENT, progress: bool = False) -> Exchange:
        """A sample request that has arrived."""
        asked = self.end(SERVER if by == CLIENT else CLIENT)
        outgoing = self.end(by).request(method, PARAMS[method], progress=progress)
        return Exchange(outgoing, one(asked.receive(outgoing.data), InboundRequest))


def talk(revision: Revision, **options: Any) -> Conversation:
    """A conversation in which both peers declare every capability."""
    return Conversation(revision, **options).open()
