"""A function behind a JSON Schema that its author wrote: the schema checks the dict that the function gets.

Takes the place of `BoundFunction`, for which the signature is the schema. The validator is an optional
package; registration fails without it.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from toolpost.json_schema import MAX_ISSUES, ValidationIssue, format_path
from toolpost.protocol import headers
from toolpost.protocol.jsonrpc import shorten
from toolpost.server.request import decode_arguments
from toolpost.server.signature.bind import bind
from toolpost.server.signature.schema_builder import compile_validator
from toolpost.server.signature.validation import ArgumentError, SignatureError
from toolpost.types.base import JSON, Raw, Unset

MAX_VALIDATOR_MESSAGE: Final = 500
"""Characters of a validator's message that are repeated: it may name keys, which the caller chose."""


class RawSchemaFunction:
    """A function that takes one dict, checked by a schema, and a context if it asks for one by annotation.

    Raises `MCPError` if jsonschema-rs is not installed, `TypeError` or `ValueError` for the schema, and
    `SignatureError` for the function.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        schema: dict[str, JSON],
        *,
        context_types: tuple[type, ...],
        name: str,
    ) -> None:
        self._iter_errors = compile_validator(schema, f"the input schema of {name!r}").iter_errors
        if schema.get("type") != "object":
            raise ValueError(f'the input schema of {name!r} must say "type": "object" at its root')
        try:
            self.header_parameters = headers.find_annotations(schema)
        except ValueError as error:
            raise ValueError(f"the input schema of {name!r}: {error}") from error
        bound = bind(fn, context_types=context_types, name=name)
        if len(bound.parameters) != 1:
            raise SignatureError(
                f"`{name}`: a function behind a schema takes one dict, not {len(bound.parameters)} arguments",
                hint=f"write {name}(arguments: dict) or {name}(arguments: dict, ctx: Context)",
            )
        self.fn = fn
        self.name = name
        self.is_async = bound.is_async
        self.ask_plan = bound.ask_plan
        self._bound = bound

    def read(self, raw: Raw | bytes | Unset) -> dict[str, JSON]:
        """Return the arguments, or raise `ArgumentError`; `InvalidParams` if they are not an object."""
        arguments = decode_arguments(raw)
        issues = [
            ValidationIssue(format_path(error.instance_path), shorten(error.message, MAX_VALIDATOR_MESSAGE))
            for error in islice(self._iter_errors(arguments), MAX_ISSUES)
        ]
        if issues:
            raise ArgumentError(issues)
        return arguments

    def to_keywords(self, arguments: dict[str, JSON]) -> dict[str, Any]:
        """Return the arguments by the name of their one parameter."""
        return {self._bound.parameters[0].field: arguments}

    def call(self, arguments: dict[str, JSON], context: Any = None, **extra: Any) -> Any:
        """Call the function; returns an awaitable if it is async."""
        return self._bound.apply(self.to_keywords(arguments) | extra, context)
