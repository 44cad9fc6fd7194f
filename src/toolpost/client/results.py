"""What a tool said, as the caller wants to see it: text, data, data of a type.

Turns JSON into types by msgspec, and by their own `model_validate` for models that bring one. Checks no
schema: that is the business of `outputs`.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec

from toolpost.errors import MCPError, RemoteProtocolError
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.types.base import JSON, UNSET, Meta, Open, Unset, dec_hook
from toolpost.types.content import Content, TextContent
from toolpost.types.tools import CallToolResult

__all__ = ["ToolResult", "joined_text", "tool_result", "typed", "typed_json"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ToolResult(Generic[T]):
    """What a tool said."""

    data: T
    """The structured result; None if there is none."""
    content: list[Content]
    """The blocks."""
    structured_content: JSON | Unset
    """The structured result as it came; `UNSET` if there is none."""
    is_error: bool
    """Whether the tool says that it failed."""
    meta: Meta | None
    """Its `_meta`."""
    raw: bytes | None
    """The bytes as they came, with all that nobody here knows."""

    @property
    def text(self) -> str:
        """The text blocks, joined by line breaks."""
        return joined_text(self.content)


def joined_text(content: list[Content]) -> str:
    """The text blocks, joined by line breaks."""
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


def tool_result(name: str, result: CallToolResult, kind: type[T] | None) -> ToolResult[Any]:
    """The result of a tool, with its data as a `kind`, if one is given.

    Without structured content, as from a server of an older revision, typed data is read from the text.

    Raises:
        RemoteProtocolError: the data is not of that type.
    """
    structured = result.structured_content
    data: JSON = None if structured is UNSET else structured
    if kind is not None and not result.is_error:
        if structured is UNSET:
            data = _from_text(joined_text(result.content), kind)
        data = typed(data, kind, f"the result of tool {name!r}")
    return ToolResult(data, result.content, structured, bool(result.is_error), result.meta, result.raw)


_ANY: Reader[JSON] = Reader(cast("type[JSON]", Any))


def _from_text(text: str, kind: type) -> JSON:
    """The JSON that a text holds; the text itself where that is wanted, or where it holds none."""
    if kind is str:
        return text
    try:
        return _ANY(text.encode())
    except Unfit:
        return text


def typed(value: JSON, kind: type[T], what: str) -> T:
    """A piece of JSON as a value of a type.

    Raises:
        RemoteProtocolError: it is not of that type.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=_foreign)
    except ValueError as error:
        name = getattr(kind, "__name__", str(kind))
        raise RemoteProtocolError(f"{what} is not a {name}: {error}") from error


def typed_json(raw: bytes, kind: type[T], what: str) -> T:
    """The bytes of a piece of JSON as a value of a type.

    Raises:
        RemoteProtocolError: they are not of that type.
    """
    try:
        value = _ANY(raw)
    except Unfit as error:
        raise RemoteProtocolError(f"{what} cannot be read: {error}") from error
    return typed(value, kind, what)


def _foreign(kind: type[Any], value: JSON) -> Any:
    """A value of a type that msgspec does not know."""
    validate = getattr(kind, "model_validate", None)  # pydantic's models have it; pydantic is not imported
    if callable(validate):
        return validate(value)
    if issubclass(kind, Open):
        return dec_hook(kind, value)
    raise MCPError(f"result_type: a {kind.__name__} cannot be made from JSON")
