"""The conventions of OpenTelemetry for MCP: names of attributes, buckets, and what is an error.

They are in `docs/gen-ai/mcp.md` of open-telemetry/semantic-conventions-genai, with the status Development.
Imports nothing of OpenTelemetry.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from toolpost import errors
from toolpost.protocol import methods
from toolpost.protocol.revisions import Revision

Network: TypeAlias = Mapping[str, str | int]
"""How the two sides are connected, by the names of the conventions."""

METHOD: Final = "mcp.method.name"
TOOL: Final = "gen_ai.tool.name"
PROMPT: Final = "gen_ai.prompt.name"
RESOURCE: Final = "mcp.resource.uri"
OPERATION: Final = "gen_ai.operation.name"
REVISION: Final = "mcp.protocol.version"
ERROR: Final = "error.type"
STATUS_CODE: Final = "rpc.response.status_code"
OTHER: Final = "_OTHER"

OPERATION_DURATION: Final = "mcp.{}.operation.duration"
SESSION_DURATION: Final = "mcp.{}.session.duration"
"""The histograms; the word in the braces is client for the sender of a request, server for the receiver."""

BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper bounds in seconds."""

_NETWORK: Final = {"network.protocol.name", "server.address", "server.port"}
SESSION_ATTRIBUTES: Final = frozenset({REVISION, *_NETWORK})
METRIC_ATTRIBUTES: Final = frozenset(
    {METHOD, TOOL, PROMPT, OPERATION, REVISION, "network.transport", "network.protocol.version", *_NETWORK}
)
"""The attributes of spans that metrics have, too: those with few values."""

_FAULTS: Final = (errors.ParseError, errors.InvalidRequest, errors.MethodNotFound, errors.InvalidParams)
CALLER_FAULTS: Final = frozenset(error.code for error in (*_FAULTS, errors.ResourceNotFound))
"""Codes with which a server has not failed: the client sent an invalid request."""

KNOWN_METHODS: Final = frozenset(row.name for row in methods.ROWS)
MAX_NAME: Final = 256
"""Characters of a name or URI that are recorded: clients may send any."""

_TARGETS: Final = {
    methods.TOOLS_CALL: (TOOL, "name"),
    methods.PROMPTS_GET: (PROMPT, "name"),
    methods.RESOURCES_READ: (RESOURCE, "uri"),
    methods.RESOURCES_SUBSCRIBE: (RESOURCE, "uri"),
    methods.RESOURCES_UNSUBSCRIBE: (RESOURCE, "uri"),
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
    if method not in _TARGETS:
        return None
    attribute, member = _TARGETS[method]
    is_mapping = isinstance(params, Mapping)  # of a gateway, which forwards its members undecoded
    name: Any = cast("Any", params).get(member) if is_mapping else getattr(params, member, None)
    name = msgspec.json.decode(name) if isinstance(name, msgspec.Raw) else name
    return (attribute, name[:MAX_NAME]) if isinstance(name, str) else None


def find_received_failure(error: BaseException, revision: Revision) -> Failure:
    """Return how a request failed that we have received; the code is that which we send."""
    if not isinstance(error, errors.RPCError) or (error.is_foreign and not error.is_forwarded):
        return Failure(str(errors.InternalError.code), errors.InternalError.code)
    code = revision.translate_code(error.code)
    return Failure(None if code in CALLER_FAULTS else str(code), code, error.message)


def find_sent_failure(error: BaseException) -> Failure:
    """Return how a request failed that we have sent."""
    if isinstance(error, errors.RPCError):
        return Failure(str(error.code), error.code, error.message)
    return Failure(type(error).__name__, None, getattr(error, "message", ""))
