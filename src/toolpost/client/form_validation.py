"""A filled-in form, held against the schema that it was asked with, before anybody else sees it.

Owns the few kinds of fields that a form may have. What is not known here is not judged, and neither is a
`pattern`: one that a stranger wrote may take for ever to match. What is wrong is told without the value,
which is the user's.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Final, NamedTuple, TypeGuard, cast
from urllib.parse import urlsplit

from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONReader, shorten
from toolpost.types.base import JSON

MAX_LISTED_CHOICES: Final = 8
"""How many of the allowed values an error names: enough for a person to see what is meant."""

_OBJECT: Final = JSONReader(dict[str, JSON])


class Choices(NamedTuple):
    """What may be chosen.

    Args:
        values: what is sent.
        titles: how each is called.
    """

    values: tuple[str, ...]
    titles: tuple[str, ...]


def parse_fields(schema: Mapping[str, JSON] | None) -> dict[str, dict[str, JSON]]:
    """The fields of a form, by name; those whose schema is no object are left out."""
    properties: JSON = (schema or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    fields = cast("dict[str, JSON]", properties)
    return {name: field for name, field in fields.items() if isinstance(field, dict)}


def fill_defaults(schema: Mapping[str, JSON] | None, content: Mapping[str, JSON]) -> dict[str, JSON]:
    """The content of a form; what was left out is what the form proposed (ELIC-15)."""
    proposed = {name: field["default"] for name, field in parse_fields(schema).items() if "default" in field}
    return {**proposed, **content}


def find_form_error(schema: Mapping[str, JSON] | None, content: Mapping[str, JSON]) -> str | None:
    """What is wrong with the content of a form, naming the field; None if nothing is (ELIC-42).

    What the form itself proposes is not judged: whether it fits is the server's business.

    Raises:
        LocalProtocolError: it cannot be written as JSON.
    """
    given = _OBJECT(jsonrpc.encode(content))  # as the server will read it
    schema, fields = schema or {}, parse_fields(schema)
    for name, value in given.items():
        field = fields.get(name)
        if field is not None:
            wrong = find_field_error(field, value)
        else:
            wrong = "is no field of the form" if schema.get("additionalProperties") is False else None
        if wrong:
            return f"{_quote(name)} {wrong}"
    required: JSON = schema.get("required")
    for name in cast("list[JSON]", required) if isinstance(required, list) else ():
        if isinstance(name, str) and name not in given and "default" not in fields.get(name, {}):
            return f"{_quote(name)} is missing"
    return None


def find_field_error(field: Mapping[str, JSON], value: JSON) -> str | None:
    """What is wrong with the value of one field, as the rest of a sentence; None if nothing is."""
    kind: JSON = field.get("type")
    judge = _TYPE_CHECKS.get(kind) if isinstance(kind, str) else None
    return None if judge is None else judge(field, value)


def parse_choices(field: Mapping[str, JSON]) -> Choices | None:
    """What may be chosen in a field, or in each item of it; None if it is not about choosing."""
    for key in ("oneOf", "anyOf"):
        options: JSON = field.get(key)
        if isinstance(options, list):
            return _parse_titled_choices(cast("list[JSON]", options))
    values = _parse_strings(field.get("enum"))
    if not values:
        return None
    names = _parse_strings(field.get("enumNames"))
    return Choices(values, names if len(names) == len(values) else values)


def _parse_titled_choices(options: list[JSON]) -> Choices | None:
    """Choices with titles; None if one is of a kind that is not known here."""
    known = [cast("dict[str, JSON]", option) for option in options if isinstance(option, dict)]
    values = tuple(option["const"] for option in known if isinstance(option.get("const"), str))
    if not values or len(values) != len(options):
        return None
    return Choices(values, tuple(str(option.get("title") or option["const"]) for option in known))


# --------------------------------------------------------------------- kinds


def _check_string(field: Mapping[str, JSON], value: JSON) -> str | None:
    if not isinstance(value, str):
        return "has to be a text"
    choices = parse_choices(field)
    if choices is not None:
        return _check_choices(choices, [value])
    return _check_length(field, len(value), ("minLength", "maxLength"), "characters") or _check_format(
        field, value
    )


def _check_integer(field: Mapping[str, JSON], value: JSON) -> str | None:
    if not _is_number(value) or value != value // 1:
        return "has to be an integer"
    return _check_range(field, value)


def _check_number(field: Mapping[str, JSON], value: JSON) -> str | None:
    return _check_range(field, value) if _is_number(value) else "has to be a number"


def _check_boolean(_field: Mapping[str, JSON], value: JSON) -> str | None:
    return None if isinstance(value, bool) else "has to be true or false"


def _check_array(field: Mapping[str, JSON], value: JSON) -> str | None:
    if not isinstance(value, list):
        return "has to be a list"
    chosen = cast("list[JSON]", value)
    items: JSON = field.get("items")
    choices = parse_choices(cast("dict[str, JSON]", items)) if isinstance(items, dict) else None
    wrong = None if choices is None else _check_choices(choices, chosen)
    return wrong or _check_length(field, len(chosen), ("minItems", "maxItems"), "choices")


_TYPE_CHECKS: Final[dict[str, Callable[[Mapping[str, JSON], Any], str | None]]] = {
    "string": _check_string,
    "integer": _check_integer,
    "number": _check_number,
    "boolean": _check_boolean,
    "array": _check_array,
}


# --------------------------------------------------------------------- limits


def _is_number(value: JSON) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_range(field: Mapping[str, JSON], value: float) -> str | None:
    least, most = field.get("minimum"), field.get("maximum")
    if _is_number(least) and value < least:
        return f"has to be at least {least}"
    if _is_number(most) and value > most:
        return f"has to be at most {most}"
    return None


def _check_length(field: Mapping[str, JSON], size: int, limits: tuple[str, str], what: str) -> str | None:
    least, most = (field.get(limit) for limit in limits)
    if _is_number(least) and size < least:
        return f"has to have at least {least} {what}"
    if _is_number(most) and size > most:
        return f"has to have at most {most} {what}"
    return None


def _check_choices(choices: Choices, values: list[JSON]) -> str | None:
    allowed = frozenset(choices.values)
    if all(isinstance(value, str) and value in allowed for value in values):
        return None
    more = ", …" if len(choices.values) > MAX_LISTED_CHOICES else ""
    return (
        f"has to be one of {', '.join(_quote(value) for value in choices.values[:MAX_LISTED_CHOICES])}{more}"
    )


def _quote(name: str) -> str:
    return repr(shorten(name))


def _parse_strings(value: JSON) -> tuple[str, ...]:
    """A list of texts; nothing if it is anything else."""
    texts = cast("list[JSON]", value) if isinstance(value, list) else []
    return tuple(texts) if all(isinstance(text, str) for text in texts) else ()


# --------------------------------------------------------------------- formats


def _check_format(field: Mapping[str, JSON], value: str) -> str | None:
    wanted: JSON = field.get("format")
    known = _FORMATS.get(wanted) if isinstance(wanted, str) else None
    if known is None:
        return None
    fits, name = known
    return None if fits(value) else f"has to be {name}"


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
    # An offset is not insisted upon: servers that ask for a time without one are many.
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
