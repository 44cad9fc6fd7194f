"""What is wrong with a signature or with a value, told for an author or for a model.

Owns the errors of this ring's binding, and `explain_mismatch`, which says in words why a value misses a
schema that we made. Decides nothing: whether a value fits was decided before, by whoever read it.
"""

import operator
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, cast

import msgspec

from toolpost.errors import MCPError, ToolError
from toolpost.server.signature.json_schema import (
    ForeignSchema,
    Schema,
    get_json_type,
    is_type_allowed,
    resolve_ref,
)
from toolpost.types.base import JSON

MAX_ISSUES: Final = 20
"""Problems that one answer names. Who sent more of them reads no further either."""
MAX_DEPTH: Final = 64
"""Levels of a value that are looked at: what arrives is not nested deeper."""
MAX_QUOTED: Final = 60
"""How much of a value, or how many choices, a text repeats."""


class ValidationIssue(msgspec.Struct, frozen=True):
    """What is wrong, and where: `path` is `days` or `items[2].price`, empty for the value itself."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def format_path(steps: Iterable[str | int]) -> str:
    """The path that leads to a part of a value: keys and indices, as text."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return path.removeprefix(".")


class ValidationError(ValueError):
    """A value is not of the type that it should be; the paths count from that value."""

    def __init__(self, problems: Iterable[ValidationIssue]) -> None:
        self.issues = tuple(islice(problems, MAX_ISSUES))
        super().__init__("; ".join(map(str, self.issues)))


class ArgumentError(ToolError):
    """The arguments of a call do not fit. The text is for the model; `problems` has the parts of it."""

    def __init__(self, problems: Iterable[ValidationIssue]) -> None:
        self.issues = tuple(islice(problems, MAX_ISSUES))
        super().__init__("\n- ".join(["The arguments do not fit:", *map(str, self.issues)]))


class SignatureError(MCPError, TypeError):
    """A function cannot be bound. The text names the parameter, the hint what to write instead.

    Examples:
        >>> @Server("shop").tool
        ... def impossible(callback: type) -> str:
        ...     return "never"
        Traceback (most recent call last):
        toolpost.server.signature.validation.SignatureError: ...callback...
    """


@contextmanager
def prefix_signature_errors(where: str) -> Generator[None]:
    """Say where the cause of a `SignatureError` is."""
    try:
        yield
    except SignatureError as error:
        raise SignatureError(f"{where}: {error.message}", hint=error.hint) from error


_TYPE_NAMES: Final = {
    "bool": "a boolean",
    "boolean": "a boolean",
    "int": "an integer",
    "integer": "an integer",
    "float": "a number",
    "number": "a number",
    "str": "a string",
    "string": "a string",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
"""Our words for types, by the names that msgspec and JSON Schema have for them."""

# --------------------------------------------------------------------- from msgspec's words


def parse_issues(error: Exception, path: str = "") -> list[ValidationIssue]:
    """The problems that an error of msgspec tells, or carries from one of our hooks.

    Args:
        error: what was raised.
        path: where the value stands that was read.
    """
    text, at, where = str(error).rpartition(" - at `")
    if not at:
        text, where = where, "$`"
    of_key = where.startswith("key` in `")
    path = f"{path}{where.removeprefix('key` in `')[1:-1]}".lstrip(".")
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return [ValidationIssue(_join_path(path, problem.path), problem.message) for problem in cause.issues]
    text = text[:1].lower() + re.sub(_QUOTED_NAME, lambda name: _TYPE_NAMES.get(name[1], name[0]), text[1:])
    return [ValidationIssue(path, f"a key: {text}" if of_key else text)]


_QUOTED_NAME: Final = r"`(\w+)`"


def _join_path(path: str, more: str) -> str:
    return f"{path}{more}" if not more or more.startswith("[") or not path else f"{path}.{more}"


# --------------------------------------------------------------------- from our own schemas

_BOUND_KEYWORDS: Final[tuple[tuple[str, Callable[[Any, Any], bool], str], ...]] = (
    ("minimum", operator.lt, "at least"),
    ("exclusiveMinimum", operator.le, "more than"),
    ("maximum", operator.gt, "at most"),
    ("exclusiveMaximum", operator.ge, "less than"),
)
_SIZE_KEYWORDS: Final = {
    "string": ("minLength", "maxLength", "characters"),
    "array": ("minItems", "maxItems", "items"),
    "object": ("minProperties", "maxProperties", "keys"),
}

_ANY_SCHEMA: Final[Schema] = {}


def explain_mismatch(
    value: JSON, schema: Schema, defs: Schema, path: str = "", depth: int = 0
) -> Iterator[ValidationIssue]:
    """Why a JSON value misses a schema, as far as can be said: nothing is said of formats and patterns.

    Args:
        value: the value.
        schema: a schema made by `TypeCompiler`.
        defs: what its references refer to.
        path: where the value stands.
        depth: how far down that is.
    """
    schema = resolve_ref(schema, defs)
    if isinstance(schema, ForeignSchema) or depth > MAX_DEPTH:
        return
    if "anyOf" in schema:
        yield from _explain_any_of(value, schema["anyOf"], defs, path, depth)
        return
    kind = get_json_type(value)
    if not is_type_allowed(schema, kind):
        yield ValidationIssue(path, f"expected {_describe_expected(schema, defs)}, got {_TYPE_NAMES[kind]}")
    elif not _is_allowed_choice(schema, value):
        yield ValidationIssue(path, f"expected {_describe_expected(schema, defs)}, got {_quote_value(value)}")
    elif kind in {"integer", "number"}:
        yield from _explain_bounds(value, schema, path)
    elif kind in _SIZE_KEYWORDS:
        yield from _explain_size(value, schema, kind, path)
        for below, part, inner in _iter_children(value, schema, path):
            yield from explain_mismatch(below, part, defs, inner, depth + 1)
        if kind == "object":
            yield from _explain_keys(value, schema, path)


def _is_allowed_choice(schema: Schema, value: JSON) -> bool:
    choices = schema.get("enum", [schema.get("const", value)])
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def _explain_any_of(
    value: JSON, options: list[Schema], defs: Schema, path: str, depth: int
) -> Iterator[ValidationIssue]:
    """Why a value misses all options: in detail for the one that was meant, if only one can be."""
    meant = [option for option in options if _is_intended_option(value, resolve_ref(option, defs), defs)]
    faults = [
        list(islice(explain_mismatch(value, option, defs, path, depth + 1), MAX_ISSUES)) for option in meant
    ]
    if not meant:
        expected = _describe_expected({"anyOf": options}, defs)
        yield ValidationIssue(path, f"expected {expected}, got {_TYPE_NAMES[get_json_type(value)]}")
    elif all(faults):
        yield from min(faults, key=len)


def _is_intended_option(value: JSON, option: Schema, defs: Schema) -> bool:
    """Whether an option is of the type of a value and carries the same tag, if it has one."""
    if "anyOf" in option:
        return any(_is_intended_option(value, resolve_ref(inner, defs), defs) for inner in option["anyOf"])
    if not is_type_allowed(option, get_json_type(value)):
        return False
    if isinstance(value, dict):
        members = cast("dict[str, JSON]", value)
        tags = {name: part for name, part in option.get("properties", {}).items() if "const" in part}
        return all(name in members and _is_allowed_choice(part, members[name]) for name, part in tags.items())
    if isinstance(value, list) and value and option.get("prefixItems"):
        return _is_allowed_choice({"const": option["prefixItems"][0].get("const", value[0])}, value[0])
    return True


def _describe_expected(schema: Schema, defs: Schema) -> str:
    """What a schema wants, in words."""
    schema = resolve_ref(schema, defs)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_describe_expected(option, defs) for option in schema["anyOf"]))
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if choices:
        shown = ", ".join(map(_quote_value, choices[:MAX_QUOTED])) + (
            ", …" if len(choices) > MAX_QUOTED else ""
        )
        return f"one of {shown}" if len(choices) > 1 else shown
    types = schema.get("type", "another value")
    words = " or ".join(
        _TYPE_NAMES.get(kind, kind) for kind in ([types] if isinstance(types, str) else types)
    )
    for name, part in schema.get("properties", {}).items():
        if "const" in part:
            return f"{words} with {_quote_value(part['const'])} as `{name}`"
    if "const" in schema.get("prefixItems", [{}])[0]:
        return f"{words} that begins with {_quote_value(schema['prefixItems'][0]['const'])}"
    return f"{words} ({schema['format']})" if "format" in schema else words


