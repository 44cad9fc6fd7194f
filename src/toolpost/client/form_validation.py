"""Checks a filled-in form against the schema that the server sent with it, before it is sent back.

Knows the types of fields that a form may have. Does not check unknown keywords or a `pattern`: a pattern from
a server may take exponential time to match. Errors do not repeat the value, which is private.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from itertools import islice
from typing import Final
from urllib.parse import urlsplit

from toolpost.json_schema import (
    TYPE_NAMES,
    as_list,
    as_object,
    check_bounds,
    check_size,
    get_json_type,
    get_properties,
    is_type_allowed,
    read_choices,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONReader, shorten
from toolpost.types.base import JSON

MAX_LISTED_CHOICES: Final = 8  # how many of the allowed values an error lists

_COUNTED: Final = {"string": "characters", "array": "choices"}
_FIELD_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array"})
_OBJECT: Final = JSONReader(dict[str, JSON])


def fill_defaults(schema: Mapping[str, JSON] | None, content: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the content of a form, with the form's defaults where a field was left out (ELIC-15)."""
    fields = get_properties(schema or {}).items()
    defaults = {name: field["default"] for name, field in fields if "default" in field}
    return {**defaults, **content}


def find_form_error(schema: Mapping[str, JSON] | None, content: Mapping[str, JSON]) -> str | None:
    """Return the error in the content of a form, naming the field; None if it fits (ELIC-42).

    The form's own defaults are not checked: the server is responsible for them.
    """
    given = _OBJECT(jsonrpc.encode(content))  # as the server will read it
    schema = schema or {}
    fields = get_properties(schema)
    closed = schema.get("additionalProperties") is False
    for name, value in given.items():
        if name in fields:
            wrong = find_field_error(fields[name], value)
        else:
            wrong = "is not a field of the form" if closed else None
        if wrong:
            return f"{_quote(name)} {wrong}"
    for name in as_list(schema.get("required")):
        if isinstance(name, str) and name not in given and "default" not in fields.get(name, {}):
            return f"{_quote(name)} is missing"
    return None


def find_field_error(field: Mapping[str, JSON], value: JSON) -> str | None:
    """Return the error in the value of one field, as the rest of a sentence; None if it fits."""
    kind: JSON = field.get("type")
    if not isinstance(kind, str) or kind not in _FIELD_TYPES:
        return None
    if not is_type_allowed(field, get_json_type(value)):
        return f"must be {TYPE_NAMES[kind]}"
    if kind in {"integer", "number"}:
        bounds = {key: field[key] for key in ("minimum", "maximum") if key in field}
        return next((f"must be {limit}" for limit in check_bounds(value, bounds)), None)
    if kind not in _COUNTED:
        return None
    choices = parse_choices(field)
    if choices:
        chosen = value if kind == "array" else [value]
        if not all(isinstance(each, str) and each in choices for each in chosen):
            more = ", …" if len(choices) > MAX_LISTED_CHOICES else ""
            return f"must be one of {', '.join(map(_quote, islice(choices, MAX_LISTED_CHOICES)))}{more}"
        if kind == "string":
            return None
    for limit in check_size(value, field):
        return f"must have {limit} {_COUNTED[kind]}"
    is_valid, name = _FORMATS.get(str(field.get("format")), (None, ""))
    return None if kind != "string" or is_valid is None or is_valid(value) else f"must be {name}"


def parse_choices(field: Mapping[str, JSON]) -> dict[str, str]:
    """Return the strings that a field, or an item of its list, offers for choice, with their titles."""
    field = as_object(field.get("items")) if field.get("type") == "array" else field
    choices = read_choices(field, ("oneOf", "anyOf", "enum"))
    return choices if all(isinstance(value, str) for value in choices) else {}


def _quote(name: str) -> str:
    return repr(shorten(name))


# --------------------------------------------------------------------- formats


def _is_email(value: str) -> bool:
    user, at, host = value.rpartition("@")
    return bool(user and at and host) and "@" not in user.strip('"') and not _has_space(value)


def _is_uri(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return bool(parts.scheme and value[len(parts.scheme) + 1 :]) and not _has_space(value)


def _has_space(value: str) -> bool:
    return any(char.isspace() or not char.isprintable() for char in value)


def _is_date(value: str) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_datetime(value: str) -> bool:
    # Many servers ask for a time without an offset, so none is required.
    try:
        datetime.fromisoformat(value.upper())
    except ValueError:
        return False
    return value[10:11] in {"T", "t", " "} and _is_date(value[:10])


_FORMATS: Final[dict[str, tuple[Callable[[str], bool], str]]] = {
    "email": (_is_email, "an email address"),
    "uri": (_is_uri, "a URI"),
    "date": (_is_date, "a date, such as 2031-12-24"),
    "date-time": (_is_datetime, "a date and time, such as 2031-12-24T18:00:00Z"),
}
