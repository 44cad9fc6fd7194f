"""JSON Schema: readers of schemas of any origin, and explanations of why a value does not match.

Readers accept any JSON that a peer sends as a schema. `explain_mismatch` is for schemas that a server makes
from types: it explains, and decides nothing. `schema_validator` validates others.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeAlias, TypeGuard, cast

import msgspec

from toolpost.types.base import JSON

Schema: TypeAlias = Mapping[str, JSON]

MAX_ISSUES: Final = 20  # in one error
MAX_DEPTH: Final = 64  # levels of a value that are explained: messages are not nested deeper
MAX_QUOTED: Final = 60  # characters of a value, or number of choices, in an error
MAX_REFERENCES: Final = 20  # references in a row that are followed: a schema may be circular
MAX_SCHEMA_DEPTH: Final = 40  # levels of a schema that are searched for references

DEFS_PREFIX: Final = "#/$defs/"

JSON_TYPES: Final[dict[Any, str]] = {  # by the Python classes of decoded values
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip
TYPE_NAMES: Final = {  # the JSON types in errors
    "boolean": "a boolean", "integer": "an integer", "number": "a number", "string": "a string",
    "array": "an array", "object": "an object", "null": "null",
}  # fmt: skip
SIZE_KEYWORDS: Final = {  # the keywords that limit a size, without `min` and `max`, and the things counted
    "string": ("Length", "characters"),
    "array": ("Items", "items"),
    "object": ("Properties", "keys"),
}
_BOUND_KEYWORDS: Final[tuple[tuple[str, Callable[[Any, Any], bool], str], ...]] = (
    ("minimum", operator.lt, "at least"),
    ("exclusiveMinimum", operator.le, "more than"),
    ("maximum", operator.gt, "at most"),
    ("exclusiveMaximum", operator.ge, "less than"),
)
_ANY_SCHEMA: Final[Schema] = {}


class ForeignSchema(dict[str, JSON]):
    """A schema made by another library, whose own errors explain it better than `explain_mismatch`."""


class ValidationIssue(msgspec.Struct, frozen=True):
    """A problem and its place: `path` is `days` or `items[2].price`, empty for the value itself."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


# --------------------------------------------------------------------- reading schemas of any origin


def as_object(value: JSON) -> dict[str, JSON]:
    """Return the value if it is an object, else an empty object."""
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else {}


def as_list(value: JSON) -> list[JSON]:
    """Return the value if it is a list, else an empty list."""
    return cast("list[JSON]", value) if isinstance(value, list) else []


def get_member(value: JSON, *names: str) -> Any:
    """Return a member of nested objects, or None."""
    for name in names:
        value = as_object(value).get(name)
    return value


