"""Validation against JSON Schemas of any origin, by jsonschema-rs, within bounds.

A schema of 200 bytes and a small value can keep jsonschema-rs busy for hours, and nothing can interrupt it.
So the steps are counted before it starts, and it explains only what is small: an explanation contains the
value once for each alternative.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from math import inf
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from toolpost.json_schema import Schema, as_list, as_object, follow_pointer
from toolpost.types.base import JSON

MAX_SCHEMA_BYTES: Final = 1024 * 1024  # compiling takes 0.2 s and a hundred times the memory
MAX_PATTERN_BYTES: Final = 128 * 1024  # memory of a compiled pattern, and so the time for a character
MAX_PARTS: Final = 20_000  # parts of a schema with its references expanded; more count as infinite
MAX_WORK: Final = 50_000_000  # parts of a schema times bytes of a value for which steps need no count
MAX_STEPS: Final = 100_000  # parts of a value times the schemas they are held against
MAX_EXPLAINED: Final = 10_000_000  # the same for a mismatch that is explained
MAX_EXPLAINED_STEPS: Final = 1000  # the steps for a mismatch that is explained
COUNTED_PATTERN: Final = 1000  # the parts for which a pattern such as "a{1,100}" counts

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_NO_SCHEMAS: Final = frozenset({"$defs", "definitions", "default", "examples", *_REFERENCES})
_CHILD_KEYWORDS: Final = frozenset({
    "items", "additionalItems", "unevaluatedItems", "contains", "prefixItems",
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
})  # fmt: skip
_ANCHORS: Final = frozenset({"$anchor", "$dynamicAnchor"})

T = TypeVar("T")
_Pair: TypeAlias = tuple[JSON, JSON]


class SchemaMismatch(ValueError):
    """A value does not match a schema: what is wrong, and where."""

    def __init__(self, message: str, instance_path: Iterable[str | int] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.instance_path = tuple(instance_path)


class ValidationTooLong(SchemaMismatch):
    """It would take too much work to find out whether a value matches."""


class SchemaValidator:
    """The validator of one schema; `validator` is that of jsonschema-rs, `text` is the schema as JSON."""

    def __init__(self, schema: Schema, validator: Any, text: bytes) -> None:
        self._schema = schema
        self._validator = validator
        identifier = "id" if b"draft-04" in text else "$id"
        # References inside of a part with an id begin there.
        self._has_other_roots = text.count(f'"{identifier}":"'.encode()) > (identifier in schema)
        self._anchors: dict[str, list[JSON]] = {}
        if b'nchor":' in text:
            _count([schema], self._collect_anchors, MAX_SCHEMA_BYTES)
        self._parts = _count([schema], self._expand_schema, MAX_PARTS)

    def iter_errors(self, value: JSON) -> Iterator[SchemaMismatch]:
        """Yield the mismatches of a value, or a `ValidationTooLong` if they are too much work to find."""
        size = len(msgspec.json.encode(value))
        work = self._parts * size
        if work > MAX_WORK and self._count_steps(value) == inf:
            yield ValidationTooLong("the value and its schema are too complex to be validated")
        elif self._validator.is_valid(value):
            pass
        elif work > MAX_EXPLAINED and not self._is_explainable(value, size):
            yield SchemaMismatch("it does not match, and is too large for an explanation")
        else:
            for error in self._validator.iter_errors(value):
                yield SchemaMismatch(error.message, error.instance_path)

    def validate(self, value: JSON) -> bool:
        """Raise `SchemaMismatch` if a value does not match; return whether that could be known."""
        for error in self.iter_errors(value):
            if isinstance(error, ValidationTooLong):
                return False
            raise error
        return True

    # ----------------------------------------------------------------- counting

    def _count_steps(self, value: JSON) -> float:
        return _count([(self._schema, value)], self._expand_pair, MAX_STEPS)

    def _is_explainable(self, value: JSON, size: int) -> bool:
        steps = self._count_steps(value)
        return steps <= MAX_EXPLAINED_STEPS and steps * size <= MAX_EXPLAINED

    def _collect_anchors(self, part: JSON) -> Iterator[JSON]:
        """Yield the parts of a part of a schema, and record their anchors."""
        schema = as_object(part)
        for keyword in schema.keys() & _ANCHORS:
            self._anchors.setdefault(f"#{schema[keyword]}", []).append(part)
        yield from schema.values() or as_list(part)

    def _find_targets(self, schema: Schema) -> Iterator[JSON]:
        """Yield the schemas that the references of a schema mean; the whole schema where that is unclear."""
        for keyword in _REFERENCES:
            reference: JSON = schema.get(keyword)
            if not isinstance(reference, str):
                continue
            targets = self._anchors.get(reference, [self._schema])
            if reference.startswith("#/") and "%" not in reference:
                found = follow_pointer(reference, self._schema)
                targets = [self._schema if found is None else found]
            yield from [self._schema] if self._has_other_roots else targets

    def _expand_schema(self, part: JSON) -> Iterator[JSON]:
        """Yield the parts of a part of a schema, and what it refers to."""
        schema = as_object(part)
        yield from self._find_targets(schema)
        for pattern in (schema.get("pattern"), *as_object(schema.get("patternProperties"))):
            if "{" in str(pattern):
                yield from repeat(None, COUNTED_PATTERN)
        for _ in range(_count_visits(schema)):
            yield from schema.values() or as_list(part)

    def _expand_pair(self, pair: _Pair) -> Iterator[_Pair]:
        """Yield the schemas against which a schema holds a value or its children, with those."""
        schema, value = as_object(pair[0]), pair[1]
        yield from zip(self._find_targets(schema), repeat(value), strict=False)
        for keyword, inner in schema.items():
            if keyword == "pattern" and isinstance(value, str) and "{" in str(inner):
                yield from repeat((None, None), 10 * len(value))
            elif keyword not in _NO_SCHEMAS and isinstance(inner, dict | list):
                for _ in range(_count_visits(schema)):
                    yield from _pair_keyword(schema, keyword, inner, value)


def _pair_keyword(schema: Schema, keyword: str, inner: JSON, value: JSON) -> Iterator[_Pair]:
    """Yield the pairs of one keyword, whose value is an object or a list."""
    members, parts = as_object(value), as_object(inner).values() or as_list(inner)
    if keyword == "properties":
        yield from ((part, members[name]) for name, part in as_object(inner).items() if name in members)
    elif keyword not in _CHILD_KEYWORDS:  # for the value itself
        yield from zip((inner, *parts), repeat(value), strict=False)
    elif isinstance(value, list):
        yield from zip(as_list(inner) or repeat(inner), as_list(value), strict=False)
    else:
        known = as_object(schema.get("properties")) if keyword == "additionalProperties" else {}
        schemas = parts if keyword == "patternProperties" else (inner,)
        yield from ((each, members[name]) for name in members if name not in known for each in schemas)


def _count_visits(schema: Schema) -> int:
    """Return how often jsonschema-rs looks at the parts of a schema: twice to find unevaluated ones."""
    return 1 + any(keyword.startswith("unevaluated") for keyword in schema)


def _count(stack: list[T], expand: Callable[[T], Iterator[T]], limit: int) -> float:
    """Return how many parts can be reached from those in a list; infinity beyond a limit."""
    count = 0
    while stack:
        count += 1
        stack.extend(islice(expand(stack.pop()), limit))
        if count + len(stack) > limit:
            return inf
    return count


def make_validator(schema: Schema, **options: Any) -> SchemaValidator | None:
    """Return the validator of a schema, which fetches nothing; None if jsonschema-rs is not installed.

    A schema that is invalid or too large, or refers to another document, is a ValueError.
    """
    try:
        import jsonschema_rs  # noqa: PLC0415 - optional
    except ImportError:
        return None
    try:
        text = msgspec.json.encode(schema)
    except RecursionError as error:
        raise ValueError("the schema is nested too deeply") from error
    if len(text) > MAX_SCHEMA_BYTES:
        raise ValueError(f"the schema has {len(text)} bytes (limit: {MAX_SCHEMA_BYTES})")
    patterns = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES, dfa_size_limit=8 * MAX_PATTERN_BYTES)
    validator = jsonschema_rs.validator_for(
        cast("Any", schema), offline=True, pattern_options=patterns, **options
    )
    return SchemaValidator(schema, validator, text)
