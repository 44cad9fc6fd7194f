"""What a tool said, as the caller wants to see it: text, data, data of a type.

Turns JSON into types by msgspec, and by their own `model_validate` for models that bring one. Checks no
schema: that is the business of `output_schemas`.
"""

from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from toolpost.client.outputs import ToolOutcome
from toolpost.errors import MCPError, RemoteProtocolError
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.types.base import JSON, UNSET, Meta, OpenUnion, Struct, Unset, dec_hook
from toolpost.types.content import Content, TextContent

__all__ = ["ToolResult", "convert_value", "decode_value", "join_text", "make_tool_result"]

T = TypeVar("T")


_WRAPPED_META_KEY: Final = "toolpost/wrapped"
"""In `_meta`: the value is no object, and stands in one only because this revision allows nothing else."""
_WRAPPER_FIELD: Final = "result"
"""Where it stands there."""


class ToolResult(Struct, Generic[T], frozen=True):
    """What a tool said.

    Attributes:
        data: what the tool returned, the same in every revision that has structured content: a value that is
            no object, such as a list, is taken out of the object that older ones of these revisions demand.
            Without structured content it is `text`, or None if there is no text either. With `result_type=`
            it is of that type, and read from the JSON in the text where nothing else is there.
        content: the blocks: text, images, audio, resources.
        structured_content: the structured result as it came; `UNSET` if there is none.
        is_error: whether the tool says that it failed; only with `raise_on_error=False`.
        meta: its `_meta`; None if there is none.
        raw: the bytes as they came, with all that nobody here knows.
        text: the text blocks, joined by line breaks; empty if there is none.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... def stock() -> list[str]:
        ...     return ["pen", "ink"]
        >>> with SyncClient(server) as mcp:
        ...     result = mcp.call_tool("stock")
        >>> result.data, result.is_error
        (['pen', 'ink'], False)
    """

    data: T
    content: list[Content]
    structured_content: JSON | Unset
    is_error: bool
    meta: Meta | None
    raw: bytes | None

    @property
    def text(self) -> str:
        """The text blocks, joined by line breaks."""
        return join_text(self.content)


def join_text(content: list[Content]) -> str:
    """The text blocks, joined by line breaks."""
    if len(content) == 1 and type(content[0]) is TextContent:  # as mostly, for which nothing has to be joined
        return content[0].text
    return "\n".join([block.text for block in content if isinstance(block, TextContent)])


def make_tool_result(
    name: str, result: ToolOutcome, kind: type[T] | None, *, wrapped: bool = False
) -> ToolResult[Any]:
    """The result of a tool, with its data as a `kind`, if one is given.

    Args:
        name: the tool.
        result: what it said.
        kind: what to make of its data. What does not fit is looked into: the JSON in a text, the value in an
            object with nothing but a `result`, as some servers send it.
        wrapped: whether the tool's output schema says that such an object is not the data itself.

    Raises:
        RemoteProtocolError: the data is not of that type.
    """
    structured, failed = result.structured_content, bool(result.is_error)
    look_into = _unwrap
    data: JSON = structured
    if structured is UNSET:
        data = None if failed else _text_or_none(result.content)
        look_into = _parse_json
    elif wrapped or (result.meta is not None and _has_wrapped_mark(result.meta)):
        data = _unwrap(structured)
    if kind is not None and not failed:
        what = f"the result of tool {name!r}"
        try:
            data = convert_value(data, kind, what)
        except RemoteProtocolError:
            inner = look_into(data)
            if inner is data:
                raise
            data = convert_value(inner, kind, what)
    return ToolResult(data, result.content, structured, failed, result.meta, result.raw)


def _text_or_none(content: list[Content]) -> str | None:
    """The text; None if there is no block of it."""
    return join_text(content) if any(isinstance(block, TextContent) for block in content) else None


def _has_wrapped_mark(meta: Meta) -> bool:
    """Whether a server says that the value is wrapped, in our way or in that of FastMCP."""
    theirs = meta.get("fastmcp")
    return meta.get(_WRAPPED_META_KEY) is True or (
        isinstance(theirs, dict) and cast("dict[str, JSON]", theirs).get("wrap_result") is True
    )


def _unwrap(value: JSON) -> JSON:
    """The value in an object that holds nothing else than a `result`; else the value itself."""
    if isinstance(value, dict):
        fields = cast("dict[str, JSON]", value)
        return fields[_WRAPPER_FIELD] if fields.keys() == {_WRAPPER_FIELD} else fields
    return value


_ANY_JSON: JSONReader[JSON] = JSONReader(cast("type[JSON]", Any))


def _parse_json(text: JSON) -> JSON:
    """The JSON that a text holds; else the text itself."""
    try:
        return text if text is None else _ANY_JSON(text.encode())
    except InvalidJSONValue:
        return text


def convert_value(value: JSON, kind: type[T], what: str) -> T:
    """A piece of JSON as a value of a type.

    Raises:
        RemoteProtocolError: it is not of that type.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=_decode_foreign_type)
    except ValueError as error:
        name = getattr(kind, "__name__", str(kind))
        raise RemoteProtocolError(f"{what} is not a {name}: {error}") from error


def decode_value(raw: bytes, kind: type[T], what: str) -> T:
    """The bytes of a piece of JSON as a value of a type.

    Raises:
        RemoteProtocolError: they are not of that type.
    """
    try:
        value = _ANY_JSON(raw)
    except InvalidJSONValue as error:
        raise RemoteProtocolError(f"{what} cannot be read: {error}") from error
    return convert_value(value, kind, what)


def _decode_foreign_type(kind: type[Any], value: JSON) -> Any:
    """A value of a type that msgspec does not know."""
    validate = getattr(kind, "model_validate", None)  # pydantic's models have it; pydantic is not imported
    if callable(validate):
        return validate(value)
    if issubclass(kind, OpenUnion):
        return dec_hook(kind, value)
    raise MCPError(f"result_type: a {kind.__name__} cannot be made from JSON")
