"""Binds a function so that a peer can call it: the signature is the schema.

A `BoundFunction` compiles its signature at registration, decodes the arguments of a call, and calls. A
`RawSchemaFunction` checks the arguments against a JSON Schema of the author.
"""

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import asdict, astuple

from toolpost.errors import InvalidParams
from toolpost.json_schema import MAX_ISSUES, Schema, ValidationIssue, format_path
from toolpost.protocol import headers
from toolpost.protocol.jsonrpc import shorten
from toolpost.server.context_request import decode_arguments
from toolpost.server.signature import compiled_types, errors, inspection, schema_parts
from toolpost.server.signature.compiled_types import DECODE_ERRORS, CompiledType
from toolpost.server.signature.errors import SignatureError, ValidationError
from toolpost.server.signature.inspection import AnnotationScope
from toolpost.server.signature.schema_parts import HEADER_KEYWORD, attach_definitions, inline_definitions
from toolpost.server.signature.type_compiler import TypeCompiler
from toolpost.types.base import JSON, Unset

if TYPE_CHECKING:
    from toolpost.server.elicitation.asked_parameters import AskedParameter, AskPlan

T = TypeVar("T")
Arguments: TypeAlias = Struct  # with a field for each parameter

_EMPTY: Final = inspect.Parameter.empty
_VARIADIC_PREFIXES: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_HEADER_HINT: Final = (
    "only string, integer and boolean parameters and fields can be mirrored in a header; "
    "not in a list, a union or a recursive class"
)
_MEMBERS_DECODER: Final = msgspec.json.Decoder(dict[str, Raw] | None)
MAX_TYPO_LENGTH: Final = 64  # characters of an unknown name that are compared with those of parameters
TYPO_SIMILARITY: Final = 0.7  # of a name that is a typo; 1 is the same

logger: Final = logging.getLogger("toolpost.server")


class Parameter(Struct, frozen=True):
    """One parameter of a function. `name` is its name on the wire, `field` the one in Python."""

    name: str
    field: str
    required: bool
    compiled_type: CompiledType
    description: str | None
    default: Any  # UNSET if it is required, or if `factory` makes it
    factory: Callable[[], Any] | None


# --------------------------------------------------------------------- at registration


def _find_docstring(chain: list[Any]) -> str | None:
    """Return the docstring of the function, else that of the class of a callable object."""
    layers = [layer for layer in chain if not isinstance(layer, functools.partial)]
    written = [layer.__doc__ for layer in layers if inspect.isroutine(layer) and layer.__doc__]
    return next(iter([*written, *(layer.__doc__ for layer in layers)]), None)


