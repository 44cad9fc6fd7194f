"""Every method of MCP: one row for each of the 34 methods of all five revisions.

A row holds the types, the side that may send the method in which revisions, and its capability. A method
that a revision lacks is absent from the revision's record, and so refused.
"""

from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, defstruct, field
from msgspec.structs import replace

from toolpost import types
from toolpost.errors import RemoteProtocolError, suggest
from toolpost.protocol.jsonrpc import DECODE_ERRORS, InvalidJSONValue, JSONReader, shorten
from toolpost.types.content import KnownContent

DATES: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")  # oldest first
R_2024_11_05, R_2025_03_26, R_2025_06_18, R_2025_11_25, R_2026_07_28 = DATES

Role: TypeAlias = Literal["client", "server"]
CLIENT: Final = "client"
SERVER: Final = "server"

# --------------------------------------------------------------------- names

INITIALIZE: Final = "initialize"
PING: Final = "ping"
SERVER_DISCOVER: Final = "server/discover"
TOOLS_LIST: Final = "tools/list"
TOOLS_CALL: Final = "tools/call"
RESOURCES_LIST: Final = "resources/list"
RESOURCES_TEMPLATES_LIST: Final = "resources/templates/list"
RESOURCES_READ: Final = "resources/read"
RESOURCES_SUBSCRIBE: Final = "resources/subscribe"
RESOURCES_UNSUBSCRIBE: Final = "resources/unsubscribe"
SUBSCRIPTIONS_LISTEN: Final = "subscriptions/listen"
PROMPTS_LIST: Final = "prompts/list"
PROMPTS_GET: Final = "prompts/get"
COMPLETION_COMPLETE: Final = "completion/complete"
LOGGING_SET_LEVEL: Final = "logging/setLevel"
TASKS_GET: Final = "tasks/get"
TASKS_RESULT: Final = "tasks/result"
TASKS_LIST: Final = "tasks/list"
TASKS_CANCEL: Final = "tasks/cancel"
ROOTS_LIST: Final = "roots/list"
SAMPLING_CREATE_MESSAGE: Final = "sampling/createMessage"
ELICITATION_CREATE: Final = "elicitation/create"
INITIALIZED: Final = "notifications/initialized"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
LOG_MESSAGE: Final = "notifications/message"
TOOLS_LIST_CHANGED: Final = "notifications/tools/list_changed"
PROMPTS_LIST_CHANGED: Final = "notifications/prompts/list_changed"
RESOURCES_LIST_CHANGED: Final = "notifications/resources/list_changed"
RESOURCES_UPDATED: Final = "notifications/resources/updated"
ROOTS_LIST_CHANGED: Final = "notifications/roots/list_changed"
ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"
TASKS_STATUS: Final = "notifications/tasks/status"
SUBSCRIPTIONS_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

# --------------------------------------------------------------------- rows


class Span(Struct, frozen=True):
    """An unbroken run of revisions, both ends included."""

    since: str
    until: str

    def __contains__(self, date: object) -> bool:
        return DATES.index(self.since) <= DATES.index(date) <= DATES.index(self.until)


ALWAYS: Final = Span(R_2024_11_05, R_2026_07_28)
SESSION: Final = Span(R_2024_11_05, R_2025_11_25)
STATELESS: Final = Span(R_2026_07_28, R_2026_07_28)
TASKS: Final = Span(R_2025_11_25, R_2025_11_25)
ELICITATION: Final = Span(R_2025_06_18, R_2025_11_25)


class PlainToolResult(types.Result):
    """A `CallToolResult` of known content types only, which msgspec reads without a hook of ours."""

    content: list[KnownContent]
    structured_content: types.JSON | types.Unset = UNSET
    is_error: bool | None = None


_PLAIN_RESULT_READER: Final = JSONReader(PlainToolResult)
_OPEN_RESULT_READER: Final = JSONReader(types.CallToolResult)


class _ToolResultReader(JSONReader[types.Result]):
    """Reads tool results; nearly all consist of known content types, for which the plain reader is faster."""

    __slots__ = ()

    def _prepare(self, raw: Raw | bytes) -> types.Result:
        try:
            plain = _PLAIN_RESULT_READER.decode(raw)
        except DECODE_ERRORS:
            return _OPEN_RESULT_READER.decode(raw)  # other content types, or invalid
        meta, kind = plain.meta, plain.result_type
        structured, is_error = plain.structured_content, plain.is_error
        return types.CallToolResult(plain.content, structured, is_error, meta=meta, result_type=kind)


class _ParamsWithMetaReader(JSONReader[Any]):
    """Reads parameters together with the request's `_meta`."""

    __slots__ = ()

    def _prepare(self, raw: Raw | bytes) -> Any:
        meta = ("meta", types.RequestMeta | None, field(name="_meta", default=None))
        self.kind = defstruct(self.kind.__name__, [meta], bases=(self.kind,), kw_only=True)
        return super()._prepare(raw)


