"""Values of our structs, drawn by hypothesis from the types of their fields.

`FIELDS` and `WHOLE` say what the specification demands and a type does not: a range, a word, a shape. What is
drawn may be sent by an author of ours; whether it fits an older peer is the business of the code under test.
"""

import json
from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import inspect

from revision_dates import LATEST
from toolpost import types
from toolpost.protocol import jsonrpc
from toolpost.protocol.downgrade import downgrade_value
from toolpost.types import CONTENT_TYPES, Raw
from toolpost.types.base import Struct

__all__ = ["JSON", "META", "content", "elicitations", "of", "url_elicitations"]

Values = SearchStrategy[Any]

TEXT = st.text(max_size=6)
URI = st.sampled_from(["file:///a%20b", "https://example.com/?q#f", "urn:isbn:1", "data:,x"])
INTEGER = st.integers(-(2**53), 2**53)
FRACTION = st.one_of(st.sampled_from([0, 1]), st.floats(0, 1))
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGER | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
META = st.dictionaries(st.sampled_from(["a", "b-c", "com.example/d", "com.example/"]), JSON, max_size=2)

INPUT_SCHEMA = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "$schema": TEXT,
        "properties": st.dictionaries(TEXT, OBJECT, max_size=2),
        "required": st.lists(TEXT, max_size=2),
        "x-nobody-knows": JSON,
    },
)
OUTPUT_SCHEMA = st.one_of(
    INPUT_SCHEMA,
    st.just({}),
    st.fixed_dictionaries({"type": st.sampled_from(["array", "string", ["object", "null"]])}),
    st.fixed_dictionaries({"anyOf": st.lists(OBJECT, max_size=2)}),
)

TOLD = ("text", "image", "audio", "resource_link", "resource")
"""The kinds of content that may stand in a `make_tool_result`."""


def content(*kinds: str) -> Values:
    """Blocks of these kinds, or of all that we know."""
    return st.one_of(*(of(CONTENT_TYPES[kind]) for kind in kinds or CONTENT_TYPES))


@cache
def of(kind: type[Struct]) -> Values:
    """Values of a struct."""
    return WHOLE[kind]() if kind in WHOLE else _drawn(kind)


def _drawn(kind: type[Struct], **given: Values) -> Values:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    fields = {
        field.name: given[field.name] if field.name in given else _field(kind, field) for field in info.fields
    }
    required = {field.name: fields[field.name] for field in info.fields if field.required}
    optional = {field.name: fields[field.name] for field in info.fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda members: kind(**members))


def _field(kind: type[Struct], field: inspect.Field) -> Values:
    for owner in kind.__mro__:
        if (owner, field.name) in FIELDS:
            return FIELDS[owner, field.name]
    return NAMES[field.name] if field.name in NAMES else _typed(field.type)


def _typed(info: inspect.Type) -> Values:
    match info:
        case inspect.UnionType(types=parts):
            return st.one_of(*(_typed(part) for part in parts if not isinstance(part, inspect.NoneType)))
        case inspect.ListType(item_type=item):
            return st.lists(_typed(item), max_size=2)
        case inspect.DictType(value_type=value):
            return st.dictionaries(TEXT, _typed(value), max_size=2)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.StructType(cls=cls):
            return st.deferred(lambda: of(cls))
        case inspect.CustomType(cls=cls):
            return _OPEN[cls]
        case inspect.RawType():
            return OBJECT.map(jsonrpc.encode).map(Raw)
        case _:
            return _PLAIN[type(info)]


_PLAIN: dict[type[inspect.Type], Values] = {
    inspect.StrType: TEXT,
    inspect.IntType: INTEGER,
    inspect.FloatType: FLOAT,
    inspect.BoolType: st.booleans(),
    inspect.AnyType: JSON,
}

_BLOCKS = st.deferred(lambda: content() | st.lists(content(), max_size=3))
_OPEN: dict[type, Values] = {
    types.Content: st.deferred(content),
    getattr(types, "Blocks"): _BLOCKS,  # noqa: B009 - a class at run time, which the type checker does not know
}

NAMES: dict[str, Values] = {
    "src": URI,
    "uri": URI,
    "uri_template": st.sampled_from(["file:///{name}", "x:{+path}{?q*}", "x:y"]),
    "website_url": URI,
}
"""Fields that mean the same in every struct."""