def _inspect_parameters(fn: Callable[..., Any], written: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function; refuse generators, and methods without an object."""
    layers = (fn, type(fn).__call__)
    if any(inspect.isgeneratorfunction(it) or inspect.isasyncgenfunction(it) for it in layers):
        raise SignatureError("generator functions are not supported", hint="return a list")
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise SignatureError(f"its signature cannot be read: {error}") from error
    owner, _, name = getattr(written, "__qualname__", "").rpartition(".")
    is_method = owner and not owner.endswith("<locals>")
    for first in parameters[:1] if is_method else ():
        if first.name in {"self", "cls"} and first.annotation is _EMPTY:
            kind = owner.rpartition(".")[2]
            raise SignatureError(
                f"parameter `{first.name}`: the function is an unbound method of {kind}",
                hint=f"register the bound method, {kind}(…).{name}",
            )
    return parameters


def _compile_parameter(
    it: inspect.Parameter, annotation: Any, compiler: TypeCompiler, descriptions: Mapping[str, str]
) -> Parameter:
    default, factory, alias = it.default, None, None
    if compiled_types.is_pydantic_field(default):
        annotation, default = Annotated[annotation, default], _EMPTY
    if get_origin(annotation) is Annotated:
        from toolpost.server.signature.annotations import read_annotation_metadata  # noqa: PLC0415 - start-up time

        marks = read_annotation_metadata(get_args(annotation)[1:])
        alias = marks.alias
        if default is _EMPTY and (marks.factory is not None or marks.default is not UNSET):
            default, factory = marks.default, marks.factory
    compiled = compiler.compile_type(annotation)
    if default is not _EMPTY and factory is None:
        _check_default(default, compiled)
    description = compiled.schema.get("description") or descriptions.get(it.name)
    required, default = default is _EMPTY, UNSET if default is _EMPTY else default
    return Parameter(alias or it.name, it.name, required, compiled, description, default, factory)


def _check_default(default: Any, compiled: CompiledType) -> None:
    """Check that a scalar default is valid. None is valid everywhere, as in most Python code."""
    if type(default) is compiled.type or type(default) not in {bool, int, float, str}:
        return
    try:
        compiled_types.convert_value(default, compiled.type)
    except ValidationError as error:
        text = f"the default {shorten(repr(default))} does not match the annotation: {error}"
        raise SignatureError(text, hint="change the default or the annotation") from error


def _is_context_type(annotation: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether an annotation is a context type, perhaps optional or annotated."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_context_type(args[0], kinds)
    if origin in inspection.UNION_TYPES:
        return any(_is_context_type(arg, kinds) for arg in args)
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, kinds)


def _is_context_parameter(kinds: tuple[type, ...], annotation: Any, is_async: bool) -> bool:
    """Return whether a parameter gets the context; refuse an annotation with the wrong type of context."""
    if not _is_context_type(annotation, kinds):
        return False
    given = kinds[0 if is_async else -1]
    if not _is_context_type(annotation, (given,)):
        which = "an async function" if is_async else "a sync function"
        raise SignatureError(
            f"{which} gets {given.__name__}, not {inspection.describe_type(annotation)}",
            hint=f"annotate it as {given.__name__}",
        )
    return True


def _may_be_typo(unknown: list[str], missing: list[str]) -> bool:
    """Return whether an unknown argument may be meant for a parameter that was not given."""
    from difflib import get_close_matches  # noqa: PLC0415 - most processes never need it

    names = [_simplify_name(name) for name in missing]
    return any(
        get_close_matches(_simplify_name(name), names, 1, TYPO_SIMILARITY) for name in unknown[:MAX_ISSUES]
    )


def _simplify_name(name: str) -> str:
    return name[:MAX_TYPO_LENGTH].lower().replace("_", "").replace("-", "")


def _is_null(value: object) -> bool:
    return value is None or (type(value) is Raw and bytes(value) == b"null")


class BoundFunction:
    """A callable whose arguments are JSON. Raises `SignatureError`.

    A parameter of one of the `context_types` gets the context of the call: the first type if the function is
    async, otherwise the last. Parameters that a partial has set by keyword are not in the schema.

    `parameters` are those of the schema. `context` is the name of the parameter that gets the context, if
    there is one; `ask_plan` asks the user for others. `summary` is the docstring without parameters.
    """

    def __init__(
        self, fn: Callable[..., Any], *, context_types: tuple[type, ...] = (), name: str | None = None
    ) -> None:
        if not callable(fn):
            hint = f"use name={fn!r}" if isinstance(fn, str) else "pass a function"
            raise SignatureError(f"{fn!r} is not callable", hint=hint)
        chain = list(inspection.unwrap_layers(fn))
        if not name:
            named = next(layer for layer in chain if not isinstance(layer, functools.partial))
            name = str(named.__name__ if hasattr(named, "__name__") else type(named).__name__)
            if not name.isidentifier():
                raise SignatureError(f"a function called `{name}` needs an explicit name", hint="pass name=")
        self.fn = fn
        self.name = name
        self.is_async = any(map(inspect.iscoroutinefunction, chain))
        self.context: str | None = None
        self.ask_plan: AskPlan | None = None
        self.is_strict = True  # whether arguments that are not declared are refused
        self._has_warned = False
        with errors.prefix_signature_errors(f"`{name}`"):
            self._compile_signature(chain, context_types)
        self.to_keywords: Callable[[Any], dict[str, Any]] = asdict  # arguments by parameter
        self._arguments: type[Arguments] | None = None
        self._decode: Callable[[bytes | Raw], Arguments] | None = None

    def _compile_signature(self, chain: list[Any], context_types: tuple[type, ...]) -> None:
        self.summary, descriptions = inspection.parse_docstring(_find_docstring(chain))
        asked_parameters: dict[str, AskedParameter] = {}
        # Loaded if the author has written `Ask`.
        ask = sys.modules.get("toolpost.server.elicitation.asked_parameters")
        scope = AnnotationScope(self.fn)
        compiler = TypeCompiler(scope)
        gets_context = functools.partial(_is_context_parameter, context_types)
        preset = {name for it in chain if isinstance(it, functools.partial) for name in it.keywords}
        parameters: list[Parameter] = []
        every = _inspect_parameters(self.fn, chain[-1])
        for it in every:
            if it.name in preset:
                continue
            with errors.prefix_signature_errors(f"parameter `{it.name}`"):
                if it.kind in _VARIADIC_PREFIXES:
                    raise SignatureError(
                        f"`{_VARIADIC_PREFIXES[it.kind]}{it.name}` is not supported",
                        hint="use one parameter that is a list or a dict",
                    )
                annotation = Any if it.annotation is _EMPTY else scope.evaluate(it.annotation)
                if gets_context(annotation, self.is_async):
                    if self.context is not None:
                        raise SignatureError(f"`{self.context}` already gets the context")
                    self.context = it.name
                elif ask is not None and (asked := ask.parse_asked_parameter(annotation, it.default)):
                    asked_parameters[it.name] = asked
                else:
                    parameters.append(_compile_parameter(it, annotation, compiler, descriptions))
        self.parameters = tuple(parameters)
        if ask is not None and asked_parameters:
            names = [parameter.field for parameter in parameters]
            self.ask_plan = ask.AskPlan(asked_parameters, names, gets_context)
        self.input_schema, self.header_parameters = _build_input_schema(self.parameters, compiler.defs)
        self._defs = compiler.defs
        self._positional = [it.name for it in every if it.kind is inspect.Parameter.POSITIONAL_ONLY]
        in_order = all(it.kind is not inspect.Parameter.KEYWORD_ONLY for it in every)
        names = [it.name for it in every]
        self._context_index = None if self.context is None else names.index(self.context)
        given = len(parameters) + (self.context is not None)
        self._can_call_positionally = in_order and given == len(every)

    def read(self, raw: Raw | bytes | Unset) -> Any:
        """Read the arguments in a JSON object; absent JSON is an empty object.

        Accepts the values that the schema accepts, with these exceptions:

        - JSON in a string counts as JSON where no string is valid, because some models send it.
        - An argument that is not declared is dropped, unless it may be a typo or `is_strict` is set.
        - A set accepts an item twice. A struct needs its tag only in a union. Null counts as absent for
          a parameter with a default. Pydantic's types convert as pydantic does.
        - Formats, predicates, limits of dates and decimals, and checks of a class can refuse more than the
          schema. An integer cannot be a float beyond 2^53.

        Raises ArgumentError; InvalidParams if they are not an object.
        """
        decode = self._decode or self._build_decoder()
        if raw is UNSET:
            raw = b"{}"
        try:
            return decode(raw)
        except DECODE_ERRORS:  # one by one, to repair each argument or to explain it
            try:
                members: dict[str, Raw] = _MEMBERS_DECODER.decode(raw) or {}  # null is invalid, but common
            except DECODE_ERRORS as error:
                raise InvalidParams("the arguments of a call must be a JSON object") from error
            return self._decode_each(members, compiled_types.decode_json_argument)

    def read_strings(self, values: Mapping[str, str | JSON]) -> Arguments:
        """Read arguments that are strings: those of prompts and URI templates."""
        return self._decode_each(values, compiled_types.decode_string_argument)

    def call(self, arguments: Any, context: Any = None, **extra: Any) -> Any:
        """Call the function; returns an awaitable if it is async. `extra` are answers of the user."""
        if self._can_call_positionally:
            ordered, index = astuple(arguments), self._context_index
            if index is None:
                return self.fn(*ordered)
            if index == len(ordered):
                return self.fn(*ordered, context)
            return self.fn(*ordered[:index], context, *ordered[index:])
        values = self.to_keywords(arguments)
        values.update(extra)
        if self.context is not None:
            values[self.context] = context
        if not self._positional:
            return self.fn(**values)
        positional = [values.pop(name) for name in self._positional if name in values]
        return self.fn(*positional, **values)

    def _build_decoder(self) -> Callable[[bytes | Raw], Arguments]:
        """Build the decoder of the arguments; only for the first call, to save start-up time."""
        fields = [(one.field, one.compiled_type.type, *_make_default(one)) for one in self.parameters]
        names = {one.field: one.name for one in self.parameters}
        self._arguments = msgspec.defstruct(
            "Arguments", cast("Any", fields), kw_only=True, rename=names, forbid_unknown_fields=True
        )
        self._decode = msgspec.json.Decoder(self._arguments, dec_hook=compiled_types.dec_hook).decode
        return self._decode

    def _decode_each(
        self, members: Mapping[str, T], read: Callable[[T, CompiledType, Schema, str], Any]
    ) -> Arguments:
        values: dict[str, Any] = {}
        issues: list[ValidationIssue] = []
        for parameter in self.parameters:
            if parameter.name not in members:
                if parameter.required:
                    issues.append(ValidationIssue(parameter.name, "required but missing"))
                continue
            try:
                value = members[parameter.name]
                values[parameter.field] = read(value, parameter.compiled_type, self._defs, parameter.name)
            except ValidationError as error:
                if parameter.required or not _is_null(members[parameter.name]):
                    issues += error.issues
        issues += self._check_unknown(members, refuse=self.is_strict or bool(issues))
        if issues:
            raise errors.ArgumentError(issues)
        if self._arguments is None:
            self._build_decoder()
        assert self._arguments is not None
        return self._arguments(**values)

    def _check_unknown(self, members: Mapping[str, object], *, refuse: bool) -> Iterator[ValidationIssue]:
        """Yield an issue about the arguments that are not declared, or warn once that they are ignored."""
        known = [parameter.name for parameter in self.parameters]
        unknown = [name for name in members if name not in known]
        if not unknown:
            return
        quoted = ", ".join(headers.quote_value(name) for name in unknown[:MAX_ISSUES])
        text = f"unknown argument{'s' if len(unknown) > 1 else ''} {quoted}"
        if refuse or _may_be_typo(unknown, [name for name in known if name not in members]):
            yield ValidationIssue("", f"{text} (expected: {', '.join(known) or 'none'})")
        elif not self._has_warned:
            self._has_warned = True
            logger.warning("%s: ignored %s; strict_arguments=True rejects such calls", self.name, text)


def _build_input_schema(
    parameters: tuple[Parameter, ...], defs: Schema
) -> tuple[dict[str, JSON], dict[str, tuple[str, ...]]]:
    """Return the schema of all arguments, and the path of each mirrored property by header in lower case."""
    properties: dict[str, JSON] = {
        one.name: compiled_types.document_schema(one.compiled_type, one.default, one.description, defs)
        for one in parameters
    }
    if len(properties) < len(parameters):
        raise SignatureError("two parameters have the same name on the wire")
    required = [one.name for one in parameters if one.required]
    schema: dict[str, JSON] = {"type": "object", "properties": properties}
    schema |= ({"required": required} if required else {}) | {"additionalProperties": False}
    # A header may be on a field of a class, and no reference may come before it (HDR-12).
    schema = attach_definitions(schema, defs)
    if f'"{HEADER_KEYWORD}"'.encode() in msgspec.json.encode(schema.get("$defs")):
        schema = inline_definitions(schema)
    try:
        return schema, headers.find_annotations(schema)
    except ValueError as error:
        for one in parameters:
            part = attach_definitions({"properties": {one.name: schema["properties"][one.name]}}, defs)
            try:
                headers.find_annotations(part)
            except ValueError as cause:
                raise SignatureError(f"parameter `{one.field}`: {cause}", hint=_HEADER_HINT) from cause
        raise SignatureError(str(error)) from error  # two parameters have the same header


def _make_default(parameter: Parameter) -> tuple[Any, ...]:
    """Return the default of a parameter for `defstruct`; mutable ones are copied for each call."""
    if parameter.required:
        return ()
    factory, default = parameter.factory, parameter.default
    if factory is None and type(default) in {list, dict, set, bytearray}:
        factory = functools.partial(copy, default)
    return (default if factory is None else msgspec.field(default_factory=factory),)


MAX_VALIDATOR_MESSAGE: Final = 500
"""Characters of a validator's message that are sent: it may contain keys of the caller."""


class RawSchemaFunction(BoundFunction):
    """A function that takes one dict, checked by a schema, and perhaps a context.

    Raises `MCPError` if jsonschema-rs is not installed, `TypeError` or `ValueError` for the schema, and
    `SignatureError` for the function.
    """

    def __init__(
        self, fn: Callable[..., Any], schema: dict[str, JSON], *, context_types: tuple[type, ...], name: str
    ) -> None:
        self._iter_errors = schema_parts.compile_validator(
            schema, f"the input schema of {name!r}"
        ).iter_errors
        if schema.get("type") != "object":
            raise ValueError(f'the input schema of {name!r} must have "type": "object" at its root')
        try:
            header_parameters = headers.find_annotations(schema)
        except ValueError as error:
            raise ValueError(f"the input schema of {name!r}: {error}") from error
        super().__init__(fn, context_types=context_types, name=name)
        if len(self.parameters) != 1:
            raise SignatureError(
                f"`{name}`: the function must take one dict, not {len(self.parameters)} arguments",
                hint=f"write {name}(arguments: dict) or {name}(arguments: dict, ctx: Context)",
            )
        field = self.parameters[0].field
        self.to_keywords = lambda arguments: {field: arguments}
        self.header_parameters = header_parameters
        self._can_call_positionally = False

    def read(self, raw: Raw | bytes | Unset) -> dict[str, JSON]:
        """Return the arguments, or raise `ArgumentError`; `InvalidParams` if they are not an object."""
        arguments = decode_arguments(raw)
        issues = [
            ValidationIssue(format_path(error.instance_path), shorten(error.message, MAX_VALIDATOR_MESSAGE))
            for error in islice(self._iter_errors(arguments), MAX_ISSUES)
        ]
        if issues:
            raise errors.ArgumentError(issues)
        return arguments