def is_number(value: JSON) -> TypeGuard[float]:
    """Return whether a decoded value is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def get_json_type(value: JSON) -> str:
    """Return the JSON type of a value; a float without a fraction is an integer."""
    return "integer" if isinstance(value, float) and value.is_integer() else JSON_TYPES[type(value)]


def get_types(schema: Schema) -> list[str]:
    """Return the types that a schema names."""
    types: JSON = schema.get("type")
    return [types] if isinstance(types, str) else as_list(types)


def is_type_allowed(schema: Schema, kind: str) -> bool:
    """Return whether the `type` of a schema, if it has one, allows a JSON type."""
    types = get_types(schema)
    return not types or kind in types or (kind == "integer" and "number" in types)


def get_properties(schema: Schema) -> dict[str, dict[str, JSON]]:
    """Return the properties of a schema whose own schemas are objects."""
    properties = as_object(schema.get("properties"))
    return {name: each for name, each in properties.items() if isinstance(each, dict)}


def read_choices(schema: Schema, keywords: tuple[str, ...]) -> dict[Any, str]:
    """Return the strings and numbers that a schema allows, with their titles; empty if it has no choices.

    The first of the keywords that the schema has decides: `enum`, `const`, `oneOf` and `anyOf` in some order.
    """
    present = (key for key in keywords if (key == "const" and key in schema) or as_list(schema.get(key)))
    keyword = next(present, "")
    titles: list[JSON] = []
    if keyword == "const":
        values = [schema["const"]]
    elif keyword == "enum":
        values, titles = as_list(schema["enum"]), as_list(schema.get("enumNames"))
    else:
        options = [as_object(option) for option in as_list(schema.get(keyword))]
        values, titles = ([option.get(key) for option in options] for key in ("const", "title"))
    if not values or not all(isinstance(value, str | int | float) for value in values):
        return {}
    pairs = zip(values, titles if len(titles) == len(values) else values, strict=True)
    return {value: str(title or value) for value, title in pairs}


def follow_pointer(reference: str, root: JSON) -> JSON:
    """Return the part of a document to which a reference points; None if there is none."""
    found: Any = root
    try:
        for step in reference.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            found = found[int(key) if isinstance(found, list) else key]
    except (LookupError, TypeError, ValueError):
        return None
    return found


def resolve_schema(schema: JSON, root: Schema) -> dict[str, JSON]:
    """Return a schema with its references resolved, and without null if it allows other types."""
    found = as_object(schema)
    for _ in range(MAX_REFERENCES):
        inner = _get_target(found, root)
        if inner is None:
            break
        found = inner | {key: found[key] for key in ("description", "title", "default") if key in found}
    if isinstance(found.get("type"), list):
        kinds = [kind for kind in get_types(found) if kind != "null"]
        found = {**found, "type": kinds[0] if len(kinds) == 1 else kinds}
    return found


def _get_target(schema: Schema, root: Schema) -> dict[str, JSON] | None:
    """Return the schema that another one only wraps; None if that is a schema of its own."""
    reference: JSON = schema.get("$ref")
    if isinstance(reference, str):
        return as_object(follow_pointer(reference, root)) if reference.startswith("#") else {}
    if "type" in schema or "properties" in schema:
        return None
    for key in ("anyOf", "oneOf", "allOf"):
        options = [as_object(option) for option in as_list(schema.get(key))]
        solid = [option for option in options if option.get("type") != "null"]
        if len(solid) == 1:
            return solid[0]
    return None


def find_remote_references(value: JSON, depth: int = MAX_SCHEMA_DEPTH) -> list[str]:
    """Return the references in a schema to other documents."""
    if not depth or not isinstance(value, dict | list):
        return []
    found: JSON = as_object(value).get("$ref")
    own = [found] if isinstance(found, str) and not found.startswith("#") else []
    parts = as_object(value).values() or as_list(value)
    inner = (each for part in parts for each in find_remote_references(part, depth - 1))
    return list(dict.fromkeys([*own, *inner]))


# --------------------------------------------------------------------- explaining values


def format_path(steps: Iterable[str | int]) -> str:
    """Return the keys and indices of a part of a value as one string."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return path.removeprefix(".")


def join_path(path: str, more: str) -> str:
    """Return two paths as one."""
    return f"{path}{more}" if not more or more.startswith("[") or not path else f"{path}.{more}"


def check_bounds(value: float, schema: Schema) -> Iterator[str]:
    """Yield the bounds that a number violates, such as "at least 3"."""
    for keyword, misses, words in _BOUND_KEYWORDS:
        bound: JSON = schema.get(keyword)
        if is_number(bound) and misses(value, bound):
            yield f"{words} {bound}"
    factor: JSON = schema.get("multipleOf")
    if isinstance(factor, int) and factor > 0 and value % factor:
        yield f"a multiple of {factor}"


def check_size(value: Any, schema: Schema) -> Iterator[str]:
    """Yield the limits that the size of a string, array or object violates, such as "at least 3"."""
    keyword, _ = SIZE_KEYWORDS[get_json_type(value)]
    least, most = schema.get(f"min{keyword}"), schema.get(f"max{keyword}")
    if is_number(least) and len(value) < least:
        yield f"at least {least}"
    if is_number(most) and len(value) > most:
        yield f"at most {most}"


def explain_mismatch(
    value: JSON, schema: Schema, defs: Schema, path: str = "", depth: int = 0
) -> Iterator[ValidationIssue]:
    """Yield why a value does not match a schema of the server, except for formats and patterns."""
    schema = resolve_ref(schema, defs)
    if isinstance(schema, ForeignSchema) or depth > MAX_DEPTH:
        return
    if "anyOf" in schema:
        yield from _explain_any_of(value, schema["anyOf"], defs, path, depth)
        return
    kind = get_json_type(value)
    if not is_type_allowed(schema, kind):
        yield ValidationIssue(path, f"expected {_describe_expected(schema, defs)}, got {TYPE_NAMES[kind]}")
    elif not _is_allowed_choice(schema, value):
        yield ValidationIssue(path, f"expected {_describe_expected(schema, defs)}, got {_quote_value(value)}")
    else:
        yield from _explain_limits(value, schema, kind, path)
        for part, inner, where in _iter_parts(value, schema, path):
            yield from explain_mismatch(part, inner, defs, where, depth + 1)
        if kind == "object":
            yield from _explain_keys(value, schema, path)


