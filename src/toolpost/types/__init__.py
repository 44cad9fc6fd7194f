"""RING 0: the vocabulary of all five revisions, one struct per noun. Every name is importable from here.

Structs only: what may be said when, and how it is written, is the business of `toolpost.protocol`. A name is
loaded on first use: a server of tools does not wait for what prompts, resources and questions are made of.
"""

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolpost.types.asks import BooleanSchema as BooleanSchema
    from toolpost.types.asks import Choice as Choice
    from toolpost.types.asks import ChoiceItems as ChoiceItems
    from toolpost.types.asks import ClientRequestParams as ClientRequestParams
    from toolpost.types.asks import CreateMessageParams as CreateMessageParams
    from toolpost.types.asks import CreateMessageResult as CreateMessageResult
    from toolpost.types.asks import ElicitParams as ElicitParams
    from toolpost.types.asks import ElicitResult as ElicitResult
    from toolpost.types.asks import EnumSchema as EnumSchema
    from toolpost.types.asks import FormSchema as FormSchema
    from toolpost.types.asks import ListRootsResult as ListRootsResult
    from toolpost.types.asks import ModelHint as ModelHint
    from toolpost.types.asks import ModelPreferences as ModelPreferences
    from toolpost.types.asks import MultiEnumSchema as MultiEnumSchema
    from toolpost.types.asks import NumberSchema as NumberSchema
    from toolpost.types.asks import PropertySchema as PropertySchema
    from toolpost.types.asks import Root as Root
    from toolpost.types.asks import SamplingMessage as SamplingMessage
    from toolpost.types.asks import StringSchema as StringSchema
    from toolpost.types.asks import ToolChoice as ToolChoice
    from toolpost.types.asks import UnknownSchema as UnknownSchema
    from toolpost.types.base import JSON as JSON
    from toolpost.types.base import UNSET as UNSET
    from toolpost.types.base import Annotations as Annotations
    from toolpost.types.base import Icon as Icon
    from toolpost.types.base import Meta as Meta
    from toolpost.types.base import Number as Number
    from toolpost.types.base import OpenUnion as OpenUnion
    from toolpost.types.base import Params as Params
    from toolpost.types.base import ProgressToken as ProgressToken
    from toolpost.types.base import Raw as Raw
    from toolpost.types.base import RequestId as RequestId
    from toolpost.types.base import Result as Result
    from toolpost.types.base import Role as Role
    from toolpost.types.base import Unset as Unset
    from toolpost.types.base import WireStruct as WireStruct
    from toolpost.types.content import CONTENT_TYPES as CONTENT_TYPES
    from toolpost.types.content import AudioContent as AudioContent
    from toolpost.types.content import Blocks as Blocks
    from toolpost.types.content import Content as Content
    from toolpost.types.content import EmbeddedResource as EmbeddedResource
    from toolpost.types.content import ImageContent as ImageContent
    from toolpost.types.content import ResourceContents as ResourceContents
    from toolpost.types.content import ResourceLink as ResourceLink
    from toolpost.types.content import TextContent as TextContent
    from toolpost.types.content import ToolResultContent as ToolResultContent
    from toolpost.types.content import ToolUseContent as ToolUseContent
    from toolpost.types.content import UnknownContent as UnknownContent
    from toolpost.types.inputs import InputRequest as InputRequest
    from toolpost.types.inputs import InputRequiredResult as InputRequiredResult
    from toolpost.types.inputs import InputResponseParams as InputResponseParams
    from toolpost.types.lifecycle import CLIENT_CAPABILITIES as CLIENT_CAPABILITIES
    from toolpost.types.lifecycle import CLIENT_INFO as CLIENT_INFO
    from toolpost.types.lifecycle import LOG_LEVEL as LOG_LEVEL
    from toolpost.types.lifecycle import PROTOCOL_VERSION as PROTOCOL_VERSION
    from toolpost.types.lifecycle import RELATED_TASK as RELATED_TASK
    from toolpost.types.lifecycle import SERVER_INFO as SERVER_INFO
    from toolpost.types.lifecycle import SUBSCRIPTION_ID as SUBSCRIPTION_ID
    from toolpost.types.lifecycle import CacheableResult as CacheableResult
    from toolpost.types.lifecycle import ClientCapabilities as ClientCapabilities
    from toolpost.types.lifecycle import ClientTasksCapability as ClientTasksCapability
    from toolpost.types.lifecycle import ClientTasksRequests as ClientTasksRequests
    from toolpost.types.lifecycle import DiscoverResult as DiscoverResult
    from toolpost.types.lifecycle import ElicitationCapability as ElicitationCapability
    from toolpost.types.lifecycle import ElicitationTasks as ElicitationTasks
    from toolpost.types.lifecycle import Implementation as Implementation
    from toolpost.types.lifecycle import InitializeParams as InitializeParams
    from toolpost.types.lifecycle import InitializeResult as InitializeResult
    from toolpost.types.lifecycle import ListCapability as ListCapability
    from toolpost.types.lifecycle import LogLevel as LogLevel
    from toolpost.types.lifecycle import PaginatedRequestParams as PaginatedRequestParams
    from toolpost.types.lifecycle import PaginatedResult as PaginatedResult
    from toolpost.types.lifecycle import RequestMeta as RequestMeta
    from toolpost.types.lifecycle import ResourcesCapability as ResourcesCapability
    from toolpost.types.lifecycle import SamplingCapability as SamplingCapability
    from toolpost.types.lifecycle import SamplingTasks as SamplingTasks
    from toolpost.types.lifecycle import ServerCapabilities as ServerCapabilities
    from toolpost.types.lifecycle import ServerTasksCapability as ServerTasksCapability
    from toolpost.types.lifecycle import ServerTasksRequests as ServerTasksRequests
    from toolpost.types.lifecycle import SetLevelParams as SetLevelParams
    from toolpost.types.lifecycle import ToolsTasks as ToolsTasks
    from toolpost.types.notices import AcknowledgedParams as AcknowledgedParams
    from toolpost.types.notices import CancelledParams as CancelledParams
    from toolpost.types.notices import ElicitationCompleteParams as ElicitationCompleteParams
    from toolpost.types.notices import ListenParams as ListenParams
    from toolpost.types.notices import ListenResult as ListenResult
    from toolpost.types.notices import LogParams as LogParams
    from toolpost.types.notices import NotificationParams as NotificationParams
    from toolpost.types.notices import ProgressParams as ProgressParams
    from toolpost.types.notices import ResourceUpdatedParams as ResourceUpdatedParams
    from toolpost.types.notices import SubscriptionFilter as SubscriptionFilter
    from toolpost.types.prompts import CompleteParams as CompleteParams
    from toolpost.types.prompts import CompleteResult as CompleteResult
    from toolpost.types.prompts import Completion as Completion
    from toolpost.types.prompts import CompletionArgument as CompletionArgument
    from toolpost.types.prompts import CompletionContext as CompletionContext
    from toolpost.types.prompts import GetPromptParams as GetPromptParams
    from toolpost.types.prompts import GetPromptResult as GetPromptResult
    from toolpost.types.prompts import ListPromptsResult as ListPromptsResult
    from toolpost.types.prompts import Prompt as Prompt
    from toolpost.types.prompts import PromptArgument as PromptArgument
    from toolpost.types.prompts import PromptMessage as PromptMessage
    from toolpost.types.prompts import PromptReference as PromptReference
    from toolpost.types.prompts import Reference as Reference
    from toolpost.types.prompts import ResourceReference as ResourceReference
    from toolpost.types.resources import ListResourcesResult as ListResourcesResult
    from toolpost.types.resources import ListResourceTemplatesResult as ListResourceTemplatesResult
    from toolpost.types.resources import ReadResourceParams as ReadResourceParams
    from toolpost.types.resources import ReadResourceResult as ReadResourceResult
    from toolpost.types.resources import Resource as Resource
    from toolpost.types.resources import ResourceTemplate as ResourceTemplate
    from toolpost.types.resources import SubscribeParams as SubscribeParams
    from toolpost.types.tasks import CreateTaskResult as CreateTaskResult
    from toolpost.types.tasks import ListTasksResult as ListTasksResult
    from toolpost.types.tasks import RelatedTask as RelatedTask
    from toolpost.types.tasks import Task as Task
    from toolpost.types.tasks import TaskParams as TaskParams
    from toolpost.types.tasks import TaskPayload as TaskPayload
    from toolpost.types.tasks import TaskResult as TaskResult
    from toolpost.types.tasks import TaskStatus as TaskStatus
    from toolpost.types.tasks import TaskStatusParams as TaskStatusParams
    from toolpost.types.tools import CallToolParams as CallToolParams
    from toolpost.types.tools import CallToolResult as CallToolResult
    from toolpost.types.tools import ListToolsResult as ListToolsResult
    from toolpost.types.tools import TaskMetadata as TaskMetadata
    from toolpost.types.tools import Tool as Tool
    from toolpost.types.tools import ToolAnnotations as ToolAnnotations
    from toolpost.types.tools import ToolExecution as ToolExecution

