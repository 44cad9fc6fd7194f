"""The arguments of a tool or a prompt as command-line options, made from its JSON Schema.

Strings, numbers, choices, lists and the members of objects have options; anything else is typed as JSON. The
server decides whether a value is valid in the end.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import click
import msgspec

from toolpost.cli.output import escape_control_characters
from toolpost.json_schema import as_list, as_object, get_types, is_number, read_choices, resolve_schema

MAX_FIELDS: Final = 200
"""Fields of one tool that have an option of their own; the others are given by `--args`."""

MAX_DEPTH: Final = 4
"""Objects within objects whose members have options."""

_OPTION_NAME: Final = re.compile(r"[\w$][\w.$@:-]*")
"""A name that an option can have. Fields with other names are given by `--args`."""


@dataclass(frozen=True)
class SchemaField:
    """One argument, and how it is typed.

    Args:
        path: the names that lead to it in the arguments.
        kind: converts a word to its value.
        many: whether it is a list, of which each word is one item.
        required: whether it may not be left out; for a member of an object, if the object is there.
        description: the server's description.
        schema: its JSON Schema, resolved.
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
        """Its name on the command line."""
        return ".".join(self.path)

    @property
    def is_flag(self) -> bool:
        """Whether it is typed without a value."""
        return self.kind is click.BOOL and not self.many

    @property
    def default(self) -> Any:
        """The value that the server takes if it is left out; None if that is not known."""
        return self.schema.get("default")


def extract_fields(schema: Mapping[str, Any]) -> list[SchemaField]:
    """Return the fields of an object in its order; the members of an object come right after it."""
    return list(islice(_iterate_fields(schema, schema, ()), MAX_FIELDS))


def _iterate_fields(
    schema: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[SchemaField]:
    required = as_list(schema.get("required"))
    for name, each in as_object(schema.get("properties")).items():
        if not _OPTION_NAME.fullmatch(name) or (path and "." in name):
            continue
        inner = resolve_schema(each, root)
        where = (*path, name)
        group = inner.get("type") == "object" and bool(inner.get("properties")) and len(where) < MAX_DEPTH
        items = resolve_schema(inner.get("items"), root) if inner.get("type") == "array" else None
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


# --------------------------------------------------------------------- kinds of words


def _choose_param_type(schema: Mapping[str, Any]) -> "click.ParamType[Any]":
    choices = read_choices(schema, ("enum", "const", "oneOf", "anyOf"))
    if choices:
        return ChoiceParam(dict.fromkeys(choices.values))
    match schema.get("type"):
        case "string":
            return TextParam(schema.get("format"))
        case "boolean":
            return click.BOOL
        case "integer" | "number" as kind:
            return NumberParam(schema, whole=kind == "integer")
        case kind:
            return JsonParam(or_text=kind is None or "string" in get_types(schema))


class TextParam(click.ParamType[str]):
    """A string, of the `format` of a schema, such as "date"."""

    def __init__(self, form: Any = None) -> None:
        self.name = form if isinstance(form, str) and form.isprintable() else "text"


class ChoiceParam(click.Choice[Any]):
    """One of some values, each typed as in JSON, but strings without quotes."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Return the word for a value."""
        del ctx
        return escape_control_characters(
            choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()
        )


class NumberParam(click.ParamType[float]):
    """A number, or an integer if it is `whole`, within the limits of a schema."""

    def __init__(self, schema: Mapping[str, Any], *, whole: bool) -> None:
        self.name = "integer" if whole else "number"
        self._whole = whole
        bounds = (schema.get(key) for key in ("minimum", "maximum"))
        self._minimum, self._maximum = (bound if is_number(bound) else None for bound in bounds)

    @property
    def range(self) -> str:
        """The limits, for help texts."""
        if self._minimum is not None and self._maximum is not None:
            return f"{self._minimum} to {self._maximum}"
        if self._minimum is not None:
            return f"at least {self._minimum}"
        return "" if self._maximum is None else f"at most {self._maximum}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number that was typed: an integer if it is written like one."""
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


class JsonParam(click.ParamType[Any]):
    """A piece of JSON; with `or_text`, a word that is not JSON is a string."""

    name = "json"

    def __init__(self, *, or_text: bool = False) -> None:
        self._or_text = or_text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the decoded value."""
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            if self._or_text:
                return value
            self.fail(f"this is no JSON: {error}", param, ctx)
