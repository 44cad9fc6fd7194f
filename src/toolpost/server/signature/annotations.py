"""The metadata of an `Annotated`: descriptions, limits, headers, titles, and marks for pydantic only.

Reads msgspec's `Meta`, annotated-types, pydantic's `Field`, `Doc`, a bare string, `Header` and `Titles`, and
imports nothing optional. Also writes limits into schemas, and enforces them.
"""

import datetime as dt
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, cast

from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from toolpost.json_schema import SIZE_KEYWORDS, Schema, ValidationIssue
from toolpost.server.signature import compiled_types
from toolpost.server.signature.compiled_types import CompiledType, convert_value
from toolpost.server.signature.errors import SignatureError, ValidationError
from toolpost.server.signature.schema_parts import HEADER_KEYWORD, remove_null
from toolpost.types.base import JSON

_NUMBER_TYPES: Final = (int, float)
_ORDERED_TYPES: Final = (*_NUMBER_TYPES, Decimal, dt.datetime, dt.date, dt.time, dt.timedelta)
_SIZED_TYPES: Final = (str, bytes, bytearray, list, set, frozenset, tuple, dict)
_LENGTH: Final = "expected a length of at "


class _LimitRule(Struct, frozen=True):
    """One kind of limit, for values of `classes`."""

    classes: tuple[type, ...]
    keyword: str | None = None
    stricter: Callable[[Any, Any], Any] | None = None  # chooses from two limits of the kind
    check: Callable[[Any, Any], Any] | None = None  # checks a value where msgspec cannot
    message: str = ""


_LIMIT_RULES: Final[dict[str, _LimitRule]] = {  # by msgspec's names
    "gt": _LimitRule(_ORDERED_TYPES, "exclusiveMinimum", max, operator.gt, "expected more than {}"),
    "ge": _LimitRule(_ORDERED_TYPES, "minimum", max, operator.ge, "expected at least {}"),
    "lt": _LimitRule(_ORDERED_TYPES, "exclusiveMaximum", min, operator.lt, "expected less than {}"),
    "le": _LimitRule(_ORDERED_TYPES, "maximum", min, operator.le, "expected at most {}"),
    "multiple_of": _LimitRule(
        (*_NUMBER_TYPES, Decimal), "multipleOf", None, lambda it, by: not it % by, "expected a multiple of {}"
    ),
    "min_length": _LimitRule(_SIZED_TYPES, None, max, lambda it, size: len(it) >= size, _LENGTH + "least {}"),
    "max_length": _LimitRule(_SIZED_TYPES, None, min, lambda it, size: len(it) <= size, _LENGTH + "most {}"),
    "pattern": _LimitRule((str,), "pattern"),
    "tz": _LimitRule((dt.datetime, dt.time)),
    "predicate": _LimitRule(
        (), None, None, lambda it, predicate: predicate(it), "expected a value that satisfies {}"
    ),
}


class Limit(Struct, frozen=True):
    """One limit of a value, or a predicate. `is_native`: msgspec enforces it."""

    name: str
    bound: Any
    is_native: bool = False


class Header(Struct, frozen=True):
    """An annotation that mirrors a tool's parameter in an HTTP header: `Annotated[str, Header("Region")]`.

    The header is `Mcp-Param-Region`, for proxies that route by headers. The parameter is a string, an integer
    or a boolean. Null means absent, so the schema of the parameter does not mention it.

    Examples:
        >>> from typing import Annotated
        >>> server = Server("shop")
        >>> @server.tool
        ... def branch(region: Annotated[str, Header("Region")]) -> str:
        ...     return f"one in the {region}"
        >>> with SyncClient(server) as mcp:
        ...     mcp.list_tools()[0].input_schema["properties"]["region"]["x-mcp-header"]
        'Region'
    """

    name: str

    def __get_pydantic_json_schema__(self, core: Any, described: Callable[[Any], dict[str, JSON]]) -> Schema:
        """Return the schema of a field of a pydantic model, which would ignore the mark otherwise."""
        return {**remove_null(described(core)), HEADER_KEYWORD: self.name}


