"""Our structs cover the five official schemas: every definition has a struct, every property a field."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

import schema_definitions
from official_schema import REPAIRS, Official
from schema_definitions import ENVELOPE, HOMES, STEMS, round_trip, text
from toolpost import types
from toolpost.errors import RPCError
from toolpost.protocol import eras
from toolpost.protocol.methods import DATES, ROWS, Row
from toolpost.types.base import Struct

SUFFIXES = ("Request", "RequestParams", "Result", "ResultResponse", "Notification", "NotificationParams")
ENVELOPE_MEMBERS = {"jsonrpc", "id", "method", "params", "result", "error"}
ERROR_MEMBERS = {"code", "message", "data"}

VIEWS = {"requestedSchema": types.FormSchema}
"""Properties that a struct keeps undecoded, and the struct that is their typed view."""


@pytest.fixture(scope="module")
def officials(schemas):
    return {date: Official(date, schema) for date, schema in schemas.items()}


def test_there_is_a_schema_for_each_revision(schemas):
    assert tuple(schemas) == DATES


@pytest.mark.parametrize("date", DATES)
def test_every_definition_has_a_home(officials, date):
    assert set(officials[date].definitions) - set(HOMES) == set()


def test_no_home_is_vacant(officials):
    known = {name for official in officials.values() for name in official.definitions}
    made = {f"{stem}{suffix}" for stem in STEMS for suffix in SUFFIXES}
    assert set(HOMES) - made <= known
    assert all(known & {f"{stem}Request", f"{stem}Notification"} for stem in STEMS)
    assert sorted(STEMS.values()) == sorted(row.name for row in ROWS)


# --------------------------------------------------------------------- every property has a field


def fields_of(kind: type[Struct]) -> dict[str, inspect.Type]:
    """The fields of a struct by their names on the wire; a tag is a field of its own."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields = {field.encode_name: field.type for field in info.fields}
    return fields | ({info.tag_field: inspect.StrType()} if info.tag_field else {})


def parts(info: inspect.Type) -> Iterator[inspect.Type]:
    """The types that a type is made of: those of a union, of the items of a list, of the values of a dict."""
    match info:
        case inspect.UnionType(types=alternatives):
            for alternative in alternatives:
                yield from parts(alternative)
        case inspect.ListType(item_type=item):
            yield from parts(item)
        case inspect.DictType(value_type=item):
            yield info
            yield from parts(item)
        case _:
            yield info


def is_whole(info: inspect.Type) -> bool:
    """Whether JSON of this type stays as it came, whatever is in it."""
    match info:
        case inspect.RawType() | inspect.AnyType():
            return True
        case inspect.DictType(value_type=value):
            return isinstance(value, inspect.AnyType)
        case _:
            return False


class Walk:
    """A walk over definitions: `missing` are properties without a field, `met` the fields with a property."""

    def __init__(self, official: Official) -> None:
        self.official = official
        self.missing: list[str] = []
        self.met: defaultdict[type, set[str]] = defaultdict(set)

    def definition(self, name: str) -> None:
        schema, home = self.official.definitions[name], HOMES[name]
        if isinstance(home, Row) or home in {ENVELOPE, schema_definitions.ANY_ROW}:
            self.message(name, schema, home)
        elif isinstance(home, tuple):
            for kind in home:
                self.struct(name, schema, kind)
        elif isinstance(home, type) and issubclass(home, RPCError):
            members = schema["properties"]
            self.plain(name, members, ENVELOPE_MEMBERS if "error" in members else ERROR_MEMBERS)
        elif isinstance(home, type) and issubclass(home, msgspec.Struct):
            self.struct(name, schema, home)
        elif home is types.Meta:
            self.plain(name, schema.get("properties", {}), {*eras.DEFINED_META_KEYS})

    def plain(self, where: str, members: Any, known: set[str]) -> None:
        self.missing += [f"{where}.{name}" for name in members if name not in known]

    def message(self, name: str, schema: Any, home: Any) -> None:
        self.plain(name, schema.get("properties", {}), ENVELOPE_MEMBERS)
        params = schema.get("properties", {}).get("params", {})
        if isinstance(home, Row) and "properties" in params:
            self.struct(f"{name}.params", params, home.params)

    def struct(self, where: str, schema: Any, kind: type[Struct]) -> None:
        """Look for a field for each property, also in parts that allOf or anyOf join."""
        for part in (*schema.get("allOf", ()), *schema.get("anyOf", ())):
            self.struct(where, self.official.resolve(part), kind)
        fields = fields_of(kind)
        for name, member in schema.get("properties", {}).items():
            if name in fields:
                self.met[kind].add(name)
                self.inline(f"{where}.{name}", name, member, fields[name])
            else:
                self.missing.append(f"{where}.{name} in {kind.__name__}")

    def inline(self, where: str, name: str, schema: Any, info: inspect.Type) -> None:
        """Look into an object that is not a definition of its own."""
        schema = schema.get("items", schema)
        if not schema.get("properties"):
            return
        kinds = [part.cls for part in parts(info) if isinstance(part, inspect.StructType)]
        if name in VIEWS:
            kinds.append(VIEWS[name])
        for kind in kinds:
            self.struct(where, schema, kind)
        if not kinds and not any(map(is_whole, parts(info))):
            self.missing.append(f"{where} has no struct")


def walk(official: Official) -> Walk:
    steps = Walk(official)
    for name in official.definitions:
        steps.definition(name)
    return steps


@pytest.mark.parametrize("date", DATES)
def test_every_property_has_a_field(officials, date):
    assert walk(officials[date]).missing == []


