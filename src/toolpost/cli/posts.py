"""Posts and streams of an HTTP server as conversations: which exchange belongs to which, and what was said.

Owns the way from the pieces of bodies and event streams to messages, for whoever carries them. Sends nothing,
and never keeps more of a body than the longest message it would look at.
"""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urljoin, urlsplit

from toolpost.cli.seen import Seen
from toolpost.cli.witness import Witness
from toolpost.errors import MCPError, RemoteProtocolError
from toolpost.protocol import headers, sse
from toolpost.protocol.events import Incoming
from toolpost.protocol.framing import MAX_LINE, Oversize
from toolpost.protocol.jsonrpc import Request, Unfit, decode, is_batch
from toolpost.protocol.methods import CLIENT, SERVER, Role
from toolpost.protocol.party import Party
from toolpost.protocol.revisions import OLDEST_HTTP, REVISIONS
from toolpost.protocol.route import Reject, ToStateless, classify, verify
from toolpost.types.lifecycle import Implementation, ListCapability, ResourcesCapability, ServerCapabilities

__all__ = ["Post", "Posts"]

MAX_SESSIONS: Final = 1000
"""How many sessions are remembered; of more, the oldest are forgotten."""

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

_ANY_SERVER: Final = Party(
    Implementation(name="any", version=""),
    ServerCapabilities(
        tools=ListCapability(),
        resources=ResourcesCapability(subscribe=True),
        prompts=ListCapability(),
        completions={},
        logging={},
    ),
)


class Posts:
    """All conversations with one server.

    Args:
        tell: is told each message.
        note: is told what happened besides: who, what, and whether it is a failure.
        keep: is handed each message as it came, with the number of its session.
        now: the clock.
    """

    def __init__(
        self,
        tell: Callable[[Seen], object],
        note: Callable[..., object],
        keep: Callable[[Role, bytes | Oversize, int], object],
        now: Callable[[], float],
    ) -> None:
        self.tell = tell
        self.note = note
        self.keep = keep
        self.now = now
        self._talks: dict[str, _Talk] = {}
        self._links = 0

    def begin(self, verb: str, place: str, sent: Mapping[str, str]) -> "Post":
        """A request that is about to be passed on.

        Args:
            verb: its HTTP method.
            place: its path and query.
            sent: its headers, by their names in lower case.
        """
        session = sent.get(headers.SESSION)
        talk = self._talks.get(session or "") or self._talks.get(place)
        if talk is None:
            spoken = REVISIONS.get(sent.get(headers.VERSION, "").strip(" \t"), OLDEST_HTTP)
            talk = _Talk(Witness(spoken))
            if session is not None:
                self.name(session, talk)
        return Post(self, talk, verb, place, sent)

    def name(self, name: str, talk: "_Talk") -> None:
        """Remember a conversation under its session id, or under the place that its messages go to."""
        self._talks[name] = talk
        if len(self._talks) > MAX_SESSIONS:
            del self._talks[next(iter(self._talks))]

    def next_link(self) -> int:
        """The number of a session that is being opened."""
        self._links += 1
        return self._links


class _Talk:
    """A conversation, its number on the tape, and whether it is one of HTTP+SSE."""

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.link = 1
        self.old = False


