"""Forms: makes the schema of an elicitation from a type, and a value of that type from the user's answer.

A form is flat, as the specification demands: text, numbers, yes or no, and choices. Other types are refused
with the name of the field. How the question is sent is not known here.
"""

from functools import lru_cache
from typing import Any, Final, Generic, Literal, TypeVar, cast, get_origin

from msgspec import Struct

from toolpost import types
from toolpost.errors import ToolError
from toolpost.json_schema import resolve_ref
from toolpost.server.signature.compiled_types import convert_value
from toolpost.server.signature.errors import SignatureError, ValidationError
from toolpost.server.signature.inspection import AnnotationScope, describe_type
from toolpost.server.signature.schema_parts import make_root_schema, remove_null
from toolpost.server.signature.type_compiler import TypeCompiler
from toolpost.types.base import JSON

T = TypeVar("T")

_SINGLE_FIELD: Final = "value"
"""The name of the field when only one value is asked for."""

_PORTABLE_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})
"""Formats that clients of every revision can check; we check the others ourselves."""

_ALLOWED_KEYWORDS: Final = {
    "string": ("minLength", "maxLength", "format", "enum", "enumNames", "oneOf", "default"),
    "integer": ("minimum", "maximum", "default"),
    "number": ("minimum", "maximum", "default"),
    "boolean": ("default",),
    "array": ("items", "minItems", "maxItems", "default"),
}
"""The kinds of fields, and the keywords that each may have."""


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
    """The user said no. It counts as false.

    Examples:
        >>> bool(Declined())
        False
    """

    def __bool__(self) -> Literal[False]:
        return False


class Cancelled(Struct, frozen=True):
    """The user said nothing. It counts as false.

    Examples:
        >>> bool(Cancelled())
        False
    """

    def __bool__(self) -> Literal[False]:
        return False


ANSWERS_BY_ACTION: Final[dict[str, Accepted[None] | Declined | Cancelled]] = {
    "accept": Accepted(None),
    "decline": Declined(),
    "cancel": Cancelled(),
}
"""The answers without content."""


class ElicitationForm(Generic[T]):
    """A type as a form. Made by `get_form`."""

    def __init__(self, kind: type[T]) -> None:
        compiler = TypeCompiler(AnnotationScope(lambda: None))
        compiled = compiler.compile_type(kind)
        root: dict[str, JSON] = make_root_schema(compiled.schema, compiler.defs)
        self._type = compiled.type
        self._is_single_value = root.get("type") != "object"
        what = describe_type(kind) if self._is_single_value else ""
        if self._is_single_value:
            root = {"properties": {_SINGLE_FIELD: root}, "required": [_SINGLE_FIELD]}
        if not root.get("properties"):
            raise SignatureError(f"{describe_type(kind)} has no field that a user could fill in")
        fields = {
            name: _build_field(name, schema, compiler.defs, what)
            for name, schema in root["properties"].items()
        }
        self.schema: dict[str, JSON] = {"type": "object", "properties": fields}
        if root.get("required"):
            self.schema["required"] = root["required"]

    def read(self, result: "types.ElicitResult") -> Accepted[T] | Declined | Cancelled:
        """Return the user's answer. Raises ToolError if it does not fit the form."""
        if result.action != "accept":
            return cast("Declined | Cancelled", ANSWERS_BY_ACTION[result.action])
        content = result.content or {}
        try:
            content = {name: _normalize_integer(self.schema, name, value) for name, value in content.items()}
            value = content.get(_SINGLE_FIELD) if self._is_single_value else content
            return Accepted(convert_value(value, self._type))
        except ValidationError as error:
            raise ToolError(f"The answer does not fit what was asked: {error}") from error


def get_form(kind: type[T]) -> ElicitationForm[T]:
    """Return the form for a type. Raises SignatureError, with the name of the field, if there is none."""
    try:
        hash(kind)
    except TypeError:
        if get_origin(kind) is not None:
            return ElicitationForm(kind)  # its metadata have no hash
        raise SignatureError(
            f"a form is made from a type, and {kind!r} is none", hint="give the class, or a Literal"
        ) from None
    return _build_cached_form(kind)


def clear_form_cache() -> None:
    """Release the cached types, and so the modules that they come from."""
    _build_cached_form.cache_clear()


@lru_cache(maxsize=256)
def _build_cached_form(kind: type[T]) -> ElicitationForm[T]:
    return ElicitationForm(kind)


def _normalize_integer(schema: dict[str, JSON], name: str, value: JSON) -> JSON:
    """Return 1.0 as 1 where an integer is wanted."""
    wanted = schema["properties"].get(name, {}).get("type")
    return int(value) if wanted == "integer" and isinstance(value, float) and value.is_integer() else value


def _build_field(name: str, schema: JSON, defs: dict[str, JSON], what: str) -> dict[str, JSON]:
    """Return the schema of one field, reduced to what a form may have; `what` is its name in errors."""
    plain = {**resolve_ref(schema, defs), **schema}
    if "anyOf" in plain:  # an optional field is left out instead of null
        plain = remove_null({**plain, "anyOf": [resolve_ref(option, defs) for option in plain["anyOf"]]})
    kind = plain.get("type")
    if "enum" in plain:
        kind = "string" if _are_strings(plain["enum"]) else None
    if not isinstance(kind, str) or kind not in _ALLOWED_KEYWORDS:
        raise SignatureError(
            f"{what or f'the field {name!r}'} cannot stand in a form",
            hint="a form takes text, numbers, yes or no, and choices among texts; nothing inside of anything",
        )
    keep = ("title", "description", *_ALLOWED_KEYWORDS[kind])
    field: dict[str, JSON] = {"type": kind}
    field |= {keyword: plain[keyword] for keyword in keep if plain.get(keyword) is not None}
    if field.get("format", "email") not in _PORTABLE_FORMATS:
        del field["format"]
    if kind == "array" and "oneOf" in plain:
        raise SignatureError(
            f"the field {name!r} has titles for a list",
            hint="the choices have them: list[Annotated[Literal[...], Titles(...)]]",
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
            f"the field {name!r} takes a list that cannot stand in a form",
            hint="a list in a form is a choice among texts: list[Literal[...]] or list of an enum",
        )
    return {"type": "string", "enum": choices}


def _add_titles(name: str, titles: list[JSON], choices: list[JSON] | None) -> list[JSON]:
    """Return the choices of a field with their titles; one without a title is its own."""
    known = {choice.get("const"): choice.get("title") for choice in titles}
    if not _are_strings([*known, *known.values()]):
        raise SignatureError(
            f"the field {name!r} has choices that cannot stand in a form",
            hint='a choice with a title is {"const": "a", "title": "First"}, as `Titles` writes it',
        )
    unknown = [value for value in known if choices is not None and value not in choices]
    if unknown:
        raise SignatureError(
            f"the field {name!r} has a title for {unknown[0]!r}, which cannot be chosen",
            hint=f"the choices are {', '.join(map(repr, choices or ()))}",
        )
    return [{"const": value, "title": known.get(value, value)} for value in choices or known]


def _are_strings(choices: list[JSON] | None) -> bool:
    return choices is not None and all(isinstance(choice, str) for choice in choices)