class Row(Struct, eq=False, dict=True):
    """One method."""

    name: str  # on the wire
    params: type[types.WireStruct]
    result: type[types.Result] | None = None  # None makes it a notification
    client: Span | None = None  # when a client may send it
    server: Span | None = None  # when a server may send it
    asked: Span | None = None  # when a server may put it into a result that requires input
    needs: str | None = None
    """The capability that it needs, as a path of attributes: of the receiver for a request, of the sender for
    a notification."""
    needs_since: str = R_2024_11_05  # the revision that introduced that capability
    task_needs: str | None = None  # the capability of the receiver to run it as a task
    named: str | None = None  # the parameter that HTTP mirrors in `Mcp-Name`
    early: bool = False  # whether it may be sent before the handshake is complete (LIFE-5, LIFE-6)
    repeatable: bool = False  # whether a request may be sent again: it changes nothing, or the same
    listened: bool = False  # whether a stateless server sends it on a subscription, and nowhere else
    extension: str | None = None  # the extension that it belongs to; a client has to declare it
    for_all_clients: bool = False  # unless this is set

    def __post_init__(self) -> None:
        params, result = self.params, self.result
        members = zip(params.__struct_fields__, params.__struct_encode_fields__, strict=True)
        self.member = self.named and dict(members)[self.named]  # its name on the wire
        self.is_request = result is not None
        # Caching came with the stateless era, so methods that only sessions have are not cached.
        lasts = self.client is None or self.client.until == DATES[-1]
        self.is_cacheable = lasts and result is not None and issubclass(result, types.CacheableResult)
        self.can_require_input = issubclass(params, types.InputResponseParams)  # in its result (MRTR-2)
        self.read_params: JSONReader[Any] = JSONReader(params)
        self.read_whole: JSONReader[Any] = _ParamsWithMetaReader(params)
        self.results: dict[str | None, JSONReader[types.Result]] = {}  # by `resultType`
        if result is not None:
            self.results["complete"] = (
                _ToolResultReader(result) if result is types.CallToolResult else JSONReader(result)
            )
            if self.can_require_input:
                self.results["input_required"] = JSONReader(types.InputRequiredResult)
            if "task" in params.__struct_fields__:
                self.results[None] = JSONReader(types.CreateTaskResult)

    def __repr__(self) -> str:
        return f"<Row {self.name}>"

    def is_sendable_by(self, by: Role, date: str) -> bool:
        """Return whether that side may send it in that revision; a row without spans has no limits."""
        if self.client is None and self.server is None:
            return True
        span = self.client if by == CLIENT else self.server
        return span is not None and date in span

    def with_result(self, result_type: str, result: type[types.Result]) -> "Row":
        """Return a copy that has one more kind of result."""
        row = replace(self)
        row.results = {**self.results, result_type: JSONReader(result)}
        return row

    def read_result(self, raw: Raw, kind: str | None) -> types.Result:
        """Read a result of a `resultType`, None for a created task; it keeps its raw bytes.

        Raises RemoteProtocolError if the kind is unknown, or the result is not of its type.
        """
        reader = self.results.get(kind)
        if reader is None:
            raise RemoteProtocolError(f"unknown result type for {self.name}: {shorten(str(kind))!r}")
        try:
            result = reader(raw)
        except InvalidJSONValue as error:
            raise RemoteProtocolError(f"invalid result for {self.name}: {error}") from error
        vars(result)["raw"] = raw
        return result


