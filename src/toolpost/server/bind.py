"""How a function becomes something that a peer can call: its signature is the schema.

`bind` surveys a signature once, at registration, and refuses what cannot work. A `Bound` reads the arguments
of a call, and calls. Knows nothing of tools, prompts, results, threads or loops.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import asdict, astuple

from toolpost.errors import InvalidParams
from toolpost.protocol import headers
from toolpost.protocol.jsonrpc import shorten
from toolpost.server import docstring
from toolpost.server.arguments import UNREAD, from_json, from_text
from toolpost.server.guest import is_field
from toolpost.server.problems import MAX_PROBLEMS, ArgumentError, Misfit, Problem, SignatureError, within
from toolpost.server.schema import MIRRORED, Schema, unfolded, with_defs
from toolpost.server.scope import UNIONS, Scope, layers, shown
from toolpost.server.shapes import Shape, dec_hook, documented, fit
from toolpost.server.survey import Survey
from toolpost.types.base import JSON, Unset

if TYPE_CHECKING:
    from toolpost.server.ask import Plan, Wanted

__all__ = ["Bound", "Parameter", "bind"]

T = TypeVar("T")
Arguments: TypeAlias = Struct
"""What `Bound.read` makes and `Bound.call` takes: one field per argument."""
Mirrored: TypeAlias = dict[str, tuple[str, ...]]
"""Headers in lower case, and the paths of the properties that they mirror."""

_EMPTY: Final = inspect.Parameter.empty
_VARIADIC: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_MUTABLE: Final = frozenset({list, dict, set, bytearray})
_PLAIN: Final = frozenset({bool, int, float, str})
_OBJECTS: Final = frozenset({"self", "cls"})
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])


class Parameter(Struct, frozen=True):
    """One argument of a function. `name` is its name on the wire, `field` the one in Python."""

    name: str
    field: str
    required: bool
    annotation: Any
    shape: Shape
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
) -> "Bound":
    """The function, ready to be called with arguments in JSON.

    Args:
        fn: any callable: a function, a method, a partial, an object with `__call__`. What a partial has set
            by keyword is no argument any more.
        context_types: a parameter of one of these types gets the context of the call and is no argument. The
            first is what async functions get, the last what the others get.
        hidden: names of parameters that are no arguments either, because `Bound.call` is handed them.
        name: how it is called; like the function if not given.

    Raises:
        SignatureError: its signature cannot work; the text names the parameter.
    """
    if not callable(fn):
        hint = f"use name={fn!r}" if isinstance(fn, str) else "give a function"
        raise SignatureError(f"{fn!r} cannot be called", hint=hint)
    chain = list(layers(fn))
    name = name or _name(chain)
    with within(f"`{name}`"):
        return Bound(fn, name, chain, context_types, hidden)


def _name(chain: list[Any]) -> str:
    named = next(layer for layer in chain if not isinstance(layer, functools.partial))
    name = named.__name__ if hasattr(named, "__name__") else type(named).__name__
    if not name.isidentifier():
        raise SignatureError(f"a function called `{name}` needs a name", hint="give one with name=")
    return name


def _doc(chain: list[Any]) -> str | None:
    """The docstring: of a function before that of the class of an object which is called."""
    written = [layer.__doc__ for layer in chain if inspect.isroutine(layer) and layer.__doc__]
    classes = [layer.__doc__ for layer in chain if not isinstance(layer, functools.partial)]
    return next(iter(written + classes), None)


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
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
    if first is None or first.name not in _OBJECTS or first.annotation is not _EMPTY:
        return
    if owner and not owner.endswith("<locals>"):
        kind = owner.rpartition(".")[2]
        raise SignatureError(
            f"parameter `{first.name}`: it is a method of {kind}, without an object to be called on",
            hint=f"register the bound method, {kind}(…).{name}",
        )


def _check_default(default: Any, shape: Shape) -> None:
    """Return if a default fits, as far as JSON can say it. None fits everywhere, as authors are used to."""
    if default is None or type(default) is shape.type or type(default) not in _PLAIN:
        return
    try:
        fit(default, shape.type)
    except Misfit as error:
        said = shorten(repr(default))
        raise SignatureError(
            f"the default {said} does not fit: {error}", hint="change one or the other"
        ) from error


def _is_context(annotation: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a parameter is for the context, also one that is optional or annotated."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_context(args[0], kinds)
    if origin in UNIONS:
        return any(_is_context(arg, kinds) for arg in args)
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, kinds)


def _gets_context(annotation: Any, kinds: tuple[type, ...], *, is_async: bool) -> bool:
    """Whether a parameter gets the context: the one that the annotation, and so the editor, promises.

    Raises:
        SignatureError: it promises another one.
    """
    if not _is_context(annotation, kinds):
        return False
    given = kinds[0 if is_async else -1]
    if not _is_context(annotation, (given,)):
        which = "an async function" if is_async else "a function that is not async"
        raise SignatureError(
            f"{which} gets a {given.__name__}, not a {shown(annotation)}",
            hint=f"annotate it as {given.__name__}",
        )
    return True


def _wanted(annotation: Any, default: Any) -> "Wanted | None":
    """What a parameter is asked for with; None if it is not."""
    if "toolpost.server.ask" not in sys.modules:  # nobody can have written `Ask`: 1.2 ms less, with `forms`
        return None
    from toolpost.server.ask import wanted_of  # noqa: PLC0415 - see above

    return wanted_of(annotation, default)


# --------------------------------------------------------------------- for a call


class Bound:
    """A function whose arguments come as JSON. Made by `bind`.

    Attributes:
        fn: the function.
        name: how it is called.
        summary: its docstring without the part about parameters.
        is_async: whether a call has to be awaited.
        parameters: its arguments, in the order of the signature.
        context: the name of the parameter that gets the context of a call; None if it has none.
        asked: how the parameters are found out that are asked for; None if there are none.
        input_schema: the JSON Schema of its arguments.
        annotated: those that HTTP headers mirror: header in lower case → path of property names.
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
        about = docstring.parse(_doc(chain))
        self.summary = about.summary
        self.context: str | None = None
        self._wanted: dict[str, Wanted] = {}
        scope = Scope(fn)
        survey = Survey(scope)
        signature = _signature(fn)
        _refuse_method(signature, chain[-1])
        partials = [layer.keywords for layer in chain if isinstance(layer, functools.partial)]
        parameters: list[Parameter] = []
        for it in signature.parameters.values():
            if it.name not in hidden and not any(it.name in keywords for keywords in partials):
                with within(f"parameter `{it.name}`"):
                    parameters += self._argument(it, scope, survey, context_types, about.parameters)
        self.parameters = tuple(parameters)
        self.asked: Plan | None = None
        if self._wanted:
            from toolpost.server import ask  # noqa: PLC0415 - as in `_wanted`

            names = [parameter.field for parameter in parameters]
            self.asked = ask.Plan(
                self._wanted,
                names,
                lambda annotation, is_async: _gets_context(annotation, context_types, is_async=is_async),
            )
        self.input_schema, self.annotated = _input_schema(self.parameters, survey.defs)
        self._defs = survey.defs
        kinds = {it.name: it.kind for it in signature.parameters.values()}
        self._positional = [one for one, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
        in_order = inspect.Parameter.KEYWORD_ONLY not in kinds.values()
        self._plain = in_order and len(parameters) == len(kinds)
        self._arguments: type[Arguments] | None = None
        self._decode: Callable[[bytes | Raw], Arguments] | None = None

    def _argument(
        self,
        it: inspect.Parameter,
        scope: Scope,
        survey: Survey,
        context_types: tuple[type, ...],
        described: Mapping[str, str],
    ) -> Iterator[Parameter]:
        """The argument that a parameter is; nothing if it is for the context, or asked for."""
        if it.kind in _VARIADIC:
            raise SignatureError(
                f"a schema cannot name what goes into `{_VARIADIC[it.kind]}{it.name}`",
                hint="take a list, or a dict, as one parameter",
            )
        annotation = Any if it.annotation is _EMPTY else scope.evaluate(it.annotation)
        if _gets_context(annotation, context_types, is_async=self.is_async):
            if self.context is not None:
                raise SignatureError(f"`{self.context}` gets the context already")
            self.context = it.name
            return
        wanted = _wanted(annotation, it.default)
        if wanted is not None:
            self._wanted[it.name] = wanted
            return
        default, factory, alias = it.default, None, None
        if is_field(default):
            annotation, default = Annotated[annotation, default], _EMPTY
        if get_origin(annotation) is Annotated:
            from toolpost.server.marks import read_marks  # noqa: PLC0415 - 0.3 ms of a start

            marks = read_marks(get_args(annotation)[1:])
            alias = marks.alias
            if default is _EMPTY and marks.optional:
                default, factory = marks.default, marks.factory
        shape = survey.shape(annotation)
        if default is not _EMPTY and factory is None:
            _check_default(default, shape)
        yield Parameter(
            alias or it.name,
            it.name,
            required=default is _EMPTY,
            annotation=annotation,
            shape=shape,
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
        decode = self._decode or self._prepare()
        if raw is UNSET:
            raw = b"{}"
        try:
            return decode(raw)
        except UNREAD:
            return self._recover(raw)

    def read_strings(self, values: Mapping[str, str | JSON]) -> Arguments:
        """The arguments in strings, as prompts and URI templates have them.

        A string stays one where the type takes it. Elsewhere "3" is a number, "true" a boolean, and lists and
        objects are JSON. The lists of strings that a template may find are converted item by item.

        Raises:
            ArgumentError: they do not fit.
        """
        return self._settle(values, from_text)

    def call(self, arguments: Arguments, context: Any = None, **extra: Any) -> Any:
        """What the function returns: an awaitable if it is asynchronous.

        Args:
            arguments: what `read` or `read_strings` made.
            context: for the parameter that wants it.
            extra: for the hidden parameters, by name.
        """
        if self._plain:
            return self.fn(*astuple(arguments))
        return self.apply(asdict(arguments) | extra, context)

    def call_json(self, raw: Raw | bytes | Unset) -> Any:
        """What `call` gives for what `read` reads, for a function that wants nothing else: one frame less.

        Raises:
            ArgumentError: the arguments do not fit.
            InvalidParams: they are no object.
        """
        decode = self._decode or self._prepare()
        try:
            arguments = decode(b"{}" if raw is UNSET else raw)
        except UNREAD:
            arguments = self._recover(b"{}" if raw is UNSET else raw)
        return self.fn(*astuple(arguments)) if self._plain else self.apply(asdict(arguments))

    def values(self, arguments: Arguments) -> dict[str, Any]:
        """The arguments by the names of their parameters."""
        return asdict(arguments)

    def apply(self, values: dict[str, Any], context: Any = None) -> Any:
        """What the function returns for values under the names of its parameters."""
        if self.context is not None:
            values[self.context] = context
        positional = [values.pop(name) for name in self._positional if name in values]
        return self.fn(*positional, **values)

    def _prepare(self) -> Callable[[bytes | Raw], Arguments]:
        """Make what reads the arguments. At the first call: a process that starts needs few of them."""
        fields = [(one.field, one.shape.type, *_default(one)) for one in self.parameters]
        names = {one.field: one.name for one in self.parameters}
        self._arguments = msgspec.defstruct(
            "Arguments", cast("Any", fields), kw_only=True, rename=names, forbid_unknown_fields=True
        )
        self._decode = msgspec.json.Decoder(self._arguments, dec_hook=dec_hook).decode
        return self._decode

    def _recover(self, raw: Raw | bytes) -> Arguments:
        """The arguments, read one by one: where one needs help, or to say what is wrong with each."""
        try:
            members = _MEMBERS.decode(raw)
        except UNREAD as error:
            if bytes(raw).strip() != b"null":
                raise InvalidParams("the arguments of a call must be a JSON object") from error
            members = {}  # not in the specification, but common, and it can mean only one thing
        return self._settle(members, from_json)

    def _settle(self, members: Mapping[str, T], read: Callable[[T, Shape, Schema, str], Any]) -> Arguments:
        values: dict[str, Any] = {}
        problems: list[Problem] = []
        for parameter in self.parameters:
            if parameter.name not in members:
                if parameter.required:
                    problems.append(Problem(parameter.name, "is missing"))
                continue
            try:
                value = members[parameter.name]
                values[parameter.field] = read(value, parameter.shape, self._defs, parameter.name)
            except Misfit as misfit:
                problems += misfit.problems
        known = [parameter.name for parameter in self.parameters]
        unknown = [headers.show(name) for name in members if name not in known]
        if unknown:
            told = f"not known; known are: {', '.join(known) or 'none'}"
            problems.append(Problem(", ".join(unknown[:MAX_PROBLEMS]), told))
        if problems:
            raise ArgumentError(problems)
        if self._arguments is None:
            self._prepare()
        return cast("type[Arguments]", self._arguments)(**values)


def _input_schema(parameters: tuple[Parameter, ...], defs: Schema) -> tuple[dict[str, JSON], Mirrored]:
    """The schema of all arguments, and those of them that headers mirror."""
    properties: dict[str, JSON] = {
        one.name: documented(one.shape, one.default, one.description, defs) for one in parameters
    }
    if len(properties) < len(parameters):
        raise SignatureError("two parameters have the same name on the wire")
    required = [one.name for one in parameters if one.required]
    schema: dict[str, JSON] = {"type": "object", "properties": properties}
    schema |= {"required": required} if required else {}
    schema["additionalProperties"] = False
    whole = with_defs(schema, defs)
    try:
        return whole, headers.annotations(whole)
    except ValueError:
        # A header may be on a field of a class, and no reference may stand before it (HDR-12).
        whole = with_defs(unfolded(schema, defs, MIRRORED), defs)
    try:
        return whole, headers.annotations(whole)
    except ValueError as error:
        for one in parameters:
            with within(f"parameter `{one.field}`"):
                _check_headers(with_defs({"properties": {one.name: whole["properties"][one.name]}}, defs))
        raise SignatureError(str(error)) from error  # each is right by itself: it names two


def _check_headers(schema: Schema) -> None:
    """Return if the headers of one parameter can be sent."""
    try:
        headers.annotations(schema)
    except ValueError as error:
        raise SignatureError(
            str(error),
            hint="mirror a string, an integer or a boolean that is a parameter or a field of one; "
            "nothing in a list, in a union, or in a class that contains itself",
        ) from error


def _default(parameter: Parameter) -> tuple[Any, ...]:
    """The default of a parameter, for `defstruct`. A list is copied: calls must not share one."""
    if parameter.required:
        return ()
    factory, default = parameter.factory, parameter.default
    if factory is None and type(default) in _MUTABLE:
        factory = functools.partial(copy, default)
    return (default if factory is None else msgspec.field(default_factory=factory),)