class Titles:
    """An annotation with titles for choices: `Annotated[Literal["a", "b"], Titles(a="First")]`.

    Use it in forms, on a choice or on the choices of a list. A choice without a title is shown unchanged.

    Args:
        of: titles by choice, for choices that are not identifiers.
        more: titles of the other choices.

    Examples:
        >>> from typing import Annotated, Literal
        >>> Size = Annotated[Literal["s", "l"], Titles(s="Small", l="Large")]
    """

    __slots__ = ("of",)

    def __init__(self, of: Mapping[str, str] | None = None, /, **more: str) -> None:
        self.of = {**(of or {}), **more}


class AnnotationMetadata(Struct):
    """All metadata of one annotation; of two marks that contradict each other, the outer one wins."""

    schema_keywords: dict[str, JSON] = {}  # such as description, title and examples
    limits: list[Limit] = []
    needs_pydantic: bool = False  # whether there is a mark that only pydantic understands
    alias: str | None = None
    default: Any = UNSET
    factory: Callable[[], Any] | None = None


def read_annotation_metadata(metadata: Iterable[Any]) -> AnnotationMetadata:
    """Read the metadata of an `Annotated`; marks of unknown libraries are ignored."""
    marks = AnnotationMetadata()
    for mark in metadata:
        _read_mark(mark, marks)
    return marks


def refuse_ignored_limits(metadata: Iterable[Any]) -> None:
    """Refuse limits beside a mark for pydantic, which reads the type and ignores limits of msgspec."""
    for limit in read_annotation_metadata(mark for mark in metadata if isinstance(mark, Meta | Limit)).limits:
        raise SignatureError(
            f"pydantic would ignore the limit `{limit.name}` here",
            hint="use `pydantic.Field`, in the same `Annotated` as the other metadata for pydantic",
        )


def _read_mark(mark: Any, marks: AnnotationMetadata) -> None:
    if isinstance(mark, str):
        marks.schema_keywords["description"] = mark
    elif isinstance(mark, Header):
        marks.schema_keywords[HEADER_KEYWORD] = mark.name
    elif isinstance(mark, Titles):
        titles = [{"const": value, "title": title} for value, title in mark.of.items()]
        marks.schema_keywords["oneOf"] = titles
    elif isinstance(mark, Limit):
        marks.limits.append(mark)
    elif isinstance(mark, Meta):
        _copy_keywords(mark, marks)
        marks.schema_keywords.update(mark.extra_json_schema or {})
        marks.limits += _find_limits(mark, is_native=True)
    elif compiled_types.is_pydantic_field(mark):
        _read_field(mark, marks)
    elif getattr(mark, "__is_annotated_types_grouped_metadata__", False):
        for part in mark:
            _read_mark(part, marks)
    elif isinstance(getattr(mark, "documentation", None), str):
        marks.schema_keywords["description"] = mark.documentation
    else:
        _read_limit(mark, marks)


def _copy_keywords(mark: Any, marks: AnnotationMetadata) -> None:
    for name in ("title", "description", "examples", "deprecated"):
        if getattr(mark, name, None) is not None:
            marks.schema_keywords[name] = getattr(mark, name)


def _find_limits(mark: Any, *, is_native: bool = False) -> list[Limit]:
    """Return the limits of a mark that uses msgspec's names."""
    bounds = ((name, getattr(mark, name, None)) for name in _LIMIT_RULES)
    return [Limit(name, bound, is_native) for name, bound in bounds if bound is not None]


def _read_field(field: Any, marks: AnnotationMetadata) -> None:
    _copy_keywords(field, marks)
    alias = field.validation_alias
    if not isinstance(alias, str | None) or field.validate_default:
        raise SignatureError(
            "`validate_default`, and an alias that is not a string, are not supported in pydantic's Field"
        )
    marks.alias = alias or marks.alias
    extra = field.json_schema_extra
    marks.needs_pydantic |= field.discriminator is not None or callable(extra)
    if extra and not callable(extra):
        marks.schema_keywords.update(extra)
    if not field.is_required():
        marks.factory = field.default_factory
        marks.default = field.default if marks.factory is None else UNSET
    for part in field.metadata:
        _read_mark(part, marks)


