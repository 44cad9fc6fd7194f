"""Types that pydantic reads, writes and describes in a signature that uses it.

Pydantic is not imported here: a server that uses it has imported it. Its schemas are taken over without the
titles that it generates, and its own errors explain them.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, cast, get_args, get_origin

import msgspec

from toolpost.json_schema import DEFS_PREFIX, ForeignSchema, ValidationIssue, format_path
from toolpost.server.signature.errors import SignatureError, ValidationError
from toolpost.server.signature.schema_parts import Definitions
from toolpost.types.base import JSON


def is_pydantic_type(kind: type[Any]) -> bool:
    """Return whether a class is one of pydantic's, or made for it."""
    return hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__pydantic_validator__")


def is_pydantic_field(mark: object) -> bool:
    """Return whether a mark, or a default, is pydantic's `Field(…)`."""
    kind = type(mark)
    return kind.__name__ == "FieldInfo" and kind.__module__ == "pydantic.fields"


class PydanticType:
    """A type that pydantic reads and describes; its schema may differ if it is written (`output`)."""

    def __init__(self, annotation: Any, *, output: bool = False) -> None:
        module = sys.modules.get("pydantic")
        if module is None:
            raise SignatureError("nobody has imported pydantic, which it needs")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a default in a Field has no effect there, but here
                self.adapter = module.TypeAdapter(annotation)
                schema = self.adapter.json_schema(mode="serialization" if output else "validation")
        except Exception as error:  # each of pydantic's errors means the same here
            reason = str(error).partition("\n")[0]
            raise SignatureError(f"pydantic cannot read it: {reason}") from error
        self.defs: dict[str, JSON] = schema.pop("$defs", {})
        self.schema: dict[str, JSON] = schema
        inner = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        self._label = getattr(inner, "__name__", "")
        self._annotation = annotation

    def read(self, value: JSON) -> Any:
        """Return the value that pydantic makes out of decoded JSON."""
        return validate_with_pydantic(self.adapter.validate_json, msgspec.json.encode(value))

    def encode(self, value: Any) -> bytes:
        """Validate a value and return its JSON."""
        valid = validate_with_pydantic(self.adapter.validate_python, value)
        return self.adapter.dump_json(valid, by_alias=True, warnings="error")

    def to_builtins(self, value: Any) -> JSON:
        """Return what `encode` returns, not encoded."""
        valid = validate_with_pydantic(self.adapter.validate_python, value)
        return self.adapter.dump_python(valid, mode="json", by_alias=True)

    def adopt_schema(self, defs: Definitions) -> ForeignSchema:
        """Return the schema without generated titles, and move its definitions to `defs`.

        The schema of a class becomes a definition, too.
        """
        names = {name: defs.assign_foreign_name(name, part) for name, part in self.defs.items()}
        refs = {f"{DEFS_PREFIX}{old}": f"{DEFS_PREFIX}{new}" for old, new in names.items()}
        defs |= {names[name]: _rewrite_schema(part, refs, name) for name, part in self.defs.items()}
        schema = _rewrite_schema(self.schema, refs, self._label)
        if "$ref" in schema or not isinstance(self._annotation, type):
            return schema
        name = defs.assign_foreign_name(self._label, self.schema)
        defs[name] = schema
        return ForeignSchema(defs.make_ref(name))


def to_jsonable(value: Any) -> JSON:
    """Return the JSON value for an object of one of pydantic's classes."""
    return sys.modules["pydantic_core"].to_jsonable_python(value, by_alias=True)


def validate_with_pydantic(validate: Callable[[Any], Any], value: Any) -> Any:
    """Return what one of pydantic's validators makes out of a value; raise `ValidationError` if not.

    Give JSON to one that reads it, not decoded: then a strict model takes a string for a date.
    """
    try:
        return validate(value)
    except ValueError as error:
        found = cast("Any", error).errors(include_url=False, include_context=False, include_input=False)
        issues = [ValidationIssue(format_path(each["loc"]), each["msg"]) for each in found]
        raise ValidationError(issues) from error


_DATA_KEYWORDS: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords that hold plain data, in which nothing is a reference or a title."""


def _rewrite_schema(schema: Mapping[str, JSON], refs: Mapping[str, str], label: str) -> ForeignSchema:
    """Return a part of pydantic's schema with other references, and no title that only repeats `label`."""
    renamed = ForeignSchema()
    for keyword, value in schema.items():
        if keyword in _DATA_KEYWORDS:
            renamed[keyword] = value
        elif keyword == "properties":
            renamed[keyword] = {name: _rewrite_schema(part, refs, name) for name, part in value.items()}
        elif keyword != "title" or _normalize_title(value) != _normalize_title(label):
            renamed[keyword] = _rewrite_value(value, refs)
    return renamed


def _rewrite_value(value: JSON, refs: Mapping[str, str]) -> JSON:
    if isinstance(value, dict):
        return _rewrite_schema(cast("dict[str, JSON]", value), refs, "")
    if isinstance(value, list):
        return [_rewrite_value(item, refs) for item in cast("list[JSON]", value)]
    return refs.get(value, value) if isinstance(value, str) else value


def _normalize_title(title: str) -> str:
    return title.replace(" ", "").replace("_", "").lower()
