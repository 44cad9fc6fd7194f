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

__all__ = ["about_params", "about_result", "finite", "progress_text"]

MAX_ABOUT: Final = 72
"""How many characters are told: a line of a terminal has to hold more than this."""

FAR: Final = 1e300
"""Further than any progress comes."""


def about_params(params: Any) -> str:
    """What a request or a notice is about; empty if its method tells it all."""
    return _told(_PARAMS, params)


def about_result(result: Any) -> str:
    """What a result says; empty if nothing but its size is to be told."""
    return _told(_RESULTS, result)


def _told(table: dict[type, Callable[[Any], str]], value: object) -> str:
    tell = table.get(type(value))
    if tell is None:
        return ""
    return shorten(" ".join(tell(value).split()), MAX_ABOUT)


def _greeting(params: InitializeParams) -> str:
    return f"{params.client_info.name} {params.client_info.version}, offers {params.protocol_version}"


def _welcome(result: InitializeResult) -> str:
    return f"{result.server_info.name} {result.server_info.version}, speaks {result.protocol_version}"


def _spoken(versions: Sequence[str]) -> str:
    newest, older = max(versions, default="nothing"), len(versions) - 1
    return f"speaks {newest}" + (f" and {older} older" if older > 0 else "")


def progress_text(params: ProgressParams) -> str:
    """How far something has come, on one line."""
    total = "" if params.total is None else f"/{finite(params.total):g}"
    return " ".join([f"{finite(params.progress):g}{total}", *(params.message or "").split()])


def finite(number: Number) -> Number:
    """A number that can be divided and shown: an integer on the wire may be too large for either."""
    return max(-FAR, min(number, FAR))


def _log(params: LogParams) -> str:
    text = params.data if isinstance(params.data, str) else encode(params.data).decode()
    return f"{params.level}: {text}"


def _cancelled(params: CancelledParams) -> str:
    reason = "" if params.reason is None else f": {params.reason}"
    return f"of {params.request_id}{reason}"


def _items(count: int, more: str | None) -> str:
    return f"{count} item{'' if count == 1 else 's'}{'' if more is None else ', and more pages'}"


def _wishes(result: InputRequiredResult) -> str:
    return "wants " + (", ".join(ask.method for ask in (result.input_requests or {}).values()) or "a retry")


_PARAMS: Final[dict[type, Callable[[Any], str]]] = {
    InitializeParams: _greeting,
    CallToolParams: lambda params: params.name,
    GetPromptParams: lambda params: params.name,
    ReadResourceParams: lambda params: params.uri,
    SubscribeParams: lambda params: params.uri,
    ResourceUpdatedParams: lambda params: params.uri,
    CompleteParams: lambda params: params.argument.name,
    SetLevelParams: lambda params: params.level,
    ElicitParams: lambda params: params.message,
    CreateMessageParams: lambda params: f"{len(params.messages)} message(s)",
    ProgressParams: progress_text,
    LogParams: _log,
    CancelledParams: _cancelled,
}

_RESULTS: Final[dict[type, Callable[[Any], str]]] = {
    InitializeResult: _welcome,
    DiscoverResult: lambda result: _spoken(result.supported_versions),
    ListToolsResult: lambda result: _items(len(result.tools), result.next_cursor),
    ListPromptsResult: lambda result: _items(len(result.prompts), result.next_cursor),
    ListResourcesResult: lambda result: _items(len(result.resources), result.next_cursor),
    ListResourceTemplatesResult: lambda result: _items(len(result.resource_templates), result.next_cursor),
    ElicitResult: lambda result: result.action,
    InputRequiredResult: _wishes,
}
