"""Maps each definition of the official schemas to our code, which reads and writes its JSON.

One table for all five revisions. A test fails for a definition that is missing here.
"""

import json
from typing import Any

from toolpost import errors, types
from toolpost.errors import RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import (
    JSONReader,
    JSONRPCErrorResponse,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from toolpost.protocol.methods import ROWS, Row
from toolpost.types import UNSET, Raw

__all__ = ["ENVELOPE", "HOMES", "REQUESTS", "ROW", "STEMS", "round_trip", "text"]

ROW = {row.name: row for row in ROWS}

ENVELOPE = object()
"""The envelope alone, without params and result."""

ANY_ROW = object()
"""The row of the method in the message."""

REQUESTS = {
    "CallTool": "tools/call",
    "CancelTask": "tasks/cancel",
    "Complete": "completion/complete",
    "CreateMessage": "sampling/createMessage",
    "Discover": "server/discover",
    "Elicit": "elicitation/create",
    "GetPrompt": "prompts/get",
    "GetTask": "tasks/get",
    "GetTaskPayload": "tasks/result",
    "Initialize": "initialize",
    "ListPrompts": "prompts/list",
    "ListResourceTemplates": "resources/templates/list",
    "ListResources": "resources/list",
    "ListRoots": "roots/list",
    "ListTasks": "tasks/list",
    "ListTools": "tools/list",
    "Ping": "ping",
    "ReadResource": "resources/read",
    "SetLevel": "logging/setLevel",
    "Subscribe": "resources/subscribe",
    "SubscriptionsListen": "subscriptions/listen",
    "Unsubscribe": "resources/unsubscribe",
}
"""The prefix of a request in the schemas, before Request, RequestParams, Result and ResultResponse."""

NOTICES = {
    "Cancelled": "notifications/cancelled",
    "ElicitationComplete": "notifications/elicitation/complete",
    "Initialized": "notifications/initialized",
    "LoggingMessage": "notifications/message",
    "Progress": "notifications/progress",
    "PromptListChanged": "notifications/prompts/list_changed",
    "ResourceListChanged": "notifications/resources/list_changed",
    "ResourceUpdated": "notifications/resources/updated",
    "RootsListChanged": "notifications/roots/list_changed",
    "SubscriptionsAcknowledged": "notifications/subscriptions/acknowledged",
    "TaskStatus": "notifications/tasks/status",
    "ToolListChanged": "notifications/tools/list_changed",
}
"""The prefix of the name of a notification in the schemas, before Notification and NotificationParams."""

STEMS = REQUESTS | NOTICES

HOMES: dict[str, Any] = {
    # messages
    **{f"{stem}Request": ROW[method] for stem, method in REQUESTS.items()},
    **{f"{stem}RequestParams": ROW[method].params for stem, method in REQUESTS.items()},
    **{f"{stem}Result": ROW[method].result for stem, method in REQUESTS.items()},
    **{f"{stem}ResultResponse": ROW[method] for stem, method in REQUESTS.items()},
    **{f"{stem}Notification": ROW[method] for stem, method in NOTICES.items()},
    **{f"{stem}NotificationParams": ROW[method].params for stem, method in NOTICES.items()},
    "ClientNotification": ANY_ROW,
    "ClientRequest": ANY_ROW,
    "ClientResult": Raw,  # which result it is, is known only with the request
    "ServerNotification": ANY_ROW,
    "ServerRequest": ANY_ROW,
    "ServerResult": Raw,
    # what messages have in common
    "CacheableResult": types.CacheableResult,
    "EmptyResult": types.Result,
    "ElicitRequestFormParams": types.ElicitParams,
    "ElicitRequestURLParams": types.ElicitParams,
    "InputRequest": types.InputRequest,
    "InputRequests": dict[str, types.InputRequest],
    "InputRequiredResult": types.InputRequiredResult,
    "InputResponse": Raw,  # which result it is, is known only with the ask
    "InputResponseRequestParams": types.InputResponseParams,
    "InputResponses": dict[str, Raw],
    "NotificationParams": types.NotificationParams,
    "PaginatedRequestParams": types.PaginatedRequestParams,
    "PaginatedResult": types.PaginatedResult,
    "RequestParams": types.Params,
    "ResourceRequestParams": (types.ReadResourceParams, types.SubscribeParams),
    "Result": types.Result,
    "TaskAugmentedRequestParams": (types.CallToolParams, types.CreateMessageParams, types.ElicitParams),
    # envelopes
    "Error": RPCError,
    "JSONRPCBatchRequest": ENVELOPE,
    "JSONRPCBatchResponse": ENVELOPE,
    "JSONRPCError": ENVELOPE,
    "JSONRPCErrorResponse": ENVELOPE,
    "JSONRPCMessage": ENVELOPE,
    "JSONRPCNotification": ENVELOPE,
    "JSONRPCRequest": ENVELOPE,
    "JSONRPCResponse": ENVELOPE,
    "JSONRPCResultResponse": ENVELOPE,
    "Notification": ENVELOPE,
    "PaginatedRequest": ENVELOPE,
    "Request": ENVELOPE,
    # errors
    "HeaderMismatchError": errors.HeaderMismatch,
    "InternalError": errors.InternalError,
    "InvalidParamsError": errors.InvalidParams,
    "InvalidRequestError": errors.InvalidRequest,
    "MethodNotFoundError": errors.MethodNotFound,
    "MissingRequiredClientCapabilityError": errors.MissingCapability,
    "ParseError": errors.ParseError,
    "URLElicitationRequiredError": errors.UrlElicitationRequired,
    "UnsupportedProtocolVersionError": errors.UnsupportedRevision,
    # words
    "Cursor": str,
    "LoggingLevel": types.LogLevel,
    "ProgressToken": types.ProgressToken,
    "RequestId": types.RequestId,
    "ResultType": str,
    "Role": types.Role,
    "TaskStatus": types.TaskStatus,
    # JSON that stays as it is
    "JSONArray": list[types.JSON],
    "JSONObject": dict[str, types.JSON],
    "JSONValue": types.JSON,
    "MetaObject": types.Meta,
    "NotificationMetaObject": types.Meta,
    "RequestMetaObject": types.RequestMeta,
    "ResultMetaObject": types.Meta,
    "SubscriptionsListenResultMetaObject": types.Meta,
    # things
    "Annotated": (
        types.EmbeddedResource,
        types.ImageContent,
        types.Resource,
        types.ResourceTemplate,
        types.TextContent,
    ),
    "Annotations": types.Annotations,
    "AudioContent": types.AudioContent,
    "BaseMetadata": (
        types.Implementation,
        types.Prompt,
        types.PromptArgument,
        types.PromptReference,
        types.Resource,
        types.ResourceLink,
        types.ResourceTemplate,
        types.Tool,
    ),
    "BlobResourceContents": types.ResourceContents,
    "BooleanSchema": types.BooleanSchema,
    "ClientCapabilities": types.ClientCapabilities,
    "ContentBlock": types.Content,
    "CreateTaskResult": types.CreateTaskResult,
    "EmbeddedResource": types.EmbeddedResource,
    "EnumSchema": types.PropertySchema,
    "Icon": types.Icon,
    "Icons": (
        types.Implementation,
        types.Prompt,
        types.Resource,
        types.ResourceLink,
        types.ResourceTemplate,
        types.Tool,
    ),
    "ImageContent": types.ImageContent,
    "Implementation": types.Implementation,
    "LegacyTitledEnumSchema": types.EnumSchema,
    "ModelHint": types.ModelHint,
    "ModelPreferences": types.ModelPreferences,
    "MultiSelectEnumSchema": types.MultiEnumSchema,
    "NumberSchema": types.NumberSchema,
    "PrimitiveSchemaDefinition": types.PropertySchema,
    "Prompt": types.Prompt,
    "PromptArgument": types.PromptArgument,
    "PromptMessage": types.PromptMessage,
    "PromptReference": types.PromptReference,
    "RelatedTaskMetadata": types.RelatedTask,
    "Resource": types.Resource,
    "ResourceContents": types.ResourceContents,
    "ResourceLink": types.ResourceLink,
    "ResourceReference": types.ResourceReference,
    "ResourceTemplate": types.ResourceTemplate,
    "ResourceTemplateReference": types.ResourceReference,
    "Root": types.Root,
    "SamplingMessage": types.SamplingMessage,
    "SamplingMessageContentBlock": types.Content,
    "ServerCapabilities": types.ServerCapabilities,
    "SingleSelectEnumSchema": types.EnumSchema,
    "StringSchema": types.StringSchema,
    "SubscriptionFilter": types.SubscriptionFilter,
    "Task": types.Task,
    "TaskMetadata": types.TaskMetadata,
    "TextContent": types.TextContent,
    "TextResourceContents": types.ResourceContents,
    "TitledMultiSelectEnumSchema": types.MultiEnumSchema,
    "TitledSingleSelectEnumSchema": types.EnumSchema,
    "Tool": types.Tool,
    "ToolAnnotations": types.ToolAnnotations,
    "ToolChoice": types.ToolChoice,
    "ToolExecution": types.ToolExecution,
    "ToolResultContent": types.ToolResultContent,
    "ToolUseContent": types.ToolUseContent,
    "UntitledMultiSelectEnumSchema": types.MultiEnumSchema,
    "UntitledSingleSelectEnumSchema": types.EnumSchema,
}

# --------------------------------------------------------------------- reading and writing again


def text(value: Any) -> str:
    """Return JSON text to compare, because 1, 1.0 and True are equal in Python."""
    return json.dumps(value, sort_keys=True)


def round_trip(name: str, value: Any) -> Any:
    """Decode a value of a definition with our code, encode it again, and return the JSON."""
    home = HOMES[name]
    if home is ENVELOPE:
        return _batch(value) if isinstance(value, list) else _message(value)
    if home is ANY_ROW:
        return _message(value, ROW[value["method"]])
    if isinstance(home, Row):
        return _message(value, home)
    if isinstance(home, type) and issubclass(home, RPCError):
        return _error(value, home)
    if isinstance(home, tuple):
        return value  # a part of several things, each of which is read on its own
    return _again(JSONReader(home)(_bytes(value)))


def _bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def _again(value: Any) -> Any:
    return json.loads(jsonrpc.encode(value))


def _batch(values: list[Any]) -> list[Any]:
    """A batch. An empty one is not allowed, and not tested here."""
    messages = jsonrpc.decode_batch(_bytes(values)) if values else []
    return json.loads(jsonrpc.encode_batch([_written(message) for message in messages]))


def _message(value: Any, row: Row | None = None) -> Any:
    """Recode a message. Members that belong to the envelope are added first and removed afterwards."""
    envelope = {"jsonrpc": "2.0"}
    if "method" in value and (row.result is not None if row else "id" in value):
        envelope["id"] = "added"
    added = envelope.keys() - value.keys()
    written = json.loads(_written(jsonrpc.decode(_bytes(envelope | value)), row))
    return {name: member for name, member in written.items() if name not in added}


def _written(message: Any, row: Row | None = None) -> bytes:
    """Recode a message, with params and result if it has a row."""
    match message:
        case JSONRPCRequest(id=request_id, method=method, params=params):
            return jsonrpc.encode(jsonrpc.JSONRPCRequest(request_id, method, _params(params, row)))
        case JSONRPCNotification(method=method, params=params):
            return jsonrpc.encode_notification(method, _params(params, row))
        case JSONRPCResponse(id=request_id, result=result):
            return jsonrpc.encode(jsonrpc.JSONRPCResponse(request_id, _result(result, row)))
        case JSONRPCErrorResponse(id=request_id, code=code, message=said, data=data):
            return jsonrpc.encode_error(request_id, errors.make_rpc_error(code, said, data, session=False))
        case _:
            raise AssertionError(message)


def _params(params: Any, row: Row | None) -> Any:
    return params if row is None or params is UNSET else row.read_params(params)


def _result(result: Raw, row: Row | None) -> Any:
    if row is None:
        return result
    return row.read_result(result, json.loads(bytes(result)).get("resultType", "complete"))


def _error(value: Any, home: type[RPCError]) -> Any:
    """Recode an error: a whole message, or only its member `error`."""
    whole = value if "error" in value else {"jsonrpc": "2.0", "error": value}
    message = jsonrpc.decode(_bytes(whole))
    assert isinstance(message, JSONRPCErrorResponse)
    error = errors.make_rpc_error(message.code, message.message, message.data, session=False)
    assert type(error) is home or home is RPCError
    written = json.loads(jsonrpc.encode_error(message.id, error))
    return written if whole is value else written["error"]
