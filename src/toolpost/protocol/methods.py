"""Everything MCP can say: one row for each of the 34 methods of all five revisions.

A row tells the types, who may send the method in which revisions, and which capability it stands behind.
What a row does not say is not allowed: a method that a revision lacks is simply absent from its record.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from msgspec import defstruct, field

from toolpost import types
from toolpost.errors import RemoteProtocolError
from toolpost.protocol.jsonrpc import DECODE_ERRORS, InvalidJSONValue, JSONReader, shorten
from toolpost.types import initialize, input_required, notifications, tools
from toolpost.types.base import JSON, UNSET, Params, Raw, Result, Struct, Unset, WireStruct
from toolpost.types.content import KnownContent
from toolpost.types.notifications import NotificationParams

DATES: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
"""The published revisions, oldest first."""

R_2024_11_05, R_2025_03_26, R_2025_06_18, R_2025_11_25, R_2026_07_28 = DATES

Role: TypeAlias = Literal["client", "server"]
CLIENT: Final = "client"
SERVER: Final = "server"


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


class PlainToolResult(Result):
    """A `CallToolResult` of known kinds only, which msgspec reads by itself."""

    content: list[KnownContent]
    structured_content: JSON | Unset = UNSET
    is_error: bool | None = None


class _ToolResultReader(JSONReader[Result]):
    """Reads what a tool said: nearly all is of kinds that we know, and then takes 0.5 µs instead of 1.4."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(tools.CallToolResult)

    def __call__(self, raw: Raw | bytes | Unset) -> Result:
        try:
            said = PLAIN_RESULT_READER.decode(b"{}" if raw is UNSET else raw)
        except DECODE_ERRORS:
            return super().__call__(raw)  # of other kinds, or wrong
        return tools.CallToolResult(
            said.content,
            said.structured_content,
            said.is_error,
            meta=said.meta,
            result_type=said.result_type,
        )


PLAIN_RESULT_READER: Final = JSONReader(PlainToolResult)


class _ParamsWithMetaReader(JSONReader[Any]):
    """Reads parameters together with what their `_meta` tells of a request."""

    __slots__ = ()

    def _prepare(self, raw: Raw | bytes) -> Any:
        meta = ("meta", initialize.RequestMeta, field(name="_meta"))
        self.kind = defstruct("Whole", [meta], bases=(self.kind,), kw_only=True)
        return super()._prepare(raw)


class Row:
    """One method.

    Args:
        name: as it stands on the wire.
        params: the type of its parameters, or its name in `toolpost.types`: it is loaded with the row's first
            use, so that a start does not wait 2 ms for prompts, resources, tasks and asks.
        result: the type of its result, or its name; None makes it a notice.
        client: when a client may send it.
        server: when a server may send it.
        asked: when a server may put it into a result that wants input.
        needs: the capability it stands behind, as a path of attributes: of the receiver for a request, of
            the sender for a notice.
        needs_since: the revision from which on that capability exists.
        named: the parameter that HTTP mirrors in `Mcp-Name`; `member` is its name on the wire.

    Attributes:
        declared_types: the types of its parameters and of its result as they were given, perhaps by name.
        is_request: whether it is answered.
        can_require_input: whether its result may be a wish for input (MRTR-2).
        read_params: reads its parameters.
        read_whole: the same with their `_meta` read as well, which has to be there.
        results: the readers of its results, by `resultType`.
    """

    __slots__ = (
        "asked",
        "can_require_input",
        "client",
        "declared_types",
        "is_request",
        "member",
        "name",
        "named",
        "needs",
        "needs_since",
        "params",
        "read_params",
        "read_whole",
        "result",
        "results",
        "server",
    )

    params: type[WireStruct]
    result: type[Result] | None
    member: str | None
    can_require_input: bool
    read_params: JSONReader[Any]
    read_whole: JSONReader[Any]
    results: dict[str | None, JSONReader[Result]]

    def __init__(
        self,
        name: str,
        params: type[WireStruct] | str,
        result: type[Result] | str | None = None,
        *,
        client: Span | None = None,
        server: Span | None = None,
        asked: Span | None = None,
        needs: str | None = None,
        needs_since: str = R_2024_11_05,
        named: str | None = None,
    ) -> None:
        self.name = name
        self.declared_types = params, result
        self.is_request = result is not None
        self.client = client
        self.server = server
        self.asked = asked
        self.needs = needs
        self.needs_since = needs_since
        self.named = named

    def __getattr__(self, name: str) -> Any:
        """What follows from the types: made when it is first wanted, a plain attribute from then on."""
        make = _LAZY_ATTRIBUTES.get(name)
        if make is None:
            raise AttributeError(f"a row has no {name!r}")
        value = make(self)
        setattr(self, name, value)
        return value

    def __repr__(self) -> str:
        return f"<Row {self.name}>"

    def is_sendable_by(self, by: Role, date: str) -> bool:
        """Whether that side may send it in that revision; a row without spans has no limits."""
        if self.client is None and self.server is None:
            return True
        span = self.client if by == CLIENT else self.server
        return span is not None and date in span

    def read_result(self, raw: Raw, kind: str | None) -> Result:
        """The result of this method, of the given `resultType`; it keeps its raw bytes.

        None stands for the one kind that has no name on the wire: a task was made of the request.

        Raises:
            RemoteProtocolError: the kind is not known here, or the result is not of its type.
        """
        reader = self.results.get(kind)
        if reader is None:
            raise RemoteProtocolError(
                f"{self.name} was answered with an unknown result type: {shorten(str(kind))!r}"
            )
        try:
            result = reader(raw)
        except InvalidJSONValue as error:
            raise RemoteProtocolError(f"{self.name} was answered with an invalid result: {error}") from error
        vars(result)["raw"] = raw
        return result