def resolve_ref(schema: Schema, defs: Schema) -> Schema:
    """Return the definition that a schema refers to, or the schema itself."""
    while "$ref" in schema:
        # A class that is still being compiled has no definition yet; it is an object.
        schema = defs.get(schema["$ref"].removeprefix(DEFS_PREFIX), {"type": "object"})
    return schema


def _is_allowed_choice(schema: Schema, value: JSON) -> bool:
    choices = schema.get("enum", [schema.get("const", value)])
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def _explain_limits(value: Any, schema: Schema, kind: str, path: str) -> Iterator[ValidationIssue]:
    if kind in {"integer", "number"}:
        for limit in check_bounds(value, schema):
            yield ValidationIssue(path, f"expected {limit}, got {_quote_value(value)}")
    elif kind in SIZE_KEYWORDS and "contentEncoding" not in schema:  # that counts characters of Base64
        for limit in check_size(value, schema):
            yield ValidationIssue(path, f"expected {limit} {SIZE_KEYWORDS[kind][1]}, got {len(value)}")


def _explain_any_of(
    value: JSON, options: list[Schema], defs: Schema, path: str, depth: int
) -> Iterator[ValidationIssue]:
    """Yield why a value matches no option: in detail for the option with the fewest issues."""
    meant = [option for option in options if _is_intended_option(value, resolve_ref(option, defs), defs)]
    if not meant:
        expected = _describe_expected({"anyOf": options}, defs)
        yield ValidationIssue(path, f"expected {expected}, got {TYPE_NAMES[get_json_type(value)]}")
        return
    found = (explain_mismatch(value, option, defs, path, depth + 1) for option in meant)
    issues = [list(islice(each, MAX_ISSUES)) for each in found]
    if all(issues):
        yield from min(issues, key=len)


def _is_intended_option(value: JSON, option: Schema, defs: Schema) -> bool:
    """Return whether an option has the type of a value, and its tag if any."""
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
    schema = resolve_ref(schema, defs)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_describe_expected(option, defs) for option in schema["anyOf"]))
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if choices:
        shown = ", ".join(map(_quote_value, choices[:MAX_QUOTED]))
        more = ", …" if len(choices) > MAX_QUOTED else ""
        return f"one of {shown}{more}" if len(choices) > 1 else shown
    words = " or ".join(TYPE_NAMES[kind] for kind in get_types(schema)) or "another value"
    for name, part in schema.get("properties", {}).items():
        if "const" in part:
            return f"{words} with {_quote_value(part['const'])} as `{name}`"
    if "const" in schema.get("prefixItems", [{}])[0]:
        return f"{words} that begins with {_quote_value(schema['prefixItems'][0]['const'])}"
    return f"{words} ({schema['format']})" if "format" in schema else words


def _quote_value(value: JSON) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def _iter_parts(value: Any, schema: Schema, path: str) -> Iterator[tuple[JSON, Schema, str]]:
    """Yield the items of an array or the members of an object, each with its schema and path."""
    if isinstance(value, list):
        fixed: list[Schema] = schema.get("prefixItems", [])
        rest: Schema = schema.get("items", _ANY_SCHEMA)
        for index, item in enumerate(cast("list[JSON]", value)):
            yield item, fixed[index] if index < len(fixed) else rest, f"{path}[{index}]"
    elif isinstance(value, dict):
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties") or _ANY_SCHEMA
        for name, item in cast("dict[str, JSON]", value).items():
            yield item, known.get(name, rest), join_path(path, _format_key(name))


def _format_key(name: str) -> str:
    """Return a key as a step of a path, shortened."""
    return name if name.isidentifier() and len(name) <= MAX_QUOTED else f"[{_quote_value(name)}]"


def _explain_keys(value: dict[str, JSON], schema: Schema, path: str) -> Iterator[ValidationIssue]:
    for name in value:
        for issue in explain_mismatch(name, schema.get("propertyNames", _ANY_SCHEMA), _ANY_SCHEMA):
            yield ValidationIssue(path, f"a key: {issue.message}")
    for name in schema.get("required", ()):
        if name not in value:
            yield ValidationIssue(join_path(path, name), "required but missing")
    if schema.get("additionalProperties") is False:
        known = schema["properties"]
        for name in value:
            if name not in known:
                text = f"unknown (expected: {', '.join(known) or 'none'})"
                yield ValidationIssue(join_path(path, _format_key(name)), text)