class Post:
    """One HTTP exchange. What it is told is told in this order: the request, the head, the body, the end."""

    def __init__(self, posts: Posts, talk: _Talk, verb: str, place: str, sent: Mapping[str, str]) -> None:
        self._posts = posts
        self._talk = talk
        self._verb = verb
        self._place = place
        self._sent = sent
        self._body = _Body()
        self._events: sse.Decoder | None = None
        self._what = f"{verb} {place.partition('?')[0]}"

    # ----------------------------------------------------------------- the request

    def asked(self, piece: bytes, *, last: bool) -> None:
        """Take a piece of the request's body, before it is passed on."""
        self._body.add(piece)
        if not last:
            return
        data, self._body = self._body.whole(), _Body()
        if not data:
            return
        for seen in self._hear(CLIENT, data):
            if isinstance(data, bytes) and not is_batch(data):
                seen.wrong += [each for each in self._misfits(data) if each not in seen.wrong]
            self._posts.tell(seen)

    def _misfits(self, data: bytes) -> list[str]:
        """What the headers of a post should say and do not."""
        wrong: list[str] = []
        if not headers.is_json(self._sent.get("content-type")):
            wrong.append(f"its Content-Type is not {JSON}")
        accept = self._sent.get("accept")
        if not self._talk.old and not all(headers.accepts(accept, media) for media in (JSON, EVENTS)):
            wrong.append(f"its Accept header does not admit {JSON} and {EVENTS}")
        try:
            message = decode(data)
            route = classify(self._sent, message, _ANY_SERVER)
            if isinstance(route, Reject):
                wrong.append(route.error.message)
            elif isinstance(route, ToStateless) and isinstance(message, Request) and route.peer is not None:
                row = route.peer.revision.requests[CLIENT].get(message.method)
                if row is not None:
                    params = row.read_params(message.params)
                    verify(self._sent, Incoming(message.id, row, params, route.peer))
        except MCPError as error:
            wrong.append(error.message)
        except Unfit:
            pass  # the witness has said so
        return [each.removeprefix("Invalid request: ").removeprefix("Invalid params: ") for each in wrong]

    # ----------------------------------------------------------------- the response

    def head(self, status: int, received: Mapping[str, str]) -> None:
        """Take the status and the headers of the response, before they are passed on."""
        session = received.get(headers.SESSION)
        if session is not None:
            self._posts.name(session, self._talk)
        kind = received.get("content-type", "").partition(";")[0].strip().lower()
        encoding = received.get("content-encoding", "identity").lower()
        if encoding != "identity":
            self._posts.note(
                SERVER, f"{self._what}: the answer is compressed ({encoding}), and not looked at"
            )
            self._body.close()
        elif kind == EVENTS and 200 <= status < 300:
            self._events = sse.Decoder()
            if self._verb == "GET":
                self._posts.note(SERVER, f"{self._what}: {status}, a stream of events")
        elif kind != JSON:
            self._body.close()
        unusual = not 200 <= status < 300 or (kind not in {JSON, EVENTS} and status == 200)
        if unusual or self._verb not in {"POST", "GET"}:
            said = f", {kind}" if status == 200 and kind else ""
            self._posts.note(SERVER, f"{self._what}: {status}{said}", failed=status >= 400)

    def answered(self, piece: bytes) -> None:
        """Take a piece of the response's body, before it is passed on."""
        if self._events is None:
            self._body.add(piece)
            return
        try:
            events = self._events.feed(piece)
        except RemoteProtocolError as error:
            self._posts.note(SERVER, f"{self._what}: {error.message}; the stream is not looked at any more")
            self._events = None
            self._body.close()
            return
        for event in events:
            if event.event == "endpoint":
                place = _place(self._place, event.data)
                self._posts.name(place, self._talk)
                self._talk.old = True
                self._posts.note(SERVER, f"{self._what}: messages go to {place.partition('?')[0]}")
            elif event.data:
                self._tell(event.data)

    def end(self) -> None:
        """Look at what was held of the response's body, before the last piece of it is passed on."""
        data, self._body = self._body.whole(), _Body()
        if data:
            self._tell(data)

    def cut(self, why: str) -> None:
        """There is no response, or not all of it."""
        self._posts.note(SERVER, f"{self._what}: {why}", failed=True)

    # ----------------------------------------------------------------- both

    def _tell(self, data: bytes | Oversize) -> None:
        for seen in self._hear(SERVER, data):
            self._posts.tell(seen)

    def _hear(self, by: Role, data: bytes | Oversize) -> list[Seen]:
        at, talk = self._posts.now(), self._talk
        if isinstance(data, Oversize):
            heard = [talk.witness.overheard(by, data, at)]
        else:
            heard = talk.witness.hear(by, data, at)
        if any(seen.kind == "request" and seen.method == "initialize" for seen in heard):
            talk.link = self._posts.next_link()
        self._posts.keep(by, data, talk.link)
        return heard


def _place(base: str, reference: bytes) -> str:
    """The path and the query that a reference of the server's leads to; nowhere if it cannot be read."""
    try:
        parts = urlsplit(urljoin(base, reference.decode("utf-8", "replace").strip()))
    except ValueError:
        return ""
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


class _Body:
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

    def whole(self) -> bytes | Oversize:
        if self._size > MAX_LINE and self._open:
            return Oversize(self._size, MAX_LINE, self._head, bytes(self._held))
        return bytes(self._held)
