"""Converts the return value of a tool to a result: content, and structured content with its schema.

Owns the output schema, and the check of values against it.
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
from toolpost.server.signature.compiled_types import ENCODER, PydanticType, dec_hook, enc_hook
from toolpost.server.signature.errors import SignatureError, parse_issues, prefix_signature_errors
from toolpost.server.signature.inspection import UNION_TYPES, AnnotationScope
from toolpost.server.signature.schema_parts import compile_validator, make_root_schema
from toolpost.server.signature.type_compiler import TypeCompiler
from toolpost.types.base import JSON, Raw
from toolpost.types.content import Content, TextContent
from toolpost.types.tools import CallToolResult

_CONTENT_TYPES: Final = (Content, bytes)
_LIST_TYPES: Final = frozenset({list, tuple, abc.Sequence, abc.Iterable, abc.Collection})
_WITHOUT_SCHEMA: Final = (str, None, type(None), Never, NoReturn)
RESULT_KEY: Final = "result"
"""The key of a wrapped value, for peers that accept only objects."""
_WRAPPED_META: Final = {"toolpost/wrapped": True}  # in `_meta`, so that clients can unwrap the value
_EXACT_TYPES: Final = frozenset({int, bool})  # always valid, and equal after encoding and decoding
_SUSPECT_BYTES: Final = (b"\n", b"\r", b"NaN", b"Infinity")
"""Bytes in foreign JSON that have to be checked: line breaks would break the framing of a channel."""

OutputCheck: TypeAlias = Callable[[bytes], Any]  # raises if JSON breaks the output schema
SchemaStep: TypeAlias = Callable[[dict[str, JSON]], dict[str, JSON]]
OutputEncoder: TypeAlias = tuple[Callable[[Any], bytes], Callable[[Any], JSON]]
"""Converts a value to JSON, encoded and not: encoding would silently turn NaN into null."""


class OutputError(MCPError):
    """A tool returned a value that breaks its output schema, or that cannot be sent."""


class ResultConverter:
    """Converts the return values of one tool. Made by `for_function` or `for_schema`.

    A `str` is one block of text, `None` no block, and bytes are a file. Images, audio, files and content
    blocks stay what they are, alone or in a list. Everything else is structured content, with its JSON as a
    block of text. With `is_wrapped`, a peer that accepts only objects gets the value under the key `result`;
    `wrapped_schema` is the schema for such a peer.
    """

    def __init__(
        self,
        schema: dict[str, JSON] | None,
        check: OutputCheck | None = None,
        encoder: OutputEncoder | tuple[()] = (),
    ) -> None:
        self.output_schema = schema
        self.is_wrapped = schema is not None and schema.get("type") != "object"
        self.wrapped_schema = _wrap_schema(schema) if schema is not None and self.is_wrapped else schema
        self._check = check
        self._encoder = encoder
        self._is_block_list = False  # whether each list is a list of blocks
        self._exact_type: Any = None  # one of _EXACT_TYPES, if it is the return type

    @classmethod
    def for_function(cls, fn: Callable[..., Any], finish: SchemaStep | None = None) -> Self:
        """Return the converter for the return annotation of a function; `finish` changes its schema.

        Text and content blocks have no schema, also in lists and unions; nor has `Any`.
        """
        annotation = inspect.signature(fn).return_annotation
        if annotation is inspect.Signature.empty:
            return cls(None)
        scope = AnnotationScope(fn)
        with prefix_signature_errors(f"`{getattr(fn, '__name__', repr(fn))}`: return value"):
            annotation = scope.evaluate(annotation)
            if not _is_content(annotation):
                schema, check, encoder = _compile_output_type(annotation, scope)
                converter = cls(finish(schema) if finish else schema, check, encoder)
                converter._exact_type = annotation if annotation is int or annotation is bool else None
            else:
                converter = cls(None)
                converter._is_block_list = _is_block(annotation)
        return converter

    @classmethod
    def for_schema(cls, schema: dict[str, JSON] | None, name: str) -> Self:
        """Return the converter for an output schema that the author of the tool `name` wrote."""
        if schema is None:
            return cls(None)
        validate = compile_validator(schema, f"the output schema of {name!r}").validate
        return cls(schema, lambda text: validate(msgspec.json.decode(text)))

    def convert(self, value: Any, *, wrap: bool = False) -> CallToolResult:
        """Return the result for a value; `wrap` if the peer accepts only objects as structured content."""
        is_exact = type(value) is self._exact_type
        if is_exact or not (self._check is None or isinstance(value, CallToolResult)):
            text = _encode_output(value) if is_exact else self._encode_checked(value)
            plain: JSON = value if is_exact or type(value) in _EXACT_TYPES else msgspec.json.decode(text)
            result = CallToolResult(content=[TextContent(text.decode())], structured_content=plain)
            if wrap and self.is_wrapped:
                result.structured_content, result.meta = {RESULT_KEY: plain}, {**_WRAPPED_META}
            return result
        if not isinstance(value, CallToolResult):
            return self._convert_untyped(value)
        _encode_output(value, jsonrpc.encode)
        if self._check is not None and not value.is_error:
            self._verify(_encode_output(value.structured_content))
        if wrap and self.is_wrapped and value.structured_content is not UNSET:
            value = copy(value)
            value.structured_content = {RESULT_KEY: value.structured_content}
            value.meta = {**(value.meta or {}), **_WRAPPED_META}
        return value

    def _encode_checked(self, value: Any) -> bytes:
        """Return the JSON of a value that has an output schema. Raises OutputError if it breaks that."""
        text = _encode_output(value, *self._encoder)
        if not self._encoder:  # pydantic checks while it encodes
            self._verify(text)
        if not any(map(text.__contains__, _SUSPECT_BYTES)):
            return text
        try:
            return _encode_output(msgspec.json.decode(text))
        except msgspec.DecodeError as error:
            raise OutputError(f"the return value cannot be sent: {error}") from error

    def _convert_untyped(self, value: Any) -> CallToolResult:
        if value is None:
            return CallToolResult(content=[])
        if isinstance(value, (str, *_get_content_types())):
            return CallToolResult(content=[_to_content_block(value)])
        if isinstance(value, list | tuple):
            items = cast("Iterable[Any]", value)
            if self._is_block_list or any(isinstance(item, _get_content_types()) for item in items):
                return CallToolResult(content=[_to_content_block(item) for item in items])
        text = _encode_output(value)
        plain: JSON = msgspec.json.decode(text)
        result = CallToolResult(content=[TextContent(plain if isinstance(plain, str) else text.decode())])
        if isinstance(plain, dict):
            result.structured_content = plain
        return result

    def _verify(self, text: bytes) -> None:
        try:
            if self._check is not None:
                self._check(text)
        except Exception as error:  # a validator of the author may raise anything
            issues = "; ".join(map(str, parse_issues(error)))
            raise OutputError(f"the return value does not match the output schema: {issues}") from error


def _wrap_schema(schema: dict[str, JSON]) -> dict[str, JSON]:
    """Return the schema of an object with a value of `schema` under the key `result`."""
    inner = {keyword: value for keyword, value in schema.items() if keyword != "$defs"}
    outer: dict[str, JSON] = {"type": "object", "properties": {RESULT_KEY: inner}, "required": [RESULT_KEY]}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _get_content_types() -> tuple[type[Any], ...]:
    """Return the types that are content; media only once their module is loaded."""
    media = sys.modules.get("toolpost.server.registry.media")
    return _CONTENT_TYPES if media is None else (*_CONTENT_TYPES, media.Media)


def _to_content_block(value: Any) -> Content:
    """Return one block of content; bytes become a file."""
    if isinstance(value, str):
        if not value.isascii():
            _encode_output(value)  # a lone surrogate cannot be sent
        return TextContent(value)
    if isinstance(value, bytes):
        from toolpost.server.registry.media import File  # noqa: PLC0415 - start-up time

        value = File(value)
    if isinstance(value, Content):
        _encode_output(value, jsonrpc.encode)
        return value
    if isinstance(value, _get_content_types()):
        return value.content()
    return TextContent(_encode_output(value).decode())


def _to_builtins(value: Any) -> JSON:
    def hook(value: Any) -> JSON:
        return msgspec.json.decode(value) if isinstance(value, Raw) else enc_hook(value)

    return msgspec.to_builtins(value, str_keys=True, enc_hook=hook)


def _encode_output(
    value: Any,
    encode: Callable[[Any], bytes] = ENCODER.encode,
    to_builtins: Callable[[Any], JSON] = _to_builtins,
) -> bytes:
    try:
        text = encode(value)
        if text.find(b"null") >= 0:  # `in` takes longer than all the rest
            _check_numbers(to_builtins(value))
    except Exception as error:  # code of the value may raise anything
        raise OutputError(f"the return value cannot be sent: {error}") from error
    return text


def _check_numbers(value: JSON) -> None:
    """Check that all numbers in a value are finite."""
    rest = [value]
    while rest:
        it = rest.pop()
        if isinstance(it, float):
            if not isfinite(it):
                raise ValueError(f"JSON cannot represent {it}")
        elif isinstance(it, dict):
            rest += cast("dict[str, JSON]", it).values()
        elif isinstance(it, list | tuple):
            rest += cast("list[JSON]", it)


def _is_content(it: Any) -> bool:
    """Return whether a return annotation means content, or is too vague for a schema."""
    if get_origin(it) is Annotated:
        return _is_content(get_args(it)[0])
    members = get_args(it) if get_origin(it) in UNION_TYPES else (it,)
    return all(member in _WITHOUT_SCHEMA for member in members) or any(
        member is Any or member is object or _is_block(member) for member in members
    )


def _is_block(it: Any) -> bool:
    """Return whether a type is a block, a whole result, or a list with blocks in it."""
    origin = get_origin(it)
    if origin is Annotated or origin in UNION_TYPES or origin in _LIST_TYPES:
        return any(map(_is_block, get_args(it)))
    return isinstance(it, type) and issubclass(it, (*_get_content_types(), CallToolResult))


def _compile_output_type(
    annotation: Any, scope: AnnotationScope
) -> tuple[dict[str, JSON], OutputCheck, OutputEncoder | tuple[()]]:
    """Return the schema of a type, the check of its JSON, and the encoder if it is not msgspec's."""
    compiler = TypeCompiler(scope, output=True)
    compiled = compiler.compile_type(annotation)
    schema = make_root_schema(compiled.schema, compiler.defs)
    if compiled.uses_pydantic and not compiled.has_msgspec_limits:
        # Pydantic writes fields that it does not read, such as computed ones, so it has to write everything.
        with suppress(SignatureError):
            whole = PydanticType(annotation, output=True)
            return schema, lambda text: whole.read(Raw(text)), (whole.encode, whole.to_builtins)
    return schema, msgspec.json.Decoder(compiled.type, dec_hook=dec_hook).decode, ()
