"""Turns what a tool returns into a result: content for the model, and structured content with its schema.

Owns the conversion of Python values, the output schema, and the check of values against it. The caller knows
what the peer's revision allows, and passes `wrap`.
"""

import inspect
import sys
from collections import abc
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from math import isfinite
from typing import Annotated, Any, Final, Never, NoReturn, Self, TypeAlias, cast, get_args, get_origin

import msgspec
from msgspec import UNSET

from toolpost.errors import MCPError
from toolpost.protocol import jsonrpc
from toolpost.server.signature.compiled_types import ENCODER, dec_hook, enc_hook
from toolpost.server.signature.names import UNION_TYPES, AnnotationScope
from toolpost.server.signature.pydantic_types import PydanticType
from toolpost.server.signature.schema_builder import (
    RESULT_KEY,
    compile_validator,
    make_root_schema,
    wrap_schema,
)
from toolpost.server.signature.type_compiler import TypeCompiler
from toolpost.server.signature.validation import SignatureError, parse_issues, prefix_signature_errors
from toolpost.types.base import JSON, Raw
from toolpost.types.content import Content, TextContent
from toolpost.types.tools import CallToolResult

_CONTENT_TYPES: Final = (Content, bytes)
_LIST_TYPES: Final = frozenset({list, tuple, abc.Sequence, abc.Iterable, abc.Collection})
_WITHOUT_SCHEMA: Final = (str, None, type(None), Never, NoReturn)
"""What is promised without a schema: text, nothing, and that it never returns."""

_WRAPPED_META: Final = {"toolpost/wrapped": True}
"""In `_meta`, so that clients can undo it."""

_SCALAR_TYPES: Final = frozenset({int, bool})
"""What is the same before it is written and after it was read."""

_SUSPECT_BYTES: Final = (b"\n", b"\r", b"NaN", b"Infinity")
"""In what others have written: lines, which would break those of a channel, or numbers that are none."""

OutputCheck: TypeAlias = Callable[[bytes], Any]
"""Returns if the JSON keeps the output schema; raises if it does not."""


class OutputEncoder(msgspec.Struct, frozen=True):
    """How a value becomes JSON. Both raise if they cannot."""

    encode: Callable[[Any], bytes]
    to_builtins: Callable[[Any], JSON]
    """The same before it is text: in JSON a number that is none is null, and nobody would notice."""


class OutputError(MCPError):
    """A tool returned what it did not promise, or what cannot be sent. It is the author's to mend."""