def _resolve_type(named: Any) -> Any:
    """A type, or the one of that name."""
    return getattr(types, named) if isinstance(named, str) else named


def _find_member(row: Row) -> str | None:
    fields, members = row.params.__struct_fields__, row.params.__struct_encode_fields__
    return row.named and dict(zip(fields, members, strict=True))[row.named]


def _make_result_readers(row: Row) -> dict[str | None, JSONReader[Result]]:
    if row.result is None:
        return {}
    whole = _ToolResultReader() if row.result is tools.CallToolResult else JSONReader[Result](row.result)
    readers: dict[str | None, JSONReader[Result]] = {"complete": whole}
    if row.can_require_input:
        readers["input_required"] = JSONReader[Result](input_required.InputRequiredResult)
    if "task" in row.params.__struct_fields__:
        readers[None] = JSONReader[Result](types.CreateTaskResult)
    return readers


_LAZY_ATTRIBUTES: Final[dict[str, Callable[[Row], Any]]] = {
    "params": lambda row: _resolve_type(row.declared_types[0]),
    "result": lambda row: _resolve_type(row.declared_types[1]),
    "member": _find_member,
    "can_require_input": lambda row: issubclass(row.params, input_required.InputResponseParams),
    "read_params": lambda row: JSONReader(row.params),
    "read_whole": lambda row: _ParamsWithMetaReader(row.params),
    "results": _make_result_readers,
}

