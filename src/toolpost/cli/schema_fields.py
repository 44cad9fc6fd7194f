"""What a tool or a prompt wants to know, field by field: read from a JSON Schema, typed in words.

Owns how much of a schema a command line can say: texts, numbers, choices, lists, and the members of objects;
anything else is said as JSON. Whether a value is good in the end is for the server to decide.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import click
import msgspec

from toolpost.cli.output import escape_control_characters

MAX_FIELDS: Final = 200
"""Fields of one tool that have an option of their own; a schema with more is said as JSON."""

MAX_DEPTH: Final = 4
"""Objects within objects whose members have options: beyond that nobody would type their names."""

MAX_REFERENCES: Final = 20
"""References that are followed from one place: a schema may lead in a circle."""

_OPTION_NAME: Final = re.compile(r"[\w$][\w.$@:-]*")
"""A name that an option can have. What is called otherwise is said by `--args`."""

Schema = dict[str, Any]


@dataclass(frozen=True)
class SchemaField:
    """Something that is wanted, and how it is typed.

    Args:
        path: where it stands in the arguments.
        kind: how a word becomes its value.
        many: whether it is a list, so that each word is one item of it.
        required: whether it is missing if it is left out; for a member of an object, if the object is there.
        description: what it is, in the server's words.
        schema: its JSON Schema, looked up.
        group: whether it is an object whose members are fields, too.
    """

    path: tuple[str, ...]
    kind: "click.ParamType[Any]"
    many: bool = False
    required: bool = False
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    group: bool = False

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return ".".join(self.path)

    @property
    def is_flag(self) -> bool:
        """Whether it is typed without a value."""
        return self.kind is click.BOOL and not self.many

    @property
    def default(self) -> Any:
        """What the server takes if it is left out; None if that is not known."""
        return self.schema.get("default")


def extract_fields(schema: Mapping[str, Any]) -> list[SchemaField]:
    """The fields of an object, in its order; the members of an object come right after it."""
    found: list[SchemaField] = []
    for each in _iterate_fields(schema, schema, ()):
        found.append(each)
        if len(found) >= MAX_FIELDS:
            break
    return found


def _iterate_fields(
    schema: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[SchemaField]:
    required = _as_list(schema.get("required"))
    for name, each in _as_object(schema.get("properties")).items():
        if not _OPTION_NAME.fullmatch(name) or (path and "." in name):
            continue
        inner = _resolve_schema(each, root)
        where = (*path, name)
        group = inner.get("type") == "object" and bool(inner.get("properties")) and len(where) < MAX_DEPTH
        items = _resolve_schema(inner.get("items"), root) if inner.get("type") == "array" else None
        yield SchemaField(
            where,
            kind=_choose_param_type(inner if items is None else items),
            many=items is not None,
            required=name in required,
            description=_read_description(inner),
            schema=inner,
            group=group,
        )
        if group:
            yield from _iterate_fields(inner, root, where)


def _read_description(schema: Mapping[str, Any]) -> str:
    text = schema.get("description") or schema.get("title")
    return escape_control_characters(text).strip() if isinstance(text, str) else ""


# --------------------------------------------------------------------- reading a schema


def _resolve_schema(schema: Any, root: Mapping[str, Any]) -> Schema:
    """A schema without the detours that lead to it: references, and what may be null as well."""
    found = _as_object(schema)
    for _ in range(MAX_REFERENCES):
        inner = _follow_schema(found, root)
        if inner is None:
            break
        beside = {key: value for key, value in found.items() if key in {"description", "title", "default"}}
        found = inner | beside
    kinds = found.get("type")
    if isinstance(kinds, list):
        solid = [kind for kind in cast("list[Any]", kinds) if kind != "null"]
        found = {**found, "type": solid[0] if len(solid) == 1 else solid}
    return found


def _follow_schema(schema: Schema, root: Mapping[str, Any]) -> Schema | None:
    """Where a schema leads that says nothing itself; None if it does."""
    if isinstance(schema.get("$ref"), str):
        return _resolve_reference(schema["$ref"], root)
    if "type" in schema or "properties" in schema:
        return None
    for key in ("anyOf", "oneOf", "allOf"):
        parts = [_as_object(part) for part in _as_list(schema.get(key))]
        solid = [part for part in parts if part.get("type") != "null"]
        if len(solid) == 1:
            return solid[0]
    return None


def _resolve_reference(reference: str, root: Mapping[str, Any]) -> Schema:
    """What a reference within the schema leads to; anything is allowed where it leads elsewhere."""
    found: Any = root
    if not reference.startswith("#"):
        return {}
    for step in reference.removeprefix("#").split("/")[1:]:
        found = _as_object(found).get(step.replace("~1", "/").replace("~0", "~"))
    return _as_object(found)


def _as_object(value: Any) -> Schema:
    return cast("Schema", value) if isinstance(value, dict) else {}


def _as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


# --------------------------------------------------------------------- kinds of words


def _choose_param_type(schema: Mapping[str, Any]) -> "click.ParamType[Any]":
    choices = _read_choices(schema)
    if choices:
        return ChoiceParam(choices)
    match schema.get("type"):
        case "string":
            return TextParam(schema.get("format"))
        case "boolean":
            return click.BOOL
        case "integer" | "number" as kind:
            return NumberParam(schema, whole=kind == "integer")
        case kind:
            return JsonParam(or_text=kind is None or "string" in _as_list(kind))


def _read_choices(schema: Mapping[str, Any]) -> list[Any]:
    """The values that may be chosen, where each of them is a word; nothing if it is not about choosing."""
    titled = [_as_object(part).get("const") for part in _as_list(schema.get("oneOf") or schema.get("anyOf"))]
    values = _as_list(schema.get("enum")) or ([schema["const"]] if "const" in schema else titled)
    fine = all(isinstance(value, str | int | float) for value in values)
    return list(dict.fromkeys(values)) if fine else []


class TextParam(click.ParamType[str]):
    """A text.

    Args:
        form: the `format` of a schema, such as "date".
    """

    def __init__(self, form: Any = None) -> None:
        self.name = form if isinstance(form, str) and form.isprintable() else "text"


class ChoiceParam(click.Choice[Any]):
    """One of some values, each typed as it looks in JSON, texts without quotes."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """How a value is typed."""
        del ctx
        return escape_control_characters(
            choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()
        )


class NumberParam(click.ParamType[float]):
    """A number, as JSON has them.

    Args:
        schema: says the least and the most.
        whole: whether it is an integer.
    """

    def __init__(self, schema: Mapping[str, Any], *, whole: bool) -> None:
        self.name = "integer" if whole else "number"
        self._whole = whole
        self._minimum, self._maximum = (_read_bound(schema.get(key)) for key in ("minimum", "maximum"))

    @property
    def range(self) -> str:
        """Its limits, for help."""
        if self._minimum is not None and self._maximum is not None:
            return f"{self._minimum} to {self._maximum}"
        if self._minimum is not None:
            return f"at least {self._minimum}"
        return "" if self._maximum is None else f"at most {self._maximum}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that was typed: an integer if it is written like one."""
        try:
            number = int(value)
        except ValueError:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if self._whole or not math.isfinite(number):
                self.fail(f"{value!r} is no {self.name}", param, ctx)
        least, most = self._minimum, self._maximum
        if (least is not None and number < least) or (most is not None and number > most):
            self.fail(f"{value} is out of range: {self.range}", param, ctx)
        return number


def _read_bound(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


class JsonParam(click.ParamType[Any]):
    """A piece of JSON.

    Args:
        or_text: whether what is no JSON is meant as a text.
    """

    name = "json"

    def __init__(self, *, or_text: bool = False) -> None:
        self._or_text = or_text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value that was written."""
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            if self._or_text:
                return value
            self.fail(f"this is no JSON: {error}", param, ctx)
