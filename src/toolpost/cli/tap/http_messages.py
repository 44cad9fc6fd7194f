"""Finds the messages in HTTP exchanges: assembles bodies and event streams, and assigns them to sessions.

`ExchangeTracker` is a backend that forwards requests to another one. Of a body, keeps
no more than the longest message that it inspects.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urljoin, urlsplit

from toolpost.cli.tap.inspector import MessageInspector
from toolpost.cli.tap.recorder import ObservedMessage, create_note
from toolpost.errors import MCPError, RemoteProtocolError, RequestFailed
from toolpost.protocol import headers as names
from toolpost.protocol import sse
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.http_routing import StatelessRoute, classify, verify_headers
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONRPCRequest, decode, is_batch
from toolpost.protocol.line_framing import EDGE_BYTES, MAX_LINE, LineBuffer, OversizedLine
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, INITIALIZE, SERVER, Role
from toolpost.protocol.revisions import OLDEST_HTTP, REVISIONS
from toolpost.transports.backends.backend import Backend, Response
from toolpost.transports.http_sender import EVENTS, JSON
from toolpost.types.initialize import Implementation, ListCapability, ResourcesCapability, ServerCapabilities

MAX_SESSIONS: Final = 1000  # sessions to remember; beyond that, the oldest are forgotten

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


@dataclass
class ExchangeTracker:
    """A backend that tracks all sessions with one server. It does not close the `backend` it uses.

    `on_raw_message` gets the number of the session, too.
    """

    on_message: Callable[[ObservedMessage], object]
    now: Callable[[], float]
    on_raw_message: Callable[[Role, bytes | OversizedLine, int], object] | None = None
    backend: Backend = field(init=False)
    link_count: int = 0
    _sessions: dict[str, "_TrackedSession"] = field(default_factory=dict[str, "_TrackedSession"])

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[Response]:
        """Send a request. Implements `Backend`."""
        sent = {name.lower(): value for name, value in headers.items()}
        exchange = self.begin(method, _resolve_path("", url), sent)
        exchange.inspect_request(body or b"")
        try:
            async with self.backend.send(method, url, headers, body) as response:
                exchange.start_response(response)
                yield exchange
        except RequestFailed as error:
            exchange.note(explain_failure(error), failed=True)
            raise

    async def close(self) -> None:
        """Keep the connections open: several clients use them in turn."""

    def begin(self, method: str, path: str, sent: Mapping[str, str]) -> "TrackedExchange":
        """Start an exchange for a request with these headers."""
        return TrackedExchange(self, method, path, sent)

    def find_session(self, path: str, sent: Mapping[str, str]) -> "_TrackedSession":
        """Return the session that a request belongs to."""
        session_id = sent.get(names.SESSION)
        session = self._sessions.get(session_id or "") or self._sessions.get(path)
        if session is None:
            revision = REVISIONS.get(sent.get(names.VERSION, "").strip(" \t"), OLDEST_HTTP)
            session = _TrackedSession(revision)
            if session_id is not None:
                self.remember(session_id, session)
        return session

    def remember(self, name: str, session: "_TrackedSession") -> None:
        """Store a session under its id, or under the path for its messages."""
        self._sessions[name] = session
        if len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]


class _TrackedSession(MessageInspector):
    """A session, its number on the tape, and whether it uses HTTP+SSE."""

    link = 1
    is_http_sse = False


class TrackedExchange(Response):
    """One HTTP exchange: a request, and the response as it is read.

    `head_delay` is the number of seconds until the response began; None before that.
    """

    headers: Mapping[str, str] = {}

    def __init__(self, tracker: ExchangeTracker, method: str, path: str, sent: Mapping[str, str]) -> None:
        self._tracker = tracker
        self._session = tracker.find_session(path, sent)
        self._method = method
        self._path = path
        self._request_headers = sent
        self.head_delay: float | None = None
        self._began = tracker.now()
        self._body: LineBuffer | None = None
        self._events: sse.EventStreamDecoder | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the response is an event stream, or may still become one."""
        if self.head_delay is None:
            return self._method == "GET"
        return get_media_type(self.headers) == EVENTS

    def inspect_request(self, body: bytes) -> None:
        """Inspect the body of the request before it is forwarded."""
        if not body:
            return
        data: bytes | OversizedLine = body
        if len(body) > MAX_LINE:
            data = OversizedLine(len(body), MAX_LINE, body[:EDGE_BYTES], body[-EDGE_BYTES:])
        is_single = data is body and not is_batch(body)
        self._inspect(CLIENT, data, self._find_header_violations(body) if is_single else ())

    def _find_header_violations(self, data: bytes) -> list[str]:
        wrong: list[str] = []
        if not names.is_json(self._request_headers.get("content-type")):
            wrong.append(f"the Content-Type is not {JSON}")
        accept = self._request_headers.get("accept")
        accepts_both = names.accepts(accept, JSON) and names.accepts(accept, EVENTS)
        if not self._session.is_http_sse and not accepts_both:
            wrong.append(f"the Accept header does not include {JSON} and {EVENTS}")
        try:
            message = decode(data)
            sent = {
                name.encode("latin-1"): value.encode("latin-1")
                for name, value in self._request_headers.items()
            }
            route = classify(sent, message, _ANY_SERVER)
            peer = route.peer if isinstance(route, StatelessRoute) else None
            if isinstance(message, JSONRPCRequest) and peer is not None:
                row = peer.revision.requests[CLIENT].get(message.method)
                if row is not None:
                    request = InboundRequest(message.id, row, row.read_params(message.params), peer)
                    verify_headers(sent, request)
        except MCPError as error:
            wrong.append(error.message)
        except InvalidJSONValue:
            pass  # the inspector reports it
        return [each.removeprefix("Invalid request: ").removeprefix("Invalid params: ") for each in wrong]

    def start_response(self, response: Response) -> None:
        """Take the status and the headers of the response before they are forwarded."""
        self._response = response
        self.status, self.headers = status, received = response.status, response.headers
        self.head_delay = self._tracker.now() - self._began
        session = received.get(names.SESSION)
        if session is not None:
            self._tracker.remember(session, self._session)
        kind = get_media_type(received)
        encoding = received.get("content-encoding", "identity").lower()
        if encoding != "identity":
            self.note(f"the response is compressed ({encoding}) and not inspected")
        elif kind == EVENTS and 200 <= status < 300:
            self._events = sse.EventStreamDecoder()
            if self._method == "GET":
                self.note(f"{status}, event stream")
        elif kind == JSON:
            self._body = LineBuffer()
        unusual = not 200 <= status < 300 or (kind not in {JSON, EVENTS} and status == 200)
        if unusual or self._method not in {"POST", "GET"}:
            shown = f", {kind}" if status == 200 and kind else ""
            self.note(f"{status}{shown}", failed=status >= 400)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body, and inspect each chunk before it is forwarded."""
        async for chunk in self._response.chunks():
            if self._body is not None:
                self._body.feed(chunk.replace(b"\n", b" "))  # the whole body is one message
            if self._events is not None:
                self._inspect_events(self._events, chunk)
            yield chunk
        data = None if self._body is None else self._body.end()
        if data is not None:
            self._inspect(SERVER, data)

    def _inspect_events(self, decoder: sse.EventStreamDecoder, chunk: bytes) -> None:
        try:
            events = decoder.feed(chunk)
        except RemoteProtocolError as error:
            self.note(f"{error.message}; the rest of the stream is not inspected")
            self._events = None
            return
        for event in events:
            if event.event == "endpoint":
                path = _resolve_path(self._path, event.data.decode("utf-8", "replace").strip())
                self._tracker.remember(path, self._session)
                self._session.is_http_sse = True
                self.note(f"message endpoint: {path.partition('?')[0]}")
            elif event.data:
                self._inspect(SERVER, event.data)

    def note(self, text: str, *, failed: bool = False) -> None:
        """Report an event of the exchange."""
        label = f"{self._method} {self._path.partition('?')[0]}"
        self._tracker.on_message(create_note(SERVER, f"{label}: {text}", self._tracker.now(), failed=failed))

    def _inspect(self, by: Role, data: bytes | OversizedLine, wrong: Iterable[str] = ()) -> None:
        """Find the messages in a body; `wrong` are the violations in its headers."""
        session = self._session
        messages = session.inspect(by, data, self._tracker.now())
        if any(seen.kind == "request" and seen.method == INITIALIZE for seen in messages):
            self._tracker.link_count += 1
            session.link = self._tracker.link_count
        if self._tracker.on_raw_message is not None:
            self._tracker.on_raw_message(by, data, session.link)
        for seen in messages:
            seen.violations += [each for each in wrong if each not in seen.violations]
            self._tracker.on_message(seen)


def explain_failure(error: RequestFailed) -> str:
    """Explain why the response is missing or incomplete."""
    return error.message if error.sent else f"could not reach the server: {error.message}"


def get_media_type(received: Mapping[str, str]) -> str:
    """Return the content type of a response, without its parameters."""
    return received.get("content-type", "").partition(";")[0].strip().lower()


def _resolve_path(base: str, reference: str) -> str:
    """Return the path and the query of a URL reference; an empty string if it is invalid."""
    try:
        parts = urlsplit(urljoin(base, reference))
    except ValueError:
        return ""
    return f"{parts.path}?{parts.query}" if parts.query else parts.path
