"""JSON Schema as data: what a schema allows, and how schemas are put together.

Works on the schemas that we make, which use a small part of the language. Knows no Python types.
"""

import re
from collections.abc import Hashable, Mapping
from itertools import chain, count
from typing import Any, Final, TypeAlias

import msgspec

from toolpost.types.base import JSON

__all__ = [
    "KINDS",
    "NULL",
    "RESULT",
    "Definitions",
    "Opaque",
    "Schema",
    "accepts",
    "any_of",
    "kind_of",
    "noted",
    "of_kind",
    "resolved",
    "rooted",
    "with_defs",
    "wrapped",
]

Schema: TypeAlias = Mapping[str, JSON]

KINDS: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
NULL: Final[Schema] = {"type": "null"}
RESULT: Final = "result"
"""The key under which a peer that takes only objects finds another value."""
_PREFIX: Final = "#/$defs/"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")


_KIND_OF: Final[dict[Any, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Opaque(dict[str, JSON]):
    """A piece of JSON Schema that somebody else made and explains better."""


class Definitions(dict[str, JSON]):
    """What the references in some schemas refer to, by names that are given out here."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Any, str] = {}

    def name(self, key: Hashable, wanted: str) -> str:
        """The name of a definition: the wanted one, with a number if another one has it."""
        if key not in self._names:
            wanted = _NOT_IN_NAMES.sub("_", wanted).strip("_")
            taken = set(self._names.values())
            numbered = (f"{wanted}_{number}" for number in count(2))
            self._names[key] = next(name for name in chain([wanted], numbered) if name not in taken)
        return self._names[key]

    def name_of(self, wanted: str, definition: Schema) -> str:
        """The name of a definition that somebody else made; equal ones share it."""
        return self.name((wanted, msgspec.json.encode(definition)), wanted)

    def ref(self, key: Hashable, wanted: str) -> dict[str, JSON]:
        """A reference to a definition."""
        return {"$ref": f"{_PREFIX}{self.name(key, wanted)}"}


def resolved(schema: Schema, defs: Schema) -> Schema:
    """The schema that a reference refers to; itself if it is none."""
    while "$ref" in schema:
        # A class that is still being surveyed has no definition yet; it is neither a string nor null.
        schema = defs.get(schema["$ref"].removeprefix(_PREFIX), {"type": "object"})
    return schema


def kind_of(value: JSON) -> str:
    """The JSON type of a value; a whole float is an integer."""
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return _KIND_OF[type(value)]


def of_kind(schema: Schema, kind: str) -> bool:
    """Whether the `type` of a schema, if it has one, allows a JSON type."""
    types = schema.get("type", kind)
    return kind in types or (kind == "integer" and "number" in types)


def accepts(schema: Schema, kind: str, defs: Schema) -> bool:
    """Whether some value of a JSON type, such as "string" or "null", may fit a schema."""
    schema = resolved(schema, defs)
    for options in ("anyOf", "oneOf"):
        if options in schema:
            return any(accepts(option, kind, defs) for option in schema[options])
    choices = schema.get("enum")
    return of_kind(schema, kind) if choices is None else any(kind_of(choice) == kind for choice in choices)


def noted(schema: Schema, notes: Schema) -> Schema:
    """A schema with more keywords; who made it stays the same."""
    if not notes:
        return schema
    together = {**schema, **notes}
    return Opaque(together) if isinstance(schema, Opaque) else together


def any_of(options: list[Schema]) -> Schema:
    """A schema that allows what one of several allows."""
    flat: list[Schema] = []
    for option in options:
        for one in option["anyOf"] if list(option) == ["anyOf"] else [option]:
            if one not in flat:
                flat.append(one)
    return {"anyOf": flat} if len(flat) > 1 else flat[0]


def with_defs(schema: Schema, defs: Schema) -> dict[str, JSON]:
    """A schema together with the definitions that it needs, and no others."""
    needed: dict[str, JSON] = {}
    texts = [msgspec.json.encode(schema)]
    for text in texts:  # grows while it is walked
        for name in defs:
            if name not in needed and f'"{_PREFIX}{name}"'.encode() in text:
                needed[name] = defs[name]
                texts.append(msgspec.json.encode(defs[name]))
    return {**schema, "$defs": needed} if needed else dict(schema)


def rooted(schema: Schema, defs: Schema) -> dict[str, JSON]:
    """A schema with its definitions; one that allows only objects says so at its root."""
    root = dict(schema)
    while "$ref" in root:
        root = {**defs[root.pop("$ref").removeprefix(_PREFIX)], **root}
    options = root.get("anyOf", [])
    if options and all(resolved(option, defs).get("type") == "object" for option in options):
        root["type"] = "object"
    return with_defs(root, defs)


def wrapped(schema: Schema) -> dict[str, JSON]:
    """The schema of an object that holds what `schema` allows under the key `result`."""
    inner = {keyword: value for keyword, value in schema.items() if keyword != "$defs"}
    outer: dict[str, JSON] = {"type": "object", "properties": {RESULT: inner}, "required": [RESULT]}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})