# In the order of the specification: opening, tools, resources, prompts, the rest; then asks, then notices.
ROWS: Final = (
    Row("initialize", initialize.InitializeParams, initialize.InitializeResult, client=SESSION),
    Row("ping", Params, Result, client=SESSION, server=SESSION),
    Row("server/discover", Params, initialize.DiscoverResult, client=STATELESS),
    Row("tools/list", initialize.PaginatedRequestParams, tools.ListToolsResult, client=ALWAYS, needs="tools"),
    Row("tools/call", tools.CallToolParams, tools.CallToolResult, client=ALWAYS, needs="tools", named="name"),
    Row(
        "resources/list",
        initialize.PaginatedRequestParams,
        "ListResourcesResult",
        client=ALWAYS,
        needs="resources",
    ),
    Row(
        "resources/templates/list",
        initialize.PaginatedRequestParams,
        "ListResourceTemplatesResult",
        client=ALWAYS,
        needs="resources",
    ),
    Row(
        "resources/read",
        "ReadResourceParams",
        "ReadResourceResult",
        client=ALWAYS,
        needs="resources",
        named="uri",
    ),
    Row("resources/subscribe", "SubscribeParams", Result, client=SESSION, needs="resources.subscribe"),
    Row(
        "resources/unsubscribe",
        "SubscribeParams",
        Result,
        client=SESSION,
        needs="resources.subscribe",
    ),
    Row("subscriptions/listen", notifications.ListenParams, notifications.ListenResult, client=STATELESS),
    Row(
        "prompts/list", initialize.PaginatedRequestParams, "ListPromptsResult", client=ALWAYS, needs="prompts"
    ),
    Row(
        "prompts/get",
        "GetPromptParams",
        "GetPromptResult",
        client=ALWAYS,
        needs="prompts",
        named="name",
    ),
    Row(
        "completion/complete",
        "CompleteParams",
        "CompleteResult",
        client=ALWAYS,
        needs="completions",
        needs_since=R_2025_03_26,
    ),
    Row("logging/setLevel", initialize.SetLevelParams, Result, client=SESSION, needs="logging"),
    Row("tasks/get", "TaskParams", "TaskResult", client=TASKS, server=TASKS, needs="tasks"),
    Row("tasks/result", "TaskParams", "TaskPayload", client=TASKS, server=TASKS, needs="tasks"),
    Row(
        "tasks/list",
        initialize.PaginatedRequestParams,
        "ListTasksResult",
        client=TASKS,
        server=TASKS,
        needs="tasks.list",
    ),
    Row("tasks/cancel", "TaskParams", "TaskResult", client=TASKS, server=TASKS, needs="tasks.cancel"),
    # What a server asks of a client
    Row(
        "roots/list", "ClientRequestParams", "ListRootsResult", server=SESSION, asked=STATELESS, needs="roots"
    ),
    Row(
        "sampling/createMessage",
        "CreateMessageParams",
        "CreateMessageResult",
        server=SESSION,
        asked=STATELESS,
        needs="sampling",
    ),
    Row(
        "elicitation/create",
        "ElicitParams",
        "ElicitResult",
        server=ELICITATION,
        asked=STATELESS,
        needs="elicitation",
    ),
    # Notices
    Row("notifications/initialized", NotificationParams, client=SESSION),
    Row("notifications/cancelled", notifications.CancelledParams, client=ALWAYS, server=ALWAYS),
    Row("notifications/progress", notifications.ProgressParams, client=SESSION, server=ALWAYS),
    Row("notifications/message", notifications.LogParams, server=ALWAYS, needs="logging"),
    Row("notifications/tools/list_changed", NotificationParams, server=ALWAYS, needs="tools.list_changed"),
    Row(
        "notifications/prompts/list_changed", NotificationParams, server=ALWAYS, needs="prompts.list_changed"
    ),
    Row(
        "notifications/resources/list_changed",
        NotificationParams,
        server=ALWAYS,
        needs="resources.list_changed",
    ),
    Row(
        "notifications/resources/updated",
        notifications.ResourceUpdatedParams,
        server=ALWAYS,
        needs="resources.subscribe",
    ),
    Row("notifications/roots/list_changed", NotificationParams, client=SESSION, needs="roots.list_changed"),
    Row("notifications/elicitation/complete", notifications.ElicitationCompleteParams, server=TASKS),
    Row("notifications/tasks/status", "TaskStatusParams", client=TASKS, server=TASKS, needs="tasks"),
    Row("notifications/subscriptions/acknowledged", notifications.AcknowledgedParams, server=STATELESS),
)


def suggest_method(method: str) -> str:
    """Where a method is to be found that was looked for in vain: a hint for people."""
    row = next((row for row in ROWS if row.name == method), None)
    if row is None:
        from difflib import get_close_matches  # noqa: PLC0415 - 0.7 ms of every start

        near = get_close_matches(method, [row.name for row in ROWS], 1)
        return f"did you mean {near[0]}?" if near else "a method of your own needs a Row"
    kind = "notice" if row.result is None else "request"
    spans = {"client": row.client, "server": row.server}
    ways = [
        f"a {kind} of the {side} in {' … '.join(dict.fromkeys((span.since, span.until)))}"
        for side, span in spans.items()
        if span
    ]
    return "it is " + " and ".join(ways)
