"""How a function becomes something that a peer can call: its signature is the schema.

`bind` surveys a signature once, at registration, and refuses what cannot work. A `BoundFunction` reads the
arguments of a call, and calls. Knows nothing of tools, prompts, results, threads or loops.

PART arguments: One argument of a call, read from JSON or from a string; and if it does not fit, why.

What a type accepts is read first. Only after that has failed is it read as what some callers send instead:
JSON in a string, or 2.0 for 2. Knows neither functions nor which arguments there are.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import asdict, astuple

from toolpost.errors import InvalidParams
from toolpost.json_schema import MAX_ISSUES, Schema, ValidationIssue, explain_mismatch
from toolpost.protocol import headers
from toolpost.protocol.jsonrpc import shorten
from toolpost.server.signature import docstrings
from toolpost.server.signature.compiled_types import CompiledType, convert_value, dec_hook, document_schema
from toolpost.server.signature.names import UNION_TYPES, AnnotationScope, describe_type, unwrap_layers
from toolpost.server.signature.pydantic_types import is_pydantic_field
from toolpost.server.signature.schema_builder import (
    HEADER_KEYWORD,
    attach_definitions,
    can_accept,
    inline_refs,
)
from toolpost.server.signature.type_compiler import TypeCompiler
from toolpost.server.signature.validation import (
    ArgumentError,
    SignatureError,
    ValidationError,
    parse_issues,
    prefix_signature_errors,
)
from toolpost.types.base import JSON, Unset

if TYPE_CHECKING:
    from toolpost.server.elicitation.ask import AskedParameter, AskPlan

DECODE_ERRORS: Final = (msgspec.DecodeError, TypeError, RecursionError)
"""What reading raises; a TypeError comes from a set whose items cannot be hashed."""
MAX_EXACT_FLOAT: Final = 2.0**53
"""Up to here a float says exactly which integer it is."""


def decode_json_argument(raw: Raw, shape: CompiledType, defs: Schema, path: str) -> Any:
    """The value of a type in a piece of JSON.

    Args:
        raw: the JSON.
        shape: the type.
        defs: what the references in its schema refer to.
        path: where it stands, for the text of an error.

    Raises:
        ValidationError: it does not fit.
    """
    fault: Exception | None = None
    for reading in _iter_interpretations(raw, takes_text=can_accept(shape.schema, "string", defs)):
        try:
            return msgspec.json.decode(reading, type=shape.type, dec_hook=dec_hook)
        except DECODE_ERRORS as error:
            fault = fault or error
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:  # a number that no Python has
        raise ValidationError(parse_issues(error, path)) from fault
    raise _make_validation_error(value, shape, defs, path, cast("Exception", fault))


def decode_string_argument(value: JSON, shape: CompiledType, defs: Schema, path: str) -> Any:
    """The value of a type in a string, or in the list of strings that a URI template may find.

    A string stays one where the type takes it. Elsewhere "3" is a number, "true" a boolean, and lists and
    objects are JSON.

    Raises:
        ValidationError: it does not fit.
    """
    text = isinstance(value, str)
    strict = text and can_accept(shape.schema, "string", defs)
    try:
        return msgspec.convert(value, shape.type, strict=strict, dec_hook=dec_hook)
    except DECODE_ERRORS as error:
        if text and not strict:
            with suppress(*DECODE_ERRORS):
                return msgspec.json.decode(value, type=shape.type, dec_hook=dec_hook)
        raise _make_validation_error(value, shape, defs, path, error) from error


def _make_validation_error(
    value: JSON, shape: CompiledType, defs: Schema, path: str, fault: Exception
) -> ValidationError:
    told = islice(explain_mismatch(value, shape.schema, defs, path), MAX_ISSUES)
    return ValidationError([*told] or parse_issues(fault, path))


def _iter_interpretations(raw: Raw, *, takes_text: bool) -> Iterator[Raw | bytes]:
    """The ways to read an argument: as it was sent, as the JSON in a string, and with 2 where it says 2.0."""
    yield raw
    with suppress(msgspec.DecodeError, RecursionError):
        value = msgspec.json.decode(raw)
        if isinstance(value, str) and not takes_text:
            text = value.encode()
            yield text
            value = msgspec.json.decode(text)
        yield msgspec.json.encode(_normalize_integers(value))


def _normalize_integers(value: JSON) -> JSON:
    """The value with each whole float as an integer, which to JSON is the same."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MAX_EXACT_FLOAT else value
    if isinstance(value, list):
        return [_normalize_integers(item) for item in cast("list[JSON]", value)]
    if isinstance(value, dict):
        return {name: _normalize_integers(item) for name, item in cast("dict[str, JSON]", value).items()}
    return value