class ResultConverter:
    """What one tool returns. Made by `for_function` or `for_schema`.

    A `str` is one block of text, `None` no block, and bytes are a file, because nothing tells what else they
    are: an embedded resource. Images, audio, files and content blocks stay what they are, alone or in a list.
    Everything else is structured content, with its JSON as a block of text.

    Attributes:
        output_schema: the JSON Schema of the structured content; None if the tool promises none.
        is_wrapped: whether a peer that knows only objects gets the value under the key `result`.
        wrapped_schema: the output schema for such a peer.
    """

    def __init__(
        self,
        schema: dict[str, JSON] | None,
        check: OutputCheck | None = None,
        writer: OutputEncoder | None = None,
    ) -> None:
        self.output_schema = schema
        self.is_wrapped = schema is not None and schema.get("type") != "object"
        self.wrapped_schema = wrap_schema(schema) if schema is not None and self.is_wrapped else schema
        self._check = check
        self._encoder = writer
        self._is_block_list = False  # whether a list is one of blocks, whatever is in it
        self._exact_type: Any = None  # a type that is promised, and whose values need no look: 0.6 us less

    @classmethod
    def for_function(cls, fn: Callable[..., Any]) -> Self:
        """What a function says that it returns, by its annotation.

        `str`, `bytes`, media and content blocks are content without a schema, also in lists and unions, and
        so is what never returns.
        Anything else is structured content that keeps the schema of its type. Without an annotation, or with
        `Any`, there is no schema.

        Raises:
            SignatureError: what it returns cannot be said in JSON.
        """
        annotation = inspect.signature(fn).return_annotation
        if annotation is inspect.Signature.empty:
            return cls(None)
        scope = AnnotationScope(fn)
        with prefix_signature_errors(f"`{getattr(fn, '__name__', repr(fn))}`: return value"):
            annotation = scope.evaluate(annotation)
            if not _is_content(annotation):
                returns = cls(*_compile_output_type(annotation, scope))
                returns._exact_type = annotation if annotation is int or annotation is bool else None
                return returns
        returns = cls(None)
        returns._is_block_list = _is_block(annotation)
        return returns

    @classmethod
    def for_schema(cls, schema: dict[str, JSON] | None, name: str) -> Self:
        """What a tool returns whose output schema the author wrote.

        Args:
            schema: the schema.
            name: of the tool, for the text of an error.

        Raises:
            MCPError: jsonschema-rs is not installed, so that nobody could check the output.
            ValueError: it is no valid schema.
        """
        return cls(schema, None if schema is None else _make_validator(schema, name))

    def convert(self, value: Any, *, wrap: bool = False) -> CallToolResult:
        """The result of a call.

        Args:
            value: what the function returned.
            wrap: whether the peer takes only objects as structured content.

        Raises:
            OutputError: the value is not what was promised, or cannot be sent.
        """
        text = self.encode_structured(value)
        if text is not None:
            plain = value if type(value) in _SCALAR_TYPES else msgspec.json.decode(text)
            return self.build_structured_result([TextContent(text.decode())], plain, wrap=wrap)
        if not isinstance(value, CallToolResult):
            return self._convert_untyped(value)
        _encode_output(value, _WIRE_ENCODER)
        if self._check is not None and not value.is_error:
            self._verify(_encode_output(value.structured_content))
        if wrap and self.is_wrapped and value.structured_content is not UNSET:
            value = copy(value)
            value.structured_content = {RESULT_KEY: value.structured_content}
            value.meta = {**(value.meta or {}), **_WRAPPED_META}
        return value

    def encode_structured(self, value: Any) -> bytes | None:
        """What the function returned, as the JSON that was promised; None if it is something else.

        Raises:
            OutputError: it is not what was promised, or cannot be sent.
        """
        if type(value) is self._exact_type:
            try:
                return ENCODER.encode(value)
            except ValueError as error:  # it has more digits than Python writes
                raise OutputError(f"what the tool returned cannot be sent: {error}") from error
        if self._check is None or isinstance(value, CallToolResult):
            return None
        text = _encode_output(value, self._encoder or _VALUE_ENCODER)
        if self._encoder is None:
            self._verify(text)
        return _encode_output(_decode_output(text)) if any(map(text.__contains__, _SUSPECT_BYTES)) else text

    def build_structured_result(self, content: list[Content], plain: JSON, *, wrap: bool) -> CallToolResult:
        """The result that has this structure, as the peer takes it."""
        if wrap and self.is_wrapped:
            return CallToolResult(
                content=content, structured_content={RESULT_KEY: plain}, meta={**_WRAPPED_META}
            )
        return CallToolResult(content=content, structured_content=plain)

    def _convert_untyped(self, value: Any) -> CallToolResult:
        """The result of a tool that has promised nothing."""
        if value is None:
            return CallToolResult(content=[])
        if isinstance(value, (str, *_get_content_types())):
            return CallToolResult(content=[_to_content_block(value)])
        if isinstance(value, list | tuple) and (
            self._is_block_list
            or any(isinstance(item, _get_content_types()) for item in cast("Iterable[Any]", value))
        ):
            return CallToolResult(content=[_to_content_block(item) for item in cast("Iterable[Any]", value)])
        text = _encode_output(value)
        plain = msgspec.json.decode(text)
        if isinstance(plain, dict):
            return CallToolResult(
                content=[TextContent(text.decode())], structured_content=cast("JSON", plain)
            )
        return CallToolResult(content=[TextContent(plain if isinstance(plain, str) else text.decode())])

    def _verify(self, text: bytes) -> None:
        try:
            if self._check is not None:
                self._check(text)
        except Exception as error:  # a validator of the author's type may raise anything
            told = "; ".join(map(str, parse_issues(error)))
            raise OutputError(f"what the tool returned is not what it promised: {told}") from error


# --------------------------------------------------------------------- values