def _quote_value(value: JSON) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def _explain_bounds(value: float, schema: Schema, path: str) -> Iterator[ValidationIssue]:
    for keyword, outside, words in _BOUND_KEYWORDS:
        if keyword in schema and outside(value, schema[keyword]):
            yield ValidationIssue(path, f"expected {words} {schema[keyword]}, got {_quote_value(value)}")
    factor = schema.get("multipleOf")
    if isinstance(factor, int) and value % factor:
        yield ValidationIssue(path, f"expected a multiple of {factor}, got {_quote_value(value)}")


def _explain_size(value: Any, schema: Schema, kind: str, path: str) -> Iterator[ValidationIssue]:
    least, most, noun = _SIZE_KEYWORDS[kind]
    if "contentEncoding" in schema:
        return  # the limit counts characters of Base64, which would confuse
    if len(value) < schema.get(least, 0):
        yield ValidationIssue(path, f"expected at least {schema[least]} {noun}, got {len(value)}")
    if len(value) > schema.get(most, len(value)):
        yield ValidationIssue(path, f"expected at most {schema[most]} {noun}, got {len(value)}")


def _iter_children(value: Any, schema: Schema, path: str) -> Iterator[tuple[JSON, Schema, str]]:
    """The parts of an array or an object, each with its schema and path."""
    if isinstance(value, list):
        fixed: list[Schema] = schema.get("prefixItems", [])
        rest: Schema = schema.get("items", {})
        for index, item in enumerate(cast("list[JSON]", value)):
            yield item, fixed[index] if index < len(fixed) else rest, f"{path}[{index}]"
    elif isinstance(value, dict):
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties") or _ANY_SCHEMA
        for name, item in cast("dict[str, JSON]", value).items():
            yield item, known.get(name, rest), _join_path(path, _format_key(name))


def _format_key(name: str) -> str:
    """A key as a step of a path; short, whatever the peer sent."""
    return name if name.isidentifier() and len(name) <= MAX_QUOTED else f"[{_quote_value(name)}]"


def _explain_keys(value: dict[str, JSON], schema: Schema, path: str) -> Iterator[ValidationIssue]:
    """The keys of an object that are missing, that are not known, or that are none."""
    for name in value:
        for problem in explain_mismatch(name, schema.get("propertyNames", _ANY_SCHEMA), _ANY_SCHEMA):
            yield ValidationIssue(path, f"a key: {problem.message}")
    known = ", ".join(schema.get("properties", {}))
    for name in schema.get("required", ()):
        if name not in value:
            yield ValidationIssue(_join_path(path, name), "is missing")
    if schema.get("additionalProperties") is False:
        for name in value:
            if name not in schema["properties"]:
                yield ValidationIssue(
                    _join_path(path, _format_key(name)), f"is not known; known are: {known or 'none'}"
                )