_HOMES: Final = {
    "asks": (
        "ClientRequestParams",
        "BooleanSchema",
        "Choice",
        "ChoiceItems",
        "CreateMessageParams",
        "CreateMessageResult",
        "ElicitParams",
        "ElicitResult",
        "EnumSchema",
        "FormSchema",
        "ListRootsResult",
        "ModelHint",
        "ModelPreferences",
        "MultiEnumSchema",
        "NumberSchema",
        "PropertySchema",
        "Root",
        "SamplingMessage",
        "StringSchema",
        "ToolChoice",
        "UnknownSchema",
    ),
    "base": (
        "Annotations",
        "Icon",
        "JSON",
        "Meta",
        "Number",
        "OpenUnion",
        "Params",
        "ProgressToken",
        "Raw",
        "RequestId",
        "Result",
        "Role",
        "UNSET",
        "Unset",
        "WireStruct",
    ),
    "content": (
        "AudioContent",
        "Blocks",
        "Content",
        "EmbeddedResource",
        "ImageContent",
        "CONTENT_TYPES",
        "ResourceContents",
        "ResourceLink",
        "TextContent",
        "ToolResultContent",
        "ToolUseContent",
        "UnknownContent",
    ),
    "inputs": (
        "InputResponseParams",
        "InputRequest",
        "InputRequiredResult",
    ),
    "lifecycle": (
        "CLIENT_CAPABILITIES",
        "CLIENT_INFO",
        "CacheableResult",
        "ClientCapabilities",
        "ClientTasksCapability",
        "ClientTasksRequests",
        "DiscoverResult",
        "ElicitationCapability",
        "ElicitationTasks",
        "Implementation",
        "InitializeParams",
        "InitializeResult",
        "LOG_LEVEL",
        "ListCapability",
        "LogLevel",
        "PROTOCOL_VERSION",
        "PaginatedResult",
        "PaginatedRequestParams",
        "RELATED_TASK",
        "RequestMeta",
        "ResourcesCapability",
        "SERVER_INFO",
        "SUBSCRIPTION_ID",
        "SamplingCapability",
        "SamplingTasks",
        "ServerCapabilities",
        "ServerTasksCapability",
        "ServerTasksRequests",
        "SetLevelParams",
        "ToolsTasks",
    ),
    "notices": (
        "AcknowledgedParams",
        "CancelledParams",
        "ElicitationCompleteParams",
        "ListenParams",
        "ListenResult",
        "LogParams",
        "NotificationParams",
        "ProgressParams",
        "ResourceUpdatedParams",
        "SubscriptionFilter",
    ),
    "prompts": (
        "CompleteParams",
        "CompleteResult",
        "Completion",
        "CompletionArgument",
        "CompletionContext",
        "GetPromptParams",
        "GetPromptResult",
        "ListPromptsResult",
        "Prompt",
        "PromptArgument",
        "PromptMessage",
        "PromptReference",
        "Reference",
        "ResourceReference",
    ),
    "resources": (
        "ListResourceTemplatesResult",
        "ListResourcesResult",
        "ReadResourceParams",
        "ReadResourceResult",
        "Resource",
        "ResourceTemplate",
        "SubscribeParams",
    ),
    "tasks": (
        "CreateTaskResult",
        "ListTasksResult",
        "RelatedTask",
        "Task",
        "TaskParams",
        "TaskPayload",
        "TaskResult",
        "TaskStatus",
        "TaskStatusParams",
    ),
    "tools": (
        "CallToolParams",
        "CallToolResult",
        "ListToolsResult",
        "TaskMetadata",
        "Tool",
        "ToolAnnotations",
        "ToolExecution",
    ),
}
_HOME: Final = {name: f"toolpost.types.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "CLIENT_CAPABILITIES",
    "CLIENT_INFO",
    "CONTENT_TYPES",
    "JSON",
    "LOG_LEVEL",
    "PROTOCOL_VERSION",
    "RELATED_TASK",
    "SERVER_INFO",
    "SUBSCRIPTION_ID",
    "UNSET",
    "AcknowledgedParams",
    "Annotations",
    "AudioContent",
    "Blocks",
    "BooleanSchema",
    "CacheableResult",
    "CallToolParams",
    "CallToolResult",
    "CancelledParams",
    "Choice",
    "ChoiceItems",
    "ClientCapabilities",
    "ClientRequestParams",
    "ClientTasksCapability",
    "ClientTasksRequests",
    "CompleteParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "Content",
    "CreateMessageParams",
    "CreateMessageResult",
    "CreateTaskResult",
    "DiscoverResult",
    "ElicitParams",
    "ElicitResult",
    "ElicitationCapability",
    "ElicitationCompleteParams",
    "ElicitationTasks",
    "EmbeddedResource",
    "EnumSchema",
    "FormSchema",
    "GetPromptParams",
    "GetPromptResult",
    "Icon",
    "ImageContent",
    "Implementation",
    "InitializeParams",
    "InitializeResult",
    "InputRequest",
    "InputRequiredResult",
    "InputResponseParams",
    "ListCapability",
    "ListPromptsResult",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ListRootsResult",
    "ListTasksResult",
    "ListToolsResult",
    "ListenParams",
    "ListenResult",
    "LogLevel",
    "LogParams",
    "Meta",
    "ModelHint",
    "ModelPreferences",
    "MultiEnumSchema",
    "NotificationParams",
    "Number",
    "NumberSchema",
    "OpenUnion",
    "PaginatedRequestParams",
    "PaginatedResult",
    "Params",
    "ProgressParams",
    "ProgressToken",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "PromptReference",
    "PropertySchema",
    "Raw",
    "ReadResourceParams",
    "ReadResourceResult",
    "Reference",
    "RelatedTask",
    "RequestId",
    "RequestMeta",
    "Resource",
    "ResourceContents",
    "ResourceLink",
    "ResourceReference",
    "ResourceTemplate",
    "ResourceUpdatedParams",
    "ResourcesCapability",
    "Result",
    "Role",
    "Root",
    "SamplingCapability",
    "SamplingMessage",
    "SamplingTasks",
    "ServerCapabilities",
    "ServerTasksCapability",
    "ServerTasksRequests",
    "SetLevelParams",
    "StringSchema",
    "SubscribeParams",
    "SubscriptionFilter",
    "Task",
    "TaskMetadata",
    "TaskParams",
    "TaskPayload",
    "TaskResult",
    "TaskStatus",
    "TaskStatusParams",
    "TextContent",
    "Tool",
    "ToolAnnotations",
    "ToolChoice",
    "ToolExecution",
    "ToolResultContent",
    "ToolUseContent",
    "ToolsTasks",
    "UnknownContent",
    "UnknownSchema",
    "Unset",
    "WireStruct",
]


if not TYPE_CHECKING:  # a checker that knows of it would take any name for good

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'toolpost.types' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


__dir__ = partial(sorted, __all__)