FIELDS: dict[tuple[type, str], Values] = {
    (types.Params, "meta"): st.just(types.UNSET),  # a connection writes it
    (types.Result, "meta"): META,
    (types.Result, "result_type"): st.just("complete"),
    (types.NotificationParams, "meta"): META,
    (types.ClientRequestParams, "meta"): META,
    (types.CacheableResult, "ttl_ms"): st.integers(0, 2**53),
    (types.CacheableResult, "cache_scope"): st.sampled_from(["public", "private"]),
    (types.Annotations, "audience"): st.lists(st.sampled_from(["user", "assistant"])),
    (types.Annotations, "priority"): FRACTION,
    (types.ModelPreferences, "cost_priority"): FRACTION,
    (types.ModelPreferences, "speed_priority"): FRACTION,
    (types.ModelPreferences, "intelligence_priority"): FRACTION,
    (types.Icon, "theme"): st.sampled_from(["light", "dark"]),
    (types.Tool, "input_schema"): INPUT_SCHEMA,
    (types.Tool, "output_schema"): OUTPUT_SCHEMA,
    (types.ToolExecution, "task_support"): st.sampled_from(["forbidden", "optional", "required"]),
    (types.ToolResultContent, "content"): st.deferred(lambda: st.lists(content(*TOLD), max_size=2)),
    (types.StringSchema, "format"): st.sampled_from(["email", "uri", "date", "date-time"]),
    (types.ElicitResult, "content"): st.dictionaries(
        TEXT, TEXT | INTEGER | FLOAT | st.booleans(), max_size=2
    ),
    (types.InputResponseParams, "input_responses"): st.deferred(
        lambda: st.dictionaries(TEXT, st.one_of(*map(_answers, _ANSWERS)), max_size=2)
    ),
}

_ANSWERS = (types.CreateMessageResult, types.ElicitResult, types.ListRootsResult)


def _answers(kind: type[types.Result]) -> Values:
    """Answers as in a retry: encoded so that a stateless server can read them."""
    bare = _drawn(kind, meta=st.none(), result_type=st.none())
    return bare.map(lambda answer: Raw(jsonrpc.encode(downgrade_value(answer, LATEST))))


def _contents() -> Values:
    """A resource holds text or a blob, not both and not neither."""
    return _always(types.ResourceContents, {"text": TEXT}, blob=st.none()) | _always(
        types.ResourceContents, {"blob": TEXT}, text=st.none()
    )


# --------------------------------------------------------------------- forms


def _form(fields: Values) -> Values:
    """A form as it stands in `requested_schema`: plain JSON."""
    schema = _drawn(types.FormSchema, properties=st.dictionaries(TEXT, fields, max_size=3))
    return schema.map(lambda form: json.loads(jsonrpc.encode(form)))


def _fields(*, several: bool) -> Values:
    names = st.lists(TEXT, max_size=2)
    choices = st.lists(of(types.Choice), max_size=2)
    kinds = [
        of(types.StringSchema),
        of(types.NumberSchema),
        of(types.BooleanSchema),
        _always(types.EnumSchema, {"enum": names}, one_of=st.none()),
        _always(types.EnumSchema, {"one_of": choices}, enum=st.none(), enum_names=st.none()),
    ]
    if several:
        kinds += [
            _always(
                types.MultiEnumSchema,
                {
                    "items": _always(
                        types.ChoiceItems, {"type": st.just("string"), "enum": names}, any_of=st.none()
                    )
                },
            ),
            _always(
                types.MultiEnumSchema,
                {"items": _always(types.ChoiceItems, {"any_of": choices}, type=st.none(), enum=st.none())},
            ),
        ]
    return st.one_of(*kinds)


def _always(kind: type[Struct], members: dict[str, Values], **given: Values) -> Values:
    """Values of a struct that have these members, optional or not."""
    rest = _drawn(kind, **members, **given)
    return st.tuples(rest, st.fixed_dictionaries(members)).map(_completed)


def _completed(drawn: tuple[Any, dict[str, Any]]) -> Any:
    value, members = drawn
    for name, member in members.items():
        setattr(value, name, member)
    return value


def elicitations(*, several: bool) -> Values:
    """Questions to the user by form; `several`: where the user may choose more than one, too."""
    return _always(
        types.ElicitParams,
        {"requested_schema": _form(_fields(several=several))},
        mode=st.sampled_from([None, "form"]),
        url=st.none(),
        elicitation_id=st.none(),
    )


def url_elicitations() -> Values:
    """Questions to the user by URL."""
    return _always(
        types.ElicitParams,
        {"mode": st.just("url"), "url": URI, "elicitation_id": TEXT},
        requested_schema=st.none(),
    )


WHOLE: dict[type[Struct], Any] = {
    types.ResourceContents: _contents,
    types.ElicitParams: lambda: elicitations(several=False),
    types.CancelledParams: lambda: _always(types.CancelledParams, {"request_id": INTEGER | TEXT}),
}