# In the order of the specification: opening, tools, resources, prompts, the rest; then requests to a client,
# then notifications.
# fmt: off
ROWS: Final = (
    Row(INITIALIZE, types.InitializeParams, types.InitializeResult, client=SESSION, early=True),
    Row(PING, types.Params, types.Result, client=SESSION, server=SESSION, repeatable=True, early=True),
    Row(SERVER_DISCOVER, types.Params, types.DiscoverResult, client=STATELESS, repeatable=True),
    Row(TOOLS_LIST, types.PaginatedRequestParams, types.ListToolsResult, client=ALWAYS,
        needs="tools", repeatable=True),
    Row(TOOLS_CALL, types.CallToolParams, types.CallToolResult, client=ALWAYS,
        needs="tools", named="name", task_needs="tasks.requests.tools.call"),
    Row(RESOURCES_LIST, types.PaginatedRequestParams, types.ListResourcesResult, client=ALWAYS,
        needs="resources", repeatable=True),
    Row(RESOURCES_TEMPLATES_LIST, types.PaginatedRequestParams, types.ListResourceTemplatesResult,
        client=ALWAYS, needs="resources", repeatable=True),
    Row(RESOURCES_READ, types.ReadResourceParams, types.ReadResourceResult, client=ALWAYS,
        needs="resources", named="uri", repeatable=True),
    Row(RESOURCES_SUBSCRIBE, types.SubscribeParams, types.Result, client=SESSION,
        needs="resources.subscribe", repeatable=True),
    Row(RESOURCES_UNSUBSCRIBE, types.SubscribeParams, types.Result, client=SESSION,
        needs="resources.subscribe", repeatable=True),
    Row(SUBSCRIPTIONS_LISTEN, types.ListenParams, types.ListenResult, client=STATELESS),
    Row(PROMPTS_LIST, types.PaginatedRequestParams, types.ListPromptsResult, client=ALWAYS,
        needs="prompts", repeatable=True),
    Row(PROMPTS_GET, types.GetPromptParams, types.GetPromptResult, client=ALWAYS,
        needs="prompts", named="name", repeatable=True),
    Row(COMPLETION_COMPLETE, types.CompleteParams, types.CompleteResult, client=ALWAYS,
        needs="completions", needs_since=R_2025_03_26, repeatable=True),
    Row(LOGGING_SET_LEVEL, types.SetLevelParams, types.Result, client=SESSION,
        needs="logging", repeatable=True),
    Row(TASKS_GET, types.TaskParams, types.TaskResult, client=TASKS, server=TASKS, needs="tasks"),
    Row(TASKS_RESULT, types.TaskParams, types.TaskPayload, client=TASKS, server=TASKS, needs="tasks"),
    Row(TASKS_LIST, types.PaginatedRequestParams, types.ListTasksResult, client=TASKS, server=TASKS,
        needs="tasks.list"),
    Row(TASKS_CANCEL, types.TaskParams, types.TaskResult, client=TASKS, server=TASKS, needs="tasks.cancel"),
    Row(ROOTS_LIST, types.ClientRequestParams, types.ListRootsResult, server=SESSION,
        asked=STATELESS, needs="roots"),
    Row(SAMPLING_CREATE_MESSAGE, types.CreateMessageParams, types.CreateMessageResult, server=SESSION,
        asked=STATELESS, needs="sampling", task_needs="tasks.requests.sampling.create_message"),
    Row(ELICITATION_CREATE, types.ElicitParams, types.ElicitResult, server=ELICITATION,
        asked=STATELESS, needs="elicitation", task_needs="tasks.requests.elicitation.create"),
    Row(INITIALIZED, types.NotificationParams, client=SESSION, early=True),
    Row(CANCELLED, types.CancelledParams, client=ALWAYS, server=ALWAYS, early=True, listened=True),
    Row(PROGRESS, types.ProgressParams, client=SESSION, server=ALWAYS, early=True),
    Row(LOG_MESSAGE, types.LogParams, server=ALWAYS, needs="logging", early=True),
    Row(TOOLS_LIST_CHANGED, types.NotificationParams, server=ALWAYS,
        needs="tools.list_changed", listened=True),
    Row(PROMPTS_LIST_CHANGED, types.NotificationParams, server=ALWAYS,
        needs="prompts.list_changed", listened=True),
    Row(RESOURCES_LIST_CHANGED, types.NotificationParams, server=ALWAYS,
        needs="resources.list_changed", listened=True),
    Row(RESOURCES_UPDATED, types.ResourceUpdatedParams, server=ALWAYS,
        needs="resources.subscribe", listened=True),
    Row(ROOTS_LIST_CHANGED, types.NotificationParams, client=SESSION, needs="roots.list_changed"),
    Row(ELICITATION_COMPLETE, types.ElicitationCompleteParams, server=TASKS),
    Row(TASKS_STATUS, types.TaskStatusParams, client=TASKS, server=TASKS, needs="tasks"),
    Row(SUBSCRIPTIONS_ACKNOWLEDGED, types.AcknowledgedParams, server=STATELESS, listened=True),
)
# fmt: on

# Requests that may come before the handshake is complete.
EARLY_REQUESTS: Final = frozenset(row.name for row in ROWS if row.early and row.is_request)


def suggest_method(method: str) -> str:
    """Return a hint about a method that this revision or role does not have."""
    row = next((row for row in ROWS if row.name == method), None)
    if row is None:
        return suggest(method, [row.name for row in ROWS])[2:] or "a custom method needs a Row"
    kind = "notification" if row.result is None else "request"
    ways = [
        f"a {kind} of the {side} in {' … '.join(dict.fromkeys((span.since, span.until)))}"
        for side, span in ((CLIENT, row.client), (SERVER, row.server))
        if span
    ]
    return "it is " + " and ".join(ways)
