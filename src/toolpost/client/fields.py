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
from toolpost.protocol.jsonrpc import Reader, shorten
from toolpost.types.base import JSON

__all__ = ["Choices", "choices_of", "field_objection", "filled", "form_objection", "properties_of"]

NAMED: Final = 8
"""How many of the allowed values an error names: enough for a person to see what is meant."""

_OBJECT: Final = Reader(dict[str, JSON])


class Choices(NamedTuple):
    """What may be chosen.

    Args:
        values: what is sent.
        titles: how each is called.
    """

    values: tuple[str, ...]
    titles: tuple[str, ...]


def properties_of(schema: Mapping[str, JSON] | None) -> dict[str, dict[str, JSON]]:
    """The fields of a form, by name; those whose schema is no object are left out."""
    properties: JSON = (schema or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    fields = cast("dict[str, JSON]", properties)
    return {name: field for name, field in fields.items() if isinstance(field, dict)}


def filled(schema: Mapping[str, JSON] | None, content: Mapping[str, JSON]) -> dict[str, JSON]:
    """The content of a form; what was left out is what the form proposed (ELIC-15)."""
    proposed = {name: field["default"] for name, field in properties_of(schema).items() if "default" in field}
    return {**proposed, **content}


def form_objection(schema: Mapping[str, JSON] | None, content: Mapping[str, JSON]) -> str | None:
    """What is wrong with the content of a form, naming the field; None if nothing is (ELIC-42).

    What the form itself proposes is not judged: whether it fits is the server's business.

    Raises:
        LocalProtocolError: it cannot be written as JSON.
    """
    given = _OBJECT(jsonrpc.encode(content))  # as the server will read it
    schema, fields = schema or {}, properties_of(schema)
    for name, value in given.items():
        field = fields.get(name)
        if field is not None:
            wrong = field_objection(field, value)
        else:
            wrong = "is no field of the form" if schema.get("additionalProperties") is False else None
        if wrong:
            return f"{_quoted(name)} {wrong}"
    required: JSON = schema.get("required")
    for name in cast("list[JSON]", required) if isinstance(required, list) else ():
        if isinstance(name, str) and name not in given and "default" not in fields.get(name, {}):
            return f"{_quoted(name)} is missing"
    return None


def field_objection(field: Mapping[str, JSON], value: JSON) -> str | None:
    """What is wrong with the value of one field, as the rest of a sentence; None if nothing is."""
    kind: JSON = field.get("type")
    judge = _KINDS.get(kind) if isinstance(kind, str) else None
    return None if judge is None else judge(field, value)


def choices_of(field: Mapping[str, JSON]) -> Choices | None:
    """What may be chosen in a field, or in each item of it; None if it is not about choosing."""
    for key in ("oneOf", "anyOf"):
        options: JSON = field.get(key)
        if isinstance(options, list):
            return _titled(cast("list[JSON]", options))
    values = _texts(field.get("enum"))
    if not values:
        return None
    names = _texts(field.get("enumNames"))
    return Choices(values, names if len(names) == len(values) else values)


def _titled(options: list[JSON]) -> Choices | None:
    """Choices with titles; None if one is of a kind that is not known here."""
    known = [cast("dict[str, JSON]", option) for option in options if isinstance(option, dict)]
    values = tuple(option["const"] for option in known if isinstance(option.get("const"), str))
    if not values or len(values) != len(options):
        return None
    return Choices(values, tuple(str(option.get("title") or option["const"]) for option in known))


# --------------------------------------------------------------------- kinds


def _text(field: Mapping[str, JSON], value: JSON) -> str | None:
    if not isinstance(value, str):
        return "has to be a text"
    choices = choices_of(field)
    if choices is not None:
        return _chosen(choices, [value])
    return _size(field, len(value), ("minLength", "maxLength"), "characters") or _formatted(field, value)


def _integer(field: Mapping[str, JSON], value: JSON) -> str | None:
    if not _is_number(value) or value != value // 1:
        return "has to be an integer"
    return _between(field, value)


def _number(field: Mapping[str, JSON], value: JSON) -> str | None:
    return _between(field, value) if _is_number(value) else "has to be a number"


def _boolean(_field: Mapping[str, JSON], value: JSON) -> str | None:
    return None if isinstance(value, bool) else "has to be true or false"


def _array(field: Mapping[str, JSON], value: JSON) -> str | None:
    if not isinstance(value, list):
        return "has to be a list"
    chosen = cast("list[JSON]", value)
    items: JSON = field.get("items")
    choices = choices_of(cast("dict[str, JSON]", items)) if isinstance(items, dict) else None
    wrong = None if choices is None else _chosen(choices, chosen)
    return wrong or _size(field, len(chosen), ("minItems", "maxItems"), "choices")


_KINDS: Final[dict[str, Callable[[Mapping[str, JSON], Any], str | None]]] = {
    "string": _text,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "array": _array,
}


# --------------------------------------------------------------------- limits


def _is_number(value: JSON) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _between(field: Mapping[str, JSON], value: float) -> str | None:
    least, most = field.get("minimum"), field.get("maximum")
    if _is_number(least) and value < least:
        return f"has to be at least {least}"
    if _is_number(most) and value > most:
        return f"has to be at most {most}"
    return None


def _size(field: Mapping[str, JSON], size: int, limits: tuple[str, str], what: str) -> str | None:
    least, most = (field.get(limit) for limit in limits)
    if _is_number(least) and size < least:
        return f"has to have at least {least} {what}"
    if _is_number(most) and size > most:
        return f"has to have at most {most} {what}"
    return None


def _chosen(choices: Choices, values: list[JSON]) -> str | None:
    allowed = frozenset(choices.values)
    if all(isinstance(value, str) and value in allowed for value in values):
        return None
    more = ", …" if len(choices.values) > NAMED else ""
    return f"has to be one of {', '.join(_quoted(value) for value in choices.values[:NAMED])}{more}"


def _quoted(name: str) -> str:
    return repr(shorten(name))


def _texts(value: JSON) -> tuple[str, ...]:
    """A list of texts; nothing if it is anything else."""
    texts = cast("list[JSON]", value) if isinstance(value, list) else []
    return tuple(texts) if all(isinstance(text, str) for text in texts) else ()


# --------------------------------------------------------------------- formats


def _formatted(field: Mapping[str, JSON], value: str) -> str | None:
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


def _is_moment(value: str) -> bool:
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
    "date-time": (_is_moment, "a date and time, such as 2031-12-24T18:00:00Z"),
}
