"""A pytest plugin: validates every message of every test against the official schema of its revision.

Checks the messages that a `Connection` writes, or reads and accepts, by revision, kind and method, and the
errors that other code of ours writes. A test with an invalid message fails at its end. Not checked on
purpose:

- messages that a `Connection` rejects, drops or does not know: a test may send anything;
- values that a test passes to a `Connection` as a mapping, raw bytes, an error or a type of another method.
  If they are accepted, they are checked as received.

`LENIENT` lists invalid messages that we accept, `WAIVED` the rules that are not checked.

Messages of child processes are checked if this process accepts them through a `Connection`. Without the
specification nothing is checked.
"""

import functools
import hashlib
import json
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import pytest

import specification
from official_schema import Official
from toolpost.errors import InvalidParams, RPCError
from toolpost.protocol import jsonrpc, receive
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import (
    CancellationReceived,
    ConnectionEvent,
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    NotificationReceived,
    OutboundRequest,
    ProgressReceived,
    ResponseReceived,
)
from toolpost.protocol.jsonrpc import (
    JSONRPCErrorResponse,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from toolpost.protocol.methods import SERVER, Role, Row
from toolpost.protocol.revisions import LATEST, REVISIONS, Revision
from toolpost.types import UNSET, CreateTaskResult, InputRequiredResult, Raw

# --------------------------------------------------------------------- messages


class Said(NamedTuple):
    """A message without its id, so that equal messages are checked once."""

    way: str
    """`sent` or `received`."""
    date: str
    by: Role
    kind: str
    """`request`, `is_notification`, `result` or `error`."""
    method: str
    """The method; for a result that of its request, empty for an error."""
    id: type | None
    body: bytes
    """The params, the result or the error; empty if there are no params."""


pending: dict[bytes, Said] = {}
"""Digest → message to check."""
waiting: dict[tuple[int, Any], Said] = {}
"""Requests that may still be rejected, by connection and id."""
_valid: set[bytes] = set()
"""Digests of checked messages."""


def note(said: Said) -> None:
    """Queue a message for the check at the end of the test, unless an equal one was checked."""
    digest = hashlib.blake2b(repr(said[:-1]).encode() + said.body, digest_size=16).digest()
    if digest not in _valid:
        pending[digest] = said


class _Parts(msgspec.Struct):
    id: int | str | msgspec.UnsetType = UNSET
    method: str = ""
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_PARTS = msgspec.json.Decoder(_Parts)


def _sent(revision: Revision, by: Role, data: bytes | None, answered: str = "") -> None:
    """Record a sent message; `answered` is the method of its request."""
    if data is None:
        return
    parts = _PARTS.decode(data)
    known = None if parts.id is UNSET else type(parts.id)
    if parts.method:
        kind, body = "notice" if known is None else "request", parts.params
    else:
        kind, body = ("result", parts.result) if answered else ("error", parts.error)
    note(Said("sent", revision.date, by, kind, parts.method or answered, known, bytes(body)))


# --------------------------------------------------------------------- listeners

# A listener is a generator: it gets the arguments of a call, yields, and gets the result.
Listener = Callable[..., Generator[None, Any, None]]


def _listening(inner: Callable[..., Any], listener: Listener) -> Callable[..., Any]:
    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        ear = listener(sys._getframe(1).f_globals["__name__"], *args, **kwargs)
        next(ear)
        result = inner(*args, **kwargs)
        with suppress(StopIteration):
            ear.send(result)
        return result

    return outer


def _ours(caller: str) -> bool:
    return caller.startswith("toolpost.")


def _on_request(
    caller: str, connection: Connection, method: Any, params: Any = None, **_: Any
) -> Generator[None, OutboundRequest, None]:
    outgoing = yield
    if params is None or isinstance(params, outgoing.row.params) or (_ours(caller) and type(params) is Raw):
        _sent(outgoing.revision, connection.role, outgoing.data)


def _on_reply(
    caller: str, connection: Connection, request_id: Any, result: Any
) -> Generator[None, bytes | None, None]:
    incoming = connection.incoming.get(request_id)
    return _on_answer(caller, connection, incoming, result) if incoming is not None else _ignore()


def _ignore() -> Generator[None, bytes | None, None]:
    yield


def _on_answer(
    caller: str, connection: Connection, incoming: InboundRequest, result: Any
) -> Generator[None, bytes | None, None]:
    data = yield
    if caller == Connection.__module__:
        return  # `reply` is judged by its own caller
    if data is not None and (_is_answer(result, incoming.row) or (_ours(caller) and type(result) is Raw)):
        _sent(incoming.peer.revision, connection.role, data, incoming.row.name)


def _is_answer(result: object, row: Row) -> bool:
    return isinstance(result, (row.result or (), InputRequiredResult, CreateTaskResult))


def _on_fail(
    caller: str, connection: Connection, request_id: Any, error: RPCError
) -> Generator[None, bytes | None, None]:
    incoming = connection.incoming.get(request_id)
    data = yield
    if isinstance(error, InvalidParams):
        waiting.pop((id(connection), request_id), None)  # it was rejected later
    if incoming is not None and _ours(caller):
        _sent(incoming.peer.revision, connection.role, data)


def _on_notify(
    _caller: str, connection: Connection, method: Any, params: Any = None, *, to: InboundRequest | None = None
) -> Generator[None, bytes, None]:
    revision = connection.revision if to is None else to.peer.revision
    data = yield
    if not isinstance(params, Mapping):
        _sent(revision, connection.role, data)


def _on_log(
    _caller: str, connection: Connection, *_: Any, to: InboundRequest | None = None, **__: Any
) -> Generator[None, bytes | None, None]:
    revision = connection.revision if to is None else to.peer.revision
    _sent(revision, connection.role, (yield))


def _on_progress(
    _caller: str, connection: Connection, request_id: Any, *_: Any, **__: Any
) -> Generator[None, bytes | None, None]:
    incoming = connection.incoming.get(request_id)
    _sent(incoming.peer.revision if incoming else connection.revision, connection.role, (yield))


def _on_cancel(
    _caller: str, connection: Connection, request_id: Any, *_: Any, **__: Any
) -> Generator[None, bytes | None, None]:
    outgoing = connection.outgoing.get(request_id)
    _sent(outgoing.revision if outgoing else connection.revision, connection.role, (yield))


def _on_broken(_caller: str, connection: Connection, _error: Any) -> Generator[None, ConnectionEvent, None]:
    event = yield
    if isinstance(event, InvalidMessageReceived):
        _sent(connection.revision, connection.role, event.data)


_HEARD_ELSEWHERE = {
    receive.__name__,  # where the revision is known
    Connection.__module__,
    "toolpost.transports.http_request",  # sends nothing: it passes on received messages
}


def _on_failure(caller: str, *_: Any, **__: Any) -> Generator[None, bytes, None]:
    data = yield
    if _ours(caller) and caller not in _HEARD_ELSEWHERE:
        _sent(LATEST, SERVER, data)  # without a connection, the revision is unknown


def _on_take(
    _caller: str, connection: Connection, message: JSONRPCMessage, _meta: Any = None, peer: Any = None
) -> Generator[None, ConnectionEvent, None]:
    before = connection.revision
    event = yield
    if isinstance(event, InvalidMessageReceived):
        peer = peer or connection.peer
        _sent(peer.revision if peer else LATEST, connection.role, event.data)
    elif isinstance(message, JSONRPCRequest) and isinstance(event, InboundRequest):
        key = id(connection), message.id
        if key in waiting:
            note(waiting.pop(key))
        waiting[key] = _received(connection, event.peer.revision, "request", message, message.params)
    elif isinstance(message, JSONRPCNotification) and _understood(event):
        revision = _spoken(message.method, before, connection.local_peer.peer_role)
        note(_received(connection, revision, "notice", message, message.params))
    elif isinstance(message, JSONRPCResponse) and isinstance(event, ResponseReceived):
        row, revision = event.request.row, event.request.revision
        if row.name == "initialize":
            revision = connection.revision  # the negotiated one
        note(_received(connection, revision, "result", message, message.result, row.name))
    elif isinstance(message, JSONRPCErrorResponse) and isinstance(event, ErrorReceived):
        error = {"code": message.code, "message": message.message}
        error |= {} if message.data is None else {"data": message.data}
        note(_received(connection, event.request.revision, "error", message, json.dumps(error).encode()))


def _understood(event: ConnectionEvent) -> bool:
    known = isinstance(event, NotificationReceived) and event.row is not None
    return known or isinstance(event, CancellationReceived | ProgressReceived | ResponseReceived)


def _spoken(method: str, revision: Revision, by: Role) -> Revision:
    """Return the revision of a notification: that of the connection, or the newest that defines it."""
    having = [each for each in REVISIONS.values() if method in each.notifications[by]]
    return revision if revision in having or not having else having[-1]


def _received(
    connection: Connection,
    revision: Revision,
    kind: str,
    message: JSONRPCMessage,
    body: Any,
    answered: str = "",
) -> Said:
    known = None if isinstance(message, JSONRPCNotification) else type(message.id)
    method = answered or getattr(message, "method", "")
    return Said(
        "received",
        revision.date,
        connection.local_peer.peer_role,
        kind,
        method,
        known,
        b"" if body is UNSET else bytes(body),
    )


PLACES: list[tuple[Any, str, Listener]] = [
    (Connection, "request", _on_request),
    (Connection, "reply", _on_reply),
    (Connection, "answer", _on_answer),
    (Connection, "fail", _on_fail),
    (Connection, "notify", _on_notify),
    (Connection, "log", _on_log),
    (Connection, "report_progress", _on_progress),
    (Connection, "cancel", _on_cancel),
    (receive, "handle_request", _on_take),
    (receive, "handle_message", _on_take),
    (receive, "handle_invalid", _on_broken),
    (jsonrpc, "encode_error", _on_failure),
]
"""The functions that create and read messages."""

# --------------------------------------------------------------------- exceptions


class Excuse(NamedTuple):
    """An error that does not fail a test."""

    way: str
    kind: str
    complaint: str
    """Matches an error and its path: `Definition: error at [path]`."""
    why: str


LENIENT = [
    *(
        Excuse(
            "received", kind, r"\w+: null is not of type .*", "an optional member that is null is not there"
        )
        for kind in ("request", "notice", "result")
    ),
    Excuse(
        "received",
        "result",
        r"\w+: \"resultType\" is a required property at \[('result')?\]",
        "absent means complete (MSG-12)",
    ),
    Excuse(
        "received",
        "result",
        r"\w+: (\"(ttlMs|cacheScope)\" is a required property at \[\]|-\d+ is less than .* at \['ttlMs'\])",
        "what does not say how long it may be kept is not kept",
    ),
    Excuse(
        "received",
        "result",
        r"\w+: .* at \[('result', )?'_meta', 'io.modelcontextprotocol/serverInfo'\]",
        "a name tag that cannot be read does not hide a server (DISC-3)",
    ),
    Excuse(
        "received",
        "result",
        r"List(Tools|Prompts|Resources|ResourceTemplates)Result: .* at \['\w+', \d+(, '\w+'.*)?\]",
        "what cannot be read of an item is left out, and a tool may be called whose schema says nothing",
    ),
    Excuse(
        "received",
        "result",
        r"SubscriptionsListenResult: \"_meta\" is a required property at \[\]",
        "which subscription has ended is told by the id of the answer",
    ),
    Excuse(
        "received",
        "result",
        r"InputRequiredResult: .* at \['inputRequests', '\w+'\]",
        "a question is read by whoever answers it",
    ),
    Excuse(
        "received",
        "request",
        r"CallToolRequest: .* is not of type \"object\" at \['params', 'arguments'\]",
        "arguments are read, and refused, by whoever has the tool",
    ),
    Excuse(
        "received",
        "request",
        r"CallToolRequest: .* at \['params', 'inputResponses'(, .*)?\]",
        "an answer is read by whoever asked, and asked for again if it is none",
    ),
    Excuse(
        "received",
        "error",
        r"(MissingRequiredClientCapability|UnsupportedProtocolVersion)Error: .* at \['error'.*\]",
        "an error stays the error that its code says, whatever its data is",
    ),
]
"""Invalid messages that we accept."""

WAIVED = [
    Excuse(
        "sent",
        "error",
        r"JSONRPCError: \"id\" is a required property at \[\]",
        "who asked cannot be told, and null is forbidden as well: it is left out (REVISIONS.md §3)",
    ),
    *(
        Excuse(way, kind, r"\w+: .* is not a \"uri\" at .*", "a URI is whatever its author says")
        for way in ("sent", "received")
        for kind in ("request", "notice", "result")
    ),
    Excuse(
        "sent",
        "result",
        r"ListToolsResult: \"type\" is a required property at \['tools', \d+, 'inputSchema'\]",
        "a `Tool` made by hand holds any schema; a `Server` refuses it when it is registered",
    ),
]
"""Errors that the check ignores."""

# Errors with their own shape of data.
_SHAPED = {
    -32020: "HeaderMismatchError",
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
    -32042: "URLElicitationRequiredError",
}


class Judge:
    """Validates messages against the official schemas.

    Args:
        schemas: the files by revision, decoded.
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._officials = {date: Official(date, schema) for date, schema in schemas.items()}

    def complaints(self, said: Said) -> list[str]:
        """Return the errors of a message, without the excused ones."""
        official = self._officials[said.date]
        message = _whole(said)
        strange = self._strange(official, said)
        wrong = [strange] if strange else []
        for name in self._names(official, said, message):
            part = message if name.startswith("JSONRPC") or said.kind != "result" else message["result"]
            wrong += official.complaints(name, part)
        return [each for each in wrong if not _excused(said, each)]

    def _strange(self, official: Official, said: Said) -> str | None:
        """Return an error if the protocol defines this method only for the other sender."""
        if said.kind not in {"request", "notice"}:
            return None
        unions = {by: f"{by.capitalize()}{_UNION[said.kind]}" for by in ("client", "server")}
        senders = {by for by, union in unions.items() if said.method in official.methods(union)}
        if not senders or said.by in senders:
            return None  # a message of an extension, or valid
        return f"{said.date} {unions[said.by]}: {said.method!r} is not one of them at ['method']"

    def _names(self, official: Official, said: Said, message: Any) -> Iterator[str]:
        """Yield the definitions that a message must match."""
        known = official.definitions
        if said.kind == "error":
            yield official.failure
            shaped = _SHAPED.get(message["error"]["code"], "")
            if shaped in known:
                yield shaped
            return
        if said.kind == "result":
            yield "JSONRPCResultResponse" if "JSONRPCResultResponse" in known else "JSONRPCResponse"
            yield self._result(official, said.method, message["result"])
            return
        yield f"JSONRPC{_UNION[said.kind]}"
        with suppress(ValueError):  # it belongs to an extension
            yield official.message(said.method)

    @staticmethod
    def _result(official: Official, method: str, result: Any) -> str:
        members = result if isinstance(result, dict) else {}
        if "InputRequiredResult" in official.definitions:
            kind = members.get("resultType", "complete")
            if kind != "complete":
                return "InputRequiredResult" if kind == "input_required" else "Result"  # of an extension
        if "task" in members and "CreateTaskResult" in official.definitions:
            return "CreateTaskResult"
        try:
            return official.result(method)
        except ValueError:  # as above
            return "Result"


_UNION = {"request": "Request", "notice": "Notification"}
_MEMBER = {"request": "params", "notice": "params", "result": "result", "error": "error"}


def _whole(said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    if said.id is not None:
        message["id"] = said.id(1)
    if said.kind in _UNION:
        message["method"] = said.method
    if said.body:
        message[_MEMBER[said.kind]] = json.loads(said.body)
    return message


def _excused(said: Said, complaint: str) -> bool:
    words = complaint.removeprefix(f"{said.date} ")
    return any(
        (excuse.way, excuse.kind) == (said.way, said.kind)
        and re.fullmatch(excuse.complaint, words, re.DOTALL)
        for excuse in (*LENIENT, *WAIVED)
    )


# --------------------------------------------------------------------- the tests that sent a message


@pytest.fixture(autouse=True, scope="session")
def _judge() -> Iterator[Judge | None]:
    if specification.absence():
        yield None
        return
    files = (specification.folder() / "schema").glob("*.json")
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, listener in PLACES:
            patch.setattr(owner, name, _listening(getattr(owner, name), listener))
        judge = Judge({path.stem: json.loads(path.read_bytes()) for path in files})
        yield judge
    late = list(_verdicts(judge))  # from a fixture that outlived the last test
    if late:
        pytest.fail("messages that the official schema does not allow:\n" + "\n".join(late), pytrace=False)


def _verdicts(judge: Judge) -> Iterator[str]:
    while waiting:
        note(waiting.popitem()[1])
    while pending:
        digest, said = pending.popitem()
        wrong = judge.complaints(said)
        if wrong:
            yield _describe(said, wrong)
        else:
            _valid.add(digest)


def _describe(said: Said, wrong: list[str]) -> str:
    words = " ".join(filter(None, (said.way, "by the", said.by, "in", said.date, said.kind, said.method)))
    return "\n  ".join([words, *wrong, jsonrpc.shorten(said.body.decode(errors="replace"), SHOWN)])


SHOWN = 2000
"""Maximum length of a message in a failure."""


@pytest.fixture(autouse=True)
def _recorded(_judge: Judge | None) -> Iterator[None]:
    yield
    verdicts = list(_verdicts(_judge)) if _judge else []
    if verdicts:
        pytest.fail(
            "messages that the official schema does not allow:\n" + "\n".join(verdicts), pytrace=False
        )