# --------------------------------------------------------------------- bind

T = TypeVar("T")
Arguments: TypeAlias = Struct
"""What `BoundFunction.read` makes and `BoundFunction.call` takes: one field per argument."""
HeaderParameters: TypeAlias = dict[str, tuple[str, ...]]
"""Headers in lower case, and the paths of the properties that they mirror."""

_EMPTY: Final = inspect.Parameter.empty
_VARIADIC_PREFIXES: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_MUTABLE_TYPES: Final = frozenset({list, dict, set, bytearray})
_SCALAR_TYPES: Final = frozenset({bool, int, float, str})
_RECEIVER_NAMES: Final = frozenset({"self", "cls"})
_MEMBERS_DECODER: Final = msgspec.json.Decoder(dict[str, Raw])


class Parameter(Struct, frozen=True):
    """One argument of a function. `name` is its name on the wire, `field` the one in Python."""

    name: str
    field: str
    required: bool
    annotation: Any
    compiled_type: CompiledType
    description: str | None = None
    default: Any = UNSET
    """What the function gets if it is not sent; UNSET if it must be, or if `factory` makes it."""
    factory: Callable[[], Any] | None = None


# --------------------------------------------------------------------- at registration


def bind(
    fn: Callable[..., Any],
    *,
    context_types: tuple[type, ...] = (),
    hidden: Container[str] = (),
    name: str | None = None,
) -> "BoundFunction":
    """The function, ready to be called with arguments in JSON.

    Args:
        fn: any callable: a function, a method, a partial, an object with `__call__`. What a partial has set
            by keyword is no argument any more.
        context_types: a parameter of one of these types gets the context of the call and is no argument. The
            first is what async functions get, the last what the others get.
        hidden: names of parameters that are no arguments either, because `BoundFunction.call` is handed them.
        name: how it is called; like the function if not given.

    Raises:
        SignatureError: its signature cannot work; the text names the parameter.
    """
    if not callable(fn):
        hint = f"use name={fn!r}" if isinstance(fn, str) else "give a function"
        raise SignatureError(f"{fn!r} cannot be called", hint=hint)
    chain = list(unwrap_layers(fn))
    name = name or _find_name(chain)
    with prefix_signature_errors(f"`{name}`"):
        return BoundFunction(fn, name, chain, context_types, hidden)


def _find_name(chain: list[Any]) -> str:
    named = next(layer for layer in chain if not isinstance(layer, functools.partial))
    name = named.__name__ if hasattr(named, "__name__") else type(named).__name__
    if not name.isidentifier():
        raise SignatureError(f"a function called `{name}` needs a name", hint="give one with name=")
    return name


def _find_docstring(chain: list[Any]) -> str | None:
    """The docstring: of a function before that of the class of an object which is called."""
    written = [layer.__doc__ for layer in chain if inspect.isroutine(layer) and layer.__doc__]
    classes = [layer.__doc__ for layer in chain if not isinstance(layer, functools.partial)]
    return next(iter(written + classes), None)


def _inspect_signature(fn: Callable[..., Any]) -> inspect.Signature:
    made = type(fn).__call__
    if any(inspect.isgeneratorfunction(it) or inspect.isasyncgenfunction(it) for it in (fn, made)):
        raise SignatureError("a generator cannot be called for a result", hint="return a list")
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise SignatureError(f"it has no signature: {error}") from error


def _refuse_method(signature: inspect.Signature, written: Any) -> None:
    """Return unless a function was written as a method, and nobody would hand it the object."""
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


