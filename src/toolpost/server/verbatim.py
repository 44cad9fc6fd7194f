"""A function behind a JSON Schema of the author's own: the schema checks what the function gets as a dict.

Stands where `bind.Bound` stands for a function whose signature is the schema. The validator is an optional
package, and registration says so when it is missing.
"""

from collections.abc import Callable
from typing import Any, Final

from toolpost.errors import InvalidParams, MCPError
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.server.bind import bind
from toolpost.server.problems import ArgumentError, Problem, SignatureError
from toolpost.types.base import JSON, UNSET, Raw, Unset

__all__ = ["Verbatim"]

_OBJECT: Final = Reader(dict[str, JSON])


class Verbatim:
    """A function whose arguments come as one dict, checked by a schema.

    Args:
        fn: takes the dict, and a context if it asks for one by annotation.
        schema: of the dict.
        context_types: a parameter of one of these types gets the context of the call.
        name: how it is called.

    Raises:
        MCPError: jsonschema-rs is not installed, so that nobody could check the arguments.
        ValueError: it is no valid schema, or none of an object.
        SignatureError: the function does not take one dict.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        schema: dict[str, JSON],
        *,
        context_types: tuple[type, ...],
        name: str,
    ) -> None:
        if schema.get("type") != "object":
            raise ValueError(f'the input schema of {name!r} must say "type": "object" at its root')
        try:
            import jsonschema_rs  # noqa: PLC0415 - optional, and only needed here
        except ImportError as error:
            raise MCPError(
                "an input schema of your own can only be checked by jsonschema-rs, which is not installed",
                hint="pip install 'toolpost[schema]'",
            ) from error
        options = jsonschema_rs.RegexOptions()  # patterns in linear time
        self._errors = jsonschema_rs.validator_for(schema, offline=True, pattern_options=options).iter_errors
        bound = bind(fn, context_types=context_types, name=name)
        if len(bound.parameters) != 1:
            raise SignatureError(
                f"`{name}`: a function behind a schema takes one dict, not {len(bound.parameters)} arguments",
                hint=f"write {name}(arguments: dict) or {name}(arguments: dict, ctx: Context)",
            )
        self.fn = fn
        self.name = name
        self.is_async = bound.is_async
        self._field = bound.parameters[0].field
        self._context = bound.context

    def read(self, raw: Raw | bytes | Unset) -> dict[str, JSON]:
        """The arguments, if they fit the schema.

        Raises:
            ArgumentError: they do not fit.
            InvalidParams: they are no object.
        """
        try:
            arguments = _OBJECT(UNSET if raw == Raw(b"null") else raw)
        except Unfit as error:
            raise InvalidParams(f"Invalid params: arguments must be an object: {error}") from error
        problems = [
            Problem(".".join(map(str, error.instance_path)), error.message)
            for error in self._errors(arguments)
        ]
        if problems:
            raise ArgumentError(problems)
        return arguments

    def call(self, arguments: dict[str, JSON], context: Any = None) -> Any:
        """What the function returns: an awaitable if it is asynchronous."""
        given = {self._field: arguments}
        if self._context is not None:
            given[self._context] = context
        return self.fn(**given)
