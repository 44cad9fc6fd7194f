"""Combines schemas: definitions and references, unions, keywords, and the root that a peer gets.

Works on the schemas of `TypeCompiler`, which use a small part of JSON Schema.
"""

import re
from collections.abc import Hashable
from itertools import chain, count
from typing import Any, Final, cast

import msgspec

from toolpost import json_schema
from toolpost.errors import MCPError
from toolpost.json_schema import DEFS_PREFIX, ForeignSchema, Schema
from toolpost.schema_validator import SchemaValidator, make_validator
from toolpost.types.base import JSON

HEADER_KEYWORD: Final = "x-mcp-header"  # names the header of a property
_NAME_SEPARATORS: Final = r"[^A-Za-z0-9_.-]+"
_REF_PATTERN: Final = r'"\$ref":"#/\$defs/([^"]+)"'
_DATA_KEYWORDS: Final = frozenset({"const", "default", "enum", "examples"})

MAX_INLINED: Final = 500
"""References of one schema that are inlined. One with more keeps its references: it would grow too large."""


class Definitions(dict[str, JSON]):
    """The definitions that some schemas share, and their names."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Any, str] = {}

    def assign_name(self, key: Hashable, wanted: str) -> str:
        """Return the name of a definition: the wanted name, with a number if it is taken."""
        if key not in self._names:
            wanted = re.sub(_NAME_SEPARATORS, "_", wanted).strip("_")
            taken = set(self._names.values())
            numbered = (f"{wanted}_{number}" for number in count(2))
            self._names[key] = next(name for name in chain([wanted], numbered) if name not in taken)
        return self._names[key]

    def assign_foreign_name(self, wanted: str, definition: Schema) -> str:
        """Return the name of a definition that another library made; equal ones share it."""
        return self.assign_name((wanted, msgspec.json.encode(definition)), wanted)


def can_accept(schema: Schema, kind: str, defs: Schema) -> bool:
    """Return whether some value of a JSON type, such as "string" or "null", may fit a schema."""
    schema = json_schema.resolve_ref(schema, defs)
    for options in ("anyOf", "oneOf"):
        if options in schema:
            return any(can_accept(option, kind, defs) for option in schema[options])
    if "enum" in schema:
        return any(json_schema.get_json_type(choice) == kind for choice in schema["enum"])
    return json_schema.is_type_allowed(schema, kind)


def add_keywords(schema: Schema, keywords: Schema) -> Schema:
    """Return a schema with more keywords; a foreign one stays foreign."""
    if not keywords:
        return schema
    together = {**schema, **keywords}
    return ForeignSchema(together) if isinstance(schema, ForeignSchema) else together


def make_any_of(options: list[Schema]) -> Schema:
    """Return a schema of the values that fit any of several schemas."""
    flat: list[Schema] = []
    for option in options:
        for one in option["anyOf"] if list(option) == ["anyOf"] else [option]:
            if one not in flat:
                flat.append(one)
    return {"anyOf": flat} if len(flat) > 1 else flat[0]


def remove_null(schema: Schema) -> Schema:
    """Return a schema without null beside one other option; a schema with several stays as it is."""
    kept = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(kept) != 1:
        return schema
    return add_keywords(kept[0], {keyword: value for keyword, value in schema.items() if keyword != "anyOf"})


def collect_definitions(schema: Schema, defs: Schema) -> dict[str, JSON]:
    """Return the definitions that a schema needs, also indirectly; None for an incomplete one."""
    found: dict[str, JSON] = {}
    texts = [msgspec.json.encode(schema)]
    for text in texts:  # grows while it is walked
        for name in re.findall(_REF_PATTERN, text.decode()) if b'"$ref"' in text else ():
            if name not in found:
                found[name] = defs.get(name)
                texts.append(msgspec.json.encode(found[name]))
    return found


def attach_definitions(schema: Schema, defs: Schema) -> dict[str, JSON]:
    """Return a schema together with the definitions that it needs, and no others."""
    needed = collect_definitions(schema, defs)
    return {**schema, "$defs": needed} if needed else dict(schema)


def inline_definitions(schema: Schema) -> dict[str, JSON]:
    """Return a schema without references: some clients drop `$defs`. Only recursive ones stay."""
    root = dict(schema)
    defs: dict[str, JSON] = root.pop("$defs", {})
    recursive = {name for name in defs if name in collect_definitions(defs[name], defs)}
    left = MAX_INLINED

    def inline(part: JSON) -> JSON:
        nonlocal left
        if isinstance(part, list):
            return [inline(item) for item in cast("list[JSON]", part)]
        if not isinstance(part, dict) or left < 0:
            return cast("JSON", part)
        part = cast("dict[str, JSON]", part)
        name = str(part.get("$ref", "")).removeprefix(DEFS_PREFIX)
        if name in defs and name not in recursive:
            left -= 1
            return inline({**defs[name], **{kept: part[kept] for kept in part if kept != "$ref"}})
        return {keyword: inline_keyword(keyword, value) for keyword, value in part.items()}

    def inline_keyword(keyword: str, value: JSON) -> JSON:
        if keyword == "properties":
            return {name: inline(part) for name, part in value.items()}
        if keyword == "discriminator":  # its mapping has references
            return {"propertyName": value["propertyName"]}
        return value if keyword in _DATA_KEYWORDS else inline(value)

    inlined = attach_definitions(inline(root), {name: inline(defs[name]) for name in defs.keys() & recursive})
    return inlined if left >= 0 else dict(schema)


def make_root_schema(schema: Schema, defs: Schema) -> dict[str, JSON]:
    """Return a schema with its definitions; a schema of objects names that type at its root."""
    root = dict(schema)
    while "$ref" in root:
        root = {**defs[root.pop("$ref").removeprefix(DEFS_PREFIX)], **root}
    options = root.get("anyOf", [])
    if options and all(json_schema.resolve_ref(option, defs).get("type") == "object" for option in options):
        root["type"] = "object"
    return attach_definitions(root, defs)


def compile_validator(schema: dict[str, JSON], label: str) -> SchemaValidator:
    """Return the validator for a schema of an author; its messages contain no values.

    Raises `MCPError` if jsonschema-rs is not installed, `TypeError` or `ValueError` for the schema.
    """
    if not isinstance(schema, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - authors may err
        raise TypeError(f"{label} must be a dict, not {schema!r}")
    try:
        validator = make_validator(schema, mask="the value")
    except ValueError as error:
        location = "/".join(map(str, getattr(error, "instance_path", ()))) or "its root"
        raise ValueError(
            f"{label} is not valid: {getattr(error, 'message', error)}, at {location}"
        ) from error
    if validator is None:
        raise MCPError(
            f"{label} requires jsonschema-rs, which is not installed",
            hint="pip install 'toolpost[schema]'",
        )
    return validator