def _check_default(default: Any, shape: CompiledType) -> None:
    """Return if a default fits, as far as JSON can say it. None fits everywhere, as authors are used to."""
    if default is None or type(default) is shape.type or type(default) not in _SCALAR_TYPES:
        return
    try:
        convert_value(default, shape.type)
    except ValidationError as error:
        said = shorten(repr(default))
        raise SignatureError(
            f"the default {said} does not fit: {error}", hint="change one or the other"
        ) from error


def _is_context_type(annotation: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a parameter is for the context, also one that is optional or annotated."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_context_type(args[0], kinds)
    if origin in UNION_TYPES:
        return any(_is_context_type(arg, kinds) for arg in args)
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, kinds)


def _is_context_parameter(annotation: Any, kinds: tuple[type, ...], *, is_async: bool) -> bool:
    """Whether a parameter gets the context: the one that the annotation, and so the editor, promises.

    Raises:
        SignatureError: it promises another one.
    """
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


def _find_asked_parameter(annotation: Any, default: Any) -> "AskedParameter | None":
    """What a parameter is asked for with; None if it is not."""
    if (
        "toolpost.server.elicitation.ask" not in sys.modules
    ):  # nobody can have written `Ask`: 1.2 ms less, with `result_templates`
        return None
    from toolpost.server.elicitation.ask import parse_asked_parameter  # noqa: PLC0415 - see above

    return parse_asked_parameter(annotation, default)


# --------------------------------------------------------------------- for a call


