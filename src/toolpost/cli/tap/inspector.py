"""Inspects the messages of one session: classifies them, pairs requests and responses, finds violations.

The state is bounded: requests in flight, the negotiated revision and capabilities, output schemas. Sends
nothing and never raises. The rules themselves are in `toolpost.protocol`.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from msgspec import Struct

from toolpost import types
from toolpost.cli.tap.recorder import ObservedMessage
from toolpost.cli.terminal import format_progress
from toolpost.client.connection.status import Stats
from toolpost.client.output_schemas import OutputSchemas
from toolpost.errors import MCPError, RemoteProtocolError
from toolpost.protocol import jsonrpc, methods
from toolpost.protocol.eras import STATELESS_ERA, find_missing_capability, read_meta
from toolpost.protocol.jsonrpc import InvalidJSONValue, shorten
from toolpost.protocol.line_framing import OversizedLine
from toolpost.protocol.local_peer import Capabilities, has_capability
from toolpost.protocol.methods import CLIENT, EARLY_REQUESTS, INITIALIZE, SERVER, Role, Row
from toolpost.protocol.revisions import LATEST_SESSION, REVISIONS, Revision
from toolpost.testing.channel import other_end
from toolpost.types.base import UNSET, ProgressToken, RequestId, Unset
from toolpost.types.content import CONTENT_TYPES

MAX_SUMMARY_LENGTH: Final = 72  # characters; the summary shares a line of the terminal


def summarize(value: object) -> str:
    """Summarize params or a result in a few words. Empty if the method says enough."""
    describe = _SUMMARIES.get(type(value))
    return "" if describe is None else shorten(" ".join(describe(value).split()), MAX_SUMMARY_LENGTH)


def _summarize_versions(result: types.DiscoverResult) -> str:
    newest, older = max(result.supported_versions, default="nothing"), len(result.supported_versions) - 1
    return f"supports {newest}" + (f" and {older} older" if older > 0 else "")


def _summarize_log(params: types.LogParams) -> str:
    text = params.data if isinstance(params.data, str) else jsonrpc.encode(params.data).decode()
    return f"{params.level}: {text}"


def _summarize_list(result: Any, member: str) -> str:
    count, more = len(getattr(result, member)), "" if result.next_cursor is None else ", and more pages"
    return f"{count} item{'' if count == 1 else 's'}{more}"


def _summarize_client_requests(result: types.InputRequiredResult) -> str:
    return "needs " + (", ".join(ask.method for ask in (result.input_requests or {}).values()) or "a retry")


_SUMMARIES: Final[dict[type, Callable[[Any], str]]] = {
    types.InitializeParams: lambda params: (
        f"{params.client_info.name} {params.client_info.version}, offers {params.protocol_version}"
    ),
    types.InitializeResult: lambda result: (
        f"{result.server_info.name} {result.server_info.version}, revision {result.protocol_version}"
    ),
    types.DiscoverResult: _summarize_versions,
    types.CallToolParams: attrgetter("name"),
    types.GetPromptParams: attrgetter("name"),
    types.ReadResourceParams: attrgetter("uri"),
    types.SubscribeParams: attrgetter("uri"),
    types.ResourceUpdatedParams: attrgetter("uri"),
    types.CompleteParams: attrgetter("argument.name"),
    types.SetLevelParams: attrgetter("level"),
    types.ElicitParams: attrgetter("message"),
    types.ElicitResult: attrgetter("action"),
    types.CreateMessageParams: lambda params: f"{len(params.messages)} message(s)",
    types.ProgressParams: format_progress,
    types.LogParams: _summarize_log,
    types.CancelledParams: lambda params: ": ".join(filter(None, (f"of {params.request_id}", params.reason))),
    types.ListToolsResult: partial(_summarize_list, member="tools"),
    types.ListPromptsResult: partial(_summarize_list, member="prompts"),
    types.ListResourcesResult: partial(_summarize_list, member="resources"),
    types.ListResourceTemplatesResult: partial(_summarize_list, member="resource_templates"),
    types.InputRequiredResult: _summarize_client_requests,
}


# --------------------------------------------------------------------- the inspector

MAX_PENDING: Final = 10_000  # requests in flight of one side to remember
MAX_VIOLATION_LENGTH: Final = 300  # characters; a violation may quote a message
SIMILARITY_CUTOFF: Final = 0.85  # an unknown method this similar to a known one is a typo
_KNOWN_METHODS: Final = frozenset(row.name for row in methods.ROWS)
V = TypeVar("V")


class _PendingRequest(Struct):
    """A request in flight."""

    method: str
    at: float
    revision: Revision | None
    row: Row | None = None
    params: Any = None
    token: ProgressToken | None = None
    progress: types.Number | None = None
    capabilities: types.ClientCapabilities | None = None
    cancelled: bool = False  # a response may be on its way


class _ResultKind(Struct, rename="camel"):
    result_type: str | None = None
    task: types.Raw | Unset = UNSET


_RESULT_KIND_READER: Final = jsonrpc.JSONReader(_ResultKind)


class MessageInspector:
    """Follows one session. `revision` is set if it was negotiated elsewhere, as over HTTP."""

    def __init__(self, revision: Revision | None = None) -> None:
        self.revision = revision if revision is not None and not revision.stateless else None
        self.seen_revisions: dict[str, Revision] = {} if revision is None else {revision.date: revision}
        self._capabilities: dict[Role, Capabilities | None] = {CLIENT: None, SERVER: None}
        self._pending: dict[Role, dict[RequestId, _PendingRequest]] = {CLIENT: {}, SERVER: {}}
        self._outputs = OutputSchemas(Stats())

    def inspect(self, by: Role, data: bytes | OversizedLine, at: float) -> list[ObservedMessage]:
        """Inspect a line or a body; return its message, the messages of a batch, or junk."""
        if isinstance(data, OversizedLine):
            return [self._inspect_oversize(by, data, at)]
        batch = jsonrpc.is_batch(data)
        try:
            messages = jsonrpc.decode_batch(data) if batch else [jsonrpc.decode(data)]
        except RemoteProtocolError as error:
            return [_create_junk(by, data, at, error)]
        seen = [
            _create_junk(by, data, at, message)
            if isinstance(message, RemoteProtocolError)
            else self._classify(ObservedMessage(at=at, by=by, size=len(data), body=data), message)
            for message in messages
        ]
        if batch and not any(revision.batches for revision in self.seen_revisions.values()):
            seen[0].violations.insert(0, "batches are not allowed in the negotiated revision")
        return seen

    def _inspect_oversize(self, by: Role, dropped: OversizedLine, at: float) -> ObservedMessage:
        refusal = dropped.make_error()
        asked = self._pending[other_end(by)].pop(refusal.id, None) if refusal.id is not None else None
        return ObservedMessage(
            at=at,
            by=by,
            size=dropped.size,
            kind="result" if refusal.reply else "request",
            id=refusal.id,
            method="" if asked is None else asked.method,
            summary=f"longer than {dropped.limit} bytes, not inspected",
            duration=None if asked is None else at - asked.at,
            body=dropped.head,
        )

    def _classify(self, seen: ObservedMessage, message: jsonrpc.JSONRPCMessage) -> ObservedMessage:
        match message:
            case jsonrpc.JSONRPCRequest():
                self._inspect_request(seen, message)
            case jsonrpc.JSONRPCNotification():
                self._inspect_notification(seen, message)
            case jsonrpc.JSONRPCResponse():
                self._inspect_reply(seen, message)
            case jsonrpc.JSONRPCErrorResponse():
                seen.kind, seen.failed = "error", True
                self._pop_request(seen, message.id)
                seen.summary = shorten(f"{message.code} {message.message}")
        seen.violations = [shorten(each, MAX_VIOLATION_LENGTH) for each in seen.violations]
        return seen

    def _inspect_request(self, seen: ObservedMessage, message: jsonrpc.JSONRPCRequest) -> None:
        seen.kind, seen.id, seen.method = "request", message.id, message.method
        pending = self._pending[seen.by]
        if message.id in pending and not pending[message.id].cancelled:
            seen.violations.append(f"another request is using the id {shorten(repr(message.id))}")
        meta = _attempt(seen.violations, read_meta, message.params) or types.RequestMeta()
        asked = _PendingRequest(message.method, seen.at, self._determine_revision(seen, meta))
        asked.token = None if meta.progress_token is UNSET else meta.progress_token
        asked.capabilities = meta.client_capabilities or None
        revision = asked.revision
        if revision is not None:
            self.seen_revisions[revision.date] = revision
            asked.row = self._find_row(seen, revision, revision.requests[seen.by])
        if asked.row is not None:
            asked.params = _attempt(seen.violations, asked.row.read_params, message.params)
            if revision is not None and message.method not in revision.ungated:
                self._check_capability(seen, asked.row.needs, other_end(seen.by))
        if isinstance(asked.params, types.InitializeParams):
            self._capabilities[CLIENT] = asked.params.capabilities
        seen.summary = summarize(asked.params)
        pending[message.id] = asked
        if len(pending) > MAX_PENDING:
            del pending[next(iter(pending))]

    def _determine_revision(self, seen: ObservedMessage, meta: types.RequestMeta) -> Revision | None:
        """Return the revision whose rules apply to a request; None if it is unknown."""
        if seen.by == CLIENT and meta.protocol_version is not UNSET:
            revision = REVISIONS.get(meta.protocol_version)
            if revision is None:
                seen.violations.append(f"{shorten(meta.protocol_version)!r} is not a protocol revision")
            elif revision.stateless:
                _attempt(seen.violations, STATELESS_ERA.check_meta, meta)
            return revision
        if self.revision is None and seen.method not in EARLY_REQUESTS:
            if seen.by == SERVER and self.seen_revisions:
                seen.violations.append("without a session, a server must return its requests in a result")
                return next(reversed(self.seen_revisions.values()))
            seen.violations.append("sent before initialization, without a protocol version")
        return self.revision or LATEST_SESSION

    def _find_row(self, seen: ObservedMessage, revision: Revision, rows: Any) -> Row | None:
        row: Row | None = rows.get(seen.method)
        declared = self._capabilities.values()
        if row is None and seen.method in _KNOWN_METHODS:
            text = f"a {seen.by} must not send this in {revision.date}: {methods.suggest_method(seen.method)}"
            seen.violations.append(text)
        elif row is None and not any(each and (each.extensions or each.experimental) for each in declared):
            # A declared extension may define methods.
            near = get_close_matches(seen.method, _KNOWN_METHODS, 1, SIMILARITY_CUTOFF)
            seen.violations += [f"unknown method; did you mean {name}?" for name in near]
        return row

    def _check_capability(self, seen: ObservedMessage, needed: str | None, side: Role) -> None:
        declared = self._capabilities[side]
        if needed and declared is not None and not has_capability(declared, needed):
            seen.violations.append(f"requires {needed!r}, which the {side} has not declared")

    def _pop_request(self, seen: ObservedMessage, request_id: RequestId | None) -> _PendingRequest | None:
        """Remove and return the request that a message responds to."""
        seen.id = request_id
        if request_id is None:
            return None
        asked = self._pending[other_end(seen.by)].pop(request_id, None)
        if asked is None:
            seen.violations.append(f"no request in flight has the id {shorten(repr(request_id))}")
            return None
        seen.method, seen.duration = asked.method, seen.at - asked.at
        return asked

    def _inspect_reply(self, seen: ObservedMessage, message: jsonrpc.JSONRPCResponse) -> None:
        seen.kind = "result"
        asked = self._pop_request(seen, message.id)
        if asked is None or asked.row is None or asked.revision is None:
            return
        row, revision = asked.row, asked.revision
        kinds = _attempt(seen.violations, _RESULT_KIND_READER, message.result)
        if kinds is None:
            return
        kind: str | None = "complete"
        if revision.stateless:
            kind = kinds.result_type or "complete"
            if kinds.result_type is None:
                seen.violations.append("resultType is missing")
        elif kinds.task is not UNSET and getattr(asked.params, "task", None) is not None:
            kind = None
        result = _attempt(seen.violations, row.read_result, message.result, kind)
        if result is None:
            return
        seen.summary = summarize(result) or summarize(asked.params)
        seen.failed = isinstance(result, types.CallToolResult) and bool(result.is_error)
        self._learn(seen, asked, result)
        _check_result(seen, asked, result, revision)

    def _learn(self, seen: ObservedMessage, asked: _PendingRequest, result: types.Result) -> None:
        """Store the negotiated values, and the output schemas of the tools."""
        if isinstance(result, types.InitializeResult):
            self._capabilities[SERVER] = result.capabilities
            self.revision = REVISIONS.get(result.protocol_version)
            if self.revision is None or self.revision.stateless:
                self.revision = None
                seen.violations.append(f"unknown session revision {shorten(result.protocol_version)!r}")
            else:
                self.seen_revisions = {self.revision.date: self.revision}
        elif isinstance(result, types.DiscoverResult):
            self._capabilities[SERVER] = result.capabilities
        elif isinstance(result, types.ListToolsResult):
            self._outputs.learn(result.tools)
        elif isinstance(result, types.CallToolResult) and isinstance(asked.params, types.CallToolParams):
            check = _attempt(seen.violations, self._outputs.get_check, asked.params.name)
            if check is not None and not (asked.revision and asked.revision.structured is None):
                _attempt(seen.violations, check, result)

    def _inspect_notification(self, seen: ObservedMessage, message: jsonrpc.JSONRPCNotification) -> None:
        seen.kind, seen.method = "notification", message.method
        spoken = [*filter(None, [self.revision]), *self.seen_revisions.values(), LATEST_SESSION]
        known = (each for each in spoken[:-1] if message.method in each.notifications[seen.by])
        revision = next(known, spoken[0])
        row = self._find_row(seen, revision, revision.notifications[seen.by])
        if row is None:
            return
        params = _attempt(seen.violations, row.read_params, message.params)
        self._check_capability(seen, row.needs, seen.by)
        seen.summary = summarize(params)
        if isinstance(params, types.ProgressParams):
            self._inspect_progress(seen, params)
        elif isinstance(params, types.CancelledParams) and params.request_id in self._pending[seen.by]:
            asked = self._pending[seen.by][params.request_id]
            asked.cancelled = asked.method != INITIALIZE
            if not asked.cancelled:
                seen.violations.append("the handshake cannot be cancelled")

    def _inspect_progress(self, seen: ObservedMessage, params: types.ProgressParams) -> None:
        pending = self._pending[other_end(seen.by)].values()
        asked = next((each for each in pending if each.token == params.progress_token), None)
        if asked is None:
            seen.violations.append("no request in flight has this progress token")
        elif asked.progress is not None and params.progress <= asked.progress:
            seen.violations.append(f"progress must increase: it was {asked.progress} before")
        else:
            asked.progress = params.progress


def _check_result(
    seen: ObservedMessage, asked: _PendingRequest, result: types.Result, revision: Revision
) -> None:
    """Check a result against the rules of a revision."""
    blocks: Sequence[object] = ()
    match result:
        case types.InputRequiredResult():
            _check_client_requests(seen, asked, result, revision)
        case types.GetPromptResult():
            blocks = [message.content for message in result.messages]
        case types.CallToolResult():
            blocks, structured = result.content, result.structured_content
            if structured is not UNSET and revision.structured is None:
                seen.violations.append(f"{revision.date} has no structuredContent")
            elif revision.structured == "object" and not isinstance(structured, dict | Unset):
                seen.violations.append(f"structuredContent must be an object in {revision.date}")
        case types.CacheableResult() if revision.stateless:
            missing = {"ttlMs": result.ttl_ms, "cacheScope": result.cache_scope}
            seen.violations += [f"{name} is missing" for name, value in missing.items() if value is None]
        case _:
            pass
    names = {kind: tag for tag, kind in CONTENT_TYPES.items()}
    for block in blocks:  # some revisions lack some types of content
        tag = names.get(type(block)) or str(getattr(block, "type", "?"))
        if tag not in revision.content:
            seen.violations.append(f"{revision.date} has no content of type {shorten(tag)!r}")


def _check_client_requests(
    seen: ObservedMessage, asked: _PendingRequest, result: types.InputRequiredResult, revision: Revision
) -> None:
    if not result.input_requests and result.request_state is None:
        seen.violations.append("input is required, but there are no input requests")
    for name, ask in (result.input_requests or {}).items():
        row = revision.input_requests.get(ask.method)
        if row is None:
            seen.violations.append(f"{shorten(ask.method)} ({shorten(name)}) is not a request for a client")
            continue
        params = _attempt(seen.violations, row.read_params, ask.params)
        missing = find_missing_capability(asked.capabilities, row, params)
        if missing:
            seen.violations.append(f"{ask.method} requires {missing!r}, which the client has not declared")


def _attempt(wrong: list[str], work: Callable[..., V], *args: Any) -> V | None:
    """Return the result of a call. If it raises, add a violation and return None."""
    try:
        return work(*args)
    except MCPError as error:
        wrong.append(error.message.removeprefix("Invalid params: "))
    except InvalidJSONValue as error:
        wrong.append(str(error))
    return None


def _create_junk(by: Role, data: bytes, at: float, error: RemoteProtocolError) -> ObservedMessage:
    wrong = [shorten(error.message, MAX_VIOLATION_LENGTH)]
    return ObservedMessage(at=at, by=by, size=len(data), id=error.id, violations=wrong, body=data)
