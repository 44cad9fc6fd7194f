"""Forms: the schema of an elicitation from a type, and a value of that type from the user's answer.

A form is flat, as the specification requires: strings, numbers, booleans and choices. Other types raise an
error that names the field.
"""

from typing import Any, Final, Generic, Literal, TypeVar, cast

from msgspec import Struct

from toolpost import types
from toolpost.errors import ToolError
from toolpost.json_schema import resolve_ref
from toolpost.server.signature.compiled_types import convert_value, normalize_integers
from toolpost.server.signature.errors import SignatureError, ValidationError
from toolpost.server.signature.inspection import AnnotationScope, describe_type
from toolpost.server.signature.schema_parts import make_root_schema, remove_null
from toolpost.server.signature.type_compiler import TypeCompiler
from toolpost.types.base import JSON

T = TypeVar("T")

_SINGLE_FIELD: Final = "value"  # the only field of a form for a single value

_PORTABLE_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})
"""Formats that clients of every revision can check; the server checks the others."""

_ALLOWED_KEYWORDS: Final = {  # by the type of the field
    "string": ("minLength", "maxLength", "format", "enum", "enumNames", "oneOf", "default"),
    "integer": ("minimum", "maximum", "default"),
    "number": ("minimum", "maximum", "default"),
    "boolean": ("default",),
    "array": ("items", "minItems", "maxItems", "default"),
}


class Accepted(Struct, Generic[T], frozen=True):
    """The user answered.

    Examples:
        >>> match Accepted(7):
        ...     case Accepted(data):
        ...         print(data)
        ...     case Declined() | Cancelled():
        ...         print("no")
        7
    """

    data: T


class Declined(Struct, frozen=True):
    """The user declined. It counts as false.

    Examples:
        >>> bool(Declined())
        False
    """

    def __bool__(self) -> Literal[False]:
        return False


class Cancelled(Struct, frozen=True):
    """The user dismissed the question. It counts as false.

    Examples:
        >>> bool(Cancelled())
        False
    """

    def __bool__(self) -> Literal[False]:
        return False


ANSWERS_BY_ACTION: Final[dict[str, Accepted[None] | Declined | Cancelled]] = {  # without content
    "accept": Accepted(None),
    "decline": Declined(),
    "cancel": Cancelled(),
}


class ElicitationForm(Generic[T]):
    """A type as a form. Raises SignatureError, with the name of the field, if it cannot be a form."""

    def __init__(self, kind: type[T]) -> None:
        if type(kind).__hash__ is None:  # a list, or a schema
            text = f"a form needs a type, not {kind!r}"
            raise SignatureError(text, hint="pass a class or a Literal")
        compiler = TypeCompiler(AnnotationScope(lambda: None))
        compiled = compiler.compile_type(kind)
        root: dict[str, JSON] = make_root_schema(compiled.schema, compiler.defs)
        self._type = compiled.type
        self._is_single_value = root.get("type") != "object"
        label = describe_type(kind) if self._is_single_value else ""
        if self._is_single_value:
            root = {"properties": {_SINGLE_FIELD: root}, "required": [_SINGLE_FIELD]}
        if not root.get("properties"):
            raise SignatureError(f"{describe_type(kind)} has no field for the user to fill in")
        fields = {
            name: _build_field(name, schema, compiler.defs, label)
            for name, schema in root["properties"].items()
        }
        self.schema: dict[str, JSON] = {"type": "object", "properties": fields}
        if root.get("required"):
            self.schema["required"] = root["required"]

    def read(self, result: "types.ElicitResult") -> Accepted[T] | Declined | Cancelled:
        """Return the user's answer. Raises ToolError if it is not valid."""
        if result.action != "accept":
            return cast("Declined | Cancelled", ANSWERS_BY_ACTION[result.action])
        content = normalize_integers(result.content or {})
        try:
            value = content.get(_SINGLE_FIELD) if self._is_single_value else content
            return Accepted(convert_value(value, self._type))
        except ValidationError as error:
            raise ToolError(f"The answer is not valid: {error}") from error


def _build_field(name: str, schema: JSON, defs: dict[str, JSON], label: str) -> dict[str, JSON]:
    """Return the schema of one field, with the keywords of a form; `label` is its name in errors."""
    plain = {**resolve_ref(schema, defs), **schema}
    if "anyOf" in plain:  # an optional field is left out instead of null
        plain = remove_null({**plain, "anyOf": [resolve_ref(option, defs) for option in plain["anyOf"]]})
    kind = plain.get("type")
    if "enum" in plain:
        kind = "string" if _are_strings(plain["enum"]) else None
    if not isinstance(kind, str) or kind not in _ALLOWED_KEYWORDS:
        raise SignatureError(
            f"{label or f'the field {name!r}'} is not supported in a form",
            hint="use strings, numbers, booleans and choices among strings, without nesting",
        )
    keep = ("title", "description", *_ALLOWED_KEYWORDS[kind])
    field: dict[str, JSON] = {"type": kind}
    field |= {keyword: plain[keyword] for keyword in keep if plain.get(keyword) is not None}
    if field.get("format", "email") not in _PORTABLE_FORMATS:
        del field["format"]
    if kind == "array" and "oneOf" in plain:
        raise SignatureError(
            f"the field {name!r} has titles on the list",
            hint="put them on the choices: list[Annotated[Literal[...], Titles(...)]]",
        )
    if kind == "array":
        field["items"] = _build_choices(name, resolve_ref(field.get("items", {}), defs))
    elif "oneOf" in field:
        field["oneOf"] = _add_titles(name, field["oneOf"], field.pop("enum", None))
    return field


def _build_choices(name: str, items: JSON) -> dict[str, Any]:
    """Return the choices of a field that takes several values."""
    choices, titles = items.get("enum"), items.get("oneOf") or items.get("anyOf")
    if titles is not None and (choices is None or _are_strings(choices)):
        return {"anyOf": _add_titles(name, titles, choices)}
    if not _are_strings(choices):
        raise SignatureError(
            f"the field {name!r} has a list type that forms do not support",
            hint="a list in a form must be a choice among strings: list[Literal[...]] or a list of an enum",
        )
    return {"type": "string", "enum": choices}


def _add_titles(name: str, titles: list[JSON], choices: list[JSON] | None) -> list[JSON]:
    """Return the choices of a field with titles; a choice without a title is its own title."""
    known = {choice.get("const"): choice.get("title") for choice in titles}
    if not _are_strings([*known, *known.values()]):
        raise SignatureError(
            f"the field {name!r} has choices that forms do not support",
            hint='a choice with a title is {"const": "a", "title": "First"}, as `Titles` writes it',
        )
    unknown = [value for value in known if choices is not None and value not in choices]
    if unknown:
        raise SignatureError(
            f"the field {name!r} has a title for {unknown[0]!r}, which is not a choice",
            hint=f"the choices are {', '.join(map(repr, choices or ()))}",
        )
    return [{"const": value, "title": known.get(value, value)} for value in choices or known]


def _are_strings(choices: list[JSON] | None) -> bool:
    return choices is not None and all(isinstance(choice, str) for choice in choices)