class BoundFunction:
    """A function whose arguments come as JSON. Made by `bind`.

    Attributes:
        fn: the function.
        name: how it is called.
        summary: its docstring without the part about parameters.
        is_async: whether a call has to be awaited.
        parameters: its arguments, in the order of the signature.
        context: the name of the parameter that gets the context of a call; None if it has none.
        ask_plan: how the parameters are found out that are asked for; None if there are none.
        input_schema: the JSON Schema of its arguments.
        header_parameters: those that HTTP headers mirror: header in lower case → path of property names.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        chain: list[Any],
        context_types: tuple[type, ...],
        hidden: Container[str],
    ) -> None:
        self.fn = fn
        self.name = name
        self.is_async = any(map(inspect.iscoroutinefunction, chain))
        about = docstrings.parse_docstring(_find_docstring(chain))
        self.summary = about.summary
        self.context: str | None = None
        self._asked_parameters: dict[str, AskedParameter] = {}
        scope = AnnotationScope(fn)
        survey = TypeCompiler(scope)
        signature = _inspect_signature(fn)
        _refuse_method(signature, chain[-1])
        partials = [layer.keywords for layer in chain if isinstance(layer, functools.partial)]
        parameters: list[Parameter] = []
        for it in signature.parameters.values():
            if it.name not in hidden and not any(it.name in keywords for keywords in partials):
                with prefix_signature_errors(f"parameter `{it.name}`"):
                    parameters += self._bind_parameter(it, scope, survey, context_types, about.parameters)
        self.parameters = tuple(parameters)
        self.ask_plan: AskPlan | None = None
        if self._asked_parameters:
            from toolpost.server.elicitation import ask  # noqa: PLC0415 - as in `_wanted`

            names = [parameter.field for parameter in parameters]
            self.ask_plan = ask.AskPlan(
                self._asked_parameters,
                names,
                lambda annotation, is_async: _is_context_parameter(
                    annotation, context_types, is_async=is_async
                ),
            )
        self.input_schema, self.header_parameters = _build_input_schema(self.parameters, survey.defs)
        self._defs = survey.defs
        kinds = {it.name: it.kind for it in signature.parameters.values()}
        self._positional = [one for one, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
        in_order = inspect.Parameter.KEYWORD_ONLY not in kinds.values()
        self._can_call_positionally = in_order and len(parameters) == len(kinds)
        self._arguments: type[Arguments] | None = None
        self._decode: Callable[[bytes | Raw], Arguments] | None = None

    def _bind_parameter(
        self,
        it: inspect.Parameter,
        scope: AnnotationScope,
        survey: TypeCompiler,
        context_types: tuple[type, ...],
        described: Mapping[str, str],
    ) -> Iterator[Parameter]:
        """The argument that a parameter is; nothing if it is for the context, or asked for."""
        if it.kind in _VARIADIC_PREFIXES:
            raise SignatureError(
                f"a schema cannot name what goes into `{_VARIADIC_PREFIXES[it.kind]}{it.name}`",
                hint="take a list, or a dict, as one parameter",
            )
        annotation = Any if it.annotation is _EMPTY else scope.evaluate(it.annotation)
        if _is_context_parameter(annotation, context_types, is_async=self.is_async):
            if self.context is not None:
                raise SignatureError(f"`{self.context}` gets the context already")
            self.context = it.name
            return
        wanted = _find_asked_parameter(annotation, it.default)
        if wanted is not None:
            self._asked_parameters[it.name] = wanted
            return
        default, factory, alias = it.default, None, None
        if is_pydantic_field(default):
            annotation, default = Annotated[annotation, default], _EMPTY
        if get_origin(annotation) is Annotated:
            from toolpost.server.signature.annotations import read_annotation_metadata  # noqa: PLC0415 - 0.3 ms of a start

            marks = read_annotation_metadata(get_args(annotation)[1:])
            alias = marks.alias
            if default is _EMPTY and marks.optional:
                default, factory = marks.default, marks.factory
        shape = survey.compile_type(annotation)
        if default is not _EMPTY and factory is None:
            _check_default(default, shape)
        yield Parameter(
            alias or it.name,
            it.name,
            required=default is _EMPTY,
            annotation=annotation,
            compiled_type=shape,
            description=shape.schema.get("description") or described.get(it.name),
            default=UNSET if default is _EMPTY else default,
            factory=factory,
        )

    def read(self, raw: Raw | bytes | Unset) -> Arguments:
        """The arguments in a JSON object; absent JSON is an empty one.

        What the schema accepts is read, and nothing else, but for this:

        - Where no string fits, JSON in a string is understood, after the plain value has failed. Some models
          send it.
        - A set takes an item twice. A struct with a tag needs it only in a union. Null counts as absent where
          a header mirrors the parameter. Pydantic's types convert as pydantic does.
        - Formats, predicates, limits of dates and decimals, and what a class checks by itself are refused
          although the schema cannot say so. So is a float beyond 2^53 for an integer.

        Raises:
            ArgumentError: they do not fit.
            InvalidParams: they are no object.
        """
        decode = self._decode or self._build_decoder()
        if raw is UNSET:
            raw = b"{}"
        try:
            return decode(raw)
        except DECODE_ERRORS:
            return self._decode_leniently(raw)

    def read_strings(self, values: Mapping[str, str | JSON]) -> Arguments:
        """The arguments in strings, as prompts and URI templates have them.

        A string stays one where the type takes it. Elsewhere "3" is a number, "true" a boolean, and lists and
        objects are JSON. The lists of strings that a template may find are converted item by item.

        Raises:
            ArgumentError: they do not fit.
        """
        return self._decode_each(values, decode_string_argument)

    def call(self, arguments: Arguments, context: Any = None, **extra: Any) -> Any:
        """What the function returns: an awaitable if it is asynchronous.

        Args:
            arguments: what `read` or `read_strings` made.
            context: for the parameter that wants it.
            extra: for the hidden parameters, by name.
        """
        if self._can_call_positionally:
            return self.fn(*astuple(arguments))
        return self.apply(asdict(arguments) | extra, context)

    def call_json(self, raw: Raw | bytes | Unset) -> Any:
        """What `call` gives for what `read` reads, for a function that wants nothing else: one frame less.

        Raises:
            ArgumentError: the arguments do not fit.
            InvalidParams: they are no object.
        """
        decode = self._decode or self._build_decoder()
        try:
            arguments = decode(b"{}" if raw is UNSET else raw)
        except DECODE_ERRORS:
            arguments = self._decode_leniently(b"{}" if raw is UNSET else raw)
        return self.fn(*astuple(arguments)) if self._can_call_positionally else self.apply(asdict(arguments))

    def to_keywords(self, arguments: Arguments) -> dict[str, Any]:
        """The arguments by the names of their parameters."""
        return asdict(arguments)

    def apply(self, values: dict[str, Any], context: Any = None) -> Any:
        """What the function returns for values under the names of its parameters."""
        if self.context is not None:
            values[self.context] = context
        positional = [values.pop(name) for name in self._positional if name in values]
        return self.fn(*positional, **values)

    def _build_decoder(self) -> Callable[[bytes | Raw], Arguments]:
        """Make what reads the arguments. At the first call: a process that starts needs few of them."""
        fields = [(one.field, one.compiled_type.type, *_make_default(one)) for one in self.parameters]
        names = {one.field: one.name for one in self.parameters}
        self._arguments = msgspec.defstruct(
            "Arguments", cast("Any", fields), kw_only=True, rename=names, forbid_unknown_fields=True
        )
        self._decode = msgspec.json.Decoder(self._arguments, dec_hook=dec_hook).decode
        return self._decode

    def _decode_leniently(self, raw: Raw | bytes) -> Arguments:
        """The arguments, read one by one: where one needs help, or to say what is wrong with each."""
        try:
            members = _MEMBERS_DECODER.decode(raw)
        except DECODE_ERRORS as error:
            if bytes(raw).strip() != b"null":
                raise InvalidParams("the arguments of a call must be a JSON object") from error
            members = {}  # not in the specification, but common, and it can mean only one thing
        return self._decode_each(members, decode_json_argument)

    def _decode_each(
        self, members: Mapping[str, T], read: Callable[[T, CompiledType, Schema, str], Any]
    ) -> Arguments:
        values: dict[str, Any] = {}
        problems: list[ValidationIssue] = []
        for parameter in self.parameters:
            if parameter.name not in members:
                if parameter.required:
                    problems.append(ValidationIssue(parameter.name, "is missing"))
                continue
            try:
                value = members[parameter.name]
                values[parameter.field] = read(value, parameter.compiled_type, self._defs, parameter.name)
            except ValidationError as misfit:
                problems += misfit.issues
        known = [parameter.name for parameter in self.parameters]
        unknown = [headers.quote_value(name) for name in members if name not in known]
        if unknown:
            told = f"not known; known are: {', '.join(known) or 'none'}"
            problems.append(ValidationIssue(", ".join(unknown[:MAX_ISSUES]), told))
        if problems:
            raise ArgumentError(problems)
        if self._arguments is None:
            self._build_decoder()
        return cast("type[Arguments]", self._arguments)(**values)


def _build_input_schema(
    parameters: tuple[Parameter, ...], defs: Schema
) -> tuple[dict[str, JSON], HeaderParameters]:
    """The schema of all arguments, and those of them that headers mirror."""
    properties: dict[str, JSON] = {
        one.name: document_schema(one.compiled_type, one.default, one.description, defs) for one in parameters
    }
    if len(properties) < len(parameters):
        raise SignatureError("two parameters have the same name on the wire")
    required = [one.name for one in parameters if one.required]
    schema: dict[str, JSON] = {"type": "object", "properties": properties}
    schema |= {"required": required} if required else {}
    schema["additionalProperties"] = False
    whole = attach_definitions(schema, defs)
    try:
        return whole, headers.find_annotations(whole)
    except ValueError:
        # A header may be on a field of a class, and no reference may stand before it (HDR-12).
        whole = attach_definitions(inline_refs(schema, defs, HEADER_KEYWORD), defs)
    try:
        return whole, headers.find_annotations(whole)
    except ValueError as error:
        for one in parameters:
            with prefix_signature_errors(f"parameter `{one.field}`"):
                _check_headers(
                    attach_definitions({"properties": {one.name: whole["properties"][one.name]}}, defs)
                )
        raise SignatureError(str(error)) from error  # each is right by itself: it names two


def _check_headers(schema: Schema) -> None:
    """Return if the headers of one parameter can be sent."""
    try:
        headers.find_annotations(schema)
    except ValueError as error:
        raise SignatureError(
            str(error),
            hint="mirror a string, an integer or a boolean that is a parameter or a field of one; "
            "nothing in a list, in a union, or in a class that contains itself",
        ) from error


def _make_default(parameter: Parameter) -> tuple[Any, ...]:
    """The default of a parameter, for `defstruct`. A list is copied: calls must not share one."""
    if parameter.required:
        return ()
    factory, default = parameter.factory, parameter.default
    if factory is None and type(default) in _MUTABLE_TYPES:
        factory = functools.partial(copy, default)
    return (default if factory is None else msgspec.field(default_factory=factory),)
