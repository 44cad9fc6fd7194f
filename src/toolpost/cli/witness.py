"""A witness of one conversation: what each message is, whom it answers, and which rules it breaks.

Owns what has to be remembered for that: requests in flight, what was agreed upon, what the tools promise. It
hears both sides and talks to neither; what the rules are is told by `toolpost.protocol`. Never raises, and
what it keeps is bounded, whatever goes by.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from msgspec import Struct

from toolpost.cli.about import about_params, about_result
from toolpost.cli.seen import Seen
from toolpost.client.outputs import Outputs
from toolpost.client.stats import Stats
from toolpost.errors import InvalidParams, MCPError, RemoteProtocolError
from toolpost.protocol.eras import STATELESS, lacking, read_meta
from toolpost.protocol.framing import Oversize
from toolpost.protocol.jsonrpc import (
    Failure,
    Message,
    Notice,
    Reader,
    Reply,
    Request,
    Unfit,
    decode,
    decode_batch,
    is_batch,
    shorten,
)
from toolpost.protocol.methods import CLIENT, ROWS, SERVER, Role, Row, whereabouts
from toolpost.protocol.party import Capabilities, declares
from toolpost.protocol.revisions import LATEST_SESSION, REVISIONS, Revision
from toolpost.types.base import UNSET, Number, ProgressToken, Raw, RequestId, Result, Unset
from toolpost.types.content import KINDS
from toolpost.types.inputs import InputRequiredResult
from toolpost.types.lifecycle import (
    Cacheable,
    ClientCapabilities,
    DiscoverResult,
    InitializeParams,
    InitializeResult,
    RequestMeta,
)
from toolpost.types.notices import CancelledParams, ProgressParams
from toolpost.types.prompts import GetPromptResult
from toolpost.types.tools import CallToolParams, CallToolResult, ListToolsResult

__all__ = ["Witness"]

MAX_PENDING: Final = 10_000
"""How many requests of one side are remembered; of more, the oldest are forgotten."""

MAX_WORDS: Final = 300
"""How much is said of what is wrong: it may repeat what somebody sent."""

ALIKE: Final = 0.85
"""How much a method that nobody knows has to be like another to be taken for a slip of the hand."""

_OTHER: Final[dict[Role, Role]] = {CLIENT: SERVER, SERVER: CLIENT}
_KNOWN: Final = frozenset(row.name for row in ROWS)
_EARLY: Final = frozenset({"initialize", "ping"})
"""What may be asked before a session is open."""

K = TypeVar("K")
V = TypeVar("V")


class _Pending(Struct):
    """A request that waits for its answer."""

    method: str
    at: float
    revision: Revision | None
    row: Row | None = None
    params: Any = None
    token: ProgressToken | None = None
    progress: Number | None = None
    capabilities: ClientCapabilities | None = None


class _Kinds(Struct, rename="camel"):
    result_type: str | None = None
    task: Raw | Unset = UNSET


_KINDS: Final = Reader(_Kinds)


class Witness:
    """Hears one conversation.

    Args:
        revision: what is spoken, where that was agreed upon elsewhere, as over HTTP without a session.

    Attributes:
        revision: what the session agreed upon; None before, and in the stateless era.
        spoken: all that was spoken so far, by date.
    """

    def __init__(self, revision: Revision | None = None) -> None:
        self.revision = revision if revision is not None and not revision.stateless else None
        self.spoken: dict[str, Revision] = {} if revision is None else {revision.date: revision}
        self._capabilities: dict[Role, Capabilities | None] = {CLIENT: None, SERVER: None}
        self._pending: dict[Role, dict[RequestId, _Pending]] = {CLIENT: {}, SERVER: {}}
        self._given_up: dict[Role, dict[RequestId, _Pending]] = {CLIENT: {}, SERVER: {}}
        self._tokens: dict[Role, dict[ProgressToken, _Pending]] = {CLIENT: {}, SERVER: {}}
        self._outputs = Outputs(Stats())

    # ----------------------------------------------------------------- what goes by

    def hear(self, by: Role, data: bytes, at: float) -> list[Seen]:
        """What one text is: a message, the messages of a batch, or junk.

        Args:
            by: who said it.
            data: the text.
            at: seconds since the start.
        """
        if not is_batch(data):
            return [self._hear(by, data, at)]
        try:
            messages = decode_batch(data)
        except RemoteProtocolError as error:
            return [_junk(by, data, at, error)]
        size, wrong = len(data), list[str]()
        if not any(revision.batches for revision in self.spoken.values()):
            wrong.append("several messages come in one array, which the revision spoken does not have")
        seen = [
            _junk(by, data, at, message)
            if isinstance(message, RemoteProtocolError)
            else self._take(Seen(at=at, by=by, size=size, body=data), message)
            for message in messages
        ]
        seen[0].wrong[:0] = wrong
        return seen

    def overheard(self, by: Role, dropped: Oversize, at: float) -> Seen:
        """What a text was that is too long to be looked at."""
        refusal = dropped.refusal()
        asked = self._pending[_OTHER[by]].pop(refusal.id, None) if refusal.id is not None else None
        return Seen(
            at=at,
            by=by,
            size=dropped.size,
            kind="result" if refusal.reply else "request",
            id=refusal.id,
            method="" if asked is None else asked.method,
            about=f"longer than {dropped.limit} bytes, and not looked at",
            took=None if asked is None else at - asked.at,
            body=dropped.head,
        )

    def _hear(self, by: Role, data: bytes, at: float) -> Seen:
        try:
            message = decode(data)
        except RemoteProtocolError as error:
            return _junk(by, data, at, error)
        return self._take(Seen(at=at, by=by, size=len(data), body=data), message)

    def _take(self, seen: Seen, message: Message) -> Seen:
        match message:
            case Request():
                self._request(seen, message)
            case Notice():
                self._notice(seen, message)
            case Reply():
                self._reply(seen, message)
            case Failure():
                self._failure(seen, message)
        seen.wrong = [shorten(each, MAX_WORDS) for each in seen.wrong]
        return seen

    # ----------------------------------------------------------------- requests

    def _request(self, seen: Seen, message: Request) -> None:
        seen.kind, seen.id, seen.method = "request", message.id, message.method
        pending = self._pending[seen.by]
        if message.id in pending:
            seen.wrong.append(f"the id {shorten(repr(message.id))} is in use by another request")
        meta = _attempted(seen.wrong, read_meta, message.params) or RequestMeta()
        asked = _Pending(message.method, seen.at, self._revision_of(seen, meta))
        asked.token = None if meta.progress_token is UNSET else meta.progress_token
        asked.capabilities = meta.client_capabilities or None
        revision = asked.revision
        if revision is not None:
            self.spoken[revision.date] = revision
            asked.row = self._row(seen, revision, revision.requests[seen.by])
        if asked.row is not None:
            asked.params = _attempted(seen.wrong, asked.row.read_params, message.params)
            if revision is not None and message.method not in revision.ungated:
                self._check_declared(seen, asked.row.needs, _OTHER[seen.by])
        if isinstance(asked.params, InitializeParams):
            self._capabilities[CLIENT] = asked.params.capabilities
        seen.about = about_params(asked.params)
        _keep(pending, message.id, asked)
        if asked.token is not None:
            _keep(self._tokens[seen.by], asked.token, asked)

    def _revision_of(self, seen: Seen, meta: RequestMeta) -> Revision | None:
        """The revision that a request is held against; None if nobody can tell."""
        if seen.by == CLIENT and meta.protocol_version is not UNSET:
            revision = REVISIONS.get(meta.protocol_version)
            if revision is None:
                seen.wrong.append(f"{shorten(meta.protocol_version)!r} is no revision of the protocol")
            elif revision.stateless:
                _attempted(seen.wrong, STATELESS.require, meta)
            return revision
        if self.revision is None and seen.method not in _EARLY:
            if seen.by == SERVER and self.spoken:
                seen.wrong.append("a server without a session asks by returning, and not by a request")
                return next(reversed(self.spoken.values()))
            seen.wrong.append("it comes before the session is open, and does not say what it speaks")
        return self.revision or LATEST_SESSION

    def _row(self, seen: Seen, revision: Revision, rows: Any) -> Row | None:
        row: Row | None = rows.get(seen.method)
        if row is None and seen.method in _KNOWN:
            seen.wrong.append(
                f"a {seen.by} does not send this in {revision.date}: {whereabouts(seen.method)}"
            )
        elif (
            row is None and not self._extended and (near := get_close_matches(seen.method, _KNOWN, 1, ALIKE))
        ):
            seen.wrong.append(f"nobody has defined this: did you mean {near[0]}?")
        return row

    @property
    def _extended(self) -> bool:
        """Whether somebody has declared extensions, whose methods nobody here knows."""
        return any(
            each is not None and (each.extensions or each.experimental)
            for each in self._capabilities.values()
        )

    def _check_declared(self, seen: Seen, needed: str | None, who: Role) -> None:
        declared = self._capabilities[who]
        if needed and declared is not None and not declares(declared, needed):
            seen.wrong.append(f"it needs {needed!r}, which the {who} has not declared")

    # ----------------------------------------------------------------- answers

    def _asked(self, seen: Seen, request_id: RequestId | None) -> _Pending | None:
        """The request that is answered; it waits no more."""
        seen.id = request_id
        if request_id is None:
            return None
        side = _OTHER[seen.by]
        asked = self._pending[side].pop(request_id, None)
        if asked is None:
            asked = self._given_up[side].pop(request_id, None)
            if asked is None:
                seen.wrong.append(f"no request with the id {shorten(repr(request_id))} waits for an answer")
                return None
        if asked.token is not None:
            self._tokens[side].pop(asked.token, None)
        seen.method, seen.took = asked.method, seen.at - asked.at
        return asked

    def _reply(self, seen: Seen, message: Reply) -> None:
        seen.kind = "result"
        asked = self._asked(seen, message.id)
        if asked is None or asked.row is None or asked.revision is None:
            return
        row, revision = asked.row, asked.revision
        kinds = _attempted(seen.wrong, _KINDS, message.result)
        if kinds is None:
            return
        kind: str | None = "complete"
        if revision.stateless:
            kind = kinds.result_type or "complete"
            if kinds.result_type is None:
                seen.wrong.append("it lacks resultType")
        elif kinds.task is not UNSET and getattr(asked.params, "task", None) is not None:
            kind = None
        result = _attempted(seen.wrong, row.read_result, message.result, kind)
        if result is None:
            return
        seen.about = about_result(result) or about_params(asked.params)
        seen.failed = isinstance(result, CallToolResult) and bool(result.is_error)
        self._learn(seen, asked, result)
        self._check_result(seen, asked, result, revision)

    def _learn(self, seen: Seen, asked: _Pending, result: Result) -> None:
        """Take note of what was agreed upon, and of what the tools promise."""
        if isinstance(result, InitializeResult):
            self._capabilities[SERVER] = result.capabilities
            self.revision = REVISIONS.get(result.protocol_version)
            if self.revision is None or self.revision.stateless:
                self.revision = None
                seen.wrong.append(f"{shorten(result.protocol_version)!r} has no handshake that we know")
            else:
                self.spoken = {self.revision.date: self.revision}
        elif isinstance(result, DiscoverResult):
            self._capabilities[SERVER] = result.capabilities
        elif isinstance(result, ListToolsResult):
            self._outputs.learn(result.tools)
        elif isinstance(result, CallToolResult) and isinstance(asked.params, CallToolParams):
            check = _attempted(seen.wrong, self._outputs.check, asked.params.name)
            if check is not None and not (asked.revision and asked.revision.structured is None):
                _attempted(seen.wrong, check, result)

    def _check_result(self, seen: Seen, asked: _Pending, result: Result, revision: Revision) -> None:
        if revision.stateless and isinstance(result, Cacheable):
            missing = {"ttlMs": result.ttl_ms, "cacheScope": result.cache_scope}
            seen.wrong += [f"it lacks {name}" for name, value in missing.items() if value is None]
        if isinstance(result, InputRequiredResult):
            self._check_asks(seen, asked, result, revision)
        if isinstance(result, CallToolResult):
            structured = result.structured_content
            if structured is not UNSET and revision.structured is None:
                seen.wrong.append(f"{revision.date} has no structuredContent")
            elif (
                structured is not UNSET
                and revision.structured == "object"
                and not isinstance(structured, dict)
            ):
                seen.wrong.append(f"structuredContent has to be an object in {revision.date}")
        for tag in _tags(result):
            if tag not in revision.content:
                seen.wrong.append(f"{revision.date} has no content of type {shorten(tag)!r}")

    def _check_asks(
        self, seen: Seen, asked: _Pending, result: InputRequiredResult, revision: Revision
    ) -> None:
        """The questions in a result that wants input."""
        if not result.input_requests and result.request_state is None:
            seen.wrong.append("it wants input, but asks for none")
        for name, ask in (result.input_requests or {}).items():
            row = revision.asks.get(ask.method)
            if row is None:
                seen.wrong.append(f"{shorten(ask.method)} ({shorten(name)}) cannot be asked of a client")
                continue
            params = _attempted(seen.wrong, row.read_params, ask.params)
            missing = lacking(asked.capabilities, row, params)
            if missing:
                seen.wrong.append(f"{ask.method} needs {missing!r}, which the client has not declared")

    def _failure(self, seen: Seen, message: Failure) -> None:
        seen.kind, seen.failed = "error", True
        self._asked(seen, message.id)
        seen.about = shorten(f"{message.code} {message.message}")

    # ----------------------------------------------------------------- notices

    def _notice(self, seen: Seen, message: Notice) -> None:
        seen.kind, seen.method = "notice", message.method
        spoken = [self.revision] if self.revision is not None else []
        spoken += [each for each in self.spoken.values() if each is not self.revision]
        revision = next(
            (each for each in spoken if message.method in each.notices[seen.by]),
            spoken[0] if spoken else LATEST_SESSION,
        )
        row = self._row(seen, revision, revision.notices[seen.by])
        if row is None:
            return
        params = _attempted(seen.wrong, row.read_params, message.params)
        self._check_declared(seen, row.needs, seen.by)
        seen.about = about_params(params)
        if isinstance(params, CancelledParams):
            self._cancelled(seen, params)
        elif isinstance(params, ProgressParams):
            self._progressed(seen, params)

    def _cancelled(self, seen: Seen, params: CancelledParams) -> None:
        if params.request_id is None:
            return
        asked = self._pending[seen.by].get(params.request_id)
        if asked is None:
            return  # it may have been answered at the same moment
        if asked.method == "initialize":
            seen.wrong.append("the handshake cannot be cancelled")
            return
        del self._pending[seen.by][params.request_id]
        _keep(self._given_up[seen.by], params.request_id, asked)

    def _progressed(self, seen: Seen, params: ProgressParams) -> None:
        asked = self._tokens[_OTHER[seen.by]].get(params.progress_token)
        if asked is None:
            seen.wrong.append("no request in flight has this progress token")
        elif asked.progress is not None and params.progress <= asked.progress:
            seen.wrong.append(f"progress has to increase: it was {asked.progress} before")
        else:
            asked.progress = params.progress


def _tags(result: Result) -> list[str]:
    """The kinds of content in a result of which revisions differ."""
    blocks: Sequence[object] = ()
    if isinstance(result, CallToolResult):
        blocks = result.content
    elif isinstance(result, GetPromptResult):
        blocks = [message.content for message in result.messages]
    names = {kind: tag for tag, kind in KINDS.items()}
    return [names.get(type(block)) or str(getattr(block, "type", "?")) for block in blocks]


def _attempted(wrong: list[str], work: Callable[..., V], *args: Any) -> V | None:
    """What comes of it; None if it breaks a rule, which is noted."""
    try:
        return work(*args)
    except InvalidParams as error:
        wrong.append(error.message.removeprefix("Invalid params: "))
    except (Unfit, MCPError) as error:
        wrong.append(error.message if isinstance(error, MCPError) else str(error))
    return None


def _junk(by: Role, data: bytes, at: float, error: RemoteProtocolError) -> Seen:
    return Seen(
        at=at, by=by, size=len(data), id=error.id, wrong=[shorten(error.message, MAX_WORDS)], body=data
    )


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    """Remember something, and forget the oldest if it is too much."""
    kept[key] = value
    if len(kept) > MAX_PENDING:
        del kept[next(iter(kept))]
