"""Identity, capabilities and the opening of a conversation: `initialize`, `server/discover`.

Capabilities are the union of what all revisions define; `experimental` and `extensions` stay open.
"""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, field

from toolpost.types.base import JSON, Icon, Params, ProgressToken, Result, Unset, WireStruct

__all__ = [
    "CLIENT_CAPABILITIES", "CLIENT_INFO", "LOG_LEVEL", "PROTOCOL_VERSION", "RELATED_TASK", "SERVER_INFO",
    "SUBSCRIPTION_ID", "CacheableResult", "ClientCapabilities", "ClientTasksCapability",
    "ClientTasksRequests", "DiscoverResult", "ElicitationCapability", "ElicitationTasks",
    "Implementation", "InitializeParams", "InitializeResult", "ListCapability", "LogLevel",
    "PaginatedRequestParams", "PaginatedResult", "RequestMeta", "ResourcesCapability",
    "SamplingCapability", "SamplingTasks", "ServerCapabilities", "ServerTasksCapability",
    "ServerTasksRequests", "SetLevelParams", "ToolsTasks",
]  # fmt: skip

PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
RELATED_TASK = "io.modelcontextprotocol/related-task"

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
JSONObject: TypeAlias = dict[str, JSON]


class Implementation(WireStruct):
    """The name and version of a client or a server."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None


class ListCapability(WireStruct):
    """A list that the peer can read; `list_changed` promises a notification when it changes."""

    list_changed: bool | None = None


class ResourcesCapability(ListCapability):
    """Resources; `subscribe` promises a notification when one that the client has named changes."""

    subscribe: bool | None = None


class SamplingCapability(WireStruct):
    """Sampling: the client calls its model for the server."""

    context: JSONObject | None = None
    tools: JSONObject | None = None


class ElicitationCapability(WireStruct):
    """Elicitation: the client asks its user for the server. Without a mode it means forms."""

    form: JSONObject | None = None
    url: JSONObject | None = None


class SamplingTasks(WireStruct):
    """Sampling as a task (2025-11-25)."""

    create_message: JSONObject | None = None


class ElicitationTasks(WireStruct):
    """Elicitation as a task (2025-11-25)."""

    create: JSONObject | None = None


class ToolsTasks(WireStruct):
    """Tool calls as tasks (2025-11-25)."""

    call: JSONObject | None = None


class ClientTasksRequests(WireStruct):
    """The requests that a client runs as tasks (2025-11-25)."""

    sampling: SamplingTasks | None = None
    elicitation: ElicitationTasks | None = None


class ServerTasksRequests(WireStruct):
    """The requests that a server runs as tasks (2025-11-25)."""

    tools: ToolsTasks | None = None


class ClientTasksCapability(WireStruct):
    """Tasks on the client (2025-11-25)."""

    list: JSONObject | None = None
    cancel: JSONObject | None = None
    requests: ClientTasksRequests | None = None


class ServerTasksCapability(WireStruct):
    """Tasks on the server (2025-11-25)."""

    list: JSONObject | None = None
    cancel: JSONObject | None = None
    requests: ServerTasksRequests | None = None


class ClientCapabilities(WireStruct, kw_only=True):
    """The capabilities of a client."""

    roots: ListCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    tasks: ClientTasksCapability | None = None
    experimental: dict[str, JSONObject] | None = None
    extensions: dict[str, JSONObject] | None = None


class ServerCapabilities(WireStruct, kw_only=True):
    """The capabilities of a server."""

    tools: ListCapability | None = None
    resources: ResourcesCapability | None = None
    prompts: ListCapability | None = None
    completions: JSONObject | None = None
    logging: JSONObject | None = None
    tasks: ServerTasksCapability | None = None
    experimental: dict[str, JSONObject] | None = None
    extensions: dict[str, JSONObject] | None = None


class RequestMeta(Struct, kw_only=True):
    """The keys of a request's `_meta` that the protocol reads; other keys stay in the raw bytes."""

    progress_token: ProgressToken | Unset = field(name="progressToken", default=UNSET)
    protocol_version: str | Unset = field(name=PROTOCOL_VERSION, default=UNSET)
    client_capabilities: ClientCapabilities | Unset = field(name=CLIENT_CAPABILITIES, default=UNSET)
    client_info: Implementation | Unset = field(name=CLIENT_INFO, default=UNSET)
    log_level: LogLevel | Unset = field(name=LOG_LEVEL, default=UNSET)


class InitializeParams(Params):
    """The parameters of `initialize`."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result):
    """The result of `initialize`."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class CacheableResult(Result, kw_only=True):
    """A result that a client may cache (2026-07-28)."""

    ttl_ms: int | None = None
    cache_scope: str | None = None


class DiscoverResult(CacheableResult):
    """The result of `server/discover` (2026-07-28)."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None


class SetLevelParams(Params):
    """The parameters of `logging/setLevel`."""

    level: LogLevel


class PaginatedRequestParams(Params):
    """The parameters of a list request; no cursor means the first page."""

    cursor: str | None = None


class PaginatedResult(CacheableResult, kw_only=True):
    """One page of a list; no cursor means the last page."""

    next_cursor: str | None = None