def _get_content_types() -> tuple[type[Any], ...]:
    """What is content by itself. Nobody can have made a picture or a file before these were loaded."""
    media = sys.modules.get("toolpost.server.registry.media")
    return _CONTENT_TYPES if media is None else (*_CONTENT_TYPES, media.Media)


def _to_content_block(value: Any) -> Content:
    """One block of content. Bytes become a file: nothing tells what else they could be."""
    if isinstance(value, str):
        if not value.isascii():
            _encode_output(value)  # it may hold half a character, which cannot be sent
        return TextContent(value)
    if isinstance(value, bytes):
        from toolpost.server.registry.media import File  # noqa: PLC0415 - 0.2 ms of a start

        value = File(value)
    if not isinstance(value, Content) and isinstance(value, _get_content_types()):
        return value.content()
    if isinstance(value, Content):
        _encode_output(value, _WIRE_ENCODER)
        return value
    return TextContent(_encode_output(value).decode())


def _to_builtins(value: Any) -> JSON:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_builtins_hook)


def _builtins_hook(value: Any) -> JSON:
    return msgspec.json.decode(value) if isinstance(value, Raw) else enc_hook(value)


_VALUE_ENCODER: Final = OutputEncoder(ENCODER.encode, _to_builtins)
_WIRE_ENCODER: Final = OutputEncoder(jsonrpc.encode, _to_builtins)


def _encode_output(value: Any, writer: OutputEncoder = _VALUE_ENCODER) -> bytes:
    try:
        text = writer.encode(value)
        if b"null" in text:
            _check_numbers(writer.to_builtins(value))
    except Exception as error:  # whatever the value's own code raises
        raise OutputError(f"what the tool returned cannot be sent: {error}") from error
    return text


def _decode_output(text: bytes) -> JSON:
    """What stands in a text that may be no JSON."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise OutputError(f"what the tool returned cannot be sent: {error}") from error


def _check_numbers(value: JSON) -> None:
    """Return if JSON can say all numbers in a value."""
    rest = [value]
    while rest:
        it = rest.pop()
        if isinstance(it, float):
            if not isfinite(it):
                raise ValueError(f"JSON has no number {it}")
        elif isinstance(it, dict):
            rest += cast("dict[str, JSON]", it).values()
        elif isinstance(it, list | tuple):
            rest += cast("list[JSON]", it)


# --------------------------------------------------------------------- annotations


def _is_content(it: Any) -> bool:
    """Whether a return annotation means content, or says nothing, so that there is no schema."""
    if get_origin(it) is Annotated:
        return _is_content(get_args(it)[0])
    members = get_args(it) if get_origin(it) in UNION_TYPES else (it,)
    return all(member in _WITHOUT_SCHEMA for member in members) or any(
        member is Any or member is object or _is_block(member) for member in members
    )


def _is_block(it: Any) -> bool:
    """Whether a type is a block, a whole result, or a list with blocks in it."""
    origin = get_origin(it)
    if origin is Annotated or origin in UNION_TYPES or origin in _LIST_TYPES:
        return any(map(_is_block, get_args(it)))
    return isinstance(it, type) and issubclass(it, (*_get_content_types(), CallToolResult))


def _compile_output_type(
    annotation: Any, scope: AnnotationScope
) -> tuple[dict[str, JSON], OutputCheck, OutputEncoder | None]:
    """The schema of a type, what checks a value against it, and what writes one if msgspec does not."""
    survey = TypeCompiler(scope, output=True)
    shape = survey.compile_type(annotation)
    schema = make_root_schema(shape.schema, survey.defs)
    if survey.uses_pydantic and not survey.msgspec_limit_count:
        # Pydantic writes what it would not read back, such as computed fields: it has the whole, if it can.
        with suppress(SignatureError):
            guest = PydanticType(annotation, output=True)
            return schema, guest.check, OutputEncoder(guest.encode, guest.to_builtins)
    return schema, msgspec.json.Decoder(shape.type, dec_hook=dec_hook).decode, None


def _make_validator(schema: dict[str, JSON], name: str) -> OutputCheck:
    """What checks JSON against a schema that the author wrote."""
    validate = compile_validator(schema, f"the output schema of {name!r}").validate
    return lambda text: validate(msgspec.json.decode(text))
