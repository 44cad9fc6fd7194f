"""What a tool returns, made into a result: content for the model, and structured content with its schema.

Owns how Python values become content, what the output schema is, and the check that a value keeps it. Which
shape a peer's revision allows is known to the caller, who says `wrap`.
"""

import inspect
import sys
from collections import abc
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from math import isfinite
from typing import (
    Annotated,
    Any,
    Final,
    Never,
    NoReturn,
    Self,
    TypeAlias,
    cast,
    get_args,
    get_origin,
)

import msgspec
from msgspec import UNSET

from toolpost.errors import MCPError
from toolpost.protocol import jsonrpc
from toolpost.server.guest import Guest
from toolpost.server.problems import SignatureError, problems_of, within
from toolpost.server.schema import RESULT, compiled, rooted, wrapped
from toolpost.server.scope import UNIONS, Scope
from toolpost.server.shapes import ENCODER, dec_hook, enc_hook
from toolpost.server.survey import Survey
from toolpost.types.base import JSON, Raw
from toolpost.types.content import Content, TextContent
from toolpost.types.tools import CallToolResult

__all__ = ["OutputError", "Returns"]

_BLOCKS: Final = (Content, bytes)
_LISTS: Final = frozenset({list, tuple, abc.Sequence, abc.Iterable, abc.Collection})
_WITHOUT_SCHEMA: Final = (str, None, type(None), Never, NoReturn)
"""What is promised without a schema: text, nothing, and that it never returns."""

_WRAPPED: Final = {"toolpost/wrapped": True}
"""In `_meta`, so that clients can undo it."""

_SCALARS: Final = frozenset({int, bool})
"""What is the same before it is written and after it was read."""

_ODD: Final = (b"\n", b"\r", b"NaN", b"Infinity")
"""In what others have written: lines, which would break those of a channel, or numbers that are none."""

Check: TypeAlias = Callable[[bytes], Any]
"""Returns if the JSON keeps the output schema; raises if it does not."""


class Writer(msgspec.Struct, frozen=True):
    """How a value becomes JSON. Both raise if they cannot."""

    write: Callable[[Any], bytes]
    plain: Callable[[Any], JSON]
    """The same before it is text: in JSON a number that is none is null, and nobody would notice."""


class OutputError(MCPError):
    """A tool returned what it did not promise, or what cannot be sent. It is the author's to mend."""


class Returns:
    """What one tool returns. Made by `of` or `raw`.

    A `str` is one block of text, `None` no block, and bytes are a file, because nothing tells what else they
    are: an embedded resource. Images, audio, files and content blocks stay what they are, alone or in a list.
    Everything else is structured content, with its JSON as a block of text.

    Attributes:
        output_schema: the JSON Schema of the structured content; None if the tool promises none.
        wrapped: whether a peer that knows only objects gets the value under the key `result`.
        wrapped_schema: the output schema for such a peer.
    """

    def __init__(
        self, schema: dict[str, JSON] | None, check: Check | None = None, writer: Writer | None = None
    ) -> None:
        self.output_schema = schema
        self.wrapped = schema is not None and schema.get("type") != "object"
        self.wrapped_schema = wrapped(schema) if schema is not None and self.wrapped else schema
        self._check = check
        self._writer = writer
        self._listed = False  # whether a list is one of blocks, whatever is in it
        self._exact: Any = None  # a type that is promised, and whose values need no look: 0.6 us less

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> Self:
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
        scope = Scope(fn)
        with within(f"`{getattr(fn, '__name__', repr(fn))}`: return value"):
            annotation = scope.evaluate(annotation)
            if not _is_content(annotation):
                returns = cls(*_promise(annotation, scope))
                returns._exact = annotation if annotation is int or annotation is bool else None
                return returns
        returns = cls(None)
        returns._listed = _is_block(annotation)
        return returns

    @classmethod
    def raw(cls, schema: dict[str, JSON] | None, name: str) -> Self:
        """What a tool returns whose output schema the author wrote.

        Args:
            schema: the schema.
            name: of the tool, for the text of an error.

        Raises:
            MCPError: jsonschema-rs is not installed, so that nobody could check the output.
            ValueError: it is no valid schema.
        """
        return cls(schema, None if schema is None else _validator(schema, name))

    def convert(self, value: Any, *, wrap: bool = False) -> CallToolResult:
        """The result of a call.

        Args:
            value: what the function returned.
            wrap: whether the peer takes only objects as structured content.

        Raises:
            OutputError: the value is not what was promised, or cannot be sent.
        """
        text = self.text(value)
        if text is not None:
            plain = value if type(value) in _SCALARS else msgspec.json.decode(text)
            return self.structured([TextContent(text.decode())], plain, wrap=wrap)
        if not isinstance(value, CallToolResult):
            return self._unpromised(value)
        _encode(value, _WIRE)
        if self._check is not None and not value.is_error:
            self._verify(_encode(value.structured_content))
        if wrap and self.wrapped and value.structured_content is not UNSET:
            value = copy(value)
            value.structured_content = {RESULT: value.structured_content}
            value.meta = {**(value.meta or {}), **_WRAPPED}
        return value

    def text(self, value: Any) -> bytes | None:
        """What the function returned, as the JSON that was promised; None if it is something else.

        Raises:
            OutputError: it is not what was promised, or cannot be sent.
        """
        if type(value) is self._exact:
            try:
                return ENCODER.encode(value)
            except ValueError as error:  # it has more digits than Python writes
                raise OutputError(f"what the tool returned cannot be sent: {error}") from error
        if self._check is None or isinstance(value, CallToolResult):
            return None
        text = _encode(value, self._writer or _OURS)
        if self._writer is None:
            self._verify(text)
        return _encode(_read(text)) if any(map(text.__contains__, _ODD)) else text

    def structured(self, content: list[Content], plain: JSON, *, wrap: bool) -> CallToolResult:
        """The result that has this structure, as the peer takes it."""
        if wrap and self.wrapped:
            return CallToolResult(content=content, structured_content={RESULT: plain}, meta={**_WRAPPED})
        return CallToolResult(content=content, structured_content=plain)

    def _unpromised(self, value: Any) -> CallToolResult:
        """The result of a tool that has promised nothing."""
        if value is None:
            return CallToolResult(content=[])
        if isinstance(value, (str, *_blocks())):
            return CallToolResult(content=[_block(value)])
        if isinstance(value, list | tuple) and (
            self._listed or any(isinstance(item, _blocks()) for item in cast("Iterable[Any]", value))
        ):
            return CallToolResult(content=[_block(item) for item in cast("Iterable[Any]", value)])
        text = _encode(value)
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
            told = "; ".join(map(str, problems_of(error)))
            raise OutputError(f"what the tool returned is not what it promised: {told}") from error


