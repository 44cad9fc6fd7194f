"""Queries the official schema of one revision: methods, validation of JSON, sample values.

Works around the known bugs of the files, which `REPAIRS` lists. Independent of our types.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import jsonschema_rs

__all__ = ["REPAIRS", "Official", "Repair"]

Repair = tuple[str, str, Callable[[Any], None]]

_NUMBERS = {"type": ["string", "number", "boolean"]}


def _number_answers(definition: Any) -> None:
    """REVISIONS.md §10: a value may be any number, as in schema.ts; the generated file has integer."""
    content = definition["properties"]["content"]
    values = content["additionalProperties"]
    values = values["anyOf"][1] if "anyOf" in values else values
    assert values["type"] == ["string", "integer", "boolean"]
    values.update(_NUMBERS)


def _any_json(definition: Any) -> None:
    """The same bug of the generator: it omits numbers and null."""
    values = definition["anyOf"][2]
    assert values["type"] == ["string", "integer", "boolean"]
    values["type"] = ["string", "number", "boolean", "null"]


REPAIRS: tuple[Repair, ...] = (
    ("2025-06-18", "ElicitResult", _number_answers),
    ("2025-11-25", "ElicitResult", _number_answers),
    ("2026-07-28", "ElicitResult", _number_answers),
    ("2026-07-28", "JSONValue", _any_json),
)
"""Revision, definition, fix. Our files already fix the other bug of §10, integer bounds of `NumberSchema`."""


class Official:
    """One revision's schema.

    Args:
        date: the revision.
        root: its file, decoded.
        repairs: the fixes to apply first.
    """

    def __init__(self, date: str, root: Mapping[str, Any], repairs: tuple[Repair, ...] = REPAIRS) -> None:
        self.date = date
        self.dialect = root["$schema"]
        self.key = "$defs" if "$defs" in root else "definitions"
        self.definitions: dict[str, Any] = copy.deepcopy(root[self.key])
        for revision, name, mend in repairs:
            if revision == date:
                mend(self.definitions[name])
        self._validator = cache(self._make_validator)

    # ----------------------------------------------------------------- validation

    def _make_validator(self, name: str) -> jsonschema_rs.Validator:
        assert name in self.definitions, f"{self.date} has no {name}"
        root = {"$schema": self.dialect, "$ref": f"#/{self.key}/{name}", self.key: self.definitions}
        return jsonschema_rs.validator_for(root, validate_formats=True)

    def complaints(self, name: str, value: Any) -> list[str]:
        """Return the errors of a value against a definition."""
        errors = self._validator(name).iter_errors(value)
        return [f"{self.date} {name}: {error.message} at {list(error.instance_path)}" for error in errors]

    def check(self, value: Any, *names: str) -> None:
        """Fail unless the value matches all of the definitions."""
        complaints = [complaint for name in names for complaint in self.complaints(name, value)]
        assert not complaints, f"{complaints} in {json.dumps(value)}"

    # ----------------------------------------------------------------- methods

    def methods(self, union: str) -> set[str]:
        """Return the methods of a union of messages; none if this revision lacks it."""
        definition = self.definitions.get(union, {"anyOf": []})
        members = definition.get("anyOf", [definition])
        return {self.resolve(member)["properties"]["method"]["const"] for member in members}

    def resolve(self, schema: Any) -> Any:
        """Resolve a reference."""
        return self.definitions[self.target(schema)] if "$ref" in schema else schema

    def target(self, schema: Any) -> str:
        """Return the name of the referenced definition."""
        return schema["$ref"].rpartition("/")[2]

    def message(self, method: str) -> str:
        """Return the definition of the request or notification with this method."""
        [name] = [
            name
            for name, definition in self.definitions.items()
            if definition.get("properties", {}).get("method", {}).get("const") == method
            and not name.startswith(("Client", "Server"))  # a union of one member is that member
        ]
        return name

    def result(self, method: str) -> str:
        """Return the definition of the result of a request; an empty result if it has none."""
        name = self.message(method).removesuffix("Request") + "Result"
        return name if name in self.definitions else "EmptyResult"

    @property
    def failure(self) -> str:
        """Return the definition of an error response."""
        return "JSONRPCErrorResponse" if "JSONRPCErrorResponse" in self.definitions else "JSONRPCError"

    # ----------------------------------------------------------------- samples

    def samples(self, name: str) -> list[Any]:
        """Return valid values of a definition: with all members, with required ones, with each alternative.

        Nested definitions have all their members and no variants: they have their own samples.
        """
        return self._samples(self.definitions[name], (name,))

    def _samples(self, schema: Any, inside: tuple[str, ...]) -> list[Any]:
        if "$ref" in schema:
            name = self.target(schema)
            # One level of a recursive definition is enough.
            return [] if name in inside else self._whole(self.definitions[name], (*inside, name))
        if "anyOf" in schema:
            return [value for part in schema["anyOf"] for value in self._samples(part, inside)]
        if "allOf" in schema:
            return self._joined([self._samples(part, inside) for part in schema["allOf"]])
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            return list(schema["enum"])
        kinds = schema.get("type", ["null", "boolean", "integer", "number", "string", "array", "object"])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return [value for kind in kinds for value in self._of_kind(kind, schema, inside)]

    def _whole(self, schema: Any, inside: tuple[str, ...]) -> list[Any]:
        """Return the first sample, or that of each alternative."""
        if "anyOf" in schema:
            return [value for part in schema["anyOf"] for value in self._samples(part, inside)[:1]]
        return self._samples(schema, inside)[:1]

    @staticmethod
    def _joined(parts: list[list[dict[str, Any]]]) -> list[Any]:
        """Return objects that match all parts; later parts narrow earlier ones."""
        joined: list[Any] = []
        for at, part in enumerate(parts):
            for sample in part:
                whole: dict[str, Any] = {}
                for other, samples in enumerate(parts):
                    whole |= sample if other == at else samples[0]
                joined.append(whole)
        return joined

    def _of_kind(self, kind: str, schema: Any, inside: tuple[str, ...]) -> Iterator[Any]:
        if kind == "object":
            yield from self._objects(schema, inside)
        elif kind == "array":
            yield self._samples(schema.get("items", {"type": "string"}), inside)
            yield []
        else:
            yield from _PLAIN[schema.get("format", kind)]

    def _objects(self, schema: Any, inside: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        members = {name: self._member(name, schema, inside) for name in schema.get("properties", {})}
        whole = {name: values[0] for name, values in members.items() if values}
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and (others or not members):  # else: open to unknown members
            whole |= {f"other{i}": value for i, value in enumerate(self._samples(others, inside))}
        yield whole
        yield {name: whole[name] for name in schema.get("required", ())}
        for name, values in members.items():
            for value in values[1:]:
                yield whole | {name: value}

    def _member(self, name: str, schema: Any, inside: tuple[str, ...]) -> list[Any]:
        if name == "resultType":  # a plain string in the schema; a comment lists its values
            return ["input_required" if "inputRequests" in schema["properties"] else "complete"]
        return self._samples(schema["properties"][name], inside)


_PLAIN: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "boolean": (True, False),
    "integer": (1, 0),
    "number": (0.5, 1, 0),
    "string": ("text", "", "ü\n\u2028😀"),
    "uri": ("file:///a%20b",),
    "uri-template": ("file:///{+path}",),
    "byte": ("aGk=",),
}
