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
_TEXT_TYPES: Final = (str, None, type(None), Never, NoReturn)
RESULT_KEY: Final = "result"
"""The key of a wrapped value: many clients accept only objects, in every revision."""
_WRAPPED_MARK: Final = {"x-fastmcp-wrap-result": True}  # in the schema, so that clients unwrap the value
_EXACT_TYPES: Final = frozenset({int, bool, str})  # always valid, and equal after encoding and decoding
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

    Bytes are a file. Images, audio, files and content blocks stay what they are, alone or in a list.
    Everything else is structured content, with its text or JSON as a block of text. With `is_wrapped` the
    schema describes no object: the value is sent under the key `result`, with `wrapped_schema`. With
    `is_bare`, only peers that accept nothing but objects get it so.
    """

    def __init__(
        self,
        schema: dict[str, JSON] | None,
        check: OutputCheck | None = None,
        encoder: OutputEncoder | tuple[()] = (),
        *,
        is_bare: bool = False,
    ) -> None:
        self.is_bare = is_bare
        self.is_wrapped = schema is not None and schema.get("type") != "object"
        self.wrapped_schema = _wrap_schema(schema) if schema is not None and self.is_wrapped else schema
        self.output_schema = schema if is_bare else self.wrapped_schema
        self._check = check
        self._encoder = encoder
        self._is_block_list = False  # whether each list is a list of blocks
        self._exact_type: Any = None  # one of _EXACT_TYPES, if it is the return type

    @classmethod
    def for_function(
        cls, fn: Callable[..., Any], finish: SchemaStep | None = None, *, is_bare: bool = False
    ) -> Self:
        """Return the converter for the return annotation of a function; `finish` changes its schema.

        Content blocks have no schema, not even in lists and unions; nor do `Any` and lists of it.
        """
        annotation = inspect.signature(fn).return_annotation
        if annotation is inspect.Signature.empty:
            return cls(None)
        scope = AnnotationScope(fn)
        with prefix_signature_errors(f"`{getattr(fn, '__name__', repr(fn))}`: return value"):
            annotation = scope.evaluate(annotation)
            if not _is_content(annotation):
                schema, check, encoder = _compile_output_type(annotation, scope)
                converter = cls(finish(schema) if finish else schema, check, encoder, is_bare=is_bare)
                converter._exact_type = annotation if annotation in (int, bool, str) else None
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
        return cls(schema, lambda text: validate(msgspec.json.decode(text)), is_bare=True)

    def convert(self, value: Any, *, wrap: bool = True) -> CallToolResult:
        """Return the result for a value; `wrap` if the peer accepts only objects as structured content."""
        wrap = self.is_wrapped and (wrap or not self.is_bare)
        if type(value) is self._exact_type:
            is_text = self._exact_type is str
            block = _to_content_block(value) if is_text else TextContent(_encode_output(value).decode())
            return CallToolResult(content=[block], structured_content={RESULT_KEY: value} if wrap else value)
        if self._check is not None and not isinstance(value, CallToolResult):
            return _make_structured_result(self._encode_checked(value), wrap=wrap)
        if not isinstance(value, CallToolResult):
            return self._convert_untyped(value)
        _encode_output(value, jsonrpc.encode)
        if self._check is not None and not value.is_error:
            self._verify(_encode_output(value.structured_content))
        if wrap and value.structured_content is not UNSET:
            value = copy(value)
            value.structured_content = {RESULT_KEY: value.structured_content}
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
        result = _make_structured_result(_encode_output(value), wrap=False)
        plain = result.structured_content
        if not isinstance(plain, dict):
            result.structured_content = {RESULT_KEY: plain} if isinstance(plain, list) else UNSET
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
    return outer | _WRAPPED_MARK | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _make_structured_result(text: bytes, *, wrap: bool) -> CallToolResult:
    """Return the result for a value in JSON, as structured content and as a block of text."""
    plain: JSON = msgspec.json.decode(text)
    block = TextContent(plain if isinstance(plain, str) else text.decode())
    return CallToolResult(content=[block], structured_content={RESULT_KEY: plain} if wrap else plain)


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
    is_text = it is not str and all(member in _TEXT_TYPES for member in members)
    return is_text or any(_is_vague(member) or _is_block(member) for member in members)


def _is_vague(it: Any) -> bool:
    """Return whether a type may be anything, also blocks: `Any`, or a list of it."""
    kind, items = get_origin(it) or it, get_args(it)
    return kind in (Any, object) or (kind in _LIST_TYPES and (not items or Any in items or object in items))


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
