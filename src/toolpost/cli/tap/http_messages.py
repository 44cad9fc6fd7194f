"""Finds the messages in HTTP exchanges: assembles bodies and event streams, and assigns them to sessions.

Sends nothing, and keeps no more of a body than the longest message to be inspected.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit

from toolpost.cli.tap.inspector import MessageInspector
from toolpost.cli.tap.message import ObservedMessage, create_note
from toolpost.errors import MCPError, RemoteProtocolError
from toolpost.protocol import headers, sse
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.framing import MAX_LINE, OversizedLine
from toolpost.protocol.http_routing import RejectedRoute, StatelessRoute, classify, verify_headers
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONRPCRequest, decode, is_batch
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, INITIALIZE, SERVER, Role
from toolpost.protocol.revisions import OLDEST_HTTP, REVISIONS
from toolpost.types.initialize import Implementation, ListCapability, ResourcesCapability, ServerCapabilities

MAX_SESSIONS: Final = 1000  # how many sessions are remembered; of more, the oldest are forgotten
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

_ANY_SERVER: Final = LocalPeer(
    Implementation(name="any", version=""),
    ServerCapabilities(
        tools=ListCapability(),
        resources=ResourcesCapability(subscribe=True),
        prompts=ListCapability(),
        completions={},
        logging={},
    ),
)


class ExchangeTracker:
    """All conversations with one server. `on_raw_message` gets the number of the session, too."""

    def __init__(
        self,
        on_message: Callable[[ObservedMessage], object],
        now: Callable[[], float],
        on_raw_message: Callable[[Role, bytes | OversizedLine, int], object] | None = None,
    ) -> None:
        self.on_message = on_message
        self.on_raw_message = on_raw_message
        self.now = now
        self._sessions: dict[str, _TrackedSession] = {}
        self._link_count = 0

    def begin(self, verb: str, place: str, sent: Mapping[str, str]) -> "TrackedExchange":
        """A request that is about to be passed on."""
        session = sent.get(headers.SESSION)
        tracked = self._sessions.get(session or "") or self._sessions.get(place)
        if tracked is None:
            revision = REVISIONS.get(sent.get(headers.VERSION, "").strip(" \t"), OLDEST_HTTP)
            tracked = _TrackedSession(MessageInspector(revision))
            if session is not None:
                self.remember(session, tracked)
        return TrackedExchange(self, tracked, verb, place, sent)

    def remember(self, name: str, session: "_TrackedSession") -> None:
        """Remember a conversation under its session id, or under the place that its messages go to."""
        self._sessions[name] = session
        if len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]

    def next_link(self) -> int:
        """The number of a session that is being opened."""
        self._link_count += 1
        return self._link_count


@dataclass
class _TrackedSession:
    """A conversation, its number on the tape, and whether it is one of HTTP+SSE."""

    inspector: MessageInspector
    link: int = 1
    is_http_sse: bool = False


class TrackedExchange:
    """One HTTP exchange. It takes the request, the head and the body of the response, and the end."""

    def __init__(
        self,
        tracker: ExchangeTracker,
        session: _TrackedSession,
        verb: str,
        place: str,
        sent: Mapping[str, str],
    ) -> None:
        self._tracker = tracker
        self._session = session
        self._method = verb
        self._path = place
        self._request_headers = sent
        self._body = _BodyBuffer()
        self._events: sse.EventStreamDecoder | None = None
        self._label = f"{verb} {place.partition('?')[0]}"

    def feed_request(self, piece: bytes, *, last: bool) -> None:
        """Take a piece of the request's body, before it is passed on."""
        self._body.add(piece)
        if not last:
            return
        data, self._body = self._body.get_data(), _BodyBuffer()
        if not data:
            return
        for seen in self._inspect(CLIENT, data):
            if isinstance(data, bytes) and not is_batch(data):
                wrong = self._find_header_violations(data)
                seen.violations += [each for each in wrong if each not in seen.violations]
            self._tracker.on_message(seen)

    def _find_header_violations(self, data: bytes) -> list[str]:
        """What the headers of a post should say and do not."""
        wrong: list[str] = []
        if not headers.is_json(self._request_headers.get("content-type")):
            wrong.append(f"its Content-Type is not {JSON}")
        accept = self._request_headers.get("accept")
        accepts_both = headers.accepts(accept, JSON) and headers.accepts(accept, EVENTS)
        if not self._session.is_http_sse and not accepts_both:
            wrong.append(f"its Accept header does not admit {JSON} and {EVENTS}")
        try:
            message = decode(data)
            route = classify(self._request_headers, message, _ANY_SERVER)
            peer = route.peer if isinstance(route, StatelessRoute) else None
            if isinstance(route, RejectedRoute):
                wrong.append(route.error.message)
            elif isinstance(message, JSONRPCRequest) and peer is not None:
                row = peer.revision.requests[CLIENT].get(message.method)
                if row is not None:
                    request = InboundRequest(message.id, row, row.read_params(message.params), peer)
                    verify_headers(self._request_headers, request)
        except MCPError as error:
            wrong.append(error.message)
        except InvalidJSONValue:
            pass  # the inspector has said so
        return [each.removeprefix("Invalid request: ").removeprefix("Invalid params: ") for each in wrong]

    def start_response(self, status: int, received: Mapping[str, str]) -> None:
        """Take the status and the headers of the response, before they are passed on."""
        session = received.get(headers.SESSION)
        if session is not None:
            self._tracker.remember(session, self._session)
        kind = received.get("content-type", "").partition(";")[0].strip().lower()
        encoding = received.get("content-encoding", "identity").lower()
        if encoding != "identity":
            self._note(f"the answer is compressed ({encoding}), and not looked at")
            self._body.close()
        elif kind == EVENTS and 200 <= status < 300:
            self._events = sse.EventStreamDecoder()
            if self._method == "GET":
                self._note(f"{status}, a stream of events")
        elif kind != JSON:
            self._body.close()
        unusual = not 200 <= status < 300 or (kind not in {JSON, EVENTS} and status == 200)
        if unusual or self._method not in {"POST", "GET"}:
            said = f", {kind}" if status == 200 and kind else ""
            self._note(f"{status}{said}", failed=status >= 400)

    def feed_response(self, piece: bytes) -> None:
        """Take a piece of the response's body, before it is passed on."""
        if self._events is None:
            self._body.add(piece)
            return
        try:
            events = self._events.feed(piece)
        except RemoteProtocolError as error:
            self._note(f"{error.message}; the stream is not looked at any more")
            self._events = None
            self._body.close()
            return
        for event in events:
            if event.event == "endpoint":
                place = _resolve_path(self._path, event.data)
                self._tracker.remember(place, self._session)
                self._session.is_http_sse = True
                self._note(f"messages go to {place.partition('?')[0]}")
            elif event.data:
                self._report_messages(event.data)

    def finish(self) -> None:
        """Look at what was held of the response's body, before the last piece of it is passed on."""
        data, self._body = self._body.get_data(), _BodyBuffer()
        if data:
            self._report_messages(data)

    def abort(self, why: str) -> None:
        """There is no response, or not all of it."""
        self._note(why, failed=True)

    def _note(self, text: str, *, failed: bool = False) -> None:
        note = create_note(SERVER, f"{self._label}: {text}", self._tracker.now(), failed=failed)
        self._tracker.on_message(note)

    def _report_messages(self, data: bytes | OversizedLine) -> None:
        for seen in self._inspect(SERVER, data):
            self._tracker.on_message(seen)

    def _inspect(self, by: Role, data: bytes | OversizedLine) -> list[ObservedMessage]:
        session = self._session
        messages = session.inspector.inspect(by, data, self._tracker.now())
        if any(seen.kind == "request" and seen.method == INITIALIZE for seen in messages):
            session.link = self._tracker.next_link()
        if self._tracker.on_raw_message is not None:
            self._tracker.on_raw_message(by, data, session.link)
        return messages


def _resolve_path(base: str, reference: bytes) -> str:
    """The path and the query that a reference of the server's leads to; nowhere if it cannot be read."""
    try:
        parts = urlsplit(urljoin(base, reference.decode("utf-8", "replace").strip()))
    except ValueError:
        return ""
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


class _BodyBuffer:
    """The pieces of a body, or only its ends once it is too long; nothing once it is closed."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._size = 0
        self._head = b""
        self._open = True

    def close(self) -> None:
        self._open = False
        self._held.clear()

    def add(self, piece: bytes) -> None:
        if not self._open:
            return
        self._size += len(piece)
        self._held += piece
        if self._size > MAX_LINE:
            self._head = self._head or bytes(self._held[:4096])
            del self._held[:-4096]

    def get_data(self) -> bytes | OversizedLine:
        if self._size > MAX_LINE and self._open:
            return OversizedLine(self._size, MAX_LINE, self._head, bytes(self._held))
        return bytes(self._held)
