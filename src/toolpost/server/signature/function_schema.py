"""Binds a function so that a peer can call it: the signature is the schema.

`bind` compiles a signature once, at registration, and refuses what cannot work. A `BoundFunction` decodes the
arguments of a call, and calls; a `RawSchemaFunction` checks them against a JSON Schema of the author's.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
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
from toolpost.server.request import decode_arguments
from toolpost.server.signature import inspection
from toolpost.server.signature.compiled_types import (
    DECODE_ERRORS,
    CompiledType,
    convert_value,
    dec_hook,
    decode_json_argument,
    decode_string_argument,
    document_schema,
)
from toolpost.server.signature.errors import (
    ArgumentError,
    SignatureError,
    ValidationError,
    prefix_signature_errors,
)
from toolpost.server.signature.inspection import UNION_TYPES, AnnotationScope, describe_type, unwrap_layers
from toolpost.server.signature.pydantic_types import is_pydantic_field
from toolpost.server.signature.schema_parts import (
    HEADER_KEYWORD,
    attach_definitions,
    compile_validator,
    inline_refs,
)
from toolpost.server.signature.type_compiler import TypeCompiler
from toolpost.types.base import JSON, Unset

if TYPE_CHECKING:
    from toolpost.server.elicitation.ask import AskedParameter, AskPlan

T = TypeVar("T")
Arguments: TypeAlias = Struct
"""The arguments of a call, with a field for each parameter."""

_EMPTY: Final = inspect.Parameter.empty
_VARIADIC_PREFIXES: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_MUTABLE_TYPES: Final = frozenset({list, dict, set, bytearray})
_SCALAR_TYPES: Final = frozenset({bool, int, float, str})
_RECEIVER_NAMES: Final = frozenset({"self", "cls"})
_HEADER_HINT: Final = (
    "mirror a string, an integer or a boolean that is a parameter or a field of one; "
    "nothing in a list, in a union, or in a class that contains itself"
)
_MEMBERS_DECODER: Final = msgspec.json.Decoder(dict[str, Raw] | None)


class Parameter(Struct, frozen=True):
    """One parameter of a function. `name` is its name on the wire, `field` the one in Python."""

    name: str
    field: str
    required: bool
    compiled_type: CompiledType
    description: str | None
    default: Any
    """The default; UNSET if it is required, or if `factory` makes it."""
    factory: Callable[[], Any] | None


# --------------------------------------------------------------------- at registration


def bind(
    fn: Callable[..., Any], *, context_types: tuple[type, ...] = (), name: str | None = None
) -> "BoundFunction":
    """Bind a callable, so that it can be called with arguments in JSON. Raises `SignatureError`.

    A parameter of one of the `context_types` gets the context of the call: the first type if the function is
    async, otherwise the last. Parameters that a partial has set by keyword are not in the schema. `name` is
    the name in texts; that of the function by default.
    """
    if not callable(fn):
        hint = f"use name={fn!r}" if isinstance(fn, str) else "give a function"
        raise SignatureError(f"{fn!r} cannot be called", hint=hint)
    chain = list(unwrap_layers(fn))
    if not name:
        named = next(layer for layer in chain if not isinstance(layer, functools.partial))
        name = str(named.__name__ if hasattr(named, "__name__") else type(named).__name__)
        if not name.isidentifier():
            raise SignatureError(f"a function called `{name}` needs a name", hint="give one with name=")
    with prefix_signature_errors(f"`{name}`"):
        return BoundFunction(fn, name, chain, context_types)


def _find_docstring(chain: list[Any]) -> str | None:
    """Return the docstring of a function before that of the class of an object which is called."""
    written = [layer.__doc__ for layer in chain if inspect.isroutine(layer) and layer.__doc__]
    classes = [layer.__doc__ for layer in chain if not isinstance(layer, functools.partial)]
    return next(iter(written + classes), None)


def _inspect_signature(fn: Callable[..., Any]) -> inspect.Signature:
    layers = (fn, type(fn).__call__)
    if any(inspect.isgeneratorfunction(it) or inspect.isasyncgenfunction(it) for it in layers):
        raise SignatureError("a generator cannot be called for a result", hint="return a list")
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise SignatureError(f"it has no signature: {error}") from error


def _refuse_method(signature: inspect.Signature, written: Any) -> None:
    """Refuse a function that was written as a method and is not bound to an object."""
    owner, _, name = getattr(written, "__qualname__", "").rpartition(".")
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.name not in _RECEIVER_NAMES or first.annotation is not _EMPTY:
        return
    if owner and not owner.endswith("<locals>"):
        kind = owner.rpartition(".")[2]
        raise SignatureError(
            f"parameter `{first.name}`: it is a method of {kind}, without an object to be called on",
            hint=f"register the bound method, {kind}(…).{name}",
        )


def _refuse_variadic(it: inspect.Parameter) -> None:
    if it.kind in _VARIADIC_PREFIXES:
        raise SignatureError(
            f"a schema cannot name what goes into `{_VARIADIC_PREFIXES[it.kind]}{it.name}`",
            hint="take a list, or a dict, as one parameter",
        )


def _parse_asked_parameter(annotation: Any, default: Any) -> "AskedParameter | None":
    ask = sys.modules.get("toolpost.server.elicitation.ask")  # loaded if the author has written `Ask`
    return None if ask is None else ask.parse_asked_parameter(annotation, default)


def _compile_parameter(
    it: inspect.Parameter, annotation: Any, compiler: TypeCompiler, descriptions: Mapping[str, str]
) -> Parameter:
    """Return a parameter that is in the schema."""
    default, factory, alias = it.default, None, None
    if is_pydantic_field(default):
        annotation, default = Annotated[annotation, default], _EMPTY
    if get_origin(annotation) is Annotated:
        from toolpost.server.signature.annotations import read_annotation_metadata  # noqa: PLC0415 - start-up time

        marks = read_annotation_metadata(get_args(annotation)[1:])
        alias = marks.alias
        if default is _EMPTY and marks.optional:
            default, factory = marks.default, marks.factory
    compiled = compiler.compile_type(annotation)
    if default is not _EMPTY and factory is None:
        _check_default(default, compiled)
    description = compiled.schema.get("description") or descriptions.get(it.name)
    required, default = default is _EMPTY, UNSET if default is _EMPTY else default
    return Parameter(alias or it.name, it.name, required, compiled, description, default, factory)


def _check_default(default: Any, compiled: CompiledType) -> None:
    """Check that a default fits, if JSON has it. None fits everywhere, as authors are used to."""
    if default is None or type(default) is compiled.type or type(default) not in _SCALAR_TYPES:
        return
    try:
        convert_value(default, compiled.type)
    except ValidationError as error:
        text = f"the default {shorten(repr(default))} does not fit: {error}"
        raise SignatureError(text, hint="change one or the other") from error


def _is_context_type(annotation: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether a parameter is for the context; it may be optional or annotated."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_context_type(args[0], kinds)
    if origin in UNION_TYPES:
        return any(_is_context_type(arg, kinds) for arg in args)
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, kinds)


def _is_context_parameter(kinds: tuple[type, ...], annotation: Any, is_async: bool) -> bool:
    """Return whether a parameter gets the context; refuse an annotation with the wrong type of context."""
    if not _is_context_type(annotation, kinds):
        return False
    given = kinds[0 if is_async else -1]
    if not _is_context_type(annotation, (given,)):
        which = "an async function" if is_async else "a function that is not async"
        raise SignatureError(
            f"{which} gets a {given.__name__}, not a {describe_type(annotation)}",
            hint=f"annotate it as {given.__name__}",
        )
    return True


# --------------------------------------------------------------------- for a call


class BoundFunction:
    """A function whose arguments come as JSON. Made by `bind`.

    `parameters` are those in the schema, in the order of the signature. `context` is the name of the
    parameter that gets the context of a call, if there is one; `ask_plan` asks the user for the values of
    others. `summary` is the docstring without the part about parameters.
    """

    def __init__(
        self, fn: Callable[..., Any], name: str, chain: list[Any], context_types: tuple[type, ...]
    ) -> None:
        self.fn = fn
        self.name = name
        self.is_async = any(map(inspect.iscoroutinefunction, chain))
        doc = inspection.parse_docstring(_find_docstring(chain))
        self.summary = doc.summary
        self.context: str | None = None
        asked_parameters: dict[str, AskedParameter] = {}
        scope = AnnotationScope(fn)
        compiler = TypeCompiler(scope)
        signature = _inspect_signature(fn)
        _refuse_method(signature, chain[-1])
        gets_context = functools.partial(_is_context_parameter, context_types)
        preset = {name for it in chain if isinstance(it, functools.partial) for name in it.keywords}
        parameters: list[Parameter] = []
        for it in signature.parameters.values():
            if it.name in preset:
                continue
            with prefix_signature_errors(f"parameter `{it.name}`"):
                _refuse_variadic(it)
                annotation = Any if it.annotation is _EMPTY else scope.evaluate(it.annotation)
                if gets_context(annotation, self.is_async):
                    if self.context is not None:
                        raise SignatureError(f"`{self.context}` gets the context already")
                    self.context = it.name
                elif (asked := _parse_asked_parameter(annotation, it.default)) is not None:
                    asked_parameters[it.name] = asked
                else:
                    parameters.append(_compile_parameter(it, annotation, compiler, doc.parameters))
        self.parameters = tuple(parameters)
        self.ask_plan: AskPlan | None = None
        if asked_parameters:
            from toolpost.server.elicitation import ask  # noqa: PLC0415 - start-up time

            names = [parameter.field for parameter in parameters]
            self.ask_plan = ask.AskPlan(asked_parameters, names, gets_context)
        self.input_schema, self.header_parameters = _build_input_schema(self.parameters, compiler.defs)
        self._defs = compiler.defs
        kinds = {it.name: it.kind for it in signature.parameters.values()}
        self._positional = [one for one, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
        in_order = inspect.Parameter.KEYWORD_ONLY not in kinds.values()
        self._can_call_positionally = in_order and len(parameters) == len(kinds)
        self._arguments: type[Arguments] | None = None
        self._decode: Callable[[bytes | Raw], Arguments] | None = None

    def read(self, raw: Raw | bytes | Unset) -> Arguments:
        """Read the arguments in a JSON object; absent JSON is an empty one.

        Values that the schema accepts are read, and no others, with these exceptions:

        - Where no string fits, JSON in a string is understood, because some models send it.
        - A set takes an item twice. A struct with a tag needs it only in a union. Null counts as absent where
          a header mirrors the parameter. Pydantic's types convert as pydantic does.
        - Formats, predicates, limits of dates and decimals, and a class's own checks can refuse more than the
          schema does. So is a float beyond 2^53 refused for an integer.

        Raises:
            ArgumentError: they do not fit.
            InvalidParams: they are not an object.
        """
        decode = self._decode or self._build_decoder()
        if raw is UNSET:
            raw = b"{}"
        try:
            return decode(raw)
        except DECODE_ERRORS:
            return self._decode_leniently(raw)

    def read_strings(self, values: Mapping[str, str | JSON]) -> Arguments:
        """Read the arguments in strings, as prompts and URI templates have them."""
        return self._decode_each(values, decode_string_argument)

    def call(self, arguments: Arguments, context: Any = None, **extra: Any) -> Any:
        """Call the function; returns an awaitable if it is async. `extra` are the parameters asked for."""
        if self._can_call_positionally:
            return self.fn(*astuple(arguments))
        if self._positional or extra or self.context is None:
            return self.apply(asdict(arguments) | extra, context)
        return self.fn(**asdict(arguments), **{self.context: context})

    def to_keywords(self, arguments: Arguments) -> dict[str, Any]:
        """Return the arguments by the names of their parameters."""
        return asdict(arguments)

    def apply(self, values: dict[str, Any], context: Any = None) -> Any:
        """Call the function with values by the names of its parameters."""
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
        self._decode = msgspec.json.Decoder(self._arguments, dec_hook=dec_hook).decode
        return self._decode

    def _decode_leniently(self, raw: Raw | bytes) -> Arguments:
        """Read the arguments one by one, to help where one needs it, or to explain each that does not fit."""
        try:
            members: dict[str, Raw] = _MEMBERS_DECODER.decode(raw) or {}  # null is wrong, but common
        except DECODE_ERRORS as error:
            raise InvalidParams("the arguments of a call must be a JSON object") from error
        return self._decode_each(members, decode_json_argument)

    def _decode_each(
        self, members: Mapping[str, T], read: Callable[[T, CompiledType, Schema, str], Any]
    ) -> Arguments:
        values: dict[str, Any] = {}
        issues: list[ValidationIssue] = []
        for parameter in self.parameters:
            if parameter.name not in members:
                if parameter.required:
                    issues.append(ValidationIssue(parameter.name, "is missing"))
                continue
            try:
                value = members[parameter.name]
                values[parameter.field] = read(value, parameter.compiled_type, self._defs, parameter.name)
            except ValidationError as error:
                issues += error.issues
        known = [parameter.name for parameter in self.parameters]
        unknown = [headers.quote_value(name) for name in members if name not in known]
        if unknown:
            text = f"not known; known are: {', '.join(known) or 'none'}"
            issues.append(ValidationIssue(", ".join(unknown[:MAX_ISSUES]), text))
        if issues:
            raise ArgumentError(issues)
        if self._arguments is None:
            self._build_decoder()
        assert self._arguments is not None
        return self._arguments(**values)


def _build_input_schema(
    parameters: tuple[Parameter, ...], defs: Schema
) -> tuple[dict[str, JSON], dict[str, tuple[str, ...]]]:
    """Return the schema of all arguments; and headers in lower case with the properties that they mirror."""
    properties: dict[str, JSON] = {
        one.name: document_schema(one.compiled_type, one.default, one.description, defs) for one in parameters
    }
    if len(properties) < len(parameters):
        raise SignatureError("two parameters have the same name on the wire")
    required = [one.name for one in parameters if one.required]
    schema: dict[str, JSON] = {"type": "object", "properties": properties}
    schema |= ({"required": required} if required else {}) | {"additionalProperties": False}
    # A header may be on a field of a class, and no reference may stand before it (HDR-12).
    schema = attach_definitions(inline_refs(schema, defs, HEADER_KEYWORD), defs)
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
    """Return the default of a parameter for `defstruct`. Lists are copied: calls must not share one."""
    if parameter.required:
        return ()
    factory, default = parameter.factory, parameter.default
    if factory is None and type(default) in _MUTABLE_TYPES:
        factory = functools.partial(copy, default)
    return (default if factory is None else msgspec.field(default_factory=factory),)


# --------------------------------------------------------------------- schemas of authors

MAX_VALIDATOR_MESSAGE: Final = 500
"""Characters of a validator's message that are repeated: it may name keys, which the caller chose."""


class RawSchemaFunction:
    """A function that takes one dict, checked by a schema, and a context if it asks for one by annotation.

    Raises `MCPError` if jsonschema-rs is not installed, `TypeError` or `ValueError` for the schema, and
    `SignatureError` for the function.
    """

    def __init__(
        self, fn: Callable[..., Any], schema: dict[str, JSON], *, context_types: tuple[type, ...], name: str
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