# --------------------------------------------------------------------- values


def _blocks() -> tuple[type[Any], ...]:
    """What is content by itself. Nobody can have made a picture or a file before these were loaded."""
    media = sys.modules.get("toolpost.server.media")
    return _BLOCKS if media is None else (*_BLOCKS, media.Media)


def _block(value: Any) -> Content:
    """One block of content. Bytes become a file: nothing tells what else they could be."""
    if isinstance(value, str):
        if not value.isascii():
            _encode(value)  # it may hold half a character, which cannot be sent
        return TextContent(value)
    if isinstance(value, bytes):
        from toolpost.server.media import File  # noqa: PLC0415 - 0.2 ms of a start

        value = File(value)
    if not isinstance(value, Content) and isinstance(value, _blocks()):
        return value.content()
    if isinstance(value, Content):
        _encode(value, _WIRE)
        return value
    return TextContent(_encode(value).decode())


def _plain(value: Any) -> JSON:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_plain_hook)


def _plain_hook(value: Any) -> JSON:
    return msgspec.json.decode(value) if isinstance(value, Raw) else enc_hook(value)


_OURS: Final = Writer(ENCODER.encode, _plain)
_WIRE: Final = Writer(jsonrpc.encode, _plain)


def _encode(value: Any, writer: Writer = _OURS) -> bytes:
    try:
        text = writer.write(value)
        if b"null" in text:
            _check_numbers(writer.plain(value))
    except Exception as error:  # whatever the value's own code raises
        raise OutputError(f"what the tool returned cannot be sent: {error}") from error
    return text


def _read(text: bytes) -> JSON:
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
    members = get_args(it) if get_origin(it) in UNIONS else (it,)
    return all(member in _WITHOUT_SCHEMA for member in members) or any(
        member is Any or member is object or _is_block(member) for member in members
    )


def _is_block(it: Any) -> bool:
    """Whether a type is a block, a whole result, or a list with blocks in it."""
    origin = get_origin(it)
    if origin is Annotated or origin in UNIONS or origin in _LISTS:
        return any(map(_is_block, get_args(it)))
    return isinstance(it, type) and issubclass(it, (*_blocks(), CallToolResult))


def _promise(annotation: Any, scope: Scope) -> tuple[dict[str, JSON], Check, Writer | None]:
    """The schema of a type, what checks a value against it, and what writes one if msgspec does not."""
    survey = Survey(scope, output=True)
    shape = survey.shape(annotation)
    schema = rooted(shape.schema, survey.defs)
    if survey.guests and not survey.metas:
        # Pydantic writes what it would not read back, such as computed fields: it has the whole, if it can.
        with suppress(SignatureError):
            guest = Guest(annotation, output=True)
            return schema, guest.check, Writer(guest.write, guest.plain)
    return schema, msgspec.json.Decoder(shape.type, dec_hook=dec_hook).decode, None


def _validator(schema: dict[str, JSON], name: str) -> Check:
    """What checks JSON against a schema that the author wrote."""
    validate = compiled(schema, f"the output schema of {name!r}").validate
    return lambda text: validate(msgspec.json.decode(text))
