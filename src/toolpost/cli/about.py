"""What a message is about, in a few words: the tool, the URI, how far, who.

A table from the type of parameters or of a result to its words. Knows nothing of who said it, nor of how it
is shown.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from toolpost.protocol.jsonrpc import encode, shorten
from toolpost.types.asks import CreateMessageParams, ElicitParams, ElicitResult
from toolpost.types.base import Number
from toolpost.types.inputs import InputRequiredResult
from toolpost.types.lifecycle import DiscoverResult, InitializeParams, InitializeResult, SetLevelParams
from toolpost.types.notices import CancelledParams, LogParams, ProgressParams, ResourceUpdatedParams
from toolpost.types.prompts import CompleteParams, GetPromptParams, ListPromptsResult
from toolpost.types.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    SubscribeParams,
)
from toolpost.types.tools import CallToolParams, ListToolsResult

__all__ = ["clamp_number", "format_progress", "summarize_params", "summarize_result"]

MAX_SUMMARY_LENGTH: Final = 72
"""How many characters are told: a line of a terminal has to hold more than this."""

MAX_PROGRESS: Final = 1e300
"""Further than any progress comes."""


def summarize_params(params: Any) -> str:
    """What a request or a notice is about; empty if its method tells it all."""
    return _summarize(_PARAMS_SUMMARIES, params)


def summarize_result(result: Any) -> str:
    """What a result says; empty if nothing but its size is to be told."""
    return _summarize(_RESULT_SUMMARIES, result)


def _summarize(table: dict[type, Callable[[Any], str]], value: object) -> str:
    tell = table.get(type(value))
    if tell is None:
        return ""
    return shorten(" ".join(tell(value).split()), MAX_SUMMARY_LENGTH)


def _summarize_initialize(params: InitializeParams) -> str:
    return f"{params.client_info.name} {params.client_info.version}, offers {params.protocol_version}"


def _summarize_initialize_result(result: InitializeResult) -> str:
    return f"{result.server_info.name} {result.server_info.version}, speaks {result.protocol_version}"


def _summarize_versions(versions: Sequence[str]) -> str:
    newest, older = max(versions, default="nothing"), len(versions) - 1
    return f"speaks {newest}" + (f" and {older} older" if older > 0 else "")


def format_progress(params: ProgressParams) -> str:
    """How far something has come, on one line."""
    total = "" if params.total is None else f"/{clamp_number(params.total):g}"
    return " ".join([f"{clamp_number(params.progress):g}{total}", *(params.message or "").split()])


def clamp_number(number: Number) -> Number:
    """A number that can be divided and shown: an integer on the wire may be too large for either."""
    return max(-MAX_PROGRESS, min(number, MAX_PROGRESS))


def _summarize_log(params: LogParams) -> str:
    text = params.data if isinstance(params.data, str) else encode(params.data).decode()
    return f"{params.level}: {text}"


def _summarize_cancellation(params: CancelledParams) -> str:
    reason = "" if params.reason is None else f": {params.reason}"
    return f"of {params.request_id}{reason}"


def _summarize_list(count: int, more: str | None) -> str:
    return f"{count} item{'' if count == 1 else 's'}{'' if more is None else ', and more pages'}"


def _summarize_client_requests(result: InputRequiredResult) -> str:
    return "wants " + (", ".join(ask.method for ask in (result.input_requests or {}).values()) or "a retry")


_PARAMS_SUMMARIES: Final[dict[type, Callable[[Any], str]]] = {
    InitializeParams: _summarize_initialize,
    CallToolParams: lambda params: params.name,
    GetPromptParams: lambda params: params.name,
    ReadResourceParams: lambda params: params.uri,
    SubscribeParams: lambda params: params.uri,
    ResourceUpdatedParams: lambda params: params.uri,
    CompleteParams: lambda params: params.argument.name,
    SetLevelParams: lambda params: params.level,
    ElicitParams: lambda params: params.message,
    CreateMessageParams: lambda params: f"{len(params.messages)} message(s)",
    ProgressParams: format_progress,
    LogParams: _summarize_log,
    CancelledParams: _summarize_cancellation,
}

_RESULT_SUMMARIES: Final[dict[type, Callable[[Any], str]]] = {
    InitializeResult: _summarize_initialize_result,
    DiscoverResult: lambda result: _summarize_versions(result.supported_versions),
    ListToolsResult: lambda result: _summarize_list(len(result.tools), result.next_cursor),
    ListPromptsResult: lambda result: _summarize_list(len(result.prompts), result.next_cursor),
    ListResourcesResult: lambda result: _summarize_list(len(result.resources), result.next_cursor),
    ListResourceTemplatesResult: lambda result: _summarize_list(
        len(result.resource_templates), result.next_cursor
    ),
    ElicitResult: lambda result: result.action,
    InputRequiredResult: _summarize_client_requests,
}