def _read_limit(mark: Any, marks: AnnotationMetadata) -> None:
    """Read a mark of annotated-types or pydantic."""
    kind = cast("type[Any]", type(mark))
    homes = {base.__module__.partition(".")[0] for base in kind.__mro__}
    name = kind.__name__
    if "pydantic" in homes:
        pattern = getattr(mark, "__dict__", {}).get("pattern")
        # A compiled pattern has flags, which JSON Schema and `Meta` cannot express.
        if isinstance(pattern, str) and len(mark.__dict__) == 1:
            marks.limits.append(Limit("pattern", pattern))
        else:
            marks.needs_pydantic |= name != "Strict"  # reading is always strict
    elif hasattr(mark, "__get_pydantic_core_schema__"):
        marks.needs_pydantic = True
    elif "annotated_types" not in homes or name == "Unit":
        pass  # a mark of another library
    elif name in {"Predicate", "Not"}:
        marks.limits.append(Limit("predicate", mark.func if name == "Predicate" else mark))
    elif name == "Timezone" and mark.tz in {None, ...}:
        marks.limits.append(Limit("tz", mark.tz is not None))
    elif name != "Timezone" and (limits := _find_limits(mark)):
        marks.limits += limits
    else:
        raise SignatureError(f"{mark!r} cannot be enforced", hint="use a predicate, or a pydantic validator")


# --------------------------------------------------------------------- enforcing limits


def can_apply_limit(limit: Limit, compiled: CompiledType) -> bool:
    """Return whether values of a type can have a limit; all values but null can have a predicate."""
    if limit.name == "predicate":
        return compiled.type is not type(None)
    return compiled.base in _LIMIT_RULES[limit.name].classes


def apply_limits(compiled: CompiledType, limits: Sequence[Limit], label: str) -> CompiledType:
    """Return the type with limits, enforced by msgspec or a proxy; `label` is its name in errors."""
    for limit in limits:
        if not can_apply_limit(limit, compiled):
            raise SignatureError(f"the limit `{limit.name}` does not apply to {label}")
    limits = list(_merge_limits(limits))
    schema = {**compiled.schema}
    for limit in limits:
        schema.update(_limit_to_keywords(limit, compiled))
    try:
        kind = Annotated[compiled.type, Meta(**{limit.name: limit.bound for limit in limits})]
    except (TypeError, ValueError, re.error):
        kind = None
    if kind is not None and compiled_types.is_decodable(kind):
        native = compiled.native and all(limit.is_native for limit in limits)
        return replace(compiled, type=kind, schema=schema, native=native)
    if not all(_LIMIT_RULES[limit.name].check for limit in limits):
        bounds = ", ".join(repr(limit.bound) for limit in limits)
        raise SignatureError(f"invalid limits for {label}: {bounds}")
    proxy = compiled_types.make_proxy_type("limited", _make_limit_reader(compiled.type, limits))
    return replace(compiled, type=proxy, schema=schema, native=False)


def _merge_limits(limits: Sequence[Limit]) -> Iterator[Limit]:
    """Yield the limits; of two of the same kind, only the stricter one."""
    kept: dict[str, Limit] = {}
    for limit in limits:
        other = kept.get(limit.name)
        if limit.name == "predicate":
            yield limit
        elif other is None or other.bound == limit.bound:
            kept[limit.name] = limit
        elif (stricter := _LIMIT_RULES[limit.name].stricter) is not None:
            kept[limit.name] = Limit(limit.name, stricter(limit.bound, other.bound))
        else:
            raise SignatureError(
                f"the limit `{limit.name}` is set twice: {other.bound!r} and {limit.bound!r}"
            )
    yield from kept.values()


def _limit_to_keywords(limit: Limit, compiled: CompiledType) -> dict[str, JSON]:
    """Return the schema keywords for a limit, if JSON Schema has one."""
    if limit.name in {"min_length", "max_length"}:
        # Base64 has four characters for three bytes.
        bound = 4 * ((limit.bound + 2) // 3) if "contentEncoding" in compiled.schema else limit.bound
        return {limit.name[:3] + SIZE_KEYWORDS[compiled.schema["type"]][0]: bound}
    keyword = _LIMIT_RULES[limit.name].keyword
    return {keyword: limit.bound} if keyword and compiled.base in {*_NUMBER_TYPES, str} else {}


def _make_limit_reader(kind: Any, limits: Sequence[Limit]) -> Callable[[JSON], Any]:
    def read(value: JSON) -> Any:
        made = convert_value(value, kind)
        for limit in limits:
            rule = _LIMIT_RULES[limit.name]
            if rule.check is not None and not rule.check(made, limit.bound):
                shown = getattr(limit.bound, "__qualname__", limit.bound)
                raise ValidationError([ValidationIssue("", rule.message.format(shown))])
        return made

    return read