def test_a_property_without_a_field_is_missed(officials):
    """The test of the test: a property that a revision might add is found, however deep it lies."""
    official = Official(DATES[-1], {"$schema": officials[DATES[-1]].dialect, "$defs": {}}, repairs=())
    new: Any = {"properties": {"new": {"type": "string"}}}
    official.definitions = {
        "Tool": new,
        "ListRootsRequest": {"properties": {"method": {}, "params": new}},
        "ClientCapabilities": {"properties": {"sampling": new, "experimental": new}},
        "TitledSingleSelectEnumSchema": {"properties": {"oneOf": {"items": new}}},
        "GetTaskResult": {"allOf": [{"$ref": "#/$defs/Tool"}]},
        "ElicitRequestFormParams": {"properties": {"requestedSchema": new, "message": new}},
        "ResultMetaObject": new,
        "Request": new,
        "ParseError": new,
        "Icons": new,
    }
    assert walk(official).missing == [
        "Tool.new in Tool",
        "ListRootsRequest.params.new in ClientRequestParams",
        "ClientCapabilities.sampling.new in SamplingCapability",
        "TitledSingleSelectEnumSchema.oneOf.new in Choice",
        "GetTaskResult.new in TaskResult",
        "ElicitRequestFormParams.requestedSchema.new in FormSchema",
        "ElicitRequestFormParams.message has no struct",
        "ResultMetaObject.new",
        "Request.new",
        "ParseError.new",
        *(f"Icons.new in {kind.__name__}" for kind in HOMES["Icons"]),
    ]


# --------------------------------------------------------------------- every field has a property

OURS = {
    kind
    for name in types.__all__
    if isinstance(kind := getattr(types, name), type) and issubclass(kind, Struct)
}

BASES = {types.WireStruct, *(kind for kind in OURS if kind.__module__ == types.Skill.__module__)}
"""Structs that do not exist on the wire, and those of extensions, which the schemas lack."""

# What a struct inherits although no revision gives it to this one thing.
TYPED = {"resultType"}
CACHED = {"resultType", "ttlMs", "cacheScope"}
INHERITED: dict[type, set[str]] = {
    types.CreateMessageResult: TYPED,  # answers of a client have no type in any revision
    types.ElicitResult: TYPED,
    types.ListRootsResult: TYPED,
    types.InitializeResult: TYPED,  # only in the session era
    types.CreateTaskResult: TYPED,
    types.TaskResult: TYPED,
    types.TaskPayload: TYPED,
    types.ListTasksResult: CACHED,
    types.PaginatedResult: {
        "ttlMs",
        "cacheScope",
    },  # the schema names them in each list, and not in what lists share
    types.TaskParams: {"_meta"},  # every request may carry it, these definitions do not say so
    types.ElicitationCompleteParams: {"_meta"},  # every notification may
}


def test_every_field_has_a_property_in_some_revision(officials):
    met: defaultdict[type, set[str]] = defaultdict(set)
    for official in officials.values():
        for kind, names in walk(official).met.items():
            met[kind] |= names
    extra = {kind: left for kind in OURS - BASES if (left := set(fields_of(kind)) - met[kind])}
    assert extra == INHERITED


# --------------------------------------------------------------------- words and values


@pytest.mark.parametrize("date", DATES)
def test_words_are_those_of_the_schema(officials, date):
    for name, definition in officials[date].definitions.items():
        if "enum" in definition:
            assert sorted(get_args(HOMES[name])) == sorted(definition["enum"])


@pytest.mark.parametrize("date", DATES)
def test_samples_are_valid_in_the_schema(officials, date):
    """A test of the test below: it would prove nothing with values that cannot be sent."""
    official = officials[date]
    for name in official.definitions:
        for sample in official.samples(name):
            official.check(sample, name)


@pytest.mark.parametrize("date", DATES)
def test_every_valid_value_survives_a_round_trip(officials, date):
    """With all members, with the required ones, with each alternative: no field, type or word is missing."""
    official = officials[date]
    changed = [
        f"{name}: {text(sample)} became {again}"
        for name in official.definitions
        for sample in official.samples(name)
        if (again := text(round_trip(name, sample))) != text(_without_null_data(sample))
    ]
    assert changed == []


def _without_null_data(value: Any) -> Any:
    """Treat an error with null data as one without data: both are None in Python."""
    if isinstance(value, list):
        return [_without_null_data(item) for item in value]
    if isinstance(value, dict):
        lost = value.keys() >= {"code", "message"} and value.get("data", "") is None
        return {
            name: _without_null_data(item) for name, item in value.items() if not (lost and name == "data")
        }
    return value


# --------------------------------------------------------------------- the flaws of the files


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: f"{repair[0]} {repair[1]}")
def test_a_repair_is_still_needed(schemas, repair):
    """A file that was fixed at its source needs no repair here."""
    date, name, _ = repair
    value = (
        {"action": "accept", "content": {"height": 95.5}}
        if name == "ElicitResult"
        else {"ratio": [0.5, None]}
    )
    assert Official(date, schemas[date], repairs=()).complaints(name, value)
    assert not Official(date, schemas[date]).complaints(name, value)


@pytest.mark.parametrize("date", DATES[2:])
def test_bounds_of_numbers_need_no_repair(officials, date):
    """The second flaw that REVISIONS.md §10 names stood in older copies of the files."""
    value = {"type": "number", "minimum": 0.5, "maximum": 1.5}
    assert not officials[date].complaints("NumberSchema", value)
