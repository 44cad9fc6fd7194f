"""JSON Schema as data: what a schema allows, and how schemas are put together.

Works on the schemas that we make, which use a small part of the language; those that an author wrote are left
to an optional package. Knows no Python types.
"""

import re
from collections.abc import Hashable, Mapping
from itertools import chain, count
from typing import Any, Final, TypeAlias

import msgspec

from toolpost.errors import MCPError
from toolpost.types.base import JSON

Schema: TypeAlias = Mapping[str, JSON]

HEADER_KEYWORD: Final = "x-mcp-header"
"""The keyword that names the header of a property."""
RESULT_KEY: Final = "result"
"""The key under which a peer that takes only objects finds another value."""
_DEFS_PREFIX: Final = "#/$defs/"
_NAME_SEPARATORS: Final = r"[^A-Za-z0-9_.-]+"
_REF_PATTERN: Final = r'"\$ref":"#/\$defs/([^"]+)"'


_JSON_TYPES: Final[dict[Any, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class ForeignSchema(dict[str, JSON]):
    """A piece of JSON Schema that somebody else made and explains better."""


class Definitions(dict[str, JSON]):
    """What the references in some schemas refer to, by names that are given out here."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Any, str] = {}

    def assign_name(self, key: Hashable, wanted: str) -> str:
        """The name of a definition: the wanted one, with a number if another one has it."""
        if key not in self._names:
            wanted = re.sub(_NAME_SEPARATORS, "_", wanted).strip("_")
            taken = set(self._names.values())
            numbered = (f"{wanted}_{number}" for number in count(2))
            self._names[key] = next(name for name in chain([wanted], numbered) if name not in taken)
        return self._names[key]

    def assign_foreign_name(self, wanted: str, definition: Schema) -> str:
        """The name of a definition that somebody else made; equal ones share it."""
        return self.assign_name((wanted, msgspec.json.encode(definition)), wanted)

    def make_ref(self, name: str) -> dict[str, JSON]:
        """A reference to a definition."""
        return {"$ref": f"{_DEFS_PREFIX}{name}"}


def resolve_ref(schema: Schema, defs: Schema) -> Schema:
    """The schema that a reference refers to; itself if it is none."""
    while "$ref" in schema:
        # A class that is still being surveyed has no definition yet; it is neither a string nor null.
        schema = defs.get(schema["$ref"].removeprefix(_DEFS_PREFIX), {"type": "object"})
    return schema


def get_json_type(value: JSON) -> str:
    """The JSON type of a value; a whole float is an integer."""
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return _JSON_TYPES[type(value)]


def is_type_allowed(schema: Schema, kind: str) -> bool:
    """Whether the `type` of a schema, if it has one, allows a JSON type."""
    types = schema.get("type", kind)
    return kind in types or (kind == "integer" and "number" in types)


def can_accept(schema: Schema, kind: str, defs: Schema) -> bool:
    """Whether some value of a JSON type, such as "string" or "null", may fit a schema."""
    schema = resolve_ref(schema, defs)
    for options in ("anyOf", "oneOf"):
        if options in schema:
            return any(can_accept(option, kind, defs) for option in schema[options])
    choices = schema.get("enum")
    return (
        is_type_allowed(schema, kind)
        if choices is None
        else any(get_json_type(choice) == kind for choice in choices)
    )


def can_overlap(one: Schema, other: Schema, defs: Schema) -> bool:
    """Whether both schemas take values of some JSON type."""
    return any(can_accept(one, kind, defs) and can_accept(other, kind, defs) for kind in _JSON_TYPES.values())


def add_keywords(schema: Schema, notes: Schema) -> Schema:
    """A schema with more keywords; who made it stays the same."""
    if not notes:
        return schema
    together = {**schema, **notes}
    return ForeignSchema(together) if isinstance(schema, ForeignSchema) else together


def make_enum_schema(choices: list[JSON]) -> Schema:
    """A schema that allows these values; it names their type if they have one in common."""
    kinds = {get_json_type(choice) for choice in choices}
    return {"enum": choices} if len(kinds) > 1 else {"type": kinds.pop(), "enum": choices}


def make_any_of(options: list[Schema]) -> Schema:
    """A schema that allows what one of several allows."""
    flat: list[Schema] = []
    for option in options:
        for one in option["anyOf"] if list(option) == ["anyOf"] else [option]:
            if one not in flat:
                flat.append(one)
    return {"anyOf": flat} if len(flat) > 1 else flat[0]


def remove_null(schema: Schema) -> Schema:
    """A schema that does not allow null where it allows something else; one with several choices stays."""
    kept = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(kept) != 1:
        return schema
    return add_keywords(kept[0], {keyword: value for keyword, value in schema.items() if keyword != "anyOf"})


def collect_definitions(schema: Schema, defs: Schema) -> dict[str, JSON]:
    """The definitions that a schema refers to, also by way of others; of one that is being made the name."""
    found: dict[str, JSON] = {}
    texts = [msgspec.json.encode(schema)]
    for text in texts:  # grows while it is walked
        for name in re.findall(_REF_PATTERN, text.decode()) if b'"$ref"' in text else ():
            if name not in found:
                found[name] = defs.get(name)
                texts.append(msgspec.json.encode(found[name]))
    return found


def attach_definitions(schema: Schema, defs: Schema) -> dict[str, JSON]:
    """A schema together with the definitions that it needs, and no others."""
    needed = collect_definitions(schema, defs)
    return {**schema, "$defs": needed} if needed else dict(schema)


def inline_refs(schema: Schema, defs: Schema, keyword: str, above: frozenset[str] = frozenset()) -> Schema:
    """A schema in which no reference stands between the root and a property that has a keyword.

    Args:
        schema: the schema.
        defs: what its references refer to.
        keyword: the keyword.
        above: the definitions that it is a part of; one that contains itself is still referred to.
    """
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_DEFS_PREFIX)
        told = msgspec.json.encode([schema, collect_definitions(schema, defs)])
        if name in above or f'"{keyword}"'.encode() not in told:
            return schema
        above |= {name}
        schema = {**defs[name], **{kept: value for kept, value in schema.items() if kept != "$ref"}}
        return inline_refs(schema, defs, keyword, above)
    if "properties" not in schema:
        return schema
    parts = schema["properties"].items()
    return {**schema, "properties": {name: inline_refs(part, defs, keyword, above) for name, part in parts}}


def make_root_schema(schema: Schema, defs: Schema) -> dict[str, JSON]:
    """A schema with its definitions; one that allows only objects says so at its root."""
    root = dict(schema)
    while "$ref" in root:
        root = {**defs[root.pop("$ref").removeprefix(_DEFS_PREFIX)], **root}
    options = root.get("anyOf", [])
    if options and all(resolve_ref(option, defs).get("type") == "object" for option in options):
        root["type"] = "object"
    return attach_definitions(root, defs)


def wrap_schema(schema: Schema) -> dict[str, JSON]:
    """The schema of an object that holds what `schema` allows under the key `result`."""
    inner = {keyword: value for keyword, value in schema.items() if keyword != "$defs"}
    outer: dict[str, JSON] = {"type": "object", "properties": {RESULT_KEY: inner}, "required": [RESULT_KEY]}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def compile_validator(schema: dict[str, JSON], what: str) -> Any:
    """The validator of jsonschema-rs for a schema that an author wrote.

    It fetches nothing, matches patterns in linear time, and repeats no value in its messages.

    Args:
        schema: the schema.
        what: what it is, for the text of an error.

    Raises:
        MCPError: jsonschema-rs is not installed, so that nobody could check anything.
        TypeError: it is no dict.
        ValueError: it is no valid schema, or refers to another place.
    """
    if not isinstance(schema, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - who is not checked may err
        raise TypeError(f"{what} has to be a dict, not {schema!r}")
    try:
        import jsonschema_rs  # noqa: PLC0415 - optional, and only needed here
    except ImportError as error:
        raise MCPError(
            f"{what} can only be checked by jsonschema-rs, which is not installed",
            hint="pip install 'toolpost[schema]'",
        ) from error
    patterns = jsonschema_rs.RegexOptions()
    try:
        return jsonschema_rs.validator_for(schema, offline=True, pattern_options=patterns, mask="the value")
    except jsonschema_rs.ValidationError as error:
        place = "/".join(map(str, error.instance_path)) or "its root"
        raise ValueError(f"{what} is not valid: {error.message}, at {place}") from error
