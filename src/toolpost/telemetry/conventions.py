"""The conventions of OpenTelemetry for MCP: names of attributes, buckets, and what is an error.

They are in `docs/gen-ai/mcp.md` of open-telemetry/semantic-conventions-genai, with the status Development.
Imports nothing of OpenTelemetry.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolpost.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    ResourceNotFound,
    RPCError,
)
from toolpost.protocol.methods import (
    PROMPTS_GET,
    RESOURCES_READ,
    RESOURCES_SUBSCRIBE,
    RESOURCES_UNSUBSCRIBE,
    ROWS,
    TOOLS_CALL,
)
from toolpost.protocol.revisions import Revision

METHOD: Final = "mcp.method.name"
TOOL: Final = "gen_ai.tool.name"
PROMPT: Final = "gen_ai.prompt.name"
RESOURCE: Final = "mcp.resource.uri"
OPERATION: Final = "gen_ai.operation.name"
EXECUTE_TOOL: Final = "execute_tool"
REQUEST_ID: Final = "jsonrpc.request.id"
REVISION: Final = "mcp.protocol.version"
SESSION: Final = "mcp.session.id"
TRANSPORT: Final = "network.transport"
PROTOCOL: Final = "network.protocol.name"
ERROR: Final = "error.type"
STATUS_CODE: Final = "rpc.response.status_code"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
VARIABLE: Final = "gen_ai.prompt.variable."
ROUND: Final = "toolpost.round"
OTHER: Final = "_OTHER"

OPERATION_DURATION: Final = "mcp.{}.operation.duration"
SESSION_DURATION: Final = "mcp.{}.session.duration"
"""The histograms; the first word in the braces is client for the sender, and server for the receiver."""

BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper bounds in seconds."""

METRIC_ATTRIBUTES: Final = frozenset(
    {METHOD, TOOL, PROMPT, OPERATION, REVISION, TRANSPORT, PROTOCOL, ERROR, STATUS_CODE}
    | {"network.protocol.version", "server.address", "server.port"}
)
"""The attributes of spans that metrics have, too: those with few values."""

SESSION_ATTRIBUTES: Final = (REVISION, PROTOCOL, "server.address", "server.port")

CALLER_FAULTS: Final = frozenset(
    error.code for error in (ParseError, InvalidRequest, MethodNotFound, InvalidParams, ResourceNotFound)
)
"""Codes with which a server has not failed: the client sent an invalid request."""

KNOWN_METHODS: Final = frozenset(row.name for row in ROWS)
MAX_NAME: Final = 256
"""Characters of a name or URI that are recorded: clients may send any."""

_TARGETS: Final = {
    TOOLS_CALL: (TOOL, "name"),
    PROMPTS_GET: (PROMPT, "name"),
    RESOURCES_READ: (RESOURCE, "uri"),
    RESOURCES_SUBSCRIBE: (RESOURCE, "uri"),
    RESOURCES_UNSUBSCRIBE: (RESOURCE, "uri"),
}


class Failure(NamedTuple):
    """How a request failed; `kind` is None if that is not a failure of this side."""

    kind: str | None
    code: int | None = None
    message: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        """What spans and metrics record about it."""
        found = {} if self.kind is None else {ERROR: self.kind}
        return found if self.code is None else {**found, STATUS_CODE: str(self.code)}


TOOL_FAILURE: Final = Failure("tool_error")
CANCELLED_FAILURE: Final = Failure("cancelled")


def find_target(method: str, params: Any) -> tuple[str, str] | None:
    """Return the attribute for the tool, prompt or resource of a request, and its value."""
    target = _TARGETS.get(method)
    if target is None:
        return None
    attribute, member = target
    if isinstance(params, Mapping):
        name: Any = cast("Mapping[str, Any]", params).get(member)
        if isinstance(name, msgspec.Raw):  # a gateway forwards it undecoded
            name = msgspec.json.decode(name)
    else:
        name = getattr(params, member, None)
    return (attribute, name[:MAX_NAME]) if isinstance(name, str) else None


def find_received_failure(
    error: BaseException | None, revision: Revision, *, is_error: bool
) -> Failure | None:
    """Return how a request failed that we have received; the error code is that which we send."""
    if error is None:
        return TOOL_FAILURE if is_error else None
    if not isinstance(error, RPCError) or (error.is_foreign and not error.is_forwarded):
        return Failure(str(InternalError.code), InternalError.code)
    code = revision.translate_code(error.code)
    return Failure(None if code in CALLER_FAULTS else str(code), code, error.message)


def find_sent_failure(error: BaseException | None, *, is_error: bool) -> Failure | None:
    """Return how a request failed that we have sent."""
    if error is None:
        return TOOL_FAILURE if is_error else None
    if isinstance(error, RPCError):
        return Failure(str(error.code), error.code, error.message)
    return Failure(type(error).__name__, None, getattr(error, "message", ""))
