"""A compiled type: the type that msgspec reads, and its schema.

Where msgspec cannot read a type as its author means it, a proxy type takes its place: a class whose values a
function of ours makes, called by msgspec's hooks. Also types of pydantic, which is never imported here: a
server that uses it has imported it.
"""

import datetime as dt
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import Annotated, Any, Final, TypeAlias, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from toolpost import json_schema
from toolpost.json_schema import DEFS_PREFIX, ForeignSchema, Schema, ValidationIssue
from toolpost.server.signature.errors import SignatureError, ValidationError, parse_issues
from toolpost.server.signature.schema_parts import Definitions, add_keywords, can_accept
from toolpost.types.base import JSON
from toolpost.types.base import enc_hook as write_open

DECODE_ERRORS: Final = (msgspec.DecodeError, TypeError, RecursionError)
"""The errors of msgspec's decoders; a TypeError comes from a set with unhashable items."""

MAX_EXACT_FLOAT: Final = 2.0**53
"""The largest float up to which every integer has an exact float."""

ValueReader: TypeAlias = Callable[[JSON], Any]
"""Converts decoded JSON to a value; raises ValueError or TypeError."""

SCALAR_SCHEMAS: Final[dict[Any, Schema]] = {
    Any: {},
    UnsetType: {"not": {}},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    bytearray: {"type": "string", "contentEncoding": "base64"},
    dt.datetime: {"type": "string", "format": "date-time"},
    dt.date: {"type": "string", "format": "date"},
    dt.time: {"type": "string", "format": "time"},
    dt.timedelta: {"type": "string", "format": "duration"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": ["string", "number"], "format": "decimal"},
}


class CompiledType(Struct, frozen=True):
    """One type of a signature: `type` is the type that msgspec reads, perhaps with proxy types in it."""

    type: Any
    schema: Schema
    native: bool = True  # whether msgspec reads the original annotation in the same way
    base: Any = None  # the class of the values, if they may have limits
    keys: frozenset[str] | None = None  # of an object; None if it is not a class with fields
    uses_pydantic: bool = False  # for the type or a part of it
    has_msgspec_limits: bool = False  # limits of `msgspec.Meta`, which pydantic would ignore


class ProxyType(type):
    """The metaclass of proxy types."""

    reader: ValueReader

    def __instancecheck__(cls, instance: object) -> bool:
        """Accept everything: msgspec checks what its hook returned, but the reader has validated it."""
        return True


def make_proxy_type(name: str, read: ValueReader | None = None) -> ProxyType:
    """Return a type that `read` reads; without `read`, the reader is set later."""
    return ProxyType(name, (), {} if read is None else {"reader": staticmethod(read)})


# --------------------------------------------------------------------- hooks of msgspec


def dec_hook(kind: Any, value: JSON) -> Any:
    """Read a value of a type that msgspec does not know: a proxy, a pydantic model, or a path."""
    if type(kind) is ProxyType:
        return kind.reader(value)
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        return validate_with_pydantic(validate, msgspec.json.encode(value))
    if isinstance(value, str):
        return kind(value)
    raise ValidationError([ValidationIssue("", "expected a string")])


def enc_hook(value: Any) -> JSON:
    """Write a value of a type that msgspec does not know."""
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if is_pydantic_type(cast("Any", type(value))):
        return sys.modules["pydantic_core"].to_jsonable_python(value, by_alias=True)
    return write_open(value)


ENCODER: Final = msgspec.json.Encoder(enc_hook=enc_hook)


def convert_value(value: JSON, kind: Any) -> Any:
    """Convert decoded JSON to a type. Raises `ValidationError`."""
    try:
        return msgspec.convert(value, kind, dec_hook=dec_hook, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValidationError(parse_issues(error)) from error


def is_decodable(kind: Any) -> bool:
    """Return whether msgspec can read a type."""
    try:
        msgspec.json.Decoder(kind, dec_hook=dec_hook)
    except Exception:  # noqa: BLE001 - each kind of type has errors of its own
        return False
    return True


def document_schema(compiled: CompiledType, default: Any, description: str | None, defs: Schema) -> Schema:
    """Return the schema of a parameter or field, with its description and, if it is JSON, its default."""
    notes: dict[str, JSON] = {}
    if default is not UNSET and (default is not None or can_accept(compiled.schema, "null", defs)):
        with suppress(TypeError, ValueError, RecursionError):
            notes["default"] = msgspec.to_builtins(default, enc_hook=enc_hook, str_keys=True)
    if description:
        notes["description"] = description
    return add_keywords(compiled.schema, notes)


# --------------------------------------------------------------------- reading arguments


def decode_json_argument(raw: Raw, compiled: CompiledType, defs: Schema, path: str) -> Any:
    """Read an argument in JSON; if it is not valid, try other readings of it."""
    first: Exception | None = None
    for reading in _iter_interpretations(raw, takes_text=can_accept(compiled.schema, "string", defs)):
        try:
            return msgspec.json.decode(reading, type=compiled.type, dec_hook=dec_hook)
        except DECODE_ERRORS as error:
            first = first or error
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:  # a number that Python does not have
        raise ValidationError(parse_issues(error, path)) from first
    raise _explain(value, compiled, defs, path, cast("Exception", first))


def decode_string_argument(value: JSON, compiled: CompiledType, defs: Schema, path: str) -> Any:
    """Read an argument in a string, or in a list of strings from a URI template.

    A string stays one if the type accepts strings. Otherwise "3" is a number, "true" a boolean, and lists and
    objects are JSON.
    """
    is_text = isinstance(value, str)
    strict = is_text and can_accept(compiled.schema, "string", defs)
    try:
        return msgspec.convert(value, compiled.type, strict=strict, dec_hook=dec_hook)
    except DECODE_ERRORS as error:
        if is_text and not strict:
            with suppress(*DECODE_ERRORS):
                return msgspec.json.decode(value, type=compiled.type, dec_hook=dec_hook)
        raise _explain(value, compiled, defs, path, error) from error


def _explain(
    value: JSON, compiled: CompiledType, defs: Schema, path: str, error: Exception
) -> ValidationError:
    issues = [
        *islice(json_schema.explain_mismatch(value, compiled.schema, defs, path), json_schema.MAX_ISSUES)
    ]
    return ValidationError(issues or parse_issues(error, path))


def _iter_interpretations(raw: Raw, *, takes_text: bool) -> Iterator[Raw | bytes]:
    """Yield the readings of an argument: as it was sent, as JSON in a string, with 2 in place of 2.0."""
    yield raw
    with suppress(msgspec.DecodeError, RecursionError):
        value = msgspec.json.decode(raw)
        if isinstance(value, str) and not takes_text:
            text = value.encode()
            yield text
            value = msgspec.json.decode(text)
        yield msgspec.json.encode(normalize_integers(value))


def normalize_integers(value: JSON) -> JSON:
    """Return the value with each float without a fraction as an integer, which is the same in JSON."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MAX_EXACT_FLOAT else value
    if isinstance(value, list):
        return [normalize_integers(item) for item in cast("list[JSON]", value)]
    if isinstance(value, dict):
        return {name: normalize_integers(item) for name, item in cast("dict[str, JSON]", value).items()}
    return value


# --------------------------------------------------------------------- pydantic


def is_pydantic_type(kind: type[Any]) -> bool:
    """Return whether a class is one of pydantic's, or made for it."""
    return hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__pydantic_validator__")


def is_pydantic_field(mark: object) -> bool:
    """Return whether a mark, or a default, is pydantic's `Field(…)`."""
    kind = type(mark)
    return kind.__name__ == "FieldInfo" and kind.__module__ == "pydantic.fields"


class PydanticType:
    """A type that pydantic reads and describes; its schema may differ if it is written (`output`)."""

    def __init__(self, annotation: Any, *, output: bool = False) -> None:
        module = sys.modules.get("pydantic")
        if module is None:
            raise SignatureError("it needs pydantic, which is not imported")
        try:
            with warnings.catch_warnings():
                # pydantic warns that a default in a Field has no effect here; we apply it ourselves.
                warnings.simplefilter("ignore")
                self.adapter = module.TypeAdapter(annotation)
                schema = self.adapter.json_schema(mode="serialization" if output else "validation")
        except Exception as error:  # each of pydantic's errors means the same here
            reason = str(error).partition("\n")[0]
            raise SignatureError(f"pydantic does not support it: {reason}") from error
        self.defs: dict[str, JSON] = schema.pop("$defs", {})
        self.schema: dict[str, JSON] = schema
        inner = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        self._label = getattr(inner, "__name__", "")
        self._annotation = annotation

    def read(self, value: JSON) -> Any:
        """Convert decoded JSON."""
        return validate_with_pydantic(self.adapter.validate_json, msgspec.json.encode(value))

    def encode(self, value: Any) -> bytes:
        """Validate and encode a value."""
        valid = validate_with_pydantic(self.adapter.validate_python, value)
        return self.adapter.dump_json(valid, by_alias=True, warnings="error")

    def to_builtins(self, value: Any) -> JSON:
        """Return the value that `encode` encodes."""
        valid = validate_with_pydantic(self.adapter.validate_python, value)
        return self.adapter.dump_python(valid, mode="json", by_alias=True)

    def adopt_schema(self, defs: Definitions) -> ForeignSchema:
        """Return the schema without generated titles; add its definitions, and that of a class, to `defs`."""
        names = {name: defs.assign_foreign_name(name, part) for name, part in self.defs.items()}
        refs = {f"{DEFS_PREFIX}{old}": f"{DEFS_PREFIX}{new}" for old, new in names.items()}
        defs |= {names[name]: _rewrite_schema(part, refs, name) for name, part in self.defs.items()}
        schema = _rewrite_schema(self.schema, refs, self._label)
        if "$ref" in schema or not isinstance(self._annotation, type):
            return schema
        name = defs.assign_foreign_name(self._label, self.schema)
        defs[name] = schema
        return ForeignSchema({"$ref": f"{DEFS_PREFIX}{name}"})


def validate_with_pydantic(validate: Callable[[Any], Any], value: Any) -> Any:
    """Call one of pydantic's validators. Raises `ValidationError`.

    Validate encoded JSON where possible: in JSON, a strict model accepts a string for a date.
    """
    try:
        return validate(value)
    except ValueError as error:
        found = cast("Any", error).errors(include_url=False, include_context=False, include_input=False)
        issues = [ValidationIssue(json_schema.format_path(each["loc"]), each["msg"]) for each in found]
        raise ValidationError(issues) from error


def _rewrite_schema(schema: Mapping[str, JSON], refs: Mapping[str, str], label: str) -> ForeignSchema:
    """Return a part of pydantic's schema with other references, and no title that only repeats `label`."""
    renamed = ForeignSchema()
    for keyword, value in schema.items():
        if keyword in {"const", "default", "enum", "examples"}:  # plain data
            renamed[keyword] = value
        elif keyword == "properties":
            renamed[keyword] = {name: _rewrite_schema(part, refs, name) for name, part in value.items()}
        elif keyword != "title" or _normalize_title(value) != _normalize_title(label):
            renamed[keyword] = _rewrite_value(value, refs)
    return renamed


def _rewrite_value(value: JSON, refs: Mapping[str, str]) -> JSON:
    if isinstance(value, dict):
        return _rewrite_schema(cast("dict[str, JSON]", value), refs, "")
    if isinstance(value, list):
        return [_rewrite_value(item, refs) for item in cast("list[JSON]", value)]
    return refs.get(value, value) if isinstance(value, str) else value


def _normalize_title(title: str) -> str:
    return title.replace(" ", "").replace("_", "").lower()
